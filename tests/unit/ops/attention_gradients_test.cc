/// Every gradient against central differences of the forward pass, in double, on the reference.

#include "unit/ops/attention_call.h"

namespace heed::testing {
namespace {

constexpr double step = 1e-5;
constexpr double tolerance = 2e-8;  // step^2 times a third derivative, and 1e-16 / step

class Gradients {
public:
    explicit Gradients(const Sizes& sizes) : call(DType::f64, sizes, 11) {
        Random random(12);
        call.options.kernel = "reference";
        call.dlse = random_tensor(random, DType::f64, {sizes.B, sizes.H, sizes.T});
    }

    void check() {
        call.both(context_);
        compare("dq", call.q, call.dq);
        compare("dk", call.k, call.dk);
        compare("dv", call.v, call.dv);
        if (call.options.bias) { compare("dbias", bias, call.dbias); }
        if (call.options.sinks) { compare("dsinks", sinks, call.dsinks); }
        if (call.options.alibi_slopes) { compare("dalibi_slopes", slopes, call.dslopes); }
    }

    Call call;
    Tensor bias, sinks, slopes;

private:
    /// sum(dout * out) + sum(dlse * lse), rows without an lse left out.
    double loss() {
        Call again;
        again.q = call.q.clone();
        again.k = call.k.clone();
        again.v = call.v.clone();
        again.options = call.options;
        again.forward(context_);
        double sum = 0;
        for (std::int64_t n = 0; n < again.out.elements(); ++n) { sum += number(call.dout, n) * number(again.out, n); }
        for (std::int64_t n = 0; call.dlse && n < again.lse.elements(); ++n) {
            if (number(again.lse, n) != -infinity) { sum += number(call.dlse, n) * number(again.lse, n); }
        }
        return sum;
    }
    void compare(const char* name, Tensor& input, const Tensor& gradient) {
        double largest = 0;
        for (std::int64_t n = 0; n < input.elements(); ++n) {
            double& x = input.as<double>()[n];
            const double kept = x;
            if (!std::isfinite(kept)) {
                ASSERT_EQ(number(gradient, n), 0) << name << "[" << n << "]";
                continue;
            }
            x = kept + step;
            const double above = loss();
            x = kept - step;
            const double below = loss();
            x = kept;
            ASSERT_NEAR(number(gradient, n), (above - below) / (2 * step), tolerance) << name << "[" << n << "]";
            largest = std::max(largest, std::abs(number(gradient, n)));
        }
        EXPECT_GT(largest, 1e-3) << name << " is nowhere different from 0: the test tests nothing";
    }
    Context context_{1};
};

constexpr Sizes small{.B = 2, .H = 4, .G = 2, .T = 3, .S = 5, .D = 3, .E = 2};

TEST(AttentionGradients, Plain) { Gradients(small).check(); }

TEST(AttentionGradients, WithoutAGradientForLse) {
    Gradients g(small);
    g.call.dlse = Tensor();
    g.check();
}

TEST(AttentionGradients, CausalWithRowsThatSeeNothing) {
    Gradients g({.B = 1, .H = 2, .G = 1, .T = 6, .S = 4, .D = 3, .E = 2});
    g.call.options.causal = true;
    g.check();
}

TEST(AttentionGradients, BiasInEveryBroadcastForm) {
    for (int form = 0; form < 16; ++form) {
        SCOPED_TRACE(form);
        Gradients g(small);
        Shape shape{2, 4, 3, 5};
        for (int axis = 0; axis < 4; ++axis) {
            if ((form >> axis & 1) != 0) { shape[axis] = 1; }
        }
        Random random(13);
        g.bias = random_tensor(random, DType::f64, shape);
        g.call.options.bias = std::as_const(g.bias);
        if (shape[3] == 1) {
            // A bias that is the same for all keys moves lse alone.
            ASSERT_TRUE(g.call.dlse);
        }
        g.check();
    }
}

TEST(AttentionGradients, BiasThatHidesHasNoGradientThere) {
    Gradients g(small);
    Random random(14);
    g.bias = random_tensor(random, DType::f64, {1, 4, 3, 5});
    for (std::int64_t n = 0; n < g.bias.elements(); n += 3) { g.bias.as<double>()[n] = -infinity; }
    g.call.options.bias = std::as_const(g.bias);
    g.check();
}

TEST(AttentionGradients, Sinks) {
    Gradients g(small);
    g.sinks = filled(DType::f64, {4}, {0.3, -0.5, 1.2, -infinity});
    g.call.options.sinks = std::as_const(g.sinks);
    g.call.options.causal = true;
    g.call.options.align = Align::top_left;
    g.check();
}

TEST(AttentionGradients, SinksOfRowsThatSeeNothing) {
    Gradients g({.B = 1, .H = 2, .G = 1, .T = 6, .S = 4, .D = 3, .E = 2});
    g.sinks = filled(DType::f64, {2}, {0.3, -0.5});
    g.call.options.sinks = std::as_const(g.sinks);
    g.call.options.causal = true;
    g.check();
}

TEST(AttentionGradients, AlibiSlopesByHeadAndByEntry) {
    for (const bool by_entry : {false, true}) {
        Gradients g(small);
        Random random(15);
        Shape shape{4};
        if (by_entry) { shape = Shape{2, 4}; }
        g.slopes = random_tensor(random, DType::f64, shape, 0.3);
        g.call.options.alibi_slopes = std::as_const(g.slopes);
        g.check();
    }
}

TEST(AttentionGradients, Softcap) {
    Gradients g(small);
    g.call.options.softcap = 0.7;
    g.call.options.scale = 1.3;
    g.check();
}

TEST(AttentionGradients, Dropout) {
    Gradients g(small);
    g.call.options.dropout = {.p = 0.4, .seed = 21, .offset = 3};
    g.check();
}

TEST(AttentionGradients, LengthsAndPositions) {
    Gradients g(small);
    const Tensor key_lengths = filled(DType::i64, {2}, {5, 2});
    const Tensor query_lengths = filled(DType::i32, {2}, {1, 3});
    const Tensor positions = filled(DType::i64, {2, 3}, {4, 0, 2, 1, 9, 3});
    g.slopes = filled(DType::f64, {4}, {0.5, 0.25, 0.1, 0.05});
    g.call.options.key_lengths = key_lengths;
    g.call.options.query_lengths = query_lengths;
    g.call.options.query_positions = positions;
    g.call.options.alibi_slopes = std::as_const(g.slopes);
    g.call.options.window = {.left = 8, .right = 1};
    // Rows beyond their length have no lse, so its gradient there counts for nothing.
    g.check();
}

TEST(AttentionGradients, PackedSequences) {
    Gradients g({.B = 1, .H = 4, .G = 2, .T = 6, .S = 7, .D = 3, .E = 2});
    const Tensor cu_q = filled(DType::i32, {4}, {0, 2, 2, 5});
    const Tensor cu_k = filled(DType::i32, {4}, {0, 3, 4, 7});
    Random random(16);
    g.bias = random_tensor(random, DType::f64, {3, 4, 3, 3});
    g.call.options.cu_seqlens_q = cu_q;
    g.call.options.cu_seqlens_k = cu_k;
    g.call.options.bias = std::as_const(g.bias);
    g.call.options.causal = true;
    g.check();
}

TEST(AttentionGradients, Everything) {
    Gradients g(small);
    Random random(17);
    g.bias = random_tensor(random, DType::f64, {2, 1, 3, 5});
    g.sinks = random_tensor(random, DType::f64, {4});
    g.slopes = random_tensor(random, DType::f64, {4}, 0.2);
    Tensor allow(DType::u8, {1, 4, 3, 5});
    for (std::int64_t n = 0; n < allow.elements(); ++n) { allow.as<std::uint8_t>()[n] = random.chance(0.7) ? 1 : 0; }
    g.call.options.bias = std::as_const(g.bias);
    g.call.options.sinks = std::as_const(g.sinks);
    g.call.options.alibi_slopes = std::as_const(g.slopes);
    g.call.options.allow = std::as_const(allow);
    g.call.options.softcap = 1.5;
    g.call.options.dropout = {.p = 0.3, .seed = 5, .offset = 9};
    g.call.options.causal = true;
    g.call.options.pattern = patterns::window(3, 1) | patterns::global_tokens({0});
    g.check();
}

}  // namespace
}  // namespace heed::testing
