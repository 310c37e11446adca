#include <heed/cross_entropy.h>

#include "unit/ops/layer_ops_testing.h"

namespace heed::testing {
namespace {

Tensor targets_of(const Shape& shape, std::int64_t classes, std::int64_t ignore_every = 4) {
    Tensor targets(DType::i64, shape);
    for (std::int64_t n = 0; n < targets.elements(); ++n) {
        targets.as<std::int64_t>()[n] = ignore_every > 0 && n % ignore_every == 1 ? -100 : n * 7919 % classes;
    }
    return targets;
}

const Smoothing smoothings[] = {Smoothing::uniform, Smoothing::others};

double loss_by_definition(const View& logits, std::int64_t row, std::int64_t target, const CrossEntropyOptions& o) {
    const std::int64_t classes = logits.extent(logits.rank() - 1);
    const auto count = static_cast<double>(classes);
    double sum = 0, loss = 0;
    for (std::int64_t v = 0; v < classes; ++v) { sum += std::exp(get(logits, row * classes + v)); }
    for (std::int64_t v = 0; v < classes; ++v) {
        double q = v == target ? 1 - o.label_smoothing : 0;
        if (o.smoothing == Smoothing::uniform) {
            q += o.label_smoothing / count;
        } else if (v != target) {
            q = o.label_smoothing / (count - 1);
        }
        loss -= q * (get(logits, row * classes + v) - std::log(sum));
    }
    return loss;
}

}  // namespace

TEST(CrossEntropy, EqualsItsDefinition) {
    for (const DType dtype : all_floats()) {
        for (const std::int64_t classes : {2, 5, 33, 1000}) {
            const Tensor logits = random(dtype, {3, 4, classes}, 1, 2), targets = targets_of({3, 4}, classes);
            for (const Smoothing smoothing : smoothings) {
                for (const double eps : {0.0, 0.1}) {
                    const CrossEntropyOptions options{.label_smoothing = eps, .smoothing = smoothing};
                    Tensor losses(DType::f64, {3, 4});
                    const CrossEntropy got =
                        cross_entropy(test_context(), Scattered(logits).view, targets, options, {.losses = losses});
                    double loss = 0, nll = 0;
                    for (std::int64_t n = 0; n < 12; ++n) {
                        const std::int64_t target = targets.as<std::int64_t>()[n];
                        const double expected = target == -100 ? 0 : loss_by_definition(logits, n, target, options);
                        ASSERT_NEAR(get(losses, n), expected, 1e-5);
                        loss += expected;
                        nll += target == -100 ? 0 : loss_by_definition(logits, n, target, {});
                    }
                    EXPECT_EQ(got.targets, 9);
                    EXPECT_NEAR(got.loss, loss / 9, 1e-5);
                    EXPECT_NEAR(got.nll, nll / 9, 1e-5);
                }
            }
        }
    }
}

TEST(CrossEntropy, GradientsAreSlopes) {
    Tensor logits = random(DType::f64, {2, 3, 7}, 1);
    const Tensor targets = targets_of({2, 3}, 7);
    for (const Smoothing smoothing : smoothings) {
        for (const double divisor : {0.0, 11.0}) {
            const CrossEntropyOptions options{
                .label_smoothing = 0.2, .smoothing = smoothing, .divisor = divisor, .dloss = 3};
            Tensor dlogits(DType::f64, logits.shape());
            cross_entropy(test_context(), logits, targets, options, {.dlogits = dlogits});
            expect_gradient(
                dlogits, logits, [&] { return 3 * cross_entropy(test_context(), logits, targets, options).loss; },
                "dlogits");
        }
    }
}

TEST(CrossEntropy, GradientsOfEveryTypeFollowDouble) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
        for (const std::int64_t classes : {2, 31, 700}) {
            const Tensor logits = random(dtype, {9, classes}, 1, 3), targets = targets_of({9}, classes);
            const CrossEntropyOptions options{.label_smoothing = 0.1, .dloss = 7};
            Tensor got(dtype, logits.shape()), expected(DType::f64, logits.shape());
            const double a = cross_entropy(test_context(), logits, targets, options, {.dlogits = got}).loss;
            const double b =
                cross_entropy(test_context(), logits.to(DType::f64), targets, options, {.dlogits = expected}).loss;
            EXPECT_NEAR(a, b, 1e-5);
            expect_near(got, expected, tolerance_of(dtype));
            Tensor in_place = logits.clone();
            cross_entropy(test_context(), in_place, targets, options, {.dlogits = in_place});
            expect_same(in_place, got);
        }
    }
}

