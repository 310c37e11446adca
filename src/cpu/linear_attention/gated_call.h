#pragma once
/// Linear attention with a decay per token, and the delta rule: what its kernels of all instruction sets share.

#include "base/pool.h"
#include "cpu/linear_attention/call.h"

namespace heed::cpu {

/// Tokens of a chunk: longer chunks spend more inside them than they save on states.
constexpr std::int64_t most_gated_chunk = 64;
/// Tokens within which decays of single rows are multiplied up one by one.
constexpr std::int64_t gated_block = 16;

struct GatedCall : LinearCall {
    Tensor4 log_decay, beta, dlog_decay, dbeta;  ///< column 0: one number a token; data null: absent
    bool each_row = false;                       ///< a decay for each row of the state
    bool delta = false;
};

GatedCall make_gated_call(const LinearAttentionProblem& problem);
/// The same for columns [begin, begin + count) of the values; of the forward pass.
GatedCall columns_of(const GatedCall& call, std::int64_t begin, std::int64_t count);

/// decay[i] and beta[i] of tokens [begin, begin + count) of state n; decay only where it is one number a token.
void fill_gates(const GatedCall& call, std::int64_t b, std::int64_t n, std::int64_t begin, std::int64_t count,
                float* decay, float* beta);

/// Tokens [begin, begin + count) of a gate with one number a token; values null: 0.
void put_gates(const Tensor4& to, std::int64_t b, std::int64_t n, std::int64_t begin, std::int64_t count,
               const float* values);

/// What the files isa/gated_*.cc export.
struct GatedKernels {
    void (*forward)(detail::Pool& pool, const LinearAttentionProblem& problem);
    void (*backward)(detail::Pool& pool, const LinearAttentionProblem& problem);
};

extern const GatedKernels portable_gated;
extern const GatedKernels avx2_gated;
extern const GatedKernels avx512_gated;
extern const GatedKernels neon_gated;

}  // namespace heed::cpu
