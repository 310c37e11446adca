#include <heed/linear.h>

#include "support/sample.h"
#include "unit/ops/layer_ops_testing.h"

namespace heed::testing {
namespace {

double by_definition(const View& x, const View& weight, const View& bias, std::int64_t row, std::int64_t column) {
    const std::int64_t inputs = weight.extent(1);
    double sum = bias ? get(bias, column) : 0;
    for (std::int64_t k = 0; k < inputs; ++k) { sum += get(x, row * inputs + k) * get(weight, column * inputs + k); }
    return sum;
}

struct LinearSizes {
    Shape leading;
    std::int64_t inputs, outputs;
};

const std::vector<LinearSizes>& linear_sizes() {
    static const std::vector<LinearSizes> sizes = {{{1}, 1, 1},        {{3}, 5, 7},          {{2, 3}, 17, 33},
                                                   {{1, 1}, 300, 41},  {{2, 1, 5}, 64, 130}, {{131}, 259, 97},
                                                   {{2, 301}, 70, 101}};
    return sizes;
}

Shape with(const Shape& leading, std::int64_t last) {
    std::vector<std::int64_t> extents(leading.begin(), leading.end());
    extents.push_back(last);
    return Shape(std::span<const std::int64_t>(extents));
}

void expect_definition(const View& x, const View& weight, const View& bias, const View& out, double tolerance) {
    const std::int64_t outputs = weight.extent(0);
    for (std::int64_t n = 0; n < out.shape().elements(); ++n) {
        const double expected = by_definition(x, weight, bias, n / outputs, n % outputs);
        ASSERT_NEAR(get(out, n), expected, tolerance * (1 + std::abs(expected)) * std::sqrt(weight.extent(1)))
            << to_string(x.shape()) << " " << name_of(x.dtype()) << " element " << n;
    }
}

}  // namespace

TEST(Linear, EqualsItsDefinitionInEveryTypeAndLayout) {
    Sample sample(std::min(3, test_stride()));
    for (const LinearSizes& sizes : linear_sizes()) {
        for (const DType dtype : all_floats()) {
            if (!sample.takes()) { continue; }
            const Tensor x = random(dtype, with(sizes.leading, sizes.inputs), 1);
            const Tensor weight = random(dtype, {sizes.outputs, sizes.inputs}, 2);
            const Tensor bias = random(dtype, {sizes.outputs}, 3);
            Tensor out(dtype, with(sizes.leading, sizes.outputs));
            linear(test_context(), x, weight, out, {.bias = bias});
            expect_definition(x, weight, bias, out, tolerance_of(dtype));
            linear(test_context(), x, weight, out);
            expect_definition(x, weight, {}, out, tolerance_of(dtype));
            const Scattered scattered_x(x), scattered_weight(weight), scattered_bias(bias);
            Scattered scattered_out(dtype, out.shape());
            linear(test_context(), scattered_x.view, scattered_weight.view, scattered_out.view,
                   {.bias = scattered_bias.view});
            expect_definition(x, weight, bias, scattered_out.view, tolerance_of(dtype));
        }
    }
}

TEST(Linear, ActivatesAndKeepsWhatWasBefore) {
    const Tensor x = random(DType::f32, {2, 5, 19}, 1), weight = random(DType::f32, {23, 19}, 2);
    const Tensor bias = random(DType::f32, {23}, 3);
    Tensor plain(DType::f32, {2, 5, 23}), before(DType::f32, {2, 5, 23}), out(DType::f32, {2, 5, 23});
    linear(test_context(), x, weight, plain, {.bias = bias});
    for (const Activation activation : {Activation::relu, Activation::gelu, Activation::silu}) {
        linear(test_context(), x, weight, out, {.bias = bias, .activation = activation, .before_activation = before});
        expect_near(before, plain, 1e-6);
        Tensor expected(DType::f32, {2, 5, 23});
        activate(test_context(), activation, plain, expected);
        expect_near(out, expected, 1e-6);
        linear(test_context(), x, weight, out, {.bias = bias, .activation = activation});
        expect_near(out, expected, 1e-6);
    }
}

TEST(Linear, GradientsAreSlopes) {
    Tensor x = random(DType::f64, {2, 3, 5}, 1), weight = random(DType::f64, {4, 5}, 2),
           bias = random(DType::f64, {4}, 3);
    const Tensor dout = random(DType::f64, {2, 3, 4}, 4);
    for (const Activation activation : {Activation::none, Activation::gelu}) {
        Tensor out(DType::f64, {2, 3, 4}), before(DType::f64, {2, 3, 4});
        const auto f = [&] {
            linear(test_context(), x, weight, out,
                   {.bias = bias, .activation = activation, .before_activation = before});
            return dot(out, dout);
        };
        f();
        Tensor dx(DType::f64, x.shape()), dweight(DType::f64, weight.shape()), dbias(DType::f64, bias.shape());
        linear_backward(test_context(), x, weight, dout, {.dx = dx, .dweight = dweight, .dbias = dbias},
                        {.activation = activation, .before_activation = before});
        expect_gradient(dx, x, f, "dx");
        expect_gradient(dweight, weight, f, "dweight");
        expect_gradient(dbias, bias, f, "dbias");
    }
}

TEST(Linear, GradientsOfEveryTypeFollowThoseOfDouble) {
    for (const LinearSizes& sizes : linear_sizes()) {
        for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
            const Tensor x = random(dtype, with(sizes.leading, sizes.inputs), 1);
            const Tensor weight = random(dtype, {sizes.outputs, sizes.inputs}, 2);
            const Tensor dout = random(dtype, with(sizes.leading, sizes.outputs), 4);
            const auto backward = [&](DType type) {
                struct Result {
                    Tensor dx, dweight, dbias;
                };
                Result to{Tensor(type, x.shape()), Tensor(type, weight.shape()), Tensor(type, {sizes.outputs})};
                linear_backward(test_context(), x.to(type), weight.to(type), dout.to(type),
                                {.dx = to.dx, .dweight = to.dweight, .dbias = to.dbias});
                return to;
            };
            const auto got = backward(dtype), expected = backward(DType::f64);
            const double tolerance = 20 * tolerance_of(dtype);
            expect_near(got.dx, expected.dx, tolerance, "dx");
            expect_near(got.dweight, expected.dweight, tolerance, "dweight");
            expect_near(got.dbias, expected.dbias, tolerance, "dbias");
        }
    }
}

