#pragma once
#include "cpu/attention.h"

namespace heed::cpu {

/// What each file of this folder exports, and all that it exports.
struct AttentionFunctions {
    void (*forward)(detail::Pool& pool, const AttentionProblem& problem);
    void (*backward)(detail::Pool& pool, const AttentionProblem& problem);
    void (*weights)(const AttentionProblem& problem, detail::Scratch& scratch, std::int64_t b, std::int64_t h,
                    std::span<const std::int64_t> rows, std::int64_t stride, float* narrow, double* wide);
};

extern const AttentionFunctions portable_attention;
extern const AttentionFunctions avx2_attention;
extern const AttentionFunctions avx512_attention;
extern const AttentionFunctions avx512bf16_attention;
extern const AttentionFunctions neon_attention;

}  // namespace heed::cpu
