/// Products on tiles against plain loops, with a model of the tiles in plain C++: every shape and edge, and nothing
/// read or written outside the operands.

#include "cpu/matmul/tiles.h"

#include "support/random.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

namespace heed::cpu {
namespace {

struct TestIsa {
    static constexpr int lanes = 16;
    static constexpr int registers = 32;
};
struct NoPairs {
    static constexpr int depth_per_lane = 2;
};
using Product = TileProduct<NoPairs, ModelTiles>;

constexpr float nan = std::numeric_limits<float>::quiet_NaN();

std::uint16_t bf16_of(double x) {
    const auto bits = __builtin_bit_cast(std::uint32_t, static_cast<float>(x));
    return static_cast<std::uint16_t>(bits >> 16);
}
double value_of(std::uint16_t word) {
    return static_cast<double>(__builtin_bit_cast(float, std::uint32_t{word} << 16));
}

/// A matrix of pairs of bf16, `stride` lanes a row, NaN wherever nothing was put.
struct Pairs {
    std::int64_t stride;
    std::vector<float> lanes;

    Pairs(std::int64_t rows, std::int64_t row_lanes)
        : stride(row_lanes), lanes(static_cast<std::size_t>(rows * row_lanes), nan) {}
    std::uint16_t& at(std::int64_t row, std::int64_t lane, std::int64_t half) {
        return reinterpret_cast<std::uint16_t*>(lanes.data())[(row * stride + lane) * 2 + half];
    }
};

struct Numbers {
    testing::Random random{7};
    std::uint16_t next() { return bf16_of(random.normal()); }
};

struct CountCalls {
    int calls = 0;
    void operator()() { ++calls; }
};

TEST(Tiles, SetIsTheProduct) {
    Numbers numbers;
    for (const std::int64_t rows : {16, 17, 31, 32, 48, 75}) {
        for (const std::int64_t depth : {1, 8, 16, 20, 32, 40}) {
            for (const int vectors : {1, 2, 3, 4}) {
                const std::int64_t columns = vectors * 16;
                Pairs a(rows, depth + 3), b(depth, columns);
                for (std::int64_t k = 0; k < depth; ++k) {
                    for (int half = 0; half < 2; ++half) {
                        for (std::int64_t m = 0; m < rows; ++m) { a.at(m, k, half) = numbers.next(); }
                        for (std::int64_t n = 0; n < columns; ++n) { b.at(k, n, half) = numbers.next(); }
                    }
                }
                // The last row ends with the operand.
                a.lanes.resize(static_cast<std::size_t>((rows - 1) * a.stride + depth));
                a.lanes.shrink_to_fit();
                std::vector<float> c(static_cast<std::size_t>(rows * columns), nan);
                std::vector<float> largest(static_cast<std::size_t>(columns), -1e30F);
                CountCalls beside;
                ASSERT_TRUE(
                    (Product::set<TestIsa, Walk::along_row>(a.lanes.data(), a.stride, b.lanes.data(), b.stride, depth,
                                                            c.data(), columns, rows, vectors, largest.data(), beside)));
                EXPECT_GT(beside.calls, 0);
                for (std::int64_t n = 0; n < columns; ++n) {
                    float most = -1e30F;
                    for (std::int64_t m = 0; m < rows; ++m) {
                        double sum = 0;
                        for (std::int64_t k = 0; k < depth; ++k) {
                            sum += value_of(a.at(m, k, 0)) * value_of(b.at(k, n, 0)) +
                                   value_of(a.at(m, k, 1)) * value_of(b.at(k, n, 1));
                        }
                        const float got = c[static_cast<std::size_t>(m * columns + n)];
                        ASSERT_NEAR(static_cast<double>(got), sum, 1e-4) << rows << " " << depth << " " << vectors;
                        most = std::max(most, got);
                    }
                    EXPECT_EQ(largest[static_cast<std::size_t>(n)], most);
                }
            }
        }
    }
    CountCalls beside;
    EXPECT_FALSE(
        (Product::set<TestIsa, Walk::along_row>(nullptr, 0, nullptr, 0, 16, nullptr, 0, 15, 4, nullptr, beside)));
}

struct Range {
    std::int64_t begin, end;
};

/// A is NaN outside of the range that the rows need, B outside of what any of them does.
template <Walk W>
void check_add(std::int64_t rows, std::int64_t depth, int vectors, Old old, bool diagonal) {
    Numbers numbers;
    const std::int64_t columns = vectors * 16;
    const auto range_of = [&](std::int64_t m) {
        const std::int64_t group = m / 16;
        return diagonal ? Range{std::min(depth, group * 3), std::min(depth, group * 9 + 5)} : Range{0, depth};
    };
    const std::int64_t padded = (rows + 15) / 16 * 16;
    Pairs a = W == Walk::along_row ? Pairs(rows, depth + 1) : Pairs(depth, padded);
    Pairs b(depth, columns);
    const auto element = [&](std::int64_t m, std::int64_t k, int half) -> std::uint16_t& {
        return W == Walk::along_row ? a.at(m, k, half) : a.at(k, m, half);
    };
    for (int half = 0; half < 2; ++half) {
        for (std::int64_t m = 0; m < rows; ++m) {
            for (std::int64_t k = range_of(m).begin; k < range_of(m).end; ++k) { element(m, k, half) = numbers.next(); }
        }
        for (std::int64_t k = 0; k < depth; ++k) {
            for (std::int64_t n = 0; n < columns; ++n) { b.at(k, n, half) = numbers.next(); }
        }
    }
    const std::int64_t c_stride = columns + 5;
    std::vector<float> c(static_cast<std::size_t>(rows * c_stride), old == Old::keep || old == Old::scale ? 2.0F : nan);
    std::vector<float> factor;
    for (std::int64_t m = 0; m < rows; ++m) { factor.push_back(0.5F + static_cast<float>(m)); }
    CountCalls beside;
    const auto span = [&](std::int64_t m, int) { return range_of(m); };
    Product::add_to<TestIsa, W>(a.lanes.data(), a.stride, b.lanes.data(), b.stride, c.data(), c_stride, rows, vectors,
                                old, factor.data(), span, beside);
    for (std::int64_t m = 0; m < rows; ++m) {
        for (std::int64_t n = 0; n < columns; ++n) {
            double sum = 0;
            for (std::int64_t k = range_of(m).begin; k < range_of(m).end; ++k) {
                for (int half = 0; half < 2; ++half) {
                    sum += value_of(element(m, k, half)) * value_of(b.at(k, n, half));
                }
            }
            const auto f = static_cast<double>(factor[static_cast<std::size_t>(m)]);
            const double expected = old == Old::keep              ? 2 + sum
                                    : old == Old::scale           ? 2 * f + sum
                                    : old == Old::none_then_scale ? f * sum
                                                                  : sum;
            ASSERT_NEAR(static_cast<double>(c[static_cast<std::size_t>(m * c_stride + n)]), expected,
                        1e-4 * (1 + std::abs(expected)) + 1e-3)
                << "rows " << rows << " depth " << depth << " vectors " << vectors << " at " << m << ", " << n;
        }
    }
}

TEST(Tiles, AddIsTheProductAddedInEveryWay) {
    for (const std::int64_t rows : {5, 16, 33}) {
        for (const std::int64_t depth : {1, 16, 24, 64, 150}) {
            for (const int vectors : {1, 3, 4, 6}) {
                for (const Old old : {Old::none, Old::keep, Old::scale, Old::none_then_scale}) {
                    for (const bool diagonal : {false, true}) {
                        check_add<Walk::along_row>(rows, depth, vectors, old, diagonal);
                        check_add<Walk::along_column>(rows, depth, vectors, old, diagonal);
                    }
                }
            }
        }
    }
}

}  // namespace
}  // namespace heed::cpu