TEST(CrossEntropy, LargeAndMissingLogits) {
    Tensor logits(DType::f32, {3, 4}), dlogits(DType::f32, {3, 4}), targets(DType::i32, {3});
    for (std::int64_t c = 0; c < 4; ++c) {
        set(logits, c, 1e4 * static_cast<double>(c));
        set(logits, 4 + c, -3e38);
        set(logits, 8 + c, c == 0 ? -infinity : 0);
    }
    targets.as<std::int32_t>()[0] = 3, targets.as<std::int32_t>()[1] = 2, targets.as<std::int32_t>()[2] = 1;
    Tensor losses(DType::f32, {3});
    cross_entropy(test_context(), logits, targets, {}, {.dlogits = dlogits, .losses = losses});
    EXPECT_EQ(get(losses, 0), 0);
    EXPECT_NEAR(get(losses, 1), std::log(4), 1e-6);
    EXPECT_NEAR(get(losses, 2), std::log(3), 1e-6);
    for (std::int64_t n = 0; n < 12; ++n) { ASSERT_TRUE(std::isfinite(get(dlogits, n))) << n; }
    EXPECT_EQ(get(dlogits, 8), 0);
}

TEST(CrossEntropy, OfTwentySeventeenByItsOwnNumber) {
    EXPECT_NEAR(least_loss(37000, {.label_smoothing = 0.1, .smoothing = Smoothing::others}), 1.37695, 5e-6);
    // The two definitions are one where eps of the first is eps * V / (V - 1).
    const Tensor logits = random(DType::f64, {3, 9}, 1), targets = targets_of({3}, 9, 0);
    const double a =
        cross_entropy(test_context(), logits, targets, {.label_smoothing = 0.1, .smoothing = Smoothing::others}).loss;
    const double b = cross_entropy(test_context(), logits, targets, {.label_smoothing = 0.1 * 9 / 8}).loss;
    EXPECT_NEAR(a, b, 1e-12);
}

TEST(LinearCrossEntropy, GradientsAreSlopes) {
    Tensor states = random(DType::f64, {2, 3, 4}, 1), weight = random(DType::f64, {7, 4}, 2);
    Tensor bias = random(DType::f64, {7}, 3);
    const Tensor targets = targets_of({2, 3}, 7);
    for (const double softcap : {0.0, 1.5}) {
        const LinearCrossEntropyOptions options{
            .loss = {.label_smoothing = 0.1, .dloss = 2}, .bias = bias, .softcap = softcap};
        Tensor dhidden = random(DType::f64, states.shape(), 4), dweight = random(DType::f64, weight.shape(), 5);
        Tensor dbias = random(DType::f64, {7}, 6);
        linear_cross_entropy(test_context(), states, weight, targets, options,
                             {.dhidden = dhidden, .dweight = dweight, .dbias = dbias});
        const auto f = [&] { return 2 * linear_cross_entropy(test_context(), states, weight, targets, options).loss; };
        expect_gradient(dhidden, states, f, "dhidden");
        expect_gradient(dweight, weight, f, "dweight");
        expect_gradient(dbias, bias, f, "dbias");
        Tensor more = dweight.clone();
        linear_cross_entropy(test_context(), states, weight, targets, options, {.dweight = more, .accumulate = true});
        for (std::int64_t n = 0; n < more.elements(); ++n) { ASSERT_NEAR(get(more, n), 2 * get(dweight, n), 1e-12); }
    }
}

