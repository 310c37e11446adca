// Gradients of linear attention's gates by way of the tape.
#include <heed/tape.h>
#include <heed/tape_operations.h>

#include <gtest/gtest.h>

#include <cmath>

namespace heed {
namespace {

Tensor waves(const Shape& shape, double start, double size, double offset) {
    Tensor tensor(DType::f64, shape);
    for (std::int64_t i = 0; i < tensor.elements(); ++i) {
        tensor.as<double>()[i] = offset + size * std::sin(start + 1.7 * static_cast<double>(i));
    }
    return tensor;
}

TEST(TapeLinearAttention, GatesGetTheirGradients) {
    Context context(1);
    const Tensor q = waves({1, 2, 5, 3}, 0, 1, 0), k = waves({1, 2, 5, 3}, 1, 0.6, 0), v = waves({1, 2, 5, 4}, 2, 1, 0);
    Tensor decay = waves({1, 2, 5, 3}, 3, 0.4, -0.5), beta = waves({1, 2, 5}, 4, 0.4, 0.5);
    const Tensor seed = waves({1, 5, 2, 4}, 5, 1, 0);
    LinearAttentionOptions options{.feature = FeatureMap::identity, .normalise = false};
    options.rule = UpdateRule::delta;
    const auto loss = [&] {
        Tape tape(context);
        const LinearGates gates{.log_decay = tape.constant(decay.view()), .beta = tape.constant(beta.view())};
        const Value out = linear_attend(tape, tape.constant(q.view()), tape.constant(k.view()), tape.constant(v.view()),
                                        options, gates);
        EXPECT_EQ(out.shape(), seed.shape());
        double sum = 0;
        for (std::int64_t i = 0; i < seed.elements(); ++i) { sum += out.view().as<double>()[i] * seed.as<double>()[i]; }
        return sum;
    };
    Tape tape(context);
    const LinearGates gates{.log_decay = tape.input(decay), .beta = tape.input(beta)};
    const Value keys = tape.input(k);
    tape.backward(linear_attend(tape, tape.constant(q.view()), keys, tape.constant(v.view()), options, gates), seed);
    const auto check = [&](Tensor& x, const Value& value, const char* name) {
        for (std::int64_t i = 0; i < x.elements(); i += 3) {
            double& number = x.as<double>()[i];
            const double before = number;
            number = before + 1e-5;
            const double up = loss();
            number = before - 1e-5;
            const double down = loss();
            number = before;
            EXPECT_NEAR(tape.gradient(value).as<double>()[i], (up - down) / 2e-5, 1e-8) << name << "[" << i << "]";
        }
    };
    check(decay, gates.log_decay, "log_decay");
    check(beta, gates.beta, "beta");
    check(const_cast<Tensor&>(k), keys, "k");
}

}  // namespace
}  // namespace heed
