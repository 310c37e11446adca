#pragma once
#include <heed/linear_attention.h>
#include <heed/tensor.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace heed::testing_linear {

inline Tensor random(Shape shape, unsigned seed, double low = -1, double high = 1) {
    Tensor tensor(DType::f64, shape);
    std::mt19937_64 generator(seed);
    std::uniform_real_distribution<double> draw(low, high);
    for (std::int64_t n = 0; n < tensor.elements(); ++n) { tensor.as<double>()[n] = draw(generator); }
    return tensor;
}

/// Largest difference over the largest expected magnitude; NaN and infinity count as infinitely far.
inline double distance(const Tensor& got, const Tensor& expected) {
    const Tensor a = got.to(DType::f64);
    const Tensor b = expected.to(DType::f64);
    EXPECT_EQ(a.shape(), b.shape());
    double most = 0;
    double scale = 1e-30;
    for (std::int64_t n = 0; n < a.elements(); ++n) {
        const double x = a.as<double>()[n];
        const double y = b.as<double>()[n];
        if (!std::isfinite(x) || !std::isfinite(y)) { return std::numeric_limits<double>::infinity(); }
        most = std::max(most, std::abs(x - y));
        scale = std::max(scale, std::abs(y));
    }
    return most / scale;
}
inline bool same_bits(const Tensor& a, const Tensor& b) {
    return a.shape() == b.shape() && a.bytes() == b.bytes() && std::memcmp(a.data(), b.data(), a.bytes()) == 0;
}

struct Sizes {
    std::int64_t B = 2, H = 4, G = 2, T = 19, S = 19, D = 5, E = 7;
    std::int64_t N = 2;  ///< states
    std::int64_t F = 5;
};

/// Everything that goes into a call, in f64; `as` narrows it.
struct Inputs {
    Sizes size;
    Tensor q, k, v, dout, s, z, ds, dz, decay;

    explicit Inputs(const Sizes& sizes, unsigned seed = 1)
        : size(sizes),
          q(random({sizes.B, sizes.H, sizes.T, sizes.D}, seed)),
          k(random({sizes.B, sizes.G, sizes.S, sizes.D}, seed + 1)),
          v(random({sizes.B, sizes.G, sizes.S, sizes.E}, seed + 2)),
          dout(random({sizes.B, sizes.H, sizes.T, sizes.E}, seed + 3)),
          s(random({sizes.B, sizes.N, sizes.F, sizes.E}, seed + 4)),
          z(random({sizes.B, sizes.N, sizes.F}, seed + 5, 0.5, 1.5)),
          ds(random({sizes.B, sizes.N, sizes.F, sizes.E}, seed + 6)),
          dz(random({sizes.B, sizes.N, sizes.F}, seed + 7)),
          decay(random({sizes.N}, seed + 8, 0.6, 1)) {}
    Inputs(Inputs&&) = default;
    Inputs& operator=(Inputs&&) = default;

    Inputs as(DType dtype) const {
        Inputs narrow(size);
        narrow.q = q.to(dtype);
        narrow.k = k.to(dtype);
        narrow.v = v.to(dtype);
        narrow.dout = dout.to(dtype);
        const DType state = dtype == DType::f64 ? DType::f64 : DType::f32;
        narrow.s = s.to(state);
        narrow.z = z.to(state);
        narrow.ds = ds.to(state);
        narrow.dz = dz.to(state);
        narrow.decay = decay.to(state);
        return narrow;
    }
};

struct Results {
    Tensor out, s, z, dq, dk, dv, ds, dz, ddecay;
    std::vector<std::pair<std::string, const Tensor*>> all() const {
        return {{"out", &out}, {"final s", &s}, {"final z", &z}, {"dq", &dq},        {"dk", &dk},
                {"dv", &dv},   {"ds", &ds},     {"dz", &dz},     {"ddecay", &ddecay}};
    }
};

/// Forward and backward. With `state`: from an initial state, and with a gradient for the final one.
inline Results run(Context& context, const Inputs& in, LinearAttentionOptions options, bool decayed, bool state) {
    if (decayed) { options.decay = in.decay; }
    const DType wide = in.q.dtype() == DType::f64 ? DType::f64 : DType::f32;
    const auto zeros = [&](const Shape& shape) { return Tensor(wide, shape); };
    Results r{zeros(in.dout.shape()), zeros(in.s.shape()), zeros(in.z.shape()),
              zeros(in.q.shape()),    zeros(in.k.shape()), zeros(in.v.shape()),
              zeros(in.s.shape()),    zeros(in.z.shape()), zeros(in.decay.shape())};
    LinearState initial;
    LinearState dfinal;
    MutableLinearState final{r.s, {}};
    LinearAttentionGradients gradients{.dq = r.dq, .dk = r.dk, .dv = r.dv};
    gradients.dinitial.s = r.ds;
    if (decayed) { gradients.ddecay = r.ddecay; }
    if (state) { initial.s = in.s; }
    if (state) { dfinal.s = in.ds; }
    if (options.normalise) {
        final.z = r.z;
        gradients.dinitial.z = r.dz;
        if (state) { initial.z = in.z; }
        if (state) { dfinal.z = in.dz; }
    }
    linear_attend(context, in.q, in.k, in.v, {.out = r.out, .final = final}, options, initial);
    linear_attend_backward(context,
                           {.q = in.q, .k = in.k, .v = in.v, .initial = initial, .dout = in.dout, .dfinal = dfinal},
                           gradients, options);
    return r;
}

inline void expect_near(const Results& got, const Results& expected, double tolerance, const std::string& what) {
    const auto a = got.all();
    const auto b = expected.all();
    for (std::size_t n = 0; n < a.size(); ++n) {
        EXPECT_LE(distance(*a[n].second, *b[n].second), tolerance) << a[n].first << ", " << what;
    }
}

/// exp(x / 2) and its mirror image: F = 2 D.
inline FeatureFunction exponential_pair(std::int64_t D) {
    return {.size = 2 * D,
            .map =
                [](std::span<const double> x, std::span<double> y) {
                    for (std::size_t n = 0; n < x.size(); ++n) {
                        y[n] = std::exp(x[n] / 2);
                        y[n + x.size()] = std::exp(-x[n] / 2);
                    }
                },
            .backward =
                [](std::span<const double> x, std::span<const double> dy, std::span<double> dx) {
                    for (std::size_t n = 0; n < x.size(); ++n) {
                        dx[n] = (dy[n] * std::exp(x[n] / 2) - dy[n + x.size()] * std::exp(-x[n] / 2)) / 2;
                    }
                }};
}

}  // namespace heed::testing_linear
