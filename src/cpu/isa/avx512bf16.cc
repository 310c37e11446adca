#include "cpu/isa/kernels.h"

namespace heed::cpu {
namespace {

// In an unnamed namespace, so that whatever is made from it stays inside this file.
struct Avx512Bf16 {
    static constexpr int lanes = 16;
    static constexpr int registers = 32;
};

}  // namespace

/// Attention and matrix products in bf16, and conversions to it; everything else is what avx512_kernels has.
const Kernels avx512bf16_kernels = {
    .attention = attention_functions<Avx512Bf16>(),
    .rows = {.combine = [](auto... arguments) { avx512_kernels.rows.combine(arguments...); },
             .dot = [](const RowAddress& a, const RowAddress& b,
                       std::int64_t size) { return avx512_kernels.rows.dot(a, b, size); }},
    .matmul =
        [](detail::Pool& pool, const MatmulProblem& problem) {
            multiplies_pairs(problem) ? matmul_of<Avx512Bf16, Bf16Product>(pool, problem)
                                      : avx512_kernels.matmul(pool, problem);
        },
    .rope = rope_functions<Avx512Bf16>(),
    .linear_attention = {.forward =
                             [](detail::Pool& pool, const LinearAttentionProblem& problem) {
                                 avx512_kernels.linear_attention.forward(pool, problem);
                             },
                         .backward =
                             [](detail::Pool& pool, const LinearAttentionProblem& problem) {
                                 avx512_kernels.linear_attention.backward(pool, problem);
                             }}};

}  // namespace heed::cpu
