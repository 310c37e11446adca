/// Scores so large that a float moves in steps of tens: gradients of every kernel against the reference in double. All
/// numbers are chosen so that scores are exact and either equal or thousands apart, so the weights are fractions.

#include "unit/ops/attention_call.h"

#include <functional>

namespace heed::testing {
namespace {

double whole_number(Random& random, std::int64_t most) {
    return static_cast<double>(random.below(2 * most + 1) - most);
}

/// q and k are small whole numbers times 2^13, so that scores are multiples of 2^26 up to 2^32.
Call large_call(DType dtype, const Sizes& sizes) {
    Call call(dtype, sizes, 3);
    Random random(4);
    for (Tensor* t : {&call.q, &call.k}) {
        for (std::int64_t n = 0; n < t->elements(); ++n) {
            write_number(dtype, t->data(), n, 8192 * whole_number(random, 2));
        }
    }
    call.options.scale = 1.0;
    return call;
}

Tensor as_type(const Tensor& from, DType dtype) {
    Tensor to(dtype, from.shape());
    for (std::int64_t n = 0; n < from.elements(); ++n) { write_number(dtype, to.data(), n, number(from, n)); }
    return to;
}

class LargeScores : public EveryKernel {
protected:
    /// Relative to each tensor's largest number.
    void check(Call& fast, double tolerance) {
        fast.options.kernel = GetParam();
        Call exact;
        exact.q = as_type(fast.q, DType::f64);
        exact.k = as_type(fast.k, DType::f64);
        exact.v = as_type(fast.v, DType::f64);
        exact.dout = as_type(fast.dout, DType::f64);
        exact.options = fast.options;
        exact.options.kernel = "reference";
        fast.both(context);
        exact.both(context);
        const auto compare = [&](const char* name, const Tensor& got, const Tensor& expected) {
            double largest = 0;
            for (std::int64_t n = 0; n < expected.elements(); ++n) {
                largest = std::max(largest, std::abs(number(expected, n)));
            }
            expect_near(name, got, expected, tolerance * largest);
        };
        compare("dq", fast.dq, exact.dq);
        compare("dk", fast.dk, exact.dk);
        compare("dv", fast.dv, exact.dv);
        if (fast.options.bias) { compare("dbias", fast.dbias, exact.dbias); }
        if (fast.options.sinks) { compare("dsinks", fast.dsinks, exact.dsinks); }
    }
    void check_types(const std::function<void(Call&)>& edit, const Sizes& sizes) {
        for (const DType dtype : {DType::f32, DType::bf16}) {
            SCOPED_TRACE(name_of(dtype));
            Call call = large_call(dtype, sizes);
            edit(call);
            check(call, dtype == DType::f32 ? 1e-5 : 2e-2);
        }
    }
};

TEST_P(LargeScores, weights_stay_fractions) {
    check_types([](Call&) {}, {.B = 2, .H = 4, .G = 2, .T = 37, .S = 150, .D = 4, .E = 6});
    check_types([](Call& call) { call.options.causal = true; }, {.T = 70, .S = 70, .D = 3});
    check_types([](Call& call) { call.options.window = {.left = 9, .right = 3}; }, {.T = 70, .S = 70, .D = 3});
}

TEST_P(LargeScores, more_keys_than_a_panel) {
    check_types([](Call&) {}, {.B = 1, .H = 1, .G = 1, .T = 66, .S = 2100, .D = 64, .E = 8});
}

TEST_P(LargeScores, sinks_as_large) {
    const Tensor sinks = filled(DType::f32, {4}, {0x1p28, 3 * 0x1p27, 0, 0x1p32});
    check_types([&](Call& call) { call.options.sinks = sinks; }, {.H = 4, .T = 21, .S = 40, .D = 3});
}

/// Rows that see nothing but the lowest float, as masks of some libraries have it, see all of it alike.
TEST_P(LargeScores, nothing_but_the_lowest_bias) {
    Tensor bias(DType::f32, {1, 1, 30, 50});
    for (std::int64_t n = 0; n < bias.elements(); ++n) {
        bias.as<float>()[n] = n / 50 % 3 == 0 ? std::numeric_limits<float>::lowest() : 0.0F;
    }
    for (const DType dtype : {DType::f32, DType::bf16}) {
        SCOPED_TRACE(name_of(dtype));
        Call call(dtype, {.T = 30, .S = 50});
        call.options.bias = bias;
        check(call, dtype == DType::f32 ? 1e-5 : 2e-2);
    }
}

INSTANTIATE_TEST_SUITE_P(each, LargeScores, ::testing::ValuesIn(EveryKernel::names()), EveryKernel::label);

}  // namespace
}  // namespace heed::testing
