/// The rotation: published numbers, identities, gradients, every type and layout, every instruction set, what is
/// refused.
#include <heed/positions.h>

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <numeric>

#include "cpu/instruction_sets.h"
#include "reference/rope.h"
#include "unit/ops/positions_testing.h"

namespace heed::testing {
namespace {

RopeTable table_of(std::int64_t size, Pairing pairing = Pairing::halves) {
    return rope_table({.size = size, .pairing = pairing});
}

double dot(const float* a, const float* b, std::int64_t n) { return std::inner_product(a, a + n, b, 0.0); }

/// As the tests call it: forward at explicit positions.
Tensor rotated(const Tensor& x, const RopeTable& table, const RopeOptions& options = {}) {
    Context context(1);
    Tensor out(x.dtype(), x.shape());
    rope(context, x, out, table, options);
    return out;
}

TEST(Rope, PublishedNumbers) {
    const float x[] = {1, 2, 3, 4};
    float out[4];
    Context context(1);
    const auto expect = [&](Pairing pairing, std::int64_t position, std::initializer_list<double> expected) {
        rope(context, View(x, {1, 1, 1, 4}), MutableView(out, {1, 1, 1, 4}), table_of(4, pairing), {.first = position});
        for (std::size_t n = 0; n < 4; ++n) { EXPECT_NEAR(out[n], expected.begin()[n], 1e-6) << position << " " << n; }
    };
    expect(Pairing::interleaved, 1, {-1.142640, 1.922076, 2.959851, 4.029800});
    expect(Pairing::halves, 1, {-1.984111, 1.959901, 2.462378, 4.019800});
    expect(Pairing::interleaved, 3, {-1.272233, -1.838865, 2.878668, 4.088187});
}

TEST(Rope, PositionZeroChangesNothing) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
        const Tensor x = noise(dtype, {1, 3, 1, 34});
        const Tensor out = rotated(x, table_of(34, Pairing::interleaved));
        for (std::int64_t n = 0; n < x.elements(); ++n) { ASSERT_EQ(at(out, n), at(x, n)); }
    }
}

TEST(Rope, ScoresDependOnTheDistanceAlone) {
    constexpr std::int64_t size = 48;
    const Tensor q = noise(DType::f32, {1, 1, 1, size}, 1);
    const Tensor k = noise(DType::f32, {1, 1, 1, size}, 2);
    for (const Pairing pairing : {Pairing::halves, Pairing::interleaved}) {
        const RopeTable table = table_of(size, pairing);
        const auto score = [&](std::int64_t m, std::int64_t n) {
            const Tensor a = rotated(q, table, {.first = m});
            const Tensor b = rotated(k, table, {.first = n});
            return dot(a.as<float>(), b.as<float>(), size);
        };
        const double near = score(7, 0);
        EXPECT_NEAR(score(1007, 1000), near, 1e-5);
        EXPECT_NEAR(score(1000007, 1000000), near, 1e-5);  // float32 angles would be off by 0.06
        EXPECT_NEAR(score(0, -7), near, 1e-5);
        EXPECT_GT(std::abs(score(8, 0) - near), 1e-3);
    }
}

TEST(Rope, NormsAreKeptAndRotationsAdd) {
    const RopeTable table = table_of(32);
    const Tensor x = noise(DType::f64, {1, 2, 3, 32});
    const Tensor once = rotated(x, table, {.first = 17});
    for (std::int64_t row = 0; row < 6; ++row) {
        for (std::int64_t i = 0; i < 16; ++i) {
            const auto norm = [&](const Tensor& t) {
                return std::hypot(at(t, row * 32 + i), at(t, row * 32 + i + 16));
            };
            EXPECT_NEAR(norm(once), norm(x), 1e-14);
        }
    }
    const std::int64_t seven[] = {7, 7, 7};
    const std::int64_t ten[] = {10, 10, 10};
    const std::int64_t both[] = {17, 17, 17};
    const Tensor twice =
        rotated(rotated(x, table, {.positions = View(seven, {3})}), table, {.positions = View(ten, {3})});
    const Tensor sum = rotated(x, table, {.positions = View(both, {3})});
    for (std::int64_t n = 0; n < x.elements(); ++n) { EXPECT_NEAR(at(twice, n), at(sum, n), 1e-13); }
}

