#include <heed/optimizer.h>

#include "unit/ops/layer_ops_testing.h"

namespace heed::testing {
namespace {

/// One element by the definition, in double.
struct ByDefinition {
    double value, first = 0, second = 0;
    void step(double gradient, const AdamOptions& o, std::int64_t t) {
        gradient *= o.gradient_scale;
        if (o.decoupled) {
            value *= 1 - o.learning_rate * o.weight_decay;
        } else {
            gradient += o.weight_decay * value;
        }
        first = o.beta1 * first + (1 - o.beta1) * gradient;
        second = o.beta2 * second + (1 - o.beta2) * gradient * gradient;
        const auto n = static_cast<double>(t);
        value -= o.learning_rate * (first / (1 - std::pow(o.beta1, n))) /
                 (std::sqrt(second / (1 - std::pow(o.beta2, n))) + o.eps);
    }
};

}  // namespace

TEST(Adam, EqualsItsDefinitionOverSeveralSteps) {
    for (const DType dtype : {DType::f64, DType::f32}) {
        for (const bool decoupled : {true, false}) {
            const std::int64_t count = 1003;
            Tensor value = random(dtype, {count}, 1), first(dtype, {count}), second(dtype, {count});
            Tensor rounded(DType::bf16, {count});
            std::vector<ByDefinition> expected;
            for (std::int64_t n = 0; n < count; ++n) { expected.push_back({get(value, n)}); }
            for (std::int64_t t = 1; t <= 5; ++t) {
                const Tensor gradient = random(dtype, {count}, static_cast<unsigned>(10 + t));
                const AdamOptions options{.learning_rate = 0.01,
                                          .beta2 = 0.98,
                                          .eps = 1e-9,
                                          .weight_decay = 0.1,
                                          .decoupled = decoupled,
                                          .step = t,
                                          .gradient_scale = 0.5};
                const AdamParameter parameter{
                    .value = value, .gradient = gradient, .first = first, .second = second, .rounded = rounded};
                adam(test_context(), std::span(&parameter, 1), options);
                for (std::int64_t n = 0; n < count; ++n) {
                    expected[static_cast<std::size_t>(n)].step(get(gradient, n), options, t);
                }
            }
            for (std::int64_t n = 0; n < count; ++n) {
                const ByDefinition& e = expected[static_cast<std::size_t>(n)];
                const double tolerance = dtype == DType::f64 ? 1e-12 : 2e-6;
                ASSERT_NEAR(get(value, n), e.value, tolerance * (1 + std::abs(e.value)));
                ASSERT_NEAR(get(first, n), e.first, tolerance);
                ASSERT_NEAR(get(second, n), e.second, tolerance);
                ASSERT_EQ(get(rounded, n), static_cast<double>(bf16(static_cast<float>(get(value, n)))));
            }
        }
    }
}

TEST(Adam, FirstStepMovesByTheRateAndNoGradientIsPureDecay) {
    Tensor value(DType::f32, {3}), gradient(DType::f32, {3}), first(DType::f32, {3}), second(DType::f32, {3});
    set(gradient, 0, 0.3), set(gradient, 1, -70), set(value, 2, 2);
    const AdamParameter parameter{.value = value, .gradient = gradient, .first = first, .second = second};
    adam(test_context(), std::span(&parameter, 1), {.learning_rate = 0.1, .weight_decay = 0.5});
    EXPECT_NEAR(get(value, 0), -0.1, 1e-6);
    EXPECT_NEAR(get(value, 1), 0.1, 1e-6);
    EXPECT_NEAR(get(value, 2), 2 * 0.95, 1e-6);
    AdamParameter kept = parameter;
    kept.decay = false;
    Tensor none(DType::f32, {3});
    kept.gradient = none;
    set(first, 2, 0), set(second, 2, 0);
    adam(test_context(), std::span(&kept, 1), {.learning_rate = 0.1, .weight_decay = 0.5, .step = 2});
    EXPECT_NEAR(get(value, 2), 2 * 0.95, 1e-6);
}

TEST(Adam, SeveralTensorsAndAnyNumberOfThreads) {
    const auto run = [](int threads) {
        Context context(threads);
        std::vector<Tensor> tensors;
        std::vector<AdamParameter> parameters;
        for (const std::int64_t count : {1, 40000, 17, 0, 33000}) {
            const auto seed = static_cast<unsigned>(tensors.size());
            tensors.push_back(random(DType::f32, {count}, seed));
            tensors.push_back(random(DType::f32, {count}, seed + 1));
            tensors.push_back(Tensor(DType::f32, {count}));
            tensors.push_back(Tensor(DType::f32, {count}));
        }
        for (std::size_t n = 0; n < tensors.size(); n += 4) {
            parameters.push_back(
                {.value = tensors[n], .gradient = tensors[n + 1], .first = tensors[n + 2], .second = tensors[n + 3]});
        }
        adam(context, parameters, {});
        return tensors;
    };
    const std::vector<Tensor> alone = run(1), several = run(3);
    for (std::size_t n = 0; n < alone.size(); ++n) { expect_same(alone[n], several[n]); }
}

TEST(GlobalNorm, IsTheNormOfAllAndClipsToIt) {
    std::vector<Tensor> tensors;
    tensors.push_back(random(DType::f32, {3, 50000}, 1));
    tensors.push_back(random(DType::bf16, {7}, 2));
    tensors.push_back(random(DType::f64, {11}, 3));
    std::vector<View> views(tensors.begin(), tensors.end());
    double squares = 0;
    for (const Tensor& tensor : tensors) { squares += dot(tensor, tensor); }
    Context alone(1), several(4);
    const double norm = global_norm(alone, views);
    EXPECT_NEAR(norm, std::sqrt(squares), 1e-6 * norm);
    EXPECT_EQ(global_norm(several, views), norm);
    EXPECT_EQ(clip_factor(0.5, 1), 1);
    EXPECT_NEAR(clip_factor(4, 1), 0.25, 1e-6);
    set(tensors[1], 3, std::nan(""));
    EXPECT_TRUE(std::isnan(global_norm(alone, views)));
    set(tensors[1], 3, std::numeric_limits<double>::infinity());
    EXPECT_TRUE(std::isinf(global_norm(alone, views)));
}

TEST(Adam, RefusesWhatDoesNotFit) {
    Tensor x(DType::f32, {3}), g(DType::f32, {3}), m(DType::f32, {3}), v(DType::f32, {3}), half(DType::bf16, {3});
    const auto message = [&](const AdamParameter& parameter, const AdamOptions& options) {
        return error_text([&] { adam(test_context(), std::span(&parameter, 1), options); });
    };
    EXPECT_EQ(message({.value = x, .gradient = g, .first = m, .second = v}, {.step = 0}),
              "[adam] step: expected 1 or more, got 0");
    EXPECT_EQ(message({.value = x, .first = m, .second = v}, {}),
              "[adam] parameters[0].gradient: expected a tensor of shape [3], got none");
    EXPECT_EQ(message({.value = x, .gradient = g, .first = half, .second = v}, {}),
              "[adam] parameters[0].first: expected f32 or f64, got bf16");
    EXPECT_EQ(message({.value = x, .gradient = x, .first = m, .second = v}, {}),
              "[adam] parameters[0].value: expected memory apart from parameters[0].gradient, got an overlap");
}

}  // namespace heed::testing
