/// The rotation of a row has the same bits whatever happens around it.
#include <heed/positions.h>

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string>
#include <utility>

#include "cpu/instruction_sets.h"
#include "unit/ops/positions_testing.h"

namespace heed::testing {
namespace {

TEST(RopeBits, AnyThreadsNeighboursAndCuts) {
    const RopeTable table = rope_table({.size = 64});
    const Tensor x = noise(DType::f32, {2, 8, 200, 64});
    Tensor one(DType::f32, x.shape());
    Tensor four(DType::f32, x.shape());
    Tensor cut(DType::f32, x.shape());
    Context alone(1);
    Context team(4);
    rope(alone, x, one, table);
    rope(team, x, four, table);
    for (std::int64_t b = 0; b < 2; ++b) {
        for (const auto& [begin, end] : {std::pair{0, 77}, {77, 78}, {78, 200}}) {
            rope(alone, x.view().slice(0, b, b + 1).slice(2, begin, end),
                 cut.view().slice(0, b, b + 1).slice(2, begin, end), table, {.first = begin});
        }
    }
    EXPECT_EQ(std::memcmp(one.data(), four.data(), one.bytes()), 0);
    EXPECT_EQ(std::memcmp(one.data(), cut.data(), one.bytes()), 0);
}

TEST(RopeBits, WhateverPositionsStandBefore) {
    const std::int64_t positions[] = {5,        6,         7,  8,  9,  10, -3,       -2,       -1,       0,
                                      1,        2,         40, 40, 41, 39, 16777214, 16777215, 16777216, 16777217,
                                      16777218, -16777215, 48, 49, 51, 52, 53,       54,       55,       56};
    constexpr std::int64_t T = std::size(positions);
    const Tensor x = noise(DType::f32, {1, 1, T, 40});
    for (const double factor : {1.0, 1.5}) {
        RopeTable table = rope_table({.size = 40});
        table.attention_factor = factor;
        Tensor together(DType::f32, x.shape());
        Tensor apart(DType::f32, x.shape());
        Context context(1);
        rope(context, x, together, table, {.positions = View(positions, {T})});
        for (std::int64_t t = 0; t < T; ++t) {
            rope(context, x.view().slice(2, t, t + 1), apart.view().slice(2, t, t + 1), table, {.first = positions[t]});
        }
        EXPECT_EQ(std::memcmp(together.data(), apart.data(), apart.bytes()), 0) << factor;
    }
}

/// Whole pages from head to head have a way of their own; the bits have not.
TEST(RopeBits, HoweverFarHeadsLieApart) {
    constexpr std::int64_t H = 19, T = 32, size = 128;  // in groups of 8: two whole, one not
    for (const cpu::InstructionSet& set : cpu::instruction_sets()) {
        if (set.missing != nullptr) { continue; }
        const std::string name = "cpu-" + std::string(set.name);
        ASSERT_EQ(setenv("HEED_KERNEL", name.c_str(), 1), 0);
        Context context(2);
        for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
            for (const auto& [pairing, rotary] :
                 {std::pair{Pairing::halves, 128}, {Pairing::halves, 96}, {Pairing::interleaved, 128}}) {
                const RopeTable table = rope_table({.size = rotary, .pairing = pairing});
                const Tensor spread = noise(dtype, {1, H, T + 1, size});
                Tensor pages(dtype, {1, H, T, size});
                Tensor expected(dtype, spread.shape());
                const std::size_t bytes = pages.bytes() / H;
                const std::size_t spread_bytes = spread.bytes() / H;
                const auto head = [](const Tensor& t, std::int64_t h, std::size_t each) {
                    return static_cast<std::byte*>(const_cast<void*>(t.data())) + static_cast<std::size_t>(h) * each;
                };
                for (std::int64_t h = 0; h < H; ++h) {
                    std::memcpy(head(pages, h, bytes), head(spread, h, spread_bytes), bytes);
                }
                rope(context, spread, expected, table, {.first = 3});
                rope(context, pages, pages, table, {.first = 3});
                for (std::int64_t h = 0; h < H; ++h) {
                    ASSERT_EQ(std::memcmp(head(pages, h, bytes), head(expected, h, spread_bytes), bytes), 0)
                        << name << " " << name_of(dtype) << " rotary " << rotary << " head " << h;
                }
            }
        }
    }
    unsetenv("HEED_KERNEL");
}

}  // namespace
}  // namespace heed::testing
