#include <heed/activation.h>

#include <numbers>

#include "unit/ops/layer_ops_testing.h"

namespace heed::testing {
namespace {

const Activation activations[] = {Activation::none,       Activation::relu, Activation::gelu, Activation::gelu_tanh,
                                  Activation::quick_gelu, Activation::silu, Activation::tanh, Activation::sigmoid};

double by_definition(Activation activation, double x) {
    switch (activation) {
        case Activation::relu: return std::max(x, 0.0);
        case Activation::gelu: return 0.5 * x * (1 + std::erf(x / std::numbers::sqrt2));
        case Activation::gelu_tanh:
            return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
        case Activation::quick_gelu: return x / (1 + std::exp(-1.702 * x));
        case Activation::silu: return x / (1 + std::exp(-x));
        case Activation::tanh: return std::tanh(x);
        case Activation::sigmoid: return 1 / (1 + std::exp(-x));
        default: return x;
    }
}

}  // namespace

TEST(Activations, EqualTheirDefinitionsEverywhere) {
    for (const Activation activation : activations) {
        for (const DType dtype : all_floats()) {
            // From far below to far above 0, densely around it.
            const std::int64_t count = 4001;
            Tensor x(dtype, {count}), out(dtype, {count});
            for (std::int64_t n = 0; n < count; ++n) {
                const double t = static_cast<double>(n - 2000) / 200;
                set(x, n, t * t * t * 0.1);
            }
            activate(test_context(), activation, x, out);
            for (std::int64_t n = 0; n < count; ++n) {
                const double expected = by_definition(activation, get(x, n));
                ASSERT_NEAR(get(out, n), expected,
                            0.5 * tolerance_of(dtype) * std::max(1e-3, std::abs(expected)) + 1e-7)
                    << name_of(activation) << " " << name_of(dtype) << " of " << get(x, n);
            }
        }
    }
}

TEST(Activations, TailsInfinitiesAndNaN) {
    for (const Activation activation : activations) {
        Tensor x(DType::f32, {4}), out(DType::f32, {4}), dx(DType::f32, {4}), one(DType::f32, {4});
        for (std::int64_t n = 0; n < 4; ++n) { set(one, n, 1); }
        set(x, 0, 1e30), set(x, 1, -1e30), set(x, 2, std::nan("")), set(x, 3, infinity);
        activate(test_context(), activation, x, out);
        activate_backward(test_context(), activation, x, one, dx);
        const bool bounded = activation == Activation::tanh || activation == Activation::sigmoid;
        EXPECT_EQ(get(out, 0), bounded ? 1 : get(x, 0)) << name_of(activation);
        EXPECT_EQ(get(dx, 0), bounded ? 0 : 1) << name_of(activation);
        if (activation != Activation::none) {
            EXPECT_EQ(get(out, 1), activation == Activation::tanh ? -1 : 0) << name_of(activation);
            EXPECT_EQ(get(dx, 1), 0) << name_of(activation);
        }
        EXPECT_TRUE(std::isnan(get(out, 2))) << name_of(activation);
        EXPECT_TRUE(std::isnan(get(dx, 2)) || activation == Activation::none) << name_of(activation);
        EXPECT_EQ(get(out, 3), bounded ? 1 : infinity) << name_of(activation);
    }
}

TEST(Activations, GradientsAreSlopes) {
    for (const Activation activation : activations) {
        Tensor gate = random(DType::f64, {3, 5}, 1, 2), up = random(DType::f64, {3, 5}, 2);
        const Tensor dout = random(DType::f64, {3, 5}, 3);
        Tensor out(DType::f64, {3, 5}), dgate(DType::f64, {3, 5}), dup(DType::f64, {3, 5});
        const auto f = [&] {
            gated(test_context(), activation, gate, up, out);
            return dot(out, dout);
        };
        gated_backward(test_context(), activation, gate, up, dout, dgate, dup);
        expect_gradient(dgate, gate, f, "dgate");
        expect_gradient(dup, up, f, "dup");
        const auto g = [&] {
            activate(test_context(), activation, gate, out);
            return dot(out, dout);
        };
        activate_backward(test_context(), activation, gate, dout, dgate);
        expect_gradient(dgate, gate, g, "dx");
    }
}

TEST(Activations, EveryTypeFollowsDoubleInStrangeLayouts) {
    for (const Activation activation : activations) {
        for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
            for (const Shape& shape : {Shape{1}, Shape{7, 3, 5}, Shape{2, 100}, Shape{3, 33}}) {
                const Tensor gate = random(dtype, shape, 1, 2), up = random(dtype, shape, 2);
                const Tensor dout = random(dtype, shape, 3);
                Tensor expected(DType::f64, shape), dgate(DType::f64, shape), dup(DType::f64, shape);
                const Tensor wide_gate = gate.to(DType::f64), wide_up = up.to(DType::f64);
                gated(test_context(), activation, wide_gate, wide_up, expected);
                gated_backward(test_context(), activation, wide_gate, wide_up, dout.to(DType::f64), dgate, dup);
                const Scattered strange_gate(gate), strange_up(up), strange_dout(dout);
                Scattered got(dtype, shape), got_dgate(dtype, shape), got_dup(dtype, shape);
                gated(test_context(), activation, strange_gate.view, strange_up.view, got.view);
                gated_backward(test_context(), activation, strange_gate.view, strange_up.view, strange_dout.view,
                               got_dgate.view, got_dup.view);
                expect_near(got.view, expected, tolerance_of(dtype));
                expect_near(got_dgate.view, dgate, tolerance_of(dtype));
                expect_near(got_dup.view, dup, tolerance_of(dtype));
                Tensor plain(dtype, shape);
                gated(test_context(), activation, gate, up, plain);
                expect_same(plain, got.view, "contiguous and scattered");
                Tensor in_place = gate.clone();
                gated(test_context(), activation, in_place, up, in_place);
                expect_same(in_place, plain, "in place");
            }
        }
    }
}

TEST(Activations, KnowTheirNames) {
    for (const Activation activation : activations) { EXPECT_EQ(activation_of(name_of(activation)), activation); }
    EXPECT_EQ(activation_of("gelu_new"), Activation::gelu_tanh);
    EXPECT_EQ(activation_of("swish"), Activation::silu);
    EXPECT_NE(error_text([] { activation_of("maxout"); }).find("got \"maxout\""), std::string::npos);
}

TEST(Activations, RefuseWhatDoesNotFit) {
    Tensor x(DType::f32, {2, 3}), y(DType::f32, {3, 2}), numbers(DType::i32, {2, 3});
    EXPECT_EQ(error_text([&] { activate(test_context(), Activation::relu, x, y); }),
              "[activate] out: expected [2, 3], got [3, 2]");
    EXPECT_EQ(error_text([&] { activate(test_context(), Activation::relu, numbers, x); }),
              "[activate] x: expected f32 or bf16 or f16 or f64, got i32");
    EXPECT_EQ(error_text([&] { gated(test_context(), Activation::relu, x, {}, x); }),
              "[gated] up: expected a tensor, got none");
    Tensor line(DType::f32, {8});
    EXPECT_EQ(error_text([&] {
                  activate(test_context(), Activation::relu, line.view().slice(0, 0, 5), line.view().slice(0, 1, 6));
              }),
              "[activate] out: expected memory apart from x, got an overlap");
}

}  // namespace heed::testing
