#include <heed/norm.h>

#include "unit/ops/layer_ops_testing.h"

namespace heed::testing {
namespace {

using Forward = void (*)(Context&, const View&, const MutableView&, const NormOptions&);
using Backward = void (*)(Context&, const View&, const View&, const NormGradients&, const NormBackwardOptions&);

struct NormKind {
    bool centred;
    Forward forward;
    Backward backward;
};
const NormKind norm_kinds[] = {{true, layer_norm, layer_norm_backward}, {false, rms_norm, rms_norm_backward}};

std::vector<double> by_definition(const NormKind& kind, const std::vector<double>& s, double eps) {
    double mean = 0, square = 0;
    for (const double x : s) { mean += x / static_cast<double>(s.size()); }
    if (!kind.centred) { mean = 0; }
    for (const double x : s) { square += (x - mean) * (x - mean) / static_cast<double>(s.size()); }
    std::vector<double> out;
    for (const double x : s) { out.push_back((x - mean) / std::sqrt(square + eps)); }
    return out;
}

}  // namespace

TEST(Norm, EqualsItsDefinitionInEveryTypeAndLayout) {
    for (const NormKind& kind : norm_kinds) {
        for (const DType dtype : all_floats()) {
            for (const std::int64_t size : {1, 2, 7, 16, 33, 200}) {
                const Tensor x = random(dtype, {3, 2, size}, 1, 3), residual = random(dtype, {3, 2, size}, 2);
                const Tensor weight = random(dtype, {size}, 3), bias = random(dtype, {size}, 4);
                const Scattered strange_x(x), strange_residual(residual), strange_weight(weight), strange_bias(bias);
                Tensor out(dtype, x.shape()), sum(dtype, x.shape());
                Scattered strange_out(dtype, x.shape()), strange_sum(dtype, x.shape());
                kind.forward(test_context(), x, out,
                             {.eps = 1e-3,
                              .weight = weight,
                              .bias = kind.centred ? bias.view() : View{},
                              .weight_offset = 1,
                              .residual = residual,
                              .sum = sum});
                kind.forward(test_context(), strange_x.view, strange_out.view,
                             {.eps = 1e-3,
                              .weight = strange_weight.view,
                              .bias = kind.centred ? View(strange_bias.view) : View{},
                              .weight_offset = 1,
                              .residual = strange_residual.view,
                              .sum = strange_sum.view});
                expect_near(strange_out.view, out, tolerance_of(dtype));
                expect_near(strange_sum.view, sum, tolerance_of(dtype));
                for (std::int64_t row = 0; row < 6; ++row) {
                    std::vector<double> s;
                    for (std::int64_t c = 0; c < size; ++c) {
                        s.push_back(get(x, row * size + c) + get(residual, row * size + c));
                        ASSERT_NEAR(get(sum, row * size + c), s.back(), tolerance_of(dtype) * (1 + std::abs(s.back())));
                    }
                    const std::vector<double> normal = by_definition(kind, s, 1e-3);
                    for (std::int64_t c = 0; c < size; ++c) {
                        const double expected = normal[static_cast<std::size_t>(c)] * (1 + get(weight, c)) +
                                                (kind.centred ? get(bias, c) : 0);
                        ASSERT_NEAR(get(out, row * size + c), expected,
                                    2 * tolerance_of(dtype) * (1 + std::abs(expected)));
                    }
                }
            }
        }
    }
}

TEST(Norm, GradientsAreSlopes) {
    for (const NormKind& kind : norm_kinds) {
        Tensor x = random(DType::f64, {2, 3, 5}, 1), residual = random(DType::f64, {2, 3, 5}, 2);
        Tensor weight = random(DType::f64, {5}, 3), bias = random(DType::f64, {5}, 4);
        const Tensor dout = random(DType::f64, {2, 3, 5}, 5), dsum = random(DType::f64, {2, 3, 5}, 6);
        Tensor out(DType::f64, x.shape()), s(DType::f64, x.shape());
        const auto f = [&] {
            kind.forward(test_context(), x, out,
                         {.weight = weight,
                          .bias = kind.centred ? bias.view() : View{},
                          .weight_offset = 0.5,
                          .residual = residual,
                          .sum = s});
            return dot(out, dout) + dot(s, dsum);
        };
        f();
        Tensor dx(DType::f64, x.shape()), dweight(DType::f64, {5}), dbias(DType::f64, {5});
        kind.backward(test_context(), s, dout,
                      {.dx = dx, .dweight = dweight, .dbias = kind.centred ? dbias.view() : MutableView{}},
                      {.weight = weight, .weight_offset = 0.5, .dsum = dsum});
        expect_gradient(dx, x, f, "dx");
        expect_gradient(dx, residual, f, "dresidual");
        expect_gradient(dweight, weight, f, "dweight");
        if (kind.centred) { expect_gradient(dbias, bias, f, "dbias"); }
    }
}

TEST(Norm, GradientsOfEveryTypeFollowThoseOfDouble) {
    for (const NormKind& kind : norm_kinds) {
        for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
            for (const std::int64_t size : {1, 3, 16, 50, 200}) {
                for (const std::int64_t rows : {1, 5, 130}) {
                    const Tensor s = random(dtype, {rows, size}, 1), dout = random(dtype, {rows, size}, 2);
                    const Tensor dsum = random(dtype, {rows, size}, 3), weight = random(dtype, {size}, 4);
                    const auto backward = [&](DType type) {
                        struct Result {
                            Tensor dx, dweight, dbias;
                        };
                        Result to{Tensor(type, s.shape()), random(type, {size}, 9), random(type, {size}, 10)};
                        kind.backward(test_context(), s.to(type), dout.to(type),
                                      {.dx = to.dx,
                                       .dweight = to.dweight,
                                       .dbias = kind.centred ? to.dbias.view() : MutableView{},
                                       .accumulate = true},
                                      {.eps = 1e-2, .weight = weight.to(type), .dsum = dsum.to(type)});
                        return to;
                    };
                    const auto got = backward(dtype), expected = backward(DType::f64);
                    const double tolerance = 8 * tolerance_of(dtype);
                    expect_near(got.dx, expected.dx, tolerance, "dx");
                    expect_near(got.dweight, expected.dweight, tolerance * std::sqrt(rows), "dweight");
                    expect_near(got.dbias, expected.dbias, tolerance * std::sqrt(rows), "dbias");
                }
            }
        }
    }
}