TEST(Rope, PairingsDifferByAPermutation) {
    constexpr std::int64_t size = 38;
    const Tensor x = noise(DType::f32, {2, 3, 5, size});
    Tensor permuted(DType::f32, x.shape());  // halves order of interleaved numbers
    for (std::int64_t row = 0; row < 30; ++row) {
        for (std::int64_t i = 0; i < size / 2; ++i) {
            permuted.as<float>()[row * size + i] = x.as<float>()[row * size + 2 * i];
            permuted.as<float>()[row * size + i + size / 2] = x.as<float>()[row * size + 2 * i + 1];
        }
    }
    const Tensor interleaved = rotated(x, table_of(size, Pairing::interleaved), {.first = 5});
    const Tensor halves = rotated(permuted, table_of(size), {.first = 5});
    for (std::int64_t row = 0; row < 30; ++row) {
        for (std::int64_t i = 0; i < size / 2; ++i) {
            EXPECT_NEAR(at(interleaved, row * size + 2 * i), at(halves, row * size + i), 1e-6);
            EXPECT_NEAR(at(interleaved, row * size + 2 * i + 1), at(halves, row * size + i + size / 2), 1e-6);
        }
    }
}

TEST(Rope, BackwardIsTheInverseTimesTheFactorSquared) {
    Context context(2);
    RopeTable table = table_of(24);
    table.attention_factor = 1.25;
    const Tensor x = noise(DType::f64, {2, 2, 7, 30});
    Tensor back = rotated(x, table, {.first = 100});
    rope_backward(context, back, back, table, {.first = 100});
    for (std::int64_t n = 0; n < x.elements(); ++n) {
        const double factor = n % 30 < 24 ? 1.25 * 1.25 : 1;  // what passes through is not scaled
        EXPECT_NEAR(at(back, n), factor * at(x, n), 1e-13);
    }
}

TEST(Rope, BackwardMatchesFiniteDifferences) {
    Context context(1);
    for (const Pairing pairing : {Pairing::halves, Pairing::interleaved}) {
        RopeTable table =
            rope_table({.size = 8, .pairing = pairing, .scaling = rope_scaling::Yarn{.factor = 4, .trained = 64}});
        Tensor x = noise(DType::f64, {1, 2, 3, 10});
        const Tensor dout = noise(DType::f64, x.shape(), 9);
        Tensor dx(DType::f64, x.shape());
        rope_backward(context, dout, dx, table, {.first = 11});
        const auto loss = [&] {
            const Tensor out = rotated(x, table, {.first = 11});
            return std::inner_product(out.as<double>(), out.as<double>() + out.elements(), dout.as<double>(), 0.0);
        };
        for (std::int64_t n = 0; n < x.elements(); ++n) {
            const double kept = x.as<double>()[n];
            x.as<double>()[n] = kept + 1e-4;
            const double above = loss();
            x.as<double>()[n] = kept - 1e-4;
            const double below = loss();
            x.as<double>()[n] = kept;
            EXPECT_NEAR((above - below) / 2e-4, at(dx, n), 1e-9);
        }
    }
}

TEST(Rope, RerotateTurnsKeptKeysOver) {
    Context context(1);
    const Rope rope_of_model{.size = 32, .scaling = rope_scaling::DynamicNtk{.factor = 4, .trained = 16}};
    Rope other = rope_of_model;
    other.scaling = rope_scaling::Yarn{.factor = 4, .trained = 16};
    const RopeTable before = rope_table(rope_of_model, 16);
    for (const RopeTable& after : {rope_table(rope_of_model, 64), rope_table(other)}) {
        ASSERT_NE(before, after);
        for (const DType dtype : {DType::f64, DType::f32}) {
            const Tensor k = noise(dtype, {2, 2, 19, 40});
            Tensor kept = rotated(k, before);
            rerotate(context, kept, kept, before, after);
            const Tensor anew = rotated(k, after);
            for (std::int64_t n = 0; n < k.elements(); ++n) {
                ASSERT_NEAR(at(kept, n), at(anew, n), dtype == DType::f64 ? 1e-13 : 1e-6);
            }
        }
    }
}

TEST(Rope, GrowingSequenceWithDynamicScaling) {
    // Scores of a growing sequence with keys turned over, against keys kept unrotated: the same at every length.
    Context context(1);
    constexpr std::int64_t size = 16, longest = 40;
    const Rope model{.size = size, .scaling = rope_scaling::DynamicNtk{.factor = 2, .trained = 8}};
    const Tensor k = noise(DType::f32, {1, 1, longest, size}, 3);
    Tensor cache(DType::f32, {1, 1, longest, size});
    RopeTable table = rope_table(model, 1);
    for (std::int64_t length = 1; length <= longest; ++length) {
        const RopeTable now = rope_table(model, length);
        const MutableView kept = cache.view().slice(2, 0, length - 1);
        if (now != table) { rerotate(context, kept, kept, table, now); }
        table = now;
        const MutableView added = cache.view().slice(2, length - 1, length);
        rope(context, k.view().slice(2, length - 1, length), added, table, {.first = length - 1});
        Tensor anew(DType::f32, {1, 1, length, size});
        rope(context, k.view().slice(2, 0, length), anew, table);
        for (std::int64_t n = 0; n < anew.elements(); ++n) { ASSERT_NEAR(at(cache, n), at(anew, n), 3e-6) << length; }
    }
}

