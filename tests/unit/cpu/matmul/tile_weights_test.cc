/// Linear layers on tiles with weights where they lie, on a model of the tiles in plain C++: every edge, and nothing
/// read or written outside the operands.

#include "cpu/matmul/tile_weights.h"

#include "support/random.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

namespace heed::cpu {
namespace {

struct WeightsIsa {
    static constexpr int lanes = 16;
    static constexpr int registers = 32;
};

/// A matrix of bf16 with NaN between its rows.
struct Halves {
    std::int64_t stride;
    std::vector<std::uint16_t> words;

    Halves(std::int64_t rows, std::int64_t columns, std::int64_t more, testing::Random& random)
        : stride(columns + more), words(static_cast<std::size_t>(rows * stride), 0x7FC0) {
        for (std::int64_t n = 0; n < rows * stride; ++n) {
            if (n % stride < columns) {
                words[static_cast<std::size_t>(n)] = narrow_bf16(static_cast<float>(random.normal()));
            }
        }
    }
    char* data() { return reinterpret_cast<char*>(words.data()); }
    double at(std::int64_t row, std::int64_t column) const {
        return static_cast<double>(widen_bf16(words[static_cast<std::size_t>(row * stride + column)]));
    }
};

struct LayerSizes {
    std::int64_t rows, inputs, outputs, more = 0;
};

/// Rows [begin, end) of x through the layer, NaN around the results.
std::vector<float> layer(detail::Pool& pool, const LayerSizes& sizes, Halves& x, Halves& weight, Halves& bias,
                         std::int64_t begin, std::int64_t end) {
    const std::int64_t stride = sizes.outputs + 3;
    std::vector<float> out(static_cast<std::size_t>((end - begin) * stride), std::numeric_limits<float>::quiet_NaN());
    LinearProblem problem;
    problem.product.rows = end - begin;
    problem.product.depth = sizes.inputs;
    problem.product.columns = sizes.outputs;
    problem.product.a = {DType::bf16, x.data() + begin * x.stride * 2, x.stride, 1};
    problem.product.b = {DType::bf16, weight.data(), 1, weight.stride};
    problem.product.c = {DType::f32, reinterpret_cast<char*>(out.data()), stride, 1};
    problem.bias = {DType::bf16, bias.data(), 0, 1};
    TurnedRows<WeightsIsa> rows{problem.product};
    std::vector<float> memory(static_cast<std::size_t>(rows.floats()));
    rows.data = memory.data();
    rows.copy(pool);
    TileWeights<WeightsIsa, ModelTiles>{problem, rows}.run(pool);
    return out;
}

void expect_the_layer(const LayerSizes& sizes) {
    SCOPED_TRACE(::testing::Message() << sizes.rows << " x " << sizes.inputs << " x " << sizes.outputs << ", "
                                      << sizes.more << " between rows");
    testing::Random random{3};
    Halves x(sizes.rows, sizes.inputs, sizes.more / 2, random);
    Halves weight(sizes.outputs, sizes.inputs, sizes.inputs % 2 + sizes.more, random);
    Halves bias(1, sizes.outputs, 0, random);
    detail::Pool threads(3), alone(1);
    const std::vector<float> out = layer(threads, sizes, x, weight, bias, 0, sizes.rows);
    const std::int64_t stride = sizes.outputs + 3;
    for (std::int64_t row = 0; row < sizes.rows; ++row) {
        const std::vector<float> one = layer(alone, sizes, x, weight, bias, row, row + 1);
        for (std::int64_t column = 0; column < stride; ++column) {
            const float got = out[static_cast<std::size_t>(row * stride + column)];
            if (column >= sizes.outputs) {
                ASSERT_TRUE(std::isnan(got)) << "written behind row " << row;
                continue;
            }
            double sum = bias.at(0, column), size = std::abs(sum);
            for (std::int64_t k = 0; k < sizes.inputs; ++k) {
                sum += x.at(row, k) * weight.at(column, k);
                size += std::abs(x.at(row, k) * weight.at(column, k));
            }
            ASSERT_NEAR(static_cast<double>(got), sum, 1e-6 * size + 1e-6) << row << ", " << column;
            ASSERT_EQ(got, one[static_cast<std::size_t>(column)]) << row << ", " << column << ": alone";
        }
    }
}

TEST(TileWeights, AreALayerForAnyRows) {
    for (const std::int64_t rows : {1, 15, 16, 17, 33, 70}) {
        expect_the_layer({rows, 64, 40});
        expect_the_layer({rows, 75, 33, 4});
    }
    expect_the_layer({300, 40, 150});
}

TEST(TileWeights, AreALayerForAnyDepthAndWidth) {
    for (const std::int64_t inputs : {1, 2, 31, 32, 33, 96, 1100}) { expect_the_layer({20, inputs, 50, 2}); }
    for (const std::int64_t outputs : {32, 47, 48, 64, 129, 300}) { expect_the_layer({20, 48, outputs}); }
}

/// Weights whose rows lie pages apart are copied where there are many rows.
TEST(TileWeights, AreALayerWithRowsFarApart) { expect_the_layer({260, 70, 40, 4096}); }

TEST(TileWeights, WantPairsAndTwoTiles) {
    MatmulProblem p;
    p.rows = 4;
    p.depth = 8;
    p.columns = 32;
    p.b = {DType::bf16, nullptr, 1, 8};
    EXPECT_TRUE((TileWeights<WeightsIsa, ModelTiles>::takes(p)));
    p.columns = 31;
    EXPECT_FALSE((TileWeights<WeightsIsa, ModelTiles>::takes(p)));
    p.columns = 32;
    p.b.column_stride = 9;
    EXPECT_FALSE((TileWeights<WeightsIsa, ModelTiles>::takes(p)));
    p.b = {DType::bf16, nullptr, 32, 1};
    EXPECT_FALSE((TileWeights<WeightsIsa, ModelTiles>::takes(p)));
}

}  // namespace
}  // namespace heed::cpu
