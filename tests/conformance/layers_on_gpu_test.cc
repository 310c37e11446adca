/// The layers' operations on a GPU beside the same in double on the CPU: every float type, odd sizes, strided rows.

#include <gtest/gtest.h>

#include <heed/activation.h>
#include <heed/dropout.h>
#include <heed/elementwise.h>
#include <heed/embedding.h>
#include <heed/linear.h>
#include <heed/matmul.h>
#include <heed/norm.h>
#include <heed/positions.h>

#include "support/random.h"

#include <cmath>
#include <functional>
#include <string>
#include <vector>

namespace heed::conformance {
namespace {

constexpr Device layers_gpu{DeviceKind::cuda, 0};

/// Random numbers as every type holds them: rounded to it, and the same in double.
struct BothNumbers {
    Tensor exact, there;
    BothNumbers(testing::Random& random, DType type, const Shape& shape) {
        Tensor drawn(DType::f64, shape);
        for (std::int64_t n = 0; n < drawn.elements(); ++n) { drawn.as<double>()[n] = random.normal(); }
        const Tensor rounded = drawn.to(type);
        exact = rounded.to(DType::f64);
        there = rounded.to(layers_gpu);
    }
};

using LayerInputs = std::vector<View>;
using LayerResults = std::vector<MutableView>;
struct Layer {
    std::string name;
    std::vector<Shape> inputs, outputs;
    std::function<void(Context&, const LayerInputs&, const LayerResults&)> call;
    double units = 4;  ///< roundings that the sums add up to
};

double epsilon_of(DType type) {
    return type == DType::f64 ? 0x1p-52 : type == DType::f32 ? 0x1p-23 : type == DType::f16 ? 0x1p-10 : 0x1p-7;
}

/// The largest difference, as a part of the largest number.
double error_of(const Tensor& got, const Tensor& expected) {
    const Tensor wide = got.to(Device{}).to(DType::f64);
    double error = 0, size = 0;
    for (std::int64_t n = 0; n < expected.elements(); ++n) {
        const double a = wide.as<double>()[n], b = expected.as<double>()[n];
        if (!std::isfinite(a)) { return 1e300; }
        error = std::max(error, std::fabs(a - b));
        size = std::max(size, std::fabs(b));
    }
    return error / std::max(size, 1e-3);
}

/// Every second row of a longer tensor, or all of it.
template <class AnyView>
AnyView spread(const AnyView& whole, bool strided) {
    if (!strided) { return whole; }
    Shape shape = whole.shape(), strides = whole.strides();
    shape[0] /= 2;
    strides[0] *= 2;
    return AnyView(whole.dtype(), whole.data(), shape, strides, whole.device());
}

void check_layer(Context& gpu, Context& cpu, const Layer& layer, DType type, bool strided) {
    testing::Random random(7);
    const auto longer = [&](Shape shape) {
        if (strided) { shape[0] *= 2; }
        return shape;
    };
    std::vector<BothNumbers> inputs;
    std::vector<Tensor> expected, got;
    LayerInputs exact, there;
    LayerResults exact_out, there_out;
    for (const Shape& shape : layer.inputs) { inputs.emplace_back(random, type, longer(shape)); }
    for (const BothNumbers& input : inputs) {
        exact.push_back(spread(input.exact.view(), strided));
        there.push_back(spread(input.there.view(), strided));
    }
    for (const Shape& shape : layer.outputs) {
        expected.emplace_back(DType::f64, longer(shape));
        got.emplace_back(type, longer(shape), layers_gpu);
    }
    for (std::size_t n = 0; n < expected.size(); ++n) {
        exact_out.push_back(spread(expected[n].view(), strided));
        there_out.push_back(spread(got[n].view(), strided));
    }
    layer.call(cpu, exact, exact_out);
    layer.call(gpu, there, there_out);
    gpu.synchronise();
    for (std::size_t n = 0; n < expected.size(); ++n) {
        EXPECT_LE(error_of(got[n], expected[n]), layer.units * epsilon_of(type))
            << layer.name << " result " << n << " of type " << name_of(type) << (strided ? ", strided" : "");
    }
}

std::vector<Layer> layers() {
    std::vector<Layer> all;
    for (const auto& [rows, columns] : {std::pair{5, 64}, std::pair{33, 257}, std::pair{3, 1000}}) {
        const Shape shape{rows, columns}, row{columns};
        all.push_back({"layer_norm",
                       {shape, shape},
                       {shape, shape},
                       [](Context& c, const LayerInputs& in, const LayerResults& out) {
                           layer_norm(c, in[0], out[0], {.residual = in[1], .sum = out[1]});
                       }});
        all.push_back({"rms_norm", {shape}, {shape}, [](Context& c, const LayerInputs& in, const LayerResults& out) {
                           rms_norm(c, in[0], out[0], {.eps = 1e-6});
                       }});
        all.push_back({"layer_norm backward",
                       {shape, shape},
                       {shape},
                       [](Context& c, const LayerInputs& in, const LayerResults& out) {
                           layer_norm_backward(c, in[0], in[1], {.dx = out[0]});
                       }});
        all.push_back(
            {"gated silu", {shape, shape}, {shape}, [](Context& c, const LayerInputs& in, const LayerResults& out) {
                 gated(c, Activation::silu, in[0], in[1], out[0]);
             }});
        all.push_back({"gated gelu backward",
                       {shape, shape, shape},
                       {shape, shape},
                       [](Context& c, const LayerInputs& in, const LayerResults& out) {
                           gated_backward(c, Activation::gelu_tanh, in[0], in[1], in[2], out[0], out[1]);
                       }});
        for (const Activation f : {Activation::relu, Activation::gelu, Activation::quick_gelu, Activation::tanh,
                                   Activation::sigmoid, Activation::none}) {
            all.push_back(
                {"activate", {shape}, {shape}, [f](Context& c, const LayerInputs& in, const LayerResults& out) {
                     activate(c, f, in[0], out[0]);
                 }});
        }
        all.push_back({"add", {shape, shape}, {shape}, [](Context& c, const LayerInputs& in, const LayerResults& out) {
                           add(c, in[0], in[1], out[0], {.alpha = 0.5, .beta = -2});
                       }});
        all.push_back(
            {"multiply", {shape, shape}, {shape}, [](Context& c, const LayerInputs& in, const LayerResults& out) {
                 multiply(c, in[0], in[1], out[0]);
             }});
        all.push_back({"scale", {shape}, {shape}, [](Context& c, const LayerInputs& in, const LayerResults& out) {
                           scale(c, in[0], 3, out[0]);
                       }});
    }
    for (const auto& [rows, outputs, depth] : {std::array{1, 1, 1}, {7, 65, 33}, {130, 67, 129}, {1, 300, 64}}) {
        all.push_back({"linear",
                       {{rows, depth}, {outputs, depth}},
                       {{rows, outputs}},
                       [](Context& c, const LayerInputs& in, const LayerResults& out) {
                           linear(c, in[0], in[1], out[0], {.activation = Activation::silu});
                       },
                       16});
        all.push_back({"linear backward",
                       {{rows, depth}, {outputs, depth}, {rows, outputs}},
                       {{rows, depth}, {outputs, depth}},
                       [](Context& c, const LayerInputs& in, const LayerResults& out) {
                           linear_backward(c, in[0], in[1], in[2], {.dx = out[0], .dweight = out[1]});
                       },
                       16});
    }
    for (const auto& [m, n, k] : {std::array{1, 1, 1}, {17, 33, 300}, {140, 130, 64}}) {
        all.push_back({"matmul",
                       {{2, 3, m, k}, {2, 1, k, n}},
                       {{2, 3, m, n}},
                       [](Context& c, const LayerInputs& in, const LayerResults& out) {
                           matmul(c, in[0], in[1], out[0], {.alpha = 0.5});
                       },
                       16});
        all.push_back(
            {"matmul of a sum",
             {{2, 3, m, k}, {2, 3, k, n}},
             {{1, 3, m, n}},
             [](Context& c, const LayerInputs& in, const LayerResults& out) { matmul(c, in[0], in[1], out[0]); },
             16});
    }
    all.push_back({"dropout",
                   {{33, 257}, {33, 257}},
                   {{33, 257}},
                   [](Context& c, const LayerInputs& in, const LayerResults& out) {
                       dropout(c, in[0], out[0], {.p = 0.3, .seed = 5, .residual = in[1]});
                   }});
    for (const Pairing pairing : {Pairing::halves, Pairing::interleaved}) {
        for (const auto& [rotary, size] : {std::pair{64, 64}, std::pair{34, 47}}) {
            const RopeTable table = rope_table({.size = rotary, .pairing = pairing});
            const Shape shape{2, 3, 37, size};
            all.push_back(
                {"rope", {shape}, {shape}, [table](Context& c, const LayerInputs& in, const LayerResults& out) {
                     rope(c, in[0], out[0], table, {.first = 1000});
                 }});
        }
    }
    return all;
}

TEST(LayersOnTheGpu, AsInDoubleOnTheCpu) {
    if (devices().size() < 2) { GTEST_SKIP() << "no GPU, or heed built without CUDA"; }
    Context gpu(layers_gpu), cpu(2);
    int count = 0;
    for (const Layer& layer : layers()) {
        for (const DType type : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
            for (const bool strided : {false, true}) {
                check_layer(gpu, cpu, layer, type, strided);
                ++count;
            }
        }
    }
    std::printf("layers on the GPU: %d cases\n", count);
}

TEST(LayersOnTheGpu, RowsOfATableAndPositions) {
    if (devices().size() < 2) { GTEST_SKIP() << "no GPU, or heed built without CUDA"; }
    Context gpu(layers_gpu), cpu(2);
    testing::Random random(3);
    const BothNumbers table(random, DType::bf16, Shape{50, 37});
    std::vector<std::int64_t> ids(2000);
    for (std::int64_t& id : ids) { id = random.below(50); }
    const View which(ids.data(), Shape{2000});
    Tensor expected(DType::f64, Shape{2000, 37}), got(DType::bf16, Shape{2000, 37}, layers_gpu);
    embedding(cpu, which, table.exact, expected, {.scale = 2});
    embedding(gpu, which, table.there, got, {.scale = 2});
    EXPECT_EQ(error_of(got, expected), 0);

    const BothNumbers x(random, DType::f32, Shape{2, 2, 100, 16});
    std::vector<std::int64_t> positions(200);
    for (std::int64_t& position : positions) { position = random.below(100000) - 50000; }
    const RopeTable rotation = rope_table({.size = 16});
    Tensor turned(DType::f64, Shape{2, 2, 100, 16}), turned_there(DType::f32, Shape{2, 2, 100, 16}, layers_gpu);
    const View where(positions.data(), Shape{2, 100});
    rope(cpu, x.exact, turned, rotation, {.positions = where});
    rope(gpu, x.there, turned_there, rotation, {.positions = where});
    EXPECT_LE(error_of(turned_there, turned), 0x1p-21);
}

TEST(LayersOnTheGpu, MemoryOfAnotherDeviceIsRefused) {
    if (devices().size() < 2) { GTEST_SKIP() << "no GPU, or heed built without CUDA"; }
    Context gpu(layers_gpu), cpu(1);
    Tensor here(DType::f32, Shape{4, 8}), there(DType::f32, Shape{4, 8}, layers_gpu);
    EXPECT_THROW(rms_norm(gpu, here, there), Error);
    EXPECT_THROW(rms_norm(cpu, there, here), Error);
    EXPECT_THROW(scale(cpu, there, 2, here), Error);
    EXPECT_THROW(linear(gpu, there, here, there), Error);
}

}  // namespace
}  // namespace heed::conformance