/// Every combination against the reference, on views into larger memory whose rest must not change.
struct Layout {
    bool heads_inside, gaps, backwards;
};

void compare(DType dtype, DType out_dtype, Pairing pairing, std::int64_t rotary, std::int64_t size, Layout layout,
             bool in_place) {
    constexpr std::int64_t B = 2, H = 11, T = 21;  // heads go by in groups: one whole, one not
    const std::int64_t step = layout.gaps ? 2 : 1;
    const Shape memory = layout.heads_inside ? Shape{B, T, H, size * step} : Shape{B, H, T, size * step};
    const auto seen = [&](auto view) {
        auto v = layout.heads_inside ? view.permute({0, 2, 1, 3}) : view;
        Shape strides = v.strides();
        strides[3] *= step;
        auto* data = v.data();
        if (layout.backwards) {
            data = static_cast<char*>(const_cast<void*>(static_cast<const void*>(data))) +
                   (T - 1) * strides[2] * static_cast<std::int64_t>(size_of(v.dtype()));
            strides[2] = -strides[2];
        }
        return decltype(view)(v.dtype(), data, {B, H, T, size}, strides);
    };
    const std::int64_t far = std::int64_t{1} << 40;
    std::vector<std::int64_t> positions(B * T);
    for (std::int64_t n = 0; n < B * T; ++n) {
        positions[static_cast<std::size_t>(n)] = n % 5 == 4 ? far + n : 31 * n - 300;
    }

    Context context(3);
    Tensor x = noise(dtype, memory);
    Tensor out = in_place ? Tensor() : noise(out_dtype, memory, 5);
    Tensor expected = in_place ? x.clone() : out.clone();
    RopeProblem problem;
    RopeTable table = table_of(rotary, pairing);
    table.attention_factor = 1.5;
    problem.x = seen((in_place ? expected : x).view());
    problem.out = seen(expected.view());
    problem.in_place = in_place;
    problem.positions = View(positions.data(), {B, T});
    problem.frequencies = table.frequencies;
    problem.factor = table.attention_factor;
    problem.pairing = pairing;
    reference::rope(problem);
    Tensor& result = in_place ? x : out;
    rope(context, seen(x.view()), seen(result.view()), table, {.positions = View(positions.data(), {B, T})});
    // cos, sin and the two products round once each: four units of float32, then one of the output's type.
    const double unit = out_dtype == DType::bf16 ? 0x1p-8 : out_dtype == DType::f16 ? 0x1p-11 : 0;
    for (std::int64_t n = 0; n < result.elements(); ++n) {
        const double tolerance = 1e-6 + 2 * unit * std::abs(at(expected, n));
        ASSERT_NEAR(at(result, n), at(expected, n), tolerance) << n;
    }
}

TEST(Rope, EveryInstructionSetTypeAndLayoutAgreesWithTheReference) {
    for (const cpu::InstructionSet& set : cpu::instruction_sets()) {
        if (set.missing != nullptr) { continue; }
        const std::string name = "cpu-" + std::string(set.name);
        ASSERT_EQ(setenv("HEED_KERNEL", name.c_str(), 1), 0);
        for (const Pairing pairing : {Pairing::halves, Pairing::interleaved}) {
            for (const auto& [rotary, size] : {std::pair{128, 128}, {2, 2}, {34, 47}, {6, 64}, {96, 96}, {172, 180}}) {
                for (const Layout& layout : {Layout{false, false, false}, {true, false, false}, {false, true, true}}) {
                    SCOPED_TRACE(name + " rotary " + std::to_string(rotary) + " of " + std::to_string(size));
                    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
                        compare(dtype, dtype, pairing, rotary, size, layout, false);
                        compare(dtype, dtype, pairing, rotary, size, layout, true);
                        compare(dtype, DType::f32, pairing, rotary, size, layout, false);
                    }
                }
            }
        }
    }
    unsetenv("HEED_KERNEL");
}

TEST(Rope, PositionsAsListAndAsBatch) {
    const RopeTable table = table_of(8);
    const Tensor x = noise(DType::f32, {2, 1, 3, 8});
    const std::int32_t list[] = {5, 6, 7};
    const std::int64_t batch[] = {5, 6, 7, 5, 6, 7};
    const Tensor expected = rotated(x, table, {.first = 5});
    for (const View& positions :
         {View(list, {3}), View(list, {1, 3}), View(batch, {2, 3}), View(list, {2, 3}, {0, 1})}) {
        const Tensor out = rotated(x, table, {.positions = positions});
        EXPECT_EQ(std::memcmp(out.data(), expected.data(), out.bytes()), 0) << to_string(positions.shape());
    }
}

