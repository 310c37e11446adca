#pragma once
/// One attention call with memory for everything it reads and writes.

#include <gtest/gtest.h>

#include <heed/heed.h>

#include "base/dispatch.h"
#include "support/kernels.h"
#include "support/numbers.h"
#include "support/random.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

namespace heed::testing {

inline double number(const Tensor& t, std::int64_t n) { return read_number(t.dtype(), t.data(), n); }

/// Of [a, b, c, d] row-major.
inline double number(const Tensor& t, std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) {
    const Shape& s = t.shape();
    return number(t, ((a * s[1] + b) * s[2] + c) * s[3] + d);
}

inline Tensor filled(DType dtype, const Shape& shape, const std::vector<double>& values) {
    Tensor tensor(dtype, shape);
    for (std::size_t n = 0; n < values.size(); ++n) {
        write_number(dtype, tensor.data(), static_cast<std::int64_t>(n), values[n]);
    }
    return tensor;
}

/// NaN differs from everything; infinities must be equal.
inline void expect_near(const char* name, const View& got, const View& expected, double tolerance) {
    ASSERT_TRUE(got.shape() == expected.shape()) << name << ": " << to_string(got.shape());
    const Tensor a = Tensor::copy_of(got);
    const Tensor b = Tensor::copy_of(expected);
    for (std::int64_t n = 0; n < a.elements(); ++n) {
        if (number(a, n) == number(b, n)) { continue; }
        ASSERT_LE(std::abs(number(a, n) - number(b, n)), tolerance)
            << name << "[" << n << "]: " << number(a, n) << " and " << number(b, n);
    }
}

inline void expect_same_bits(const char* name, const View& got, const View& expected) {
    const Tensor a = Tensor::copy_of(got);
    const Tensor b = Tensor::copy_of(expected);
    ASSERT_TRUE(a.shape() == b.shape() && a.dtype() == b.dtype()) << name;
    EXPECT_TRUE(a.bytes() == 0 || std::memcmp(a.data(), b.data(), a.bytes()) == 0) << name;
}

struct Sizes {
    std::int64_t B = 2, H = 4, G = 2, T = 7, S = 9, D = 5, E = 6;
};

struct Call {
    Call() = default;
    Call(DType dtype, const Sizes& s, std::uint64_t seed = 1) {
        Random random(seed);
        q = random_tensor(random, dtype, {s.B, s.H, s.T, s.D});
        k = random_tensor(random, dtype, {s.B, s.G, s.S, s.D});
        v = random_tensor(random, dtype, {s.B, s.G, s.S, s.E});
        dout = random_tensor(random, dtype, {s.B, s.H, s.T, s.E});
    }

    void forward(Context& context) {
        const Shape& s = q.shape();
        out = Tensor(q.dtype(), {s[0], s[1], s[2], v.shape()[3]});
        lse = Tensor(lse_dtype(), {s[0], s[1], s[2]});
        attend(context, q, k, v, {.out = out, .lse = lse}, options);
    }
    /// After forward.
    void backward(Context& context) {
        dq = Tensor(q.dtype(), q.shape());
        dk = Tensor(k.dtype(), k.shape());
        dv = Tensor(v.dtype(), v.shape());
        AttentionGradients gradients{.dq = dq, .dk = dk, .dv = dv};
        if (options.bias) { gradients.dbias = dbias = Tensor(lse_dtype(), options.bias.shape()); }
        if (options.sinks) { gradients.dsinks = dsinks = Tensor(lse_dtype(), options.sinks.shape()); }
        if (options.alibi_slopes) {
            gradients.dalibi_slopes = dslopes = Tensor(lse_dtype(), options.alibi_slopes.shape());
        }
        attend_backward(
            context, {.q = q, .k = k, .v = v, .out = out, .lse = lse, .dout = dout, .dlse = dlse ? View(dlse) : View()},
            gradients, options);
    }
    void both(Context& context) {
        forward(context);
        backward(context);
    }
    Tensor weights(Context& context) const {
        const Shape& s = q.shape();
        Tensor result(lse_dtype(), {s[0], s[1], s[2], k.shape()[2]});
        attention_weights(context, q, k, result, {}, options);
        return result;
    }
    DType lse_dtype() const { return q.dtype() == DType::f64 ? DType::f64 : DType::f32; }

    Tensor q, k, v, dout, dlse;
    AttentionOptions options;
    Tensor out, lse, dq, dk, dv, dbias, dsinks, dslopes;
};

/// Runs on every kernel that this machine can run: the reference in double, the others in float.
class EveryKernel : public ::testing::TestWithParam<std::string> {
public:
    static std::vector<std::string> names() { return runnable_kernels(); }
    static std::string label(const ::testing::TestParamInfo<std::string>& info) {
        std::string name = info.param;
        for (char& letter : name) { letter = letter == '-' || letter == '/' ? '_' : letter; }
        return name;
    }

protected:
    bool wide() const { return GetParam() == "reference"; }
    DType dtype() const { return wide() ? DType::f64 : DType::f32; }
    double tolerance() const { return wide() ? 1e-12 : 1e-5; }
    Call call(const Sizes& sizes = {}, std::uint64_t seed = 1) const {
        Call result(dtype(), sizes, seed);
        result.options.kernel = GetParam();
        return result;
    }
    Context context{2};
};

}  // namespace heed::testing
