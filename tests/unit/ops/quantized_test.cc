#include <heed/quantized.h>

#include <cstring>

#include "kernel/quantized_problem.h"
#include "reference/quantized.h"
#include "unit/ops/layer_ops_testing.h"

namespace heed::testing {
namespace {

const WeightFormat formats[] = {WeightFormat::int8, WeightFormat::int4};

Tensor dequantized(const QuantizedMatrix& matrix, DType dtype = DType::f32) {
    Tensor out(dtype, {matrix.outputs(), matrix.inputs()});
    matrix.dequantize(test_context(), out);
    return out;
}

Tensor by_reference(const Tensor& x, const QuantizedMatrix& weight) {
    Tensor out(DType::f64, {x.shape()[0], weight.outputs()});
    QuantizedProblem problem;
    problem.blocks = weight.data();
    problem.four_bits = weight.format() == WeightFormat::int4;
    MatmulProblem& product = problem.linear.product;
    product.rows = x.shape()[0];
    product.columns = weight.outputs();
    product.depth = weight.inputs();
    product.a = {x.dtype(), static_cast<char*>(const_cast<void*>(x.data())), weight.inputs(), 1};
    product.c = {DType::f64, static_cast<char*>(out.data()), weight.outputs(), 1};
    reference::quantized_linear(problem, 0, product.rows);
    return out;
}

}  // namespace

TEST(Quantized, NumbersComeBackWithinHalfAStep) {
    for (const WeightFormat format : formats) {
        for (const Shape& shape : {Shape{1, 1}, Shape{3, 31}, Shape{16, 32}, Shape{17, 65}, Shape{40, 200}}) {
            for (const DType dtype : all_floats()) {
                const Tensor weight = random(dtype, shape, 1);
                const Scattered strange(weight);
                const QuantizedMatrix matrix = QuantizedMatrix::quantize(test_context(), strange.view, format);
                const Tensor back = dequantized(matrix);
                for (std::int64_t row = 0; row < shape[0]; ++row) {
                    for (std::int64_t begin = 0; begin < shape[1]; begin += 32) {
                        double largest = 0;
                        for (std::int64_t k = begin; k < std::min(shape[1], begin + 32); ++k) {
                            largest = std::max(largest, std::abs(get(weight, row * shape[1] + k)));
                        }
                        // Half a step; 4 bits reach one step less far on the other side of 0.
                        const double step = largest / (format == WeightFormat::int8 ? 127 : 8);
                        const double most = (format == WeightFormat::int8 ? 0.51 : 1.01) * step + 1e-6;
                        for (std::int64_t k = begin; k < std::min(shape[1], begin + 32); ++k) {
                            ASSERT_NEAR(get(back, row * shape[1] + k), get(weight, row * shape[1] + k), most);
                        }
                    }
                }
            }
        }
    }
}

TEST(Quantized, LinearIsWhatItsReferenceSays) {
    for (const WeightFormat format : formats) {
        for (const Shape& shape : {Shape{1, 1}, Shape{5, 31}, Shape{16, 32}, Shape{50, 100}, Shape{130, 640}}) {
            const QuantizedMatrix weight =
                QuantizedMatrix::quantize(test_context(), random(DType::f32, shape, 1), format);
            for (const std::int64_t rows : {1, 2, 3, 8, 13, 130}) {
                const Tensor x = random(DType::f32, {rows, shape[1]}, 2);
                const Tensor expected = by_reference(x, weight);
                Tensor out(DType::f32, {rows, shape[0]});
                linear(test_context(), x, weight, out);
                expect_near(out, expected, 1e-5);
                for (const DType dtype : {DType::bf16, DType::f16, DType::f64}) {
                    const Tensor converted = x.to(dtype);
                    Tensor other(dtype, {rows, shape[0]});
                    linear(test_context(), converted, weight, other);
                    expect_near(other, by_reference(converted, weight), std::max(1e-5, tolerance_of(dtype)));
                }
            }
        }
    }
}

TEST(Quantized, IsCloseToTheProductOfFloats) {
    for (const WeightFormat format : formats) {
        const Tensor weight = random(DType::f32, {64, 512}, 1), x = random(DType::f32, {10, 512}, 2);
        const QuantizedMatrix matrix = QuantizedMatrix::quantize(test_context(), weight, format);
        Tensor exact(DType::f32, {10, 64}), out(DType::f32, {10, 64});
        linear(test_context(), x, weight, exact);
        linear(test_context(), x, matrix, out);
        double error = 0, size = 0;
        for (std::int64_t n = 0; n < 640; ++n) {
            error += std::pow(get(out, n) - get(exact, n), 2);
            size += std::pow(get(exact, n), 2);
        }
        EXPECT_LT(std::sqrt(error / size), format == WeightFormat::int8 ? 0.012 : 0.12);
        EXPECT_EQ(matrix.bytes(), 64 * 512 * (format == WeightFormat::int8 ? 17 : 9) / 16);
    }
}

TEST(Quantized, BiasActivationAndStrangeLayouts) {
    for (const WeightFormat format : formats) {
        const QuantizedMatrix weight =
            QuantizedMatrix::quantize(test_context(), random(DType::f32, {37, 70}, 1), format);
        const Tensor x = random(DType::f32, {2, 3, 70}, 2), bias = random(DType::f32, {37}, 3);
        Tensor plain(DType::f32, {2, 3, 37}), out(DType::f32, {2, 3, 37}), before(DType::f32, {2, 3, 37});
        linear(test_context(), x, weight, plain, {.bias = bias});
        linear(test_context(), x, weight, out,
               {.bias = bias, .activation = Activation::silu, .before_activation = before});
        expect_same(before, plain);
        Tensor expected(DType::f32, {2, 3, 37});
        activate(test_context(), Activation::silu, plain, expected);
        expect_same(out, expected);
        Scattered strange(DType::f32, {2, 3, 37}), strange_before(DType::f32, {2, 3, 37});
        linear(
            test_context(), Scattered(x).view, weight, strange.view,
            {.bias = Scattered(bias).view, .activation = Activation::silu, .before_activation = strange_before.view});
        expect_same(strange.view, out);
        expect_same(strange_before.view, before);
    }
}

TEST(Quantized, ARowDependsOnNeitherThreadsNorOtherRows) {
    for (const WeightFormat format : formats) {
        const QuantizedMatrix weight =
            QuantizedMatrix::quantize(test_context(), random(DType::f32, {300, 384}, 1), format);
        const Tensor x = random(DType::f32, {140, 384}, 2);
        Tensor all(DType::f32, {140, 300});
        linear(test_context(), x, weight, all);
        Context alone(1);
        for (const std::int64_t row : {0, 1, 5, 128, 139}) {
            Tensor one(DType::f32, {1, 300});
            linear(alone, x.view().slice(0, row, row + 1), weight, one);
            expect_same(one, all.view().slice(0, row, row + 1));
        }
    }
}

TEST(Quantized, BlocksOfGguf) {
    const std::int64_t outputs = 19, inputs = 96;
    for (const WeightFormat format : formats) {
        const bool bytes = format == WeightFormat::int8;
        const std::size_t size = bytes ? 34 : 18;
        std::vector<std::byte> blocks(static_cast<std::size_t>(outputs * inputs / 32) * size);
        std::mt19937 generator(1);
        for (std::byte& byte : blocks) { byte = static_cast<std::byte>(generator() & 255U); }
        for (std::size_t n = 0; n < blocks.size(); n += size) {
            const f16 scale(static_cast<float>(n % 7) * 0.125F - 0.25F);
            std::memcpy(blocks.data() + n, &scale.bits, 2);
        }
        const QuantizedMatrix matrix = QuantizedMatrix::from_blocks(test_context(), blocks, outputs, inputs, format);
        const Tensor back = dequantized(matrix);
        for (std::int64_t n = 0; n < outputs * inputs; ++n) {
            const std::byte* block = blocks.data() + static_cast<std::size_t>(n / 32) * size;
            std::uint16_t bits = 0;
            std::memcpy(&bits, block, 2);
            const auto k = static_cast<std::size_t>(n % 32);
            const int number = bytes ? static_cast<std::int8_t>(block[2 + k])
                                     : (std::to_integer<int>(block[2 + k % 16]) >> (k < 16 ? 0 : 4) & 15) - 8;
            ASSERT_EQ(get(back, n), number * static_cast<double>(f16::from_bits(bits)));
        }
        const Tensor x = random(DType::f32, {3, inputs}, 2);
        Tensor out(DType::f32, {3, outputs});
        linear(test_context(), x, matrix, out);
        expect_near(out, by_reference(x, matrix), 1e-5);
    }
}

TEST(Quantized, ZerosAndNumbersThatAreNotFinite) {
    for (const WeightFormat format : formats) {
        const QuantizedMatrix nothing = QuantizedMatrix::quantize(test_context(), Tensor(DType::f32, {4, 40}), format);
        Tensor x = random(DType::f32, {2, 40}, 1), out = random(DType::f32, {2, 4}, 2);
        linear(test_context(), x, nothing, out);
        expect_same(out, Tensor(DType::f32, {2, 4}));
        const QuantizedMatrix weight =
            QuantizedMatrix::quantize(test_context(), random(DType::f32, {4, 40}, 3), format);
        set(x, 35, std::nan(""));
        linear(test_context(), x, weight, out);
        for (std::int64_t n = 0; n < 8; ++n) { EXPECT_EQ(std::isnan(get(out, n)), n < 4); }
        set(x, 35, std::numeric_limits<double>::infinity());
        linear(test_context(), x, weight, out);
        for (std::int64_t n = 0; n < 8; ++n) { EXPECT_EQ(std::isnan(get(out, n)), n < 4); }
        Tensor broken = random(DType::f32, {4, 40}, 3);
        set(broken, 7, std::nan(""));
        EXPECT_EQ(error_text([&] { QuantizedMatrix::quantize(test_context(), broken, format); }),
                  "[QuantizedMatrix::quantize] weight: expected finite numbers that a scale in f16 can reach, got one "
                  "that is not");
    }
}

TEST(Quantized, RefusesWhatDoesNotFit) {
    const QuantizedMatrix weight =
        QuantizedMatrix::quantize(test_context(), random(DType::f32, {4, 40}, 3), WeightFormat::int8);
    Tensor x(DType::f32, {2, 41}), out(DType::f32, {2, 4});
    EXPECT_EQ(error_text([&] { linear(test_context(), x, weight, out); }),
              "[linear] x: expected 40 columns, the inputs of weight, got [2, 41]");
    EXPECT_EQ(error_text([&] { linear(test_context(), x, QuantizedMatrix(), out); }),
              "[linear] weight: expected a quantised matrix, got none");
    std::vector<std::byte> blocks(34);
    EXPECT_EQ(error_text([&] { QuantizedMatrix::from_blocks(test_context(), blocks, 1, 64, WeightFormat::int8); }),
              "[QuantizedMatrix::from_blocks] blocks: expected 68 bytes, got 34");
    EXPECT_NE(error_text([&] {
                  QuantizedMatrix::from_blocks(test_context(), blocks, std::int64_t{1} << 40, 32, WeightFormat::int8);
              }),
              "");
}

TEST(Quantized, HugePagesAreAWish) {
    Tensor large(DType::f32, {3, 1 << 20});
    prefer_huge_pages(large);
    prefer_huge_pages(MutableView());
    for (std::int64_t n = 0; n < large.elements(); n += 4096) { ASSERT_EQ(large.as<float>()[n], 0); }
}

}  // namespace heed::testing
