#pragma once
#include "base/pool.h"
#include "kernel/attention_problem.h"
#include "kernel/linear_attention_problem.h"
#include "kernel/matmul_problem.h"

namespace heed::cpu {

/// How the entries of a call are computed in the forward pass.
enum class AttentionWay : std::uint8_t {
    each_its_own,  ///< whichever of the following suits the entry
    tiles,         ///< blocks of query rows against packed blocks of keys
    decode,        ///< a few rows, keys and values read once where they lie
    short_heads,   ///< all rows and keys of a short plain head at once
};

/// What each file of this folder exports, and all that it exports: one table. Each operation adds a member.
struct AttentionFunctions {
    /// The one way that suits every entry of the forward pass; each_its_own where there is none.
    AttentionWay (*way)(const AttentionProblem& problem);
    /// `way` is each_its_own or tiles.
    void (*forward)(detail::Pool& pool, const AttentionProblem& problem, AttentionWay way);
    /// The same where the CPU multiplies bytes, too (VNNI).
    void (*forward_with_bytes)(detail::Pool& pool, const AttentionProblem& problem, AttentionWay way);
    void (*backward)(detail::Pool& pool, const AttentionProblem& problem);
    /// out[r][j], row r at out + r * stride, of the listed rows of head h.
    void (*weights)(const AttentionProblem& problem, detail::Scratch& scratch, std::int64_t b, std::int64_t h,
                    const std::int64_t* rows, std::int64_t count, std::int64_t stride, float* out);
};

/// A row of any float type and stride.
struct RowAddress {
    DType dtype;
    char* data;
    std::int64_t stride;
};

struct RowFunctions {
    void (*combine)(const RowAddress* row, const float* weight, std::int64_t count, std::int64_t size, RowAddress to);
    float (*dot)(const RowAddress& a, const RowAddress& b, std::int64_t size);
};

struct RopeCall;
struct RopeFunctions {
    /// `count` tokens from `begin` on of batch entry b, all heads; positions [count].
    void (*block)(const RopeCall& call, std::int64_t b, std::int64_t begin, std::int64_t count,
                  const std::int64_t* positions, float* scratch);
};

struct LinearAttentionFunctions {
    void (*forward)(detail::Pool& pool, const LinearAttentionProblem& problem);
    void (*backward)(detail::Pool& pool, const LinearAttentionProblem& problem);
};

struct Kernels {
    AttentionFunctions attention;
    RowFunctions rows;
    void (*matmul)(detail::Pool& pool, const MatmulProblem& problem);
    RopeFunctions rope;
    LinearAttentionFunctions linear_attention;
};

extern const Kernels portable_kernels;
extern const Kernels avx2_kernels;
extern const Kernels avx512_kernels;
extern const Kernels avx512bf16_kernels;
extern const Kernels neon_kernels;

}  // namespace heed::cpu
