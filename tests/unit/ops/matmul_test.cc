#include <heed/matmul.h>

#include "unit/ops/op_testing.h"

namespace heed::testing {
namespace {

/// [...] of a, b and c as doubles, by the definition, for tensors [L0,L1,M,K], [L0,L1,K,N], [L0,L1,M,N].
Tensor expected(const View& a, const View& b, const View& before, double alpha, double beta) {
    Tensor c(DType::f64, before.shape());
    const auto at = [](const View& x, std::int64_t i, std::int64_t j, std::int64_t m, std::int64_t n) {
        return get(x, (((x.extent(0) == 1 ? 0 : i) * x.extent(1) + (x.extent(1) == 1 ? 0 : j)) * x.extent(2) + m) *
                              x.extent(3) +
                          n);
    };
    const std::int64_t outer = std::max(a.extent(0), b.extent(0)), inner = std::max(a.extent(1), b.extent(1));
    for (std::int64_t i = 0; i < outer; ++i) {
        for (std::int64_t j = 0; j < inner; ++j) {
            for (std::int64_t m = 0; m < a.extent(2); ++m) {
                for (std::int64_t n = 0; n < b.extent(3); ++n) {
                    const std::int64_t to =
                        (((c.shape()[0] == 1 ? 0 : i) * c.shape()[1] + (c.shape()[1] == 1 ? 0 : j)) * a.extent(2) + m) *
                            b.extent(3) +
                        n;
                    for (std::int64_t k = 0; k < a.extent(3); ++k) {
                        c.as<double>()[to] += alpha * at(a, i, j, m, k) * at(b, i, j, k, n);
                    }
                }
            }
        }
    }
    for (std::int64_t n = 0; beta != 0 && n < c.elements(); ++n) { c.as<double>()[n] += beta * get(before, n); }
    return c;
}

double tolerance_of(DType dtype, std::int64_t depth) {
    // Partial sums grow as sqrt(K), and so does the sum of their roundings: eps * K, twice for room.
    const double sum = 1.2e-7 * static_cast<double>(depth) + 3e-7;
    switch (dtype) {
        case DType::f64: return 1e-13 * std::sqrt(static_cast<double>(depth));
        case DType::bf16: return sum + 0x1p-8;
        case DType::f16: return sum + 0x1p-11;
        default: return sum;
    }
}

TEST(Matmul, SizesAroundEveryBlock) {
    Context context(2);
    for (const std::int64_t rows : {1, 5, 13, 97}) {
        for (const std::int64_t columns : {1, 17, 64, 130, 257}) {
            for (const std::int64_t depth : {1, 7, 300}) {
                const Tensor a = random(DType::f32, {1, 1, rows, depth}, 1),
                             b = random(DType::f32, {1, 1, depth, columns}, 2);
                Tensor c(DType::f32, {1, 1, rows, columns});
                for (std::int64_t n = 0; n < c.elements(); ++n) { set(c, n, std::nan("")); }
                matmul(context, a, b, c);
                expect_near(c, expected(a, b, c, 1, 0), tolerance_of(DType::f32, depth),
                            to_string(Shape{rows, columns, depth}));
                if (HasFatalFailure()) { return; }
            }
        }
    }
}

TEST(Matmul, TypesTransposesAndScattered) {
    Context context(1);
    const DType types[] = {DType::f32, DType::bf16, DType::f16, DType::f64};
    for (const DType of_a : types) {
        for (const DType of_b : types) {
            for (const DType of_c : types) {
                if (of_a != of_b && of_c != DType::f32) { continue; }
                const Tensor a = random(of_a, {1, 2, 30, 41}, 1), b = random(of_b, {1, 2, 41, 70}, 2);
                const Tensor a_turned = random(of_a, {1, 2, 41, 30}, 1), b_turned = random(of_b, {1, 2, 70, 41}, 2);
                const Scattered a_far(a), b_far(b);
                Scattered c_far(of_c, {1, 2, 30, 70});
                const View as[] = {a, a_turned.view().permute({0, 1, 3, 2}), a_far.view};
                const View bs[] = {b, b_turned.view().permute({0, 1, 3, 2}), b_far.view};
                Tensor c(of_c, {1, 2, 30, 70});
                const DType least = of_a == DType::f64 || of_b == DType::f64 || of_c == DType::f64 ? of_c : DType::f32;
                const double tolerance = std::max(tolerance_of(of_c, 41), tolerance_of(least, 41));
                for (const View& x : as) {
                    for (const View& y : bs) {
                        const Tensor truth = expected(x, y, c, 0.5, 0);
                        matmul(context, x, y, c, {.alpha = 0.5});
                        expect_near(c, truth, tolerance);
                        matmul(context, x, y, c_far.view, {.alpha = 0.5});
                        expect_same(c_far.view, c);
                        if (HasFatalFailure()) { return; }
                    }
                }
            }
        }
    }
}

TEST(Matmul, BetaAddsToWhatIsThere) {
    Context context(1);
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
        const Tensor a = random(dtype, {1, 1, 9, 20}, 1), b = random(dtype, {1, 1, 20, 33}, 2);
        Tensor c = random(dtype, {1, 1, 9, 33}, 3);
        const Tensor truth = expected(a, b, c, -2, 0.5);
        matmul(context, a, b, c, {.alpha = -2, .beta = 0.5});
        expect_near(c, truth, 2 * tolerance_of(dtype, 20));
    }
}

TEST(Matmul, LeadingAxesRepeatAndSum) {
    Context context(2);
    for (const DType dtype : {DType::f32, DType::f64}) {
        struct Case {
            std::int64_t a[2], b[2], c[2];
        };
        for (const auto& [la, lb, lc] :
             {Case{{3, 2}, {3, 2}, {3, 2}}, Case{{3, 1}, {1, 2}, {3, 2}}, Case{{3, 2}, {1, 2}, {3, 1}},
              Case{{3, 2}, {3, 2}, {1, 1}}, Case{{1, 2}, {3, 1}, {1, 2}}}) {
            const Tensor a = random(dtype, {la[0], la[1], 6, 19}, 1), b = random(dtype, {lb[0], lb[1], 19, 21}, 2);
            Tensor c(dtype, {lc[0], lc[1], 6, 21});
            matmul(context, a, b, c);
            expect_near(c, expected(a, b, c, 1, 0), tolerance_of(dtype, 19 * 6));
        }
    }
}

TEST(Matmul, SameBitsForAnyThreadsAndAnyOtherRowsAndColumns) {
    Context one(1), three(3);
    const Tensor a = random(DType::f32, {1, 1, 150, 700}, 1), b = random(DType::f32, {1, 1, 700, 330}, 2);
    Tensor whole(DType::f32, {1, 1, 150, 330}), again(DType::f32, {1, 1, 150, 330});
    matmul(one, a, b, whole);
    matmul(three, a, b, again);
    expect_same(again, whole);
    for (const std::int64_t rows : {1, 2, 13, 100}) {
        for (const std::int64_t column : {0, 3, 320}) {
            const std::int64_t end = std::min<std::int64_t>(330, column + 70);
            Tensor part(DType::f32, {1, 1, rows, end - column});
            matmul(one, a.view().slice(2, 0, rows), b.view().slice(3, column, end), part);
            expect_same(part, whole.view().slice(2, 0, rows).slice(3, column, end));
        }
    }
}

TEST(Matmul, NanStaysInItsRowAndColumn) {
    Context context(1);
    Tensor a = random(DType::f32, {20, 30}, 1), b = random(DType::f32, {30, 40}, 2), c(DType::f32, {20, 40});
    set(a, 7 * 30 + 4, std::nan(""));
    set(b, 5 * 40 + 38, infinity);
    matmul(context, a, b, c);
    for (std::int64_t n = 0; n < c.elements(); ++n) {
        ASSERT_EQ(std::isfinite(get(c, n)), n / 40 != 7 && n % 40 != 38) << n;
    }
}

TEST(Matmul, EmptySizes) {
    Context context(1);
    Tensor a(DType::f32, {4, 0}), b(DType::f32, {0, 5}), c = random(DType::f32, {4, 5}, 1);
    const Tensor before = c.clone();
    matmul(context, a, b, c, {.beta = 1});
    expect_same(c, before);
    matmul(context, a, b, c);
    for (std::int64_t n = 0; n < c.elements(); ++n) { EXPECT_EQ(get(c, n), 0); }
    Tensor none(DType::f32, {0, 4}), some(DType::f32, {4, 3}), empty(DType::f32, {0, 3});
    EXPECT_NO_THROW(matmul(context, none, some, empty));
    Tensor no_entries(DType::f32, {0, 2, 3}), also_none(DType::f32, {0, 3, 2}), sum = random(DType::f32, {1, 2, 2}, 1);
    matmul(context, no_entries, also_none, sum);
    for (std::int64_t n = 0; n < 4; ++n) { EXPECT_EQ(get(sum, n), 0); }
}

TEST(Matmul, Errors) {
    Context context(1);
    Tensor a(DType::f32, {2, 3, 4}), b(DType::f32, {2, 4, 5}), c(DType::f32, {2, 3, 5}), flat(DType::f32, {4, 5});
    Tensor wrong(DType::f32, {3, 4, 5}), words(DType::i32, {2, 4, 5});
    const auto text = [&](const View& x, const View& y, const MutableView& z, MatmulOptions options = {}) {
        return error_text([&] { matmul(context, x, y, z, options); });
    };
    EXPECT_EQ(text({}, b, c), "[matmul] a: expected a tensor, got none");
    EXPECT_EQ(text(a, flat, c), "[matmul] b: expected 3 axes as a has, got [4, 5]");
    EXPECT_EQ(text(a, a, c), "[matmul] b: expected 4 rows, the columns of a, got [2, 3, 4]");
    EXPECT_EQ(text(a, wrong, c), "[matmul] b: expected 2 or 1 along axis 0, as in a, got [3, 4, 5]");
    EXPECT_EQ(text(a, b, b), "[matmul] c: expected a matrix of [3, 5], got [2, 4, 5]");
    EXPECT_EQ(text(a, words, c), "[matmul] b: expected f32 or bf16 or f16 or f64, got i32");
    EXPECT_EQ(text(a, b, c, {.alpha = infinity}), "[matmul] alpha: expected a finite number, got inf");
    Tensor square(DType::f32, {4, 4});
    EXPECT_EQ(text(square, square, square), "[matmul] c: expected memory apart from a, got an overlap");
}

}  // namespace
}  // namespace heed::testing
