#include "problem.h"

#include <cmath>
#include <utility>

#include <heed/random.h>

namespace heed::bench {
namespace {

/// Near enough to a normal distribution for scores of realistic spread, and cheap: four uniforms added.
Tensor random_tensor(const Shape& shape, DType dtype, std::uint64_t seed) {
    Tensor result(DType::f32, shape);
    float* data = result.as<float>();
    const std::int64_t count = result.elements();
    for (std::int64_t n = 0; n < count; ++n) {
        const auto words =
            philox4x32<7>({static_cast<std::uint32_t>(n), static_cast<std::uint32_t>(n >> 32), 0, 0}, seed);
        float sum = 0;
        for (const std::uint32_t word : words) { sum += static_cast<float>(word >> 8) * 0x1p-24F; }
        data[n] = (sum - 2.F) * 1.7320508F;
    }
    return dtype == DType::f32 ? std::move(result) : result.to(dtype);
}

Tensor lengths_of(std::int64_t batch, std::int64_t length) {
    Tensor result(DType::i64, {batch});
    for (std::int64_t b = 0; b < batch; ++b) { result.as<std::int64_t>()[b] = length; }
    return result;
}

}  // namespace

Problem::Problem(const Spec& spec) : spec_(spec) {
    const Shape q_shape{spec.batch, spec.heads, spec.queries, spec.head_size};
    const Shape kv_shape{spec.batch, spec.kv_heads, spec.keys, spec.head_size};
    q = random_tensor(q_shape, dtype(), 1);
    k.push_back(random_tensor(kv_shape, dtype(), 2));
    v.push_back(random_tensor(kv_shape, dtype(), 3));
    for (std::int32_t copy = 1; copy < spec.copies; ++copy) {
        k.push_back(k[0].clone());
        v.push_back(v[0].clone());
    }
    out = Tensor(dtype(), q_shape);
    lse = Tensor(DType::f32, {spec.batch, spec.heads, spec.queries});
    if (spec.backward != 0) {
        dout = random_tensor(q_shape, dtype(), 4);
        dq = Tensor(dtype(), q_shape);
        dk = Tensor(dtype(), kv_shape);
        dv = Tensor(dtype(), kv_shape);
    }

    options_.causal = spec.causal != 0;
    options_.window = {spec.window_left, spec.window_right};
    options_.softcap = spec.softcap;
    options_.dropout.p = spec.dropout;
    options_.dropout.seed = 42;
    if (const auto kind = static_cast<BiasKind>(spec.bias); kind != BiasKind::none) {
        const std::int64_t heads = kind == BiasKind::per_head ? spec.heads : 1;
        bias = random_tensor({1, heads, spec.queries, spec.keys}, DType::f32, 5);
        options_.bias = std::as_const(bias).view();
    }
    if (spec.alibi != 0) {
        slopes = Tensor(DType::f32, {spec.heads});
        for (std::int64_t h = 0; h < spec.heads; ++h) {
            slopes.as<float>()[h] = std::exp2(-8.F * static_cast<float>(h + 1) / static_cast<float>(spec.heads));
        }
        options_.alibi_slopes = std::as_const(slopes).view();
    }
    if (spec.key_length >= 0) {
        key_lengths = lengths_of(spec.batch, spec.key_length);
        options_.key_lengths = std::as_const(key_lengths).view();
    }
    if (spec.query_length >= 0) {
        query_lengths = lengths_of(spec.batch, spec.query_length);
        options_.query_lengths = std::as_const(query_lengths).view();
    }
}

bool Problem::visible(std::int64_t i, std::int64_t j) const {
    const std::int64_t position = i + spec_.keys - spec_.queries;
    if (spec_.causal != 0 && j > position) { return false; }
    if (spec_.window_left >= 0 && j < position - spec_.window_left) { return false; }
    if (spec_.window_right >= 0 && j > position + spec_.window_right) { return false; }
    if (spec_.key_length >= 0 && j >= spec_.key_length) { return false; }
    return spec_.query_length < 0 || i < spec_.query_length;
}

double Problem::scale() const { return 1.0 / std::sqrt(static_cast<double>(spec_.head_size)); }

}  // namespace heed::bench