TEST(Linear, AccumulatesWhereAsked) {
    const Tensor x = random(DType::f32, {6, 5}, 1), weight = random(DType::f32, {4, 5}, 2);
    const Tensor dout = random(DType::f32, {6, 4}, 3);
    Tensor once(DType::f32, {4, 5}), twice(DType::f32, {4, 5}), bias_once(DType::f32, {4}), bias_twice(DType::f32, {4});
    linear_backward(test_context(), x, weight, dout, {.dweight = once, .dbias = bias_once});
    for (int n = 0; n < 2; ++n) {
        linear_backward(test_context(), x, weight, dout, {.dweight = twice, .dbias = bias_twice, .accumulate = true});
    }
    for (std::int64_t n = 0; n < 20; ++n) { EXPECT_NEAR(get(twice, n), 2 * get(once, n), 1e-5); }
    for (std::int64_t n = 0; n < 4; ++n) { EXPECT_NEAR(get(bias_twice, n), 2 * get(bias_once, n), 1e-5); }
    Tensor dx(DType::f32, {6, 5}), dx_twice(DType::f32, {6, 5});
    linear_backward(test_context(), x, weight, dout, {.dx = dx});
    for (int n = 0; n < 2; ++n) {
        linear_backward(test_context(), x, weight, dout, {.dx = dx_twice, .accumulate_dx = true});
    }
    for (std::int64_t n = 0; n < 30; ++n) { EXPECT_NEAR(get(dx_twice, n), 2 * get(dx, n), 1e-5); }
}

