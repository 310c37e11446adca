#include <gtest/gtest.h>

#include <heed/error.h>
#include <heed/tensor.h>

#include "base/overlap.h"

#include <cmath>
#include <cstdint>
#include <vector>

namespace heed {
namespace {

TEST(Shape, HoldsUpToEightExtents) {
    const Shape shape{2, 8, 20, 64};
    EXPECT_EQ(shape.rank(), 4);
    EXPECT_EQ(shape[2], 20);
    EXPECT_EQ(shape.elements(), 2 * 8 * 20 * 64);
    EXPECT_EQ(to_string(shape), "[2, 8, 20, 64]");
    EXPECT_EQ(to_string(Shape{}), "[]");
    EXPECT_EQ(Shape{}.elements(), 1);
    EXPECT_EQ(shape.row_major(), (Shape{8 * 20 * 64, 20 * 64, 64, 1}));
    EXPECT_FALSE((Shape{1, 2} == Shape{1, 2, 1}));
    EXPECT_NO_THROW((Shape{1, 2, 3, 4, 5, 6, 7, 8}));
    EXPECT_THROW((Shape{1, 2, 3, 4, 5, 6, 7, 8, 9}), Error);
}

TEST(Shape, RefusesWhatCannotBeCounted) {
    const std::int64_t large = std::int64_t{1} << 40;
    EXPECT_THROW((Shape{large, large}.elements()), Error);
    EXPECT_THROW((Shape{3, -1}.elements()), Error);
    EXPECT_THROW((Shape{0, -1}.elements()), Error);
    EXPECT_EQ((Shape{large, large, 0}.elements()), 0);
    EXPECT_NO_THROW((Shape{large, large}.row_major()));  // no undefined behaviour; elements() is where it ends
    EXPECT_EQ((Shape{3, 0, 2}.row_major()), (Shape{2, 2, 1}));
}

TEST(View, AbsentUntilGiven) {
    EXPECT_FALSE(View());
    EXPECT_FALSE(View(MutableView()));
    float x = 0;
    EXPECT_TRUE(MutableView(&x, {1}));
    EXPECT_TRUE(View(MutableView(&x, {1})));
    EXPECT_TRUE(View(DType::f32, nullptr, {0, 3}));  // empty is not absent
}

TEST(View, PermutesAndSlices) {
    std::vector<float> memory(2 * 3 * 4);
    for (std::size_t n = 0; n < memory.size(); ++n) { memory[n] = static_cast<float>(n); }
    const View view(memory.data(), {2, 3, 4});
    const View turned = view.permute({2, 0, 1});
    EXPECT_EQ(turned.shape(), (Shape{4, 2, 3}));
    EXPECT_EQ(turned.strides(), (Shape{1, 12, 4}));
    const Tensor copy = Tensor::copy_of(turned);
    for (std::int64_t a = 0; a < 4; ++a) {
        for (std::int64_t b = 0; b < 2; ++b) {
            for (std::int64_t c = 0; c < 3; ++c) {
                EXPECT_EQ(copy.as<float>()[(a * 2 + b) * 3 + c], static_cast<float>(b * 12 + c * 4 + a));
            }
        }
    }
    const View part = view.slice(1, 1, 3);
    EXPECT_EQ(part.shape(), (Shape{2, 2, 4}));
    EXPECT_EQ(part.as<float>()[0], 4);
    EXPECT_EQ(Tensor::copy_of(part).as<float>()[8], 16);
    EXPECT_EQ(view.slice(2, 4, 4).shape().elements(), 0);
    EXPECT_THROW(view.permute({0, 1}), Error);
    EXPECT_THROW(view.permute({0, 1, 1}), Error);
    EXPECT_THROW(view.permute({0, 1, 3}), Error);
    EXPECT_THROW(view.slice(3, 0, 1), Error);
    EXPECT_THROW(view.slice(0, -1, 1), Error);
    EXPECT_THROW(view.slice(0, 0, 3), Error);
    EXPECT_THROW(view.slice(0, 2, 1), Error);
}

TEST(Tensor, OwnsAlignedZeros) {
    const Tensor tensor(DType::bf16, {3, 5});
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.data()) % 64, 0U);
    EXPECT_EQ(tensor.bytes(), 30U);
    for (int n = 0; n < 15; ++n) { EXPECT_EQ(tensor.as<bf16>()[n].bits, 0); }
    EXPECT_FALSE(Tensor());
    EXPECT_TRUE(Tensor(DType::f32, {0}));
    EXPECT_THROW(Tensor(DType::f64, {std::int64_t{1} << 60, 4}), Error);
    EXPECT_THROW(Tensor(DType::f64, {std::int64_t{1} << 61}), Error);
}