TEST(Rope, NanStaysInItsPair) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
        for (const Pairing pairing : {Pairing::halves, Pairing::interleaved}) {
            Tensor x = noise(dtype, {1, 1, 2, 64});
            write_number(dtype, x.data(), 3, std::numeric_limits<double>::quiet_NaN());
            const Tensor out = rotated(x, table_of(64, pairing), {.first = 1});
            const std::int64_t partner = pairing == Pairing::halves ? 35 : 2;
            for (std::int64_t n = 0; n < 128; ++n) {
                EXPECT_EQ(std::isnan(at(out, n)), n == 3 || n == partner) << name_of(dtype) << " " << n;
            }
        }
    }
}

TEST(Rope, EmptyIsLegal) {
    Context context(1);
    float nothing = 7;
    for (const Shape& shape : {Shape{0, 2, 3, 8}, Shape{1, 0, 3, 8}, Shape{1, 2, 0, 8}}) {
        EXPECT_NO_THROW(rope(context, View(&nothing, shape), MutableView(&nothing, shape), table_of(8)));
    }
    EXPECT_EQ(nothing, 7);
}

TEST(Rope, RefusesBadCallsByName) {
    Context context(1);
    Tensor x = noise(DType::f32, {2, 2, 6, 8});
    const Tensor untouched = x.clone();
    Tensor out(DType::f32, x.shape());
    const RopeTable table = table_of(8);
    const std::int64_t positions[12] = {};
    const float floats[6] = {};
    const std::int64_t far[6] = {0, 0, (std::int64_t{1} << 53) + 1, 0, 0, 0};
    const auto refused = [&](const std::string& start, auto&& call) {
        const std::string text = error_of(call);
        EXPECT_TRUE(text.starts_with(start)) << text;
    };
    const MutableView all = x.view();
    refused("[rope] x: expected a tensor of 4 axes, got none", [&] { rope(context, View(), out, table); });
    refused("[rope] x: expected 4 axes", [&] { rope(context, View(floats, {6}), out, table); });
    refused("[rope] x: expected f32 or bf16 or f16 or f64, got i64", [&] {
        rope(context, View(positions, {1, 1, 1, 8}), out, table);
    });
    refused("[rope] table: expected 1 to 4 frequencies for heads of size 8, got 5",
            [&] { rope(context, x, out, table_of(10)); });
    refused("[rope] table: expected 1 to 4 frequencies", [&] { rope(context, x, out, RopeTable()); });
    refused("[rope] table.frequencies[0]: expected a finite number, got nan",
            [&] { rope(context, x, out, {.frequencies = {std::nan("")}}); });
    refused("[rope] table.attention_factor: expected a positive number",
            [&] { rope(context, x, out, {.frequencies = {1}, .attention_factor = 0}); });
    refused("[rope] out: expected [2, 2, 6, 8], got [2, 2, 5, 8]",
            [&] { rope(context, x, out.view().slice(2, 0, 5), table); });
    refused("[rope] out: expected f32, got f64", [&] {
        Tensor wrong(DType::f64, x.shape());
        rope(context, x, wrong, table);
    });
    refused("[rope] out: expected the view x itself or memory apart from it, got an overlap",
            [&] { rope(context, all.slice(2, 0, 5), all.slice(2, 1, 6), table); });
    refused("[rope] positions: expected [2, 6] or [6], got [5]",
            [&] { rope(context, x, out, table, {.positions = View(positions, {5})}); });
    refused("[rope] positions: expected [2, 6] or [6], got [3, 4]", [&] {
        rope(context, x, out, table, {.positions = View(positions, {3, 4})});
    });
    refused("[rope] positions: expected i64 or i32, got f32",
            [&] { rope(context, x, out, table, {.positions = View(floats, {6})}); });
    refused("[rope] positions: expected positions within 2^53, got 9007199254740993",
            [&] { rope(context, x, out, table, {.positions = View(far, {6})}); });
    refused("[rope] first: expected positions within 2^53",
            [&] { rope(context, x, out, table, {.first = std::numeric_limits<std::int64_t>::max()}); });
    refused("[rope_backward] dout: expected a tensor", [&] { rope_backward(context, View(), out, table); });
    refused("[rerotate] from: expected 4 frequencies as in to, got 3",
            [&] { rerotate(context, x, out, table_of(6), table); });
    refused("[rerotate] from: expected the pairing of to",
            [&] { rerotate(context, x, out, table_of(8, Pairing::interleaved), table); });
    EXPECT_EQ(std::memcmp(x.data(), untouched.data(), x.bytes()), 0);
}

}  // namespace
}  // namespace heed::testing