TEST(LinearCrossEntropy, ManyChunksGiveWhatLogitsGive) {
    // Vocabulary enough for several chunks.
    const std::int64_t classes = 180000, rows = 140, inputs = 4;
    for (const DType dtype : {DType::f32, DType::bf16}) {
        const Tensor states = random(dtype, {rows, inputs}, 1), weight = random(dtype, {classes, inputs}, 2);
        const Tensor targets = targets_of({rows}, classes);
        Tensor dhidden(dtype, states.shape()), dweight(DType::f32, weight.shape());
        const CrossEntropy got =
            linear_cross_entropy(test_context(), states, weight, targets, {}, {.dhidden = dhidden, .dweight = dweight});
        double loss = 0;
        for (std::int64_t n = 0; n < rows; ++n) {
            const std::int64_t target = targets.as<std::int64_t>()[n];
            if (target == -100) { continue; }
            double sum = 0, of_target = 0;
            for (std::int64_t v = 0; v < classes; ++v) {
                double z = 0;
                for (std::int64_t k = 0; k < inputs; ++k) {
                    z += static_cast<double>(dtype == DType::f32 ? states.as<float>()[n * inputs + k]
                                                                 : float(states.as<bf16>()[n * inputs + k])) *
                         static_cast<double>(dtype == DType::f32 ? weight.as<float>()[v * inputs + k]
                                                                 : float(weight.as<bf16>()[v * inputs + k]));
                }
                sum += std::exp(z);
                if (v == target) { of_target = z; }
            }
            loss += std::log(sum) - of_target;
        }
        EXPECT_NEAR(got.loss, loss / static_cast<double>(got.targets), 1e-4);
        // Rows without a target get no gradient; sums over all classes of the gradient of logits are 0.
        for (std::int64_t k = 0; k < inputs; ++k) { EXPECT_EQ(get(dhidden, inputs + k), 0); }
        for (std::int64_t k = 0; k < inputs; ++k) {
            double sum = 0;
            for (std::int64_t v = 0; v < classes; ++v) { sum += get(dweight, v * inputs + k); }
            EXPECT_NEAR(sum, 0, dtype == DType::f32 ? 1e-4 : 2e-2);
        }
    }
}

TEST(LinearCrossEntropy, WithoutTargetsThereIsNoGradient) {
    const Tensor states = random(DType::f32, {2, 3}, 1), weight = random(DType::f32, {5, 3}, 2);
    Tensor targets(DType::i64, {2});
    targets.as<std::int64_t>()[0] = targets.as<std::int64_t>()[1] = -100;
    Tensor dhidden = random(DType::f32, {2, 3}, 3), dweight = random(DType::f32, {5, 3}, 4);
    const CrossEntropy got =
        linear_cross_entropy(test_context(), states, weight, targets, {}, {.dhidden = dhidden, .dweight = dweight});
    EXPECT_EQ(got.loss, 0);
    EXPECT_EQ(got.targets, 0);
    expect_same(dhidden, Tensor(DType::f32, {2, 3}));
    expect_same(dweight, Tensor(DType::f32, {5, 3}));
}

TEST(LinearCrossEntropy, RoomChangesNothing) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
        const Tensor states = random(dtype, {9, 6}, 1), weight = random(dtype, {11, 6}, 2);
        const Tensor targets = targets_of({9}, 11);
        Tensor dhidden(dtype, {9, 6}), dweight(DType::f32, {11, 6}), dhidden_again(dtype, {9, 6});
        Tensor dweight_again(DType::f32, {11, 6});
        const double loss =
            linear_cross_entropy(test_context(), states, weight, targets, {}, {.dhidden = dhidden, .dweight = dweight})
                .loss;
        const auto bytes = static_cast<std::int64_t>(linear_cross_entropy_room(states, weight));
        for (const std::int64_t given : {bytes, std::int64_t{64}}) {  // what is too little is not used
            Tensor room(DType::u8, {given});
            const CrossEntropy again = linear_cross_entropy(test_context(), states, weight, targets, {.room = room},
                                                            {.dhidden = dhidden_again, .dweight = dweight_again});
            EXPECT_EQ(again.loss, loss);
            expect_same(dhidden_again, dhidden);
            expect_same(dweight_again, dweight);
        }
        Tensor floats(DType::f32, {bytes});
        EXPECT_NE(error_text([&] {
                      linear_cross_entropy(test_context(), states, weight, targets, {.room = floats},
                                           {.dhidden = dhidden, .dweight = dweight});
                  }).find("[linear_cross_entropy] room:"),
                  std::string::npos);
    }
}

TEST(CrossEntropy, RefusesWhatDoesNotFit) {
    Tensor logits(DType::f32, {2, 3}), targets(DType::i64, {2});
    targets.as<std::int64_t>()[1] = 3;
    EXPECT_EQ(error_text([&] { cross_entropy(test_context(), logits, targets); }),
              "[cross_entropy] targets[1]: expected 0 to 2 or -100, got 3");
    targets.as<std::int64_t>()[1] = 0;
    EXPECT_EQ(error_text([&] { cross_entropy(test_context(), logits, targets, {.label_smoothing = 2}); }),
              "[cross_entropy] label_smoothing: expected 0 to 1, got 2.000000");
    EXPECT_EQ(error_text([&] { linear_cross_entropy(test_context(), logits, logits, logits); }),
              "[linear_cross_entropy] targets: expected [2], got [2, 3]");
}

}  // namespace heed::testing