TEST(Tensor, CopiesBackwardsAndRepeatedViews) {
    const std::vector<std::int32_t> memory{1, 2, 3, 4};
    const Tensor backwards = Tensor::copy_of(View(DType::i32, memory.data() + 3, {4}, {-1}));
    const Tensor repeated = Tensor::copy_of(View(DType::i32, memory.data(), {3, 2}, {0, 2}));
    EXPECT_EQ(std::vector<std::int32_t>(backwards.as<std::int32_t>(), backwards.as<std::int32_t>() + 4),
              (std::vector<std::int32_t>{4, 3, 2, 1}));
    EXPECT_EQ(std::vector<std::int32_t>(repeated.as<std::int32_t>(), repeated.as<std::int32_t>() + 6),
              (std::vector<std::int32_t>{1, 3, 1, 3, 1, 3}));
}

TEST(Tensor, Converts) {
    Tensor wide(DType::f64, {4});
    const double values[] = {1.0, -2.5, 65536.0, std::nan("")};
    for (int n = 0; n < 4; ++n) { wide.as<double>()[n] = values[n]; }
    const Tensor half = wide.to(DType::f16);
    EXPECT_EQ(static_cast<float>(half.as<f16>()[1]), -2.5F);
    EXPECT_TRUE(std::isinf(static_cast<float>(half.as<f16>()[2])));
    EXPECT_TRUE(std::isnan(static_cast<float>(half.as<f16>()[3])));
    const Tensor back = half.to(DType::f64);
    EXPECT_EQ(back.as<double>()[0], 1.0);
    Tensor large(DType::i64, {1});
    large.as<std::int64_t>()[0] = (std::int64_t{1} << 62) + 1;  // not a double
    EXPECT_EQ(large.to(DType::i64).as<std::int64_t>()[0], (std::int64_t{1} << 62) + 1);
    Tensor clone = wide.clone();
    clone.as<double>()[0] = 9;
    EXPECT_EQ(wide.as<double>()[0], 1.0);
}

/// Every element's address, one by one.
bool overlap_by_enumeration(const View& a, const View& b) {
    const auto addresses = [](const View& view) {
        std::vector<std::int64_t> list;
        const std::int64_t total = view.shape().elements();
        for (std::int64_t n = 0; n < total; ++n) {
            std::int64_t rest = n;
            std::int64_t at = reinterpret_cast<std::intptr_t>(view.data());
            for (int axis = view.rank() - 1; axis >= 0; --axis) {
                at += rest % view.extent(axis) * view.stride(axis) * static_cast<std::int64_t>(size_of(view.dtype()));
                rest /= view.extent(axis);
            }
            list.push_back(at);
        }
        return list;
    };
    for (const std::int64_t x : addresses(a)) {
        for (const std::int64_t y : addresses(b)) {
            if (x == y) { return true; }
        }
    }
    return false;
}

