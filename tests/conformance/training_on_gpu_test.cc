/// What a training step needs beside the layers, on a GPU and in double on the CPU: losses, gradients of tables and
/// projections, the update.

#include <gtest/gtest.h>

#include <heed/cross_entropy.h>
#include <heed/embedding.h>
#include <heed/linear.h>
#include <heed/norm.h>
#include <heed/optimizer.h>
#include <heed/positions.h>

#include "support/random.h"

#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

namespace heed::conformance {
namespace {

constexpr Device training_gpu{DeviceKind::cuda, 0};

double unit_of(DType type) {
    return type == DType::f64 ? 0x1p-52 : type == DType::f32 ? 0x1p-23 : type == DType::f16 ? 0x1p-10 : 0x1p-7;
}

/// Random numbers rounded to a type: there on the GPU, and as double here.
struct Drawn {
    Tensor here, there;
    Drawn(testing::Random& random, DType type, const Shape& shape, double size = 1) {
        Tensor numbers(DType::f64, shape);
        for (std::int64_t n = 0; n < numbers.elements(); ++n) { numbers.as<double>()[n] = size * random.normal(); }
        const Tensor rounded = numbers.to(type);
        here = rounded.to(DType::f64);
        there = rounded.to(training_gpu);
    }
};

void expect_near(const Tensor& got, const Tensor& expected, double allowed, const char* what) {
    const Tensor wide = got.to(Device{}).to(DType::f64);
    double error = 0, size = 1e-30;
    for (std::int64_t n = 0; n < expected.elements(); ++n) {
        const double difference = std::fabs(wide.as<double>()[n] - expected.as<double>()[n]);
        error = std::max(error, std::isfinite(difference) ? difference : 1e300);
        size = std::max(size, std::fabs(expected.as<double>()[n]));
    }
    EXPECT_LE(error / size, allowed) << what << " of type " << name_of(got.dtype());
}

std::vector<std::int64_t> drawn_ids(testing::Random& random, std::int64_t count, std::int64_t classes, bool ignored) {
    std::vector<std::int64_t> ids;
    for (std::int64_t n = 0; n < count; ++n) {
        ids.push_back(ignored && random.chance(0.2) ? -100 : random.below(classes));
    }
    return ids;
}

class TrainingOnTheGpu : public ::testing::TestWithParam<DType> {
protected:
    void SetUp() override {
        if (devices().size() < 2) { GTEST_SKIP() << "no GPU, or heed built without CUDA"; }
        gpu = std::make_unique<Context>(training_gpu);
    }
    std::unique_ptr<Context> gpu;
    Context cpu{2};
    testing::Random random{11};
};

TEST_P(TrainingOnTheGpu, CrossEntropy) {
    const DType type = GetParam();
    for (const std::int64_t classes : {1, 5, 257, 5000}) {
        for (const double smoothing : {0.0, 0.1}) {
            const std::int64_t rows = 37;
            const Drawn logits(random, type, {rows, classes}, 3);
            const std::vector<std::int64_t> ids = drawn_ids(random, rows, classes, true);
            const View targets(ids.data(), {rows});
            Tensor expected(DType::f64, {rows, classes}), got(type, {rows, classes}, training_gpu);
            const CrossEntropyOptions options{.label_smoothing = smoothing};
            const CrossEntropy a = cross_entropy(cpu, logits.here, targets, options, {.dlogits = expected});
            const CrossEntropy b = cross_entropy(*gpu, logits.there, targets, options, {.dlogits = got});
            gpu->synchronise();
            EXPECT_NEAR(a.loss, b.loss, 1e-5 * (1 + std::fabs(a.loss)));
            EXPECT_NEAR(a.nll, b.nll, 1e-5 * (1 + std::fabs(a.nll)));
            EXPECT_EQ(a.targets, b.targets);
            if (classes > 1) { expect_near(got, expected, 8 * unit_of(type), "dlogits"); }
        }
    }
}

TEST_P(TrainingOnTheGpu, CrossEntropyBehindAProjection) {
    const DType type = GetParam();
    const std::int64_t rows = 60, inputs = 48, classes = 301;
    const Drawn hidden(random, type, {3, rows / 3, inputs}), weight(random, type, {classes, inputs}, 0.2);
    const Drawn bias(random, type, {classes});
    const std::vector<std::int64_t> ids = drawn_ids(random, rows, classes, true);
    const View targets(ids.data(), {3, rows / 3});
    const auto run = [&](Context& context, const Tensor& h, const Tensor& w, const Tensor& b, std::vector<Tensor>& d) {
        return linear_cross_entropy(context, h, w, targets, {.bias = b, .softcap = 5},
                                    {.dhidden = d[0].view(), .dweight = d[1].view(), .dbias = d[2].view()});
    };
    std::vector<Tensor> expected, got;
    for (const Tensor* like : {&hidden.here, &weight.here, &bias.here}) {
        expected.emplace_back(DType::f64, like->shape());
        got.emplace_back(type == DType::f64 ? type : DType::f32, like->shape(), training_gpu);
    }
    const CrossEntropy a = run(cpu, hidden.here, weight.here, bias.here, expected);
    const CrossEntropy b = run(*gpu, hidden.there, weight.there, bias.there, got);
    gpu->synchronise();
    EXPECT_NEAR(a.loss, b.loss, 1e-5 * (1 + a.loss));
    for (std::size_t n = 0; n < 3; ++n) { expect_near(got[n], expected[n], 16 * unit_of(type), "a gradient"); }
}

TEST_P(TrainingOnTheGpu, GradientOfATable) {
    const DType type = GetParam();
    for (const std::int64_t classes : {3, 1000}) {
        const std::int64_t rows = 700, columns = 70;
        const Drawn dout(random, type, {rows, columns}), before(random, type, {classes, columns});
        const std::vector<std::int64_t> ids = drawn_ids(random, rows, classes, false);
        for (const bool accumulate : {false, true}) {
            Tensor expected = before.here.clone(), got = before.there.clone();
            const EmbeddingBackwardOptions options{.scale = 0.5, .accumulate = accumulate, .padding_id = 2};
            const View list(ids.data(), {rows});
            embedding_backward(cpu, list, dout.here, expected, options);
            embedding_backward(*gpu, list, dout.there, got, options);
            gpu->synchronise();
            expect_near(got, expected, 32 * unit_of(type), "dtable");  // sums of 230 numbers
            Tensor again = before.there.clone();
            embedding_backward(*gpu, list, dout.there, again, options);
            gpu->synchronise();
            const Tensor one = got.to(Device{}), two = again.to(Device{});
            EXPECT_EQ(std::memcmp(one.data(), two.data(), one.bytes()), 0) << "the same bits in every run";
        }
    }
}

TEST_P(TrainingOnTheGpu, GradientsOfALinearLayer) {
    const DType type = GetParam();
    const Drawn x(random, type, {4, 133, 65}), weight(random, type, {50, 65}), dout(random, type, {4, 133, 50});
    std::vector<Tensor> expected, got;
    for (const Shape& shape : {Shape{4, 133, 65}, Shape{50, 65}, Shape{50}}) {
        expected.emplace_back(DType::f64, shape);
        got.emplace_back(type, shape, training_gpu);
    }
    linear_backward(cpu, x.here, weight.here, dout.here,
                    {.dx = expected[0], .dweight = expected[1], .dbias = expected[2]});
    linear_backward(*gpu, x.there, weight.there, dout.there, {.dx = got[0], .dweight = got[1], .dbias = got[2]});
    gpu->synchronise();
    for (std::size_t n = 0; n < 3; ++n) { expect_near(got[n], expected[n], 16 * unit_of(type), "a gradient"); }
}

TEST_P(TrainingOnTheGpu, GradientsOfANormOverManyRows) {
    const DType type = GetParam();
    const Shape shape{900, 300}, row{300};
    const Drawn x(random, type, shape), dout(random, type, shape), weight(random, type, row), before(random, type, row);
    for (const bool accumulate : {false, true}) {
        Tensor expected = before.here.clone(), got = before.there.clone(), dx(DType::f64, shape);
        Tensor bias = before.here.clone(), bias_there = before.there.clone(), dx_there(type, shape, training_gpu);
        layer_norm_backward(cpu, x.here, dout.here,
                            {.dx = dx, .dweight = expected, .dbias = bias, .accumulate = accumulate},
                            {.weight = weight.here});
        layer_norm_backward(*gpu, x.there, dout.there,
                            {.dx = dx_there, .dweight = got, .dbias = bias_there, .accumulate = accumulate},
                            {.weight = weight.there});
        gpu->synchronise();
        expect_near(dx_there, dx, 16 * unit_of(type), "dx");
        expect_near(got, expected, 32 * unit_of(type), "dweight");
        expect_near(bias_there, bias, 32 * unit_of(type), "dbias");
    }
}

TEST_P(TrainingOnTheGpu, UpdateAndNorm) {
    const DType type = GetParam();
    const DType moments = type == DType::f64 ? type : DType::f32;
    const std::int64_t count = 20011;
    const Drawn value(random, type, {count}), gradient(random, type, {count});
    const Drawn first(random, moments, {count}, 0.1);
    Tensor second_here(DType::f64, {count}), second_there(moments, {count}, training_gpu);
    const std::vector<View> here = {gradient.here, value.here}, there = {gradient.there, value.there};
    EXPECT_NEAR(global_norm(cpu, here), global_norm(*gpu, there), 1e-10 * global_norm(cpu, here));
    Tensor a = value.here.clone(), b = value.there.clone(), m = first.here.clone(), n = first.there.clone();
    Tensor rounded(DType::bf16, {count}, training_gpu);
    const AdamOptions options{.learning_rate = 0.01, .weight_decay = 0.1, .step = 3, .gradient_scale = 0.7};
    const AdamParameter one{.value = a, .gradient = gradient.here, .first = m, .second = second_here};
    const AdamParameter two{
        .value = b, .gradient = gradient.there, .first = n, .second = second_there, .rounded = rounded};
    adam(cpu, std::span(&one, 1), options);
    adam(*gpu, std::span(&two, 1), options);
    gpu->synchronise();
    expect_near(b, a, 4 * unit_of(type), "value");
    expect_near(n, m, 4 * unit_of(moments), "first");
    expect_near(second_there, second_here, 4 * unit_of(moments), "second");
    expect_near(rounded, a, 4 * std::max(unit_of(type), unit_of(DType::bf16)), "rounded");
}

TEST_P(TrainingOnTheGpu, RelativeBias) {
    const DType type = GetParam();
    const std::int64_t heads = 6, queries = 19, keys = 40;
    const RelativeBiasOptions options{.buckets = {.count = 32, .max_distance = 20, .bidirectional = false}};
    const Drawn table(random, type, {32, heads}), dbias(random, type, {1, heads, queries, keys});
    Tensor expected(DType::f64, {1, heads, queries, keys}), got(type, {1, heads, queries, keys}, training_gpu);
    relative_bias(cpu, table.here, expected, options);
    relative_bias(*gpu, table.there, got, options);
    const DType wide = type == DType::f64 ? type : DType::f32;
    Tensor dexpected(DType::f64, {32, heads}), dgot(wide, {32, heads}, training_gpu);
    relative_bias_backward(cpu, dbias.here, dexpected, options);
    relative_bias_backward(*gpu, dbias.there, dgot, options);
    gpu->synchronise();
    expect_near(got, expected, unit_of(type), "bias");
    expect_near(dgot, dexpected, 8 * unit_of(wide), "dtable");
}

std::string type_name(const ::testing::TestParamInfo<DType>& type) { return std::string(name_of(type.param)); }
INSTANTIATE_TEST_SUITE_P(EveryType, TrainingOnTheGpu,
                         ::testing::Values(DType::f32, DType::bf16, DType::f16, DType::f64), type_name);

}  // namespace
}  // namespace heed::conformance
