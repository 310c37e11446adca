#pragma once
/// A LinearAttentionProblem as kernels on the device get it: plain data that travels as a kernel's parameter.

#include "cuda/attention_call.h"
#include "kernel/linear_attention_problem.h"

namespace heed::cuda {

/// Where the normaliser is wanted, z is the last column of the state: values are seen with a 1 behind them, and the
/// denominator is what is read there. So a state is one matrix of `head_size` rows and `columns()`.
struct LinearAttentionCall {
    std::int64_t batch = 0, heads = 0, kv_heads = 0, states = 0, queries = 0, keys = 0;
    std::int64_t head_size = 0, value_size = 0;
    FeatureMap feature = FeatureMap::elu_plus_one;
    bool causal = true, normalise = true, delta = false;
    double scale = 1, epsilon = 0, least_denominator = 0;

    Tensor4 q, k, v, out;
    Tensor4 initial_s, initial_z, final_s, final_z;  ///< [B,N,F,E], [B,N,F]
    Tensor4 decay;                                   ///< [N]
    Tensor4 log_decay, beta;                         ///< [B,N,T,F], [B,N,T,E]; stride 0 where one number serves a row
    Tensor4 key_lengths;                             ///< [B]

    // backward
    Tensor4 dout, dq, dk, dv;
    Tensor4 dfinal_s, dfinal_z, dinitial_s, dinitial_z;
    Tensor4 ddecay, dlog_decay, dbeta;
    bool log_decay_rows = false, beta_rows = false;  ///< do their gradients have a number for each row, each column?
    std::int64_t stretch = 1;                        ///< tokens between states that are kept

    constexpr std::int64_t readers() const { return heads / states; }
    constexpr std::int64_t sharers() const { return states / kv_heads; }
    constexpr std::int64_t columns() const { return value_size + (normalise ? 1 : 0); }
    constexpr std::int64_t state_size() const { return head_size * columns(); }
};

namespace linear_call {

template <class AnyView>
Tensor4 tensor(const AnyView& view) {
    Tensor4 result;
    if (!view) { return result; }
    result.data = const_cast<void*>(static_cast<const void*>(view.data()));  // what is only read is not written
    result.dtype = view.dtype();
    for (int axis = 0; axis < view.rank(); ++axis) { result.stride[axis] = view.stride(axis); }
    return result;
}

/// The stretch at which states kept for good and states of one stretch take the least memory together.
inline std::int64_t balanced_stretch(std::int64_t keys) {
    std::int64_t stretch = 1;
    while (stretch * stretch < keys) { ++stretch; }
    return stretch;
}

}  // namespace linear_call

/// Lists that may lie on the host (decay, key_lengths) are left to the caller.
inline LinearAttentionCall linear_call_of(const LinearAttentionProblem& p) {
    using linear_call::tensor;
    const LinearAttentionOptions& o = p.options;
    LinearAttentionCall c;
    c.batch = p.batch;
    c.heads = p.heads;
    c.kv_heads = p.kv_heads;
    c.states = p.states;
    c.queries = p.queries;
    c.keys = p.keys;
    c.head_size = p.head_size;
    c.value_size = p.value_size;
    c.feature = o.feature;
    c.causal = o.causal;
    c.normalise = o.normalise;
    c.delta = o.rule == UpdateRule::delta;
    c.scale = o.scale;
    c.epsilon = o.epsilon;
    c.least_denominator = p.least_denominator;
    c.q = tensor(p.q);
    c.k = tensor(p.k);
    c.v = tensor(p.v);
    c.out = tensor(p.out);
    c.initial_s = tensor(p.initial.s);
    c.initial_z = tensor(p.initial.z);
    c.final_s = tensor(p.final.s);
    c.final_z = tensor(p.final.z);
    c.log_decay = tensor(o.log_decay);
    c.beta = tensor(o.beta);
    c.dout = tensor(p.dout);
    c.dfinal_s = tensor(p.dfinal.s);
    c.dfinal_z = tensor(p.dfinal.z);
    const LinearAttentionGradients& g = p.gradients;
    c.dq = tensor(g.dq);
    c.dk = tensor(g.dk);
    c.dv = tensor(g.dv);
    c.dinitial_s = tensor(g.dinitial.s);
    c.dinitial_z = tensor(g.dinitial.z);
    c.ddecay = tensor(g.ddecay);
    c.dlog_decay = tensor(g.dlog_decay);
    c.dbeta = tensor(g.dbeta);
    c.log_decay_rows = g.dlog_decay && g.dlog_decay.rank() == 4;
    c.beta_rows = g.dbeta && g.dbeta.rank() == 4;
    c.stretch = linear_call::balanced_stretch(p.keys);
    return c;
}

}  // namespace heed::cuda
