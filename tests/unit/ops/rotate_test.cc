// Rotations by given cosines and sines, tokens with several coordinates, xPos.
#include <heed/rotary.h>
#include <heed/tensor.h>

#include "support/random.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <string>

namespace heed {
namespace {

Tensor random_tensor(const Shape& shape, std::uint64_t seed) {
    Tensor x(DType::f64, shape);
    testing::Random random(seed);
    for (std::int64_t n = 0; n < x.elements(); ++n) { x.as<double>()[n] = random.normal(); }
    return x;
}
double most_apart(const Tensor& a, const Tensor& b) {
    double most = 0;
    for (std::int64_t n = 0; n < a.elements(); ++n) {
        most = std::max(most, std::abs(a.as<double>()[n] - b.as<double>()[n]));
    }
    return most;
}
Tensor counting(std::int64_t count, std::int64_t first = 0) {
    Tensor x(DType::i64, {count});
    for (std::int64_t n = 0; n < count; ++n) { x.as<std::int64_t>()[n] = first + n; }
    return x;
}

TEST(Rotate, TablesOfFrequenciesAreRope) {
    Context context(1);
    const Tensor x = random_tensor({2, 3, 11, 10}, 1);
    for (const Pairing pairing : {Pairing::halves, Pairing::interleaved}) {
        const RopeTable table = rope_table({.size = 8, .pairing = pairing});
        Tensor cosine(DType::f64, {20, 4}), sine(DType::f64, {20, 4});
        const Tensor places = counting(20);
        rotary_tables(context, cosine, sine, {{table, places}});
        Tensor expected(DType::f64, x.shape()), got(DType::f64, x.shape());
        rope(context, x, expected, table, {.first = 5});
        const Tensor positions = counting(11, 5);
        rotate(context, x, got, {.cosine = cosine, .sine = sine, .pairing = pairing, .positions = positions});
        EXPECT_LE(most_apart(got, expected), 1e-14);
        // A row for each token instead of positions, and in place.
        Tensor again = Tensor::copy_of(x);
        rotate(context, again, again,
               {.cosine = View(cosine).slice(0, 5, 16), .sine = View(sine).slice(0, 5, 16), .pairing = pairing});
        EXPECT_EQ(most_apart(again, got), 0);
    }
}

TEST(Rotate, NarrowTypesAreRotatedInFloat) {
    const Tensor x = random_tensor({2, 3, 40, 12}, 10), cosine = random_tensor({2, 40, 5}, 11);
    const Tensor sine = random_tensor({2, 40, 5}, 12);
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
        const Tensor narrow = x.to(dtype);
        for (const Pairing pairing : {Pairing::halves, Pairing::interleaved}) {
            Context one(1), several(5);
            Tensor expected(DType::f64, x.shape()), same(dtype, x.shape()), wide(DType::f32, x.shape());
            rotate(one, narrow.to(DType::f64), expected, {.cosine = cosine, .sine = sine, .pairing = pairing});
            rotate(one, narrow, same, {.cosine = cosine, .sine = sine, .pairing = pairing});
            rotate(several, narrow, wide, {.cosine = cosine, .sine = sine, .pairing = pairing});
            EXPECT_LE(most_apart(wide.to(DType::f64), expected), 1e-5);
            EXPECT_LE(most_apart(same.to(DType::f64), expected), dtype == DType::bf16 ? 0.1 : 1e-2);
        }
    }
}

TEST(Rotate, BackwardIsTheTranspose) {
    Context context(1);
    const Tensor x = random_tensor({2, 2, 5, 7}, 2), dout = random_tensor({2, 2, 5, 7}, 3);
    const Tensor cosine = random_tensor({2, 5, 3}, 4), sine = random_tensor({2, 5, 3}, 5);
    for (const Pairing pairing : {Pairing::halves, Pairing::interleaved}) {
        Tensor out(DType::f64, x.shape()), dx(DType::f64, x.shape());
        const Rotations by{.cosine = cosine, .sine = sine, .pairing = pairing};
        rotate(context, x, out, by);
        rotate_backward(context, dout, dx, by);
        double forth = 0, back = 0;
        for (std::int64_t n = 0; n < x.elements(); ++n) {
            forth += out.as<double>()[n] * dout.as<double>()[n];
            back += x.as<double>()[n] * dx.as<double>()[n];
        }
        EXPECT_NEAR(forth, back, 1e-12);
        EXPECT_GT(std::abs(forth), 1e-3);
    }
}

TEST(Rotate, ScoresOfAxialRotationDependOnBothDistances) {
    Context context(1);
    const RopeTable table = rope_table({.size = 4, .theta = 10});
    // Tokens of a 4 x 4 grid; the same query and key everywhere.
    Tensor rows(DType::i64, {16}), columns(DType::i64, {16});
    for (std::int64_t n = 0; n < 16; ++n) {
        rows.as<std::int64_t>()[n] = n / 4;
        columns.as<std::int64_t>()[n] = n % 4;
    }
    Tensor cosine(DType::f64, {16, 4}), sine(DType::f64, {16, 4});
    rotary_tables(context, cosine, sine, {{table, rows}, {table, columns}});
    const Tensor q1 = random_tensor({1, 1, 1, 8}, 6), k1 = random_tensor({1, 1, 1, 8}, 7);
    const auto everywhere = [&](const Tensor& one) {
        Tensor all(DType::f64, {1, 1, 16, 8});
        for (std::int64_t n = 0; n < all.elements(); ++n) { all.as<double>()[n] = one.as<double>()[n % 8]; }
        rotate(context, all, all, {.cosine = cosine, .sine = sine});
        return all;
    };
    const Tensor q = everywhere(q1), k = everywhere(k1);
    const auto score = [&](std::int64_t i, std::int64_t j) {
        double sum = 0;
        for (std::int64_t c = 0; c < 8; ++c) { sum += q.as<double>()[i * 8 + c] * k.as<double>()[j * 8 + c]; }
        return sum;
    };
    EXPECT_NEAR(score(0, 6), score(9, 15), 1e-12);  // (1,2) away
    EXPECT_GT(std::abs(score(0, 6) - score(0, 9)), 1e-3);
}

TEST(Rotate, XposScoresFallOffWithTheDistanceAlone) {
    Context context(1);
    const RopeTable table = rope_table({.size = 4});
    const Tensor places = counting(600);
    std::array<Tensor, 2> cosine = {Tensor(DType::f64, {600, 2}), Tensor(DType::f64, {600, 2})};
    std::array<Tensor, 2> sine = {Tensor(DType::f64, {600, 2}), Tensor(DType::f64, {600, 2})};
    for (const bool keys : {false, true}) {
        const std::size_t n = keys ? 1 : 0;
        rotary_tables(context, cosine[n], sine[n], {{table, places}}, Xpos{.keys = keys});
    }
    // The size of pair i of a query times that of a key: z^((p_q - p_k) / 512).
    const auto size = [&](std::size_t which, std::int64_t position, std::int64_t pair) {
        return std::hypot(cosine[which].as<double>()[position * 2 + pair],
                          sine[which].as<double>()[position * 2 + pair]);
    };
    for (const std::int64_t pair : {0, 1}) {
        const double z = (static_cast<double>(pair) / 2 + 0.4) / 1.4;
        EXPECT_NEAR(size(0, 599, pair) * size(1, 87, pair), z, 1e-12);
        EXPECT_NEAR(size(0, 512, pair) * size(1, 0, pair), z, 1e-12);
        EXPECT_NEAR(size(0, 300, pair) * size(1, 300, pair), 1, 1e-12);
    }
}

TEST(Rotate, WrongCallsAreRefused) {
    Context context(1);
    const Tensor x = random_tensor({2, 1, 5, 6}, 8), table = random_tensor({9, 3}, 9);
    Tensor out(DType::f64, x.shape());
    const auto message = [&](const Rotations& by) -> std::string {
        try {
            rotate(context, x, out, by);
        } catch (const Error& error) { return error.what(); }
        return "no error";
    };
    const Tensor wide = random_tensor({5, 4}, 9);
    EXPECT_EQ(message({.cosine = table}), "[rotate] sine: expected a tensor, got none");
    EXPECT_EQ(message({.cosine = table, .sine = table}), "[rotate] cosine: expected [5,n] or [2,5,n], got [9, 3]");
    EXPECT_EQ(message({.cosine = wide, .sine = wide}), "[rotate] cosine: expected 1 to 3 pairs, got 4");
    const Tensor far = counting(5, 5);
    EXPECT_EQ(message({.cosine = table, .sine = table, .positions = far}),
              "[rotate] positions: expected 0 to 8, got 9");
}

}  // namespace
}  // namespace heed
