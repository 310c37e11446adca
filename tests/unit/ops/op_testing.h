#pragma once
/// Tensors for the tests of operations: random numbers, strange layouts, reading back, finite differences.
#include <gtest/gtest.h>
#include <heed/error.h>
#include <heed/tensor.h>

#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/dispatch.h"
#include "support/numbers.h"

namespace heed::testing {

/// Offset of element n, counted row-major.
inline std::int64_t offset_of(const View& view, std::int64_t n) {
    std::int64_t offset = 0;
    for (int axis = view.rank() - 1; axis >= 0; --axis) {
        offset += n % view.extent(axis) * view.stride(axis);
        n /= view.extent(axis);
    }
    return offset;
}
inline double get(const View& view, std::int64_t n) {
    return read_number(view.dtype(), view.data(), offset_of(view, n));
}
inline void set(const MutableView& view, std::int64_t n, double value) {
    write_number(view.dtype(), view.data(), offset_of(view, n), value);
}

inline void fill(const MutableView& view, unsigned seed, double spread = 1) {
    std::mt19937 generator(seed);
    std::normal_distribution<double> normal(0, spread);
    for (std::int64_t n = 0; n < view.shape().elements(); ++n) { set(view, n, normal(generator)); }
}
inline Tensor random(DType dtype, const Shape& shape, unsigned seed, double spread = 1) {
    Tensor tensor(dtype, shape);
    fill(tensor, seed, spread);
    return tensor;
}

/// Memory whose view has its axes in reverse order, gaps between elements and loud numbers in the gaps.
struct Scattered {
    Tensor memory;
    MutableView view;

    Scattered(DType dtype, const Shape& shape) {
        Shape strides = shape;
        std::int64_t stride = 3;
        for (int axis = 0; axis < shape.rank(); ++axis) {
            strides[axis] = stride;
            stride *= shape[axis] + 1;
        }
        memory = Tensor(dtype, {stride});
        for (std::int64_t n = 0; n < stride; ++n) { set(memory, n, std::nan("")); }
        view = MutableView(dtype, memory.data(), shape, strides);
    }
    Scattered(const View& from) : Scattered(from.dtype(), from.shape()) {
        for (std::int64_t n = 0; n < from.shape().elements(); ++n) { set(view, n, get(from, n)); }
    }
};

inline void expect_near(const View& got, const View& expected, double tolerance, const std::string& what = "") {
    ASSERT_EQ(got.shape(), expected.shape()) << what;
    for (std::int64_t n = 0; n < got.shape().elements(); ++n) {
        const double a = get(got, n);
        const double b = get(expected, n);
        if (std::isnan(b) || std::isinf(b)) {
            ASSERT_EQ(std::isnan(a), std::isnan(b)) << what << " element " << n;
            if (!std::isnan(b)) { ASSERT_EQ(a, b) << what << " element " << n; }
        } else {
            ASSERT_NEAR(a, b, tolerance * (1 + std::abs(b))) << what << " element " << n;
        }
    }
}
/// To the bit; every NaN equals every other.
inline void expect_same(const View& got, const View& expected, const std::string& what = "") {
    ASSERT_EQ(got.shape(), expected.shape()) << what;
    for (std::int64_t n = 0; n < got.shape().elements(); ++n) {
        const double a = get(got, n);
        const double b = get(expected, n);
        ASSERT_TRUE((std::isnan(a) && std::isnan(b)) || (a == b && std::signbit(a) == std::signbit(b)))
            << what << " element " << n << ": " << a << " and " << b;
    }
}

inline double dot(const View& a, const View& b) {
    double sum = 0;
    for (std::int64_t n = 0; n < a.shape().elements(); ++n) { sum += get(a, n) * get(b, n); }
    return sum;
}

/// gradient[n] against (f(x + e) - f(x - e)) / 2e for every element n of x.
inline void expect_gradient(const View& gradient, const MutableView& x, const std::function<double()>& f,
                            const std::string& what, double tolerance = 1e-6) {
    constexpr double step = 1e-5;
    for (std::int64_t n = 0; n < x.shape().elements(); ++n) {
        const double before = get(x, n);
        set(x, n, before + step);
        const double above = f();
        set(x, n, before - step);
        const double below = f();
        set(x, n, before);
        const double slope = (above - below) / (2 * step);
        ASSERT_NEAR(get(gradient, n), slope, tolerance * (1 + std::abs(slope))) << what << " element " << n;
    }
}

/// The text of the Error that `call` throws; empty where it throws none.
template <class Call>
std::string error_text(Call&& call) {
    try {
        call();
    } catch (const Error& error) { return error.what(); }
    return "";
}

}  // namespace heed::testing
