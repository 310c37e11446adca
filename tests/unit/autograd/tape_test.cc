#include <heed/tape.h>
#include <heed/tape_operations.h>

#include <gtest/gtest.h>

#include <cmath>

namespace heed {
namespace {

Tensor filled(const Shape& shape, double start, double step) {
    Tensor tensor(DType::f64, shape);
    for (std::int64_t i = 0; i < tensor.elements(); ++i) {
        tensor.as<double>()[i] = std::sin(start + step * static_cast<double>(i));
    }
    return tensor;
}

/// x^3, elementwise, as a user would add it.
Value cubed(Tape& tape, const Value& x) {
    const Tape::Operation operation{
        .forward =
            [](Context&, std::span<const View> in, const MutableView& out) {
                for (std::int64_t i = 0; i < out.shape().elements(); ++i) {
                    out.as<double>()[i] = std::pow(in[0].as<double>()[i], 3);
                }
            },
        .backward =
            [](Context&, std::span<const View> in, const View&, const View& dout, std::span<const MutableView> din) {
                for (std::int64_t i = 0; i < dout.shape().elements(); ++i) {
                    const double each = in[0].as<double>()[i];
                    din[0].as<double>()[i] = 3 * each * each * dout.as<double>()[i];
                }
            }};
    return tape.apply(operation, std::span(&x, 1), x.dtype(), x.shape());
}

TEST(Tape, AUsersOperationJoins) {
    Context context(1);
    Tape tape(context);
    const Tensor numbers = filled({3}, 0.4, 1), seed = filled({3}, 1, 1);
    const Value x = tape.input(numbers);
    tape.backward(cubed(tape, x), seed);
    for (int i = 0; i < 3; ++i) {
        EXPECT_DOUBLE_EQ(tape.gradient(x).as<double>()[i],
                         3 * numbers.as<double>()[i] * numbers.as<double>()[i] * seed.as<double>()[i]);
    }
}

TEST(Tape, GradientsOfSeveralUsesAndOfPartsAddUp) {
    Context context(1);
    Tape tape(context);
    const Tensor numbers = filled({2, 4}, 0.4, 1), seed(DType::f64, {2, 2});
    for (int i = 0; i < 4; ++i) { const_cast<Tensor&>(seed).as<double>()[i] = 1; }
    const Value x = tape.input(numbers);
    // Columns 0, 1 plus twice columns 2, 3 plus columns 1, 2.
    const Value sum = add(tape, add(tape, x.slice(1, 0, 2), scale(tape, x.slice(1, 2, 4), 2)), x.slice(1, 1, 3));
    tape.backward(sum, seed);
    const double expected[] = {1, 2, 3, 2};
    for (int i = 0; i < 8; ++i) { EXPECT_DOUBLE_EQ(tape.gradient(x).as<double>()[i], expected[i % 4]); }
}

TEST(Tape, ParametersAccumulateOverPasses) {
    Context context(1);
    Parameter weight("w", filled({3, 4}, 0.1, 1)), frozen("f", filled({3}, 0, 1));
    frozen.trainable = false;
    const Tensor input = filled({2, 4}, 1, 1), seed = filled({2, 3}, 2, 1);
    const auto pass = [&] {
        Tape tape(context);
        const Value y = linear(tape, tape.constant(input.view()), tape.parameter(weight), tape.parameter(frozen));
        tape.backward(y, seed);
    };
    pass();
    const Tensor once = weight.gradient.clone();
    pass();
    for (std::int64_t i = 0; i < 12; ++i) {
        EXPECT_DOUBLE_EQ(weight.gradient.as<double>()[i], 2 * once.as<double>()[i]);
    }
    EXPECT_FALSE(frozen.gradient);
    weight.gradient_is_old = true;
    pass();
    EXPECT_FALSE(weight.gradient_is_old);
    for (std::int64_t i = 0; i < 12; ++i) { EXPECT_EQ(weight.gradient.as<double>()[i], once.as<double>()[i]); }
}

TEST(Tape, OldGradientsOfWhichAPartIsReachedAreZeroElsewhere) {
    Context context(1);
    Parameter weight("w", filled({4, 4}, 0.1, 1));
    const Tensor input = filled({2, 4}, 1, 1), seed = filled({2, 2}, 2, 1);
    const auto pass = [&] {
        Tape tape(context);
        tape.backward(linear(tape, tape.constant(input.view()), tape.parameter(weight).slice(0, 1, 3), {}), seed);
    };
    pass();
    const Tensor once = weight.gradient.clone();
    for (std::int64_t i = 0; i < 16; ++i) { weight.gradient.as<double>()[i] = 7; }
    weight.gradient_is_old = true;
    pass();
    for (std::int64_t i = 0; i < 16; ++i) { EXPECT_EQ(weight.gradient.as<double>()[i], once.as<double>()[i]); }
}

TEST(Tape, RecomputationGivesTheSameBitsWithLessMemory) {
    Context context(1);
    Parameter weight("w", filled({32, 32}, 0.1, 1));
    const Tensor input = filled({64, 32}, 1, 1), seed = filled({64, 32}, 2, 1);
    Tensor gradients[2];
    std::size_t peaks[2] = {};
    for (const bool again : {false, true}) {
        TapeMemory memory;
        weight.gradient = Tensor();
        {
            Tape tape(context, memory);
            Value x = tape.input(input);
            const Value first = x;
            for (int layer = 0; layer < 6; ++layer) {
                const auto block = [&](Tape& on, std::span<const Value> in) {
                    Value y = in[0];
                    for (int i = 0; i < 4; ++i) { y = linear(on, y, on.parameter(weight), {}, Activation::tanh); }
                    return y;
                };
                x = again ? tape.recompute(std::span(&x, 1), block) : block(tape, std::span(&x, 1));
            }
            tape.backward(x, seed);
            EXPECT_TRUE(tape.gradient(first));
            EXPECT_EQ(tape.operations(), 0U);
        }
        gradients[again ? 1 : 0] = weight.gradient.clone();
        peaks[again ? 1 : 0] = memory.peak_bytes();
        EXPECT_EQ(memory.used_bytes(), 0U);
    }
    for (std::int64_t i = 0; i < 32 * 32; ++i) {
        EXPECT_EQ(gradients[0].as<double>()[i], gradients[1].as<double>()[i]);
    }
    EXPECT_LT(peaks[1], peaks[0] / 2);
}

TEST(Tape, TheSecondStepTakesNoNewMemory) {
    Context context(1);
    Parameter weight("w", filled({8, 8}, 0.1, 1));
    const Tensor input = filled({4, 8}, 1, 1), seed = filled({4, 8}, 2, 1);
    TapeMemory memory;
    std::size_t after_first = 0;
    for (int step = 0; step < 3; ++step) {
        Tape tape(context, memory);
        Value x = tape.input(input);
        for (int i = 0; i < 5; ++i) { x = linear(tape, x, tape.parameter(weight), {}, Activation::gelu); }
        tape.backward(x, seed);
        if (step == 0) { after_first = memory.bytes(); }
        EXPECT_EQ(memory.bytes(), after_first);
    }
}

TEST(Tape, WithoutRecordingNothingIsKept) {
    Context context(1);
    Parameter weight("w", filled({8, 8}, 0.1, 1));
    const Tensor input = filled({4, 8}, 1, 1);
    Tape tape(context, {.record = false});
    const Value y = linear(tape, tape.constant(input.view()), tape.parameter(weight), {}, Activation::gelu);
    EXPECT_EQ(tape.operations(), 0U);
    EXPECT_FALSE(y.needs_gradient());
    EXPECT_THROW(tape.backward(y, y.view()), Error);
}

TEST(Tape, MistakesAreRefused) {
    Context context(1);
    Tape tape(context);
    const Tensor input = filled({4, 8}, 1, 1), seed = filled({8, 4}, 1, 1);
    const Value x = tape.input(input);
    const Value y = scale(tape, x, 2);
    EXPECT_THROW(tape.backward(y), Error);  // more than one element
    EXPECT_THROW(tape.backward(y, seed), Error);
    EXPECT_THROW(x.permute({1, 0}).reshape({32}), Error);
    EXPECT_THROW(x.reshape({31}), Error);
    EXPECT_THROW(tape.input(input.view().permute({1, 0})), Error);
}

}  // namespace
}  // namespace heed
