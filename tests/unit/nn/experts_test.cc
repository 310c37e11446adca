#include "nn/experts.h"

#include <gtest/gtest.h>

#include "support/random.h"

#include <cmath>
#include <vector>

namespace heed {
namespace {

struct Combined {
    std::vector<double> out, dweights, drows;
};

/// 5 tokens that visit 2 of 3 experts, the last expert alone by none.
Combined combined(bool by_operations) {
    constexpr std::int64_t tokens = 5, active = 2, d = 7;
    testing::Random random(3);
    const auto drawn = [&](const Shape& shape) {
        Tensor x(DType::f32, shape);
        for (std::int64_t n = 0; n < x.elements(); ++n) { x.as<float>()[n] = static_cast<float>(random.normal()); }
        return x;
    };
    const Tensor weights = drawn({tokens, active}), first = drawn({tokens, d}), second = drawn({tokens, d});
    const Tensor seed = drawn({tokens, d});
    Context context(2);
    Tape tape(context);
    Routes routes;
    routes.tokens = tokens;
    routes.active = active;
    routes.experts = {0, 1, 1, 0, 0, 1, 1, 0, 0, 1};
    routes.weights = tape.input(weights);
    const Value rows[] = {tape.input(first), tape.input(second)};
    std::vector<ExpertOutput> outputs(2);
    for (std::int64_t n = 0; n < tokens; ++n) {
        for (std::int64_t slot = 0; slot < active; ++slot) {
            ExpertOutput& part =
                outputs[static_cast<std::size_t>(routes.experts[static_cast<std::size_t>(n * 2 + slot)])];
            part.tokens.push_back(n);
            part.slots.push_back(slot);
        }
    }
    for (std::size_t e = 0; e < 2; ++e) { outputs[e].rows = rows[e]; }
    const Value out =
        by_operations ? combine_by_operations(tape, routes, outputs, d) : combine(tape, routes, outputs, d);
    Combined result;
    const auto append = [](std::vector<double>& to, const View& view) {
        for (std::int64_t n = 0; n < view.shape().elements(); ++n) {
            to.push_back(static_cast<double>(view.as<float>()[n]));
        }
    };
    append(result.out, out);
    tape.backward(out, seed);
    append(result.dweights, tape.gradient(routes.weights));
    for (const Value& each : rows) { append(result.drows, tape.gradient(each)); }
    return result;
}

void expect_close(const std::vector<double>& a, const std::vector<double>& b) {
    ASSERT_EQ(a.size(), b.size());
    ASSERT_FALSE(a.empty());
    for (std::size_t n = 0; n < a.size(); ++n) { EXPECT_NEAR(a[n], b[n], 2e-6 * (1 + std::fabs(a[n]))); }
}

TEST(Experts, CombinedByOperationsAsByTheirOwnLoop) {
    const Combined one = combined(false), two = combined(true);
    expect_close(one.out, two.out);
    expect_close(one.dweights, two.dweights);
    expect_close(one.drows, two.drows);
}

}  // namespace
}  // namespace heed
