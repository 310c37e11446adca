#pragma once
/// What the linear-attention kernels of all instruction sets share: a call as plain data, and helpers that are
/// compiled once, for the baseline.

#include "cpu/attention/call.h"
#include "kernel/linear_attention_problem.h"

namespace heed::cpu {

/// A chunk's C x C scores are to stay in the first cache levels; longer chunks are done as several.
constexpr std::int64_t most_chunk = 256;

constexpr int most_lanes = 16;

struct LinearCall {
    const LinearAttentionProblem* problem = nullptr;
    std::int64_t batch = 0, heads = 0, kv_heads = 0, states = 0, readers = 1, sharers = 1, queries = 0, keys = 0;
    std::int64_t head_size = 0, feature_size = 0, value_size = 0;
    std::int64_t chunk = 64;
    Tensor4 q, k, v, out, dout, dq, dk, dv;
    Tensor4 initial_s, final_s, dfinal_s, dinitial_s;  ///< data null: absent
    Tensor4 initial_z, final_z, dfinal_z, dinitial_z;  ///< along `row`
    FeatureMap feature = FeatureMap::elu_plus_one;
    bool causal = true, normalise = true, decays = false;
    float scale = 1, epsilon = 0, least = 0;
    double* ddecay = nullptr;  ///< [batch][states], null: not wanted

    std::int64_t keys_of(std::int64_t b) const;
    std::int64_t queries_of(std::int64_t b) const;
};

LinearCall make_linear_call(const LinearAttentionProblem& problem);

/// Powers of a state's decay: power[n] = decay^n for n in [0, chunk], falling[n] = decay^(chunk-1-n) for n < chunk
/// and 0 for the most_lanes behind them.
void fill_decay(const LinearCall& call, std::int64_t state, float* power, float* falling);

/// Their derivatives by the decay, laid out alike: slope[n] = n decay^(n-1), and falling.
void fill_decay_slopes(const LinearCall& call, std::int64_t state, float* slope, float* falling);

/// The same number as power[exponent] of fill_decay.
float decay_power(const LinearCall& call, std::int64_t state, std::int64_t exponent);

/// The caller's feature function; `space` has room for 2 head_size + feature_size doubles.
void map_by_function(const LinearCall& call, const float* x, float* y, double* space);
void map_backward_by_function(const LinearCall& call, const float* x, const float* dy, float* dx, double* space);

/// Rows [begin, end) of head h come out as 0.
void clear_rows(const Tensor4& tensor, std::int64_t columns, std::int64_t b, std::int64_t h, std::int64_t begin,
                std::int64_t end);

/// Is the state to be moved on where it lies?
bool state_in_place(const LinearCall& call, std::int64_t lanes);

}  // namespace heed::cpu