TEST(Norm, ConstantAndLargeRowsStayFinite) {
    for (const double level : {0.0, 1.0, 1e4, -3e4}) {
        Tensor x(DType::f32, {2, 64}), out(DType::f32, {2, 64});
        for (std::int64_t n = 0; n < 128; ++n) { set(x, n, level); }
        const Tensor bias = random(DType::f32, {64}, 1);
        layer_norm(test_context(), x, out, {.bias = bias});
        for (std::int64_t n = 0; n < 128; ++n) { ASSERT_EQ(get(out, n), get(bias, n % 64)); }
        // Numbers far from 0 that differ a little: the mean goes first, so nothing cancels.
        for (std::int64_t n = 0; n < 128; ++n) { set(x, n, level + static_cast<double>(n % 2)); }
        layer_norm(test_context(), x, out, {.eps = 0});
        for (std::int64_t n = 0; n < 128; ++n) { ASSERT_NEAR(get(out, n), n % 2 == 0 ? -1 : 1, 1e-5); }
    }
}

TEST(Norm, WorksInPlace) {
    for (const NormKind& kind : norm_kinds) {
        const Tensor x = random(DType::f32, {5, 40}, 1), residual = random(DType::f32, {5, 40}, 2);
        Tensor out(DType::f32, x.shape()), sum(DType::f32, x.shape());
        kind.forward(test_context(), x, out, {.residual = residual, .sum = sum});
        Tensor normalised = x.clone(), stream = residual.clone();
        kind.forward(test_context(), normalised, normalised, {.residual = stream, .sum = stream});
        expect_same(normalised, out);
        expect_same(stream, sum);
        Tensor dx(DType::f32, x.shape()), dout = random(DType::f32, x.shape(), 3);
        Tensor dweight(DType::f32, {40}), dweight_again(DType::f32, {40});
        kind.backward(test_context(), sum, dout, {.dx = dx, .dweight = dweight}, {.dsum = dout});
        kind.backward(test_context(), sum, dout, {.dx = dout, .dweight = dweight_again}, {.dsum = dout});
        expect_same(dout, dx);
        expect_same(dweight_again, dweight);
    }
}

TEST(Norm, SameBitsForAnyNumberOfThreads) {
    const Tensor x = random(DType::f32, {300, 96}, 1), dout = random(DType::f32, {300, 96}, 2);
    std::vector<Tensor> seen;
    for (const int threads : {1, 2, 5}) {
        Context context(threads);
        Tensor out(DType::f32, x.shape()), dx(DType::f32, x.shape()), dweight(DType::f32, {96}),
            dbias(DType::f32, {96});
        layer_norm(context, x, out);
        layer_norm_backward(context, x, dout, {.dx = dx, .dweight = dweight, .dbias = dbias});
        if (seen.empty()) {
            seen.push_back(std::move(out));
            seen.push_back(std::move(dx));
            seen.push_back(std::move(dweight));
            seen.push_back(std::move(dbias));
            continue;
        }
        expect_same(out, seen[0]);
        expect_same(dx, seen[1]);
        expect_same(dweight, seen[2]);
        expect_same(dbias, seen[3]);
    }
}

TEST(Norm, RefusesWhatDoesNotFit) {
    Tensor x(DType::f32, {2, 3}), out(DType::f32, {2, 3}), other(DType::f32, {3, 2}), row(DType::f32, {3});
    EXPECT_EQ(error_text([&] { layer_norm(test_context(), x, other); }),
              "[layer_norm] out: expected [2, 3], got [3, 2]");
    EXPECT_EQ(error_text([&] { layer_norm(test_context(), x, out, {.weight = x}); }),
              "[layer_norm] weight: expected [3], got [2, 3]");
    EXPECT_EQ(error_text([&] { rms_norm(test_context(), x, out, {.bias = row}); }),
              "[rms_norm] bias: expected none, got [3]");
    EXPECT_EQ(error_text([&] { rms_norm(test_context(), x, out, {.eps = -1}); }),
              "[rms_norm] eps: expected a finite number from 0 up, got -1.000000");
    EXPECT_EQ(error_text([&] { rms_norm(test_context(), x, out, {.sum = out}); }),
              "[rms_norm] sum: expected memory apart from out, got an overlap");
}

}  // namespace heed::testing