TEST(Linear, RoomForTheGradientBeforeTheActivationChangesNothing) {
    const Tensor x = random(DType::f32, {6, 5}, 1), weight = random(DType::f32, {4, 5}, 2);
    const Tensor dout = random(DType::f32, {6, 4}, 3);
    Tensor before(DType::f32, {6, 4}), out(DType::f32, {6, 4}), room(DType::f32, {6, 4}), small(DType::f32, {6, 3});
    linear(test_context(), x, weight, out, {.activation = Activation::gelu, .before_activation = before});
    Tensor dx(DType::f32, {6, 5}), dweight(DType::f32, {4, 5}), dx_again(DType::f32, {6, 5}),
        dweight_again(DType::f32, {4, 5});
    linear_backward(test_context(), x, weight, dout, {.dx = dx, .dweight = dweight},
                    {.activation = Activation::gelu, .before_activation = before});
    linear_backward(test_context(), x, weight, dout, {.dx = dx_again, .dweight = dweight_again},
                    {.activation = Activation::gelu, .before_activation = before, .room = room});
    expect_same(dx_again, dx);
    expect_same(dweight_again, dweight);
    EXPECT_EQ(error_text([&] {
                  linear_backward(test_context(), x, weight, dout, {.dx = dx},
                                  {.activation = Activation::gelu, .before_activation = before, .room = small});
              }),
              "[linear_backward] room: expected [6, 4], got [6, 3]");
}

TEST(Linear, ARowDependsOnNeitherThreadsNorOtherRows) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
        const Tensor x = random(dtype, {130, 384}, 1), weight = random(dtype, {150, 384}, 2);
        const Tensor bias = random(dtype, {150}, 3);
        Tensor all(dtype, {130, 150});
        const LinearOptions options{.bias = bias, .activation = Activation::gelu_tanh};
        linear(test_context(), x, weight, all, options);
        Context alone(1);
        Tensor again(dtype, {130, 150});
        linear(alone, x, weight, again, options);
        expect_same(again, all);
        for (const std::int64_t row : {0, 1, 77, 129}) {
            Tensor one(dtype, {1, 150});
            linear(alone, x.view().slice(0, row, row + 1), weight, one, options);
            expect_same(one, all.view().slice(0, row, row + 1), "row " + std::to_string(row));
        }
    }
}

TEST(Linear, RefusesWhatDoesNotFit) {
    Tensor x(DType::f32, {2, 3}), weight(DType::f32, {4, 3}), out(DType::f32, {2, 4}), bias(DType::f32, {3});
    const auto message = [&](const View& a, const View& w, const MutableView& to, const LinearOptions& options) {
        return error_text([&] { linear(test_context(), a, w, to, options); });
    };
    EXPECT_EQ(message({}, weight, out, {}), "[linear] x: expected a tensor, got none");
    EXPECT_EQ(message(x, out, out, {}), "[linear] weight: expected [outputs, 3], the columns of x, got [2, 4]");
    EXPECT_EQ(message(x, weight, x, {}), "[linear] out: expected [2, 4], got [2, 3]");
    EXPECT_EQ(message(x, weight, out, {.bias = bias}), "[linear] bias: expected [4], got [3]");
    EXPECT_EQ(
        error_text([&] { linear_backward(test_context(), x, weight, out, {}, {.activation = Activation::relu}); }),
        "[linear_backward] before_activation: expected what linear wrote there, for relu, got none");
}

TEST(Linear, EmptyBatches) {
    const Tensor x(DType::f32, {0, 3}), weight = random(DType::f32, {4, 3}, 1), dout(DType::f32, {0, 4});
    Tensor out(DType::f32, {0, 4}), dweight = random(DType::f32, {4, 3}, 2), dbias = random(DType::f32, {4}, 3);
    linear(test_context(), x, weight, out, {.activation = Activation::relu});
    linear_backward(test_context(), x, weight, dout, {.dweight = dweight, .dbias = dbias});
    expect_same(dweight, Tensor(DType::f32, {4, 3}));
    expect_same(dbias, Tensor(DType::f32, {4}));
}

}  // namespace heed::testing