TEST(Overlap, ExactForSlicesOfOneBuffer) {
    // A fused projection [B, T, q heads + k heads + v heads, D], in any order of the three, MQA and GQA included.
    std::vector<float> memory(2 * 3 * 12 * 4);
    const View fused(memory.data(), {2, 3, 12, 4});
    for (std::int64_t begin_a = 0; begin_a < 12; ++begin_a) {
        for (std::int64_t end_a = begin_a + 1; end_a <= 12; ++end_a) {
            for (std::int64_t begin_b = 0; begin_b < 12; ++begin_b) {
                for (std::int64_t end_b = begin_b + 1; end_b <= 12; ++end_b) {
                    const View a = fused.slice(2, begin_a, end_a).permute({0, 2, 1, 3});
                    const View b = fused.slice(2, begin_b, end_b).permute({0, 2, 1, 3});
                    const bool expected = begin_a < end_b && begin_b < end_a;
                    ASSERT_EQ(overlaps(a, b), expected) << begin_a << "-" << end_a << " " << begin_b << "-" << end_b;
                }
            }
        }
    }
}

TEST(Overlap, NeverMissesOne) {
    std::vector<float> memory(4096);
    std::uint32_t state = 1;
    const auto below = [&](std::uint32_t n) {
        state = state * 1664525U + 1013904223U;
        return static_cast<std::int64_t>((state >> 8) % n);
    };
    int found = 0;
    for (int round = 0; round < 20000; ++round) {
        const auto any = [&] {
            Shape shape{below(4), 1 + below(3), 1 + below(4)};
            Shape strides{below(80) - 40, below(30) - 15, below(7) - 3};
            return View(DType::f32, memory.data() + 1000 + below(150), shape, strides);
        };
        const View a = any();
        const View b = any();
        if (overlap_by_enumeration(a, b)) {
            ++found;
            ASSERT_TRUE(overlaps(a, b)) << to_string(a.shape()) << to_string(a.strides()) << to_string(b.shape())
                                        << to_string(b.strides()) << (b.as<float>() - a.as<float>());
        }
        bool twice = false;
        for (std::int64_t n = 0; n < a.shape().elements() && !twice; ++n) {
            const View one = a.slice(0, n / (a.extent(1) * a.extent(2)), n / (a.extent(1) * a.extent(2)) + 1)
                                 .slice(1, n / a.extent(2) % a.extent(1), n / a.extent(2) % a.extent(1) + 1)
                                 .slice(2, n % a.extent(2), n % a.extent(2) + 1);
            int count = 0;
            for (std::int64_t i = 0; i < a.extent(0); ++i) {
                for (std::int64_t j = 0; j < a.extent(1); ++j) {
                    for (std::int64_t k = 0; k < a.extent(2); ++k) {
                        count += a.as<float>() + i * a.stride(0) + j * a.stride(1) + k * a.stride(2) == one.as<float>();
                    }
                }
            }
            twice = count > 1;
        }
        if (twice) { ASSERT_TRUE(overlaps_itself(a)) << to_string(a.shape()) << to_string(a.strides()); }
    }
    EXPECT_GT(found, 1000);
}

TEST(Overlap, PlainCases) {
    std::vector<float> memory(100);
    const View left(memory.data(), {50});
    const View right(memory.data() + 50, {50});
    EXPECT_FALSE(overlaps(left, right));
    EXPECT_TRUE(overlaps(left, View(memory.data() + 49, {1})));
    EXPECT_FALSE(overlaps(left, View()));
    EXPECT_FALSE(overlaps(left, View(memory.data(), {0})));
    // Every other element each: interleaved, not shared.
    EXPECT_FALSE(overlaps(View(memory.data(), {50}, {2}), View(memory.data() + 1, {50}, {2})));
    EXPECT_TRUE(overlaps(View(memory.data(), {50}, {2}), View(DType::bf16, memory.data(), {4})));
    EXPECT_FALSE(overlaps_itself(View(memory.data() + 99, {10, 10}, {-10, -1})));
    EXPECT_TRUE(overlaps_itself(View(memory.data(), {2, 10}, {5, 1})));
    EXPECT_TRUE(overlaps_itself(View(memory.data(), {2}, {0})));
    EXPECT_FALSE(overlaps_itself(View(memory.data(), {1, 10}, {0, 1})));
}

}  // namespace
}  // namespace heed
