#pragma once
#include "cpu/layers/rows.h"
#include "kernel/dropout_problem.h"

namespace heed::cpu {

/// The words of 4 L columns from `column` on, a multiple of 4: word[w][n] is column + 4 n + w's.
template <class Isa, int L>
HEED_INLINE void dropout_words(const DropoutProblem& p, std::int64_t row, std::int64_t column, U<L> (&word)[4]) {
    using S = Simd<Isa, L>;
    std::uint32_t first[L];
    for (int n = 0; n < L; ++n) { first[n] = static_cast<std::uint32_t>(column / 4 + n); }
    __builtin_memcpy(&word[0], first, sizeof(first));
    word[1] = S::all(static_cast<std::uint32_t>(row));
    word[2] = S::all(static_cast<std::uint32_t>(row >> 32));
    word[3] = S::all(p.offset);
    auto key0 = static_cast<std::uint32_t>(p.seed), key1 = static_cast<std::uint32_t>(p.seed >> 32);
    for (int round = 0; round < 10; ++round) {
        U<L> high0, low0, high1, low1;
        S::multiply_wide(word[0], 0xD2511F53U, high0, low0);
        S::multiply_wide(word[2], 0xCD9E8D57U, high1, low1);
        word[0] = high1 ^ word[1] ^ S::all(key0);
        word[2] = high0 ^ word[3] ^ S::all(key1);
        word[1] = low1;
        word[3] = low0;
        key0 += 0x9E3779B9U;
        key1 += 0xBB67AE85U;
    }
}

template <class Isa>
void dropout_rows(const DropoutProblem& p, std::int64_t begin, std::int64_t end) {
    constexpr int L = Isa::lanes;
    static_assert(layer_chunk % (4 * L) == 0);
    float of_x[layer_chunk], of_residual[layer_chunk], of_out[layer_chunk], factor[4 * L];
    const auto scale = static_cast<float>(p.scale);
    for (std::int64_t row = begin; row < end; ++row) {
        for_chunks(0, p.shape.columns, [&](std::int64_t c, std::int64_t count) {
            const float* x = numbers_in<Isa>(p.x, row, c, count, of_x);
            const float* residual = numbers_in<Isa>(p.residual, row, c, count, of_residual);
            const NumbersOut out = numbers_out<Isa>(p.out, row, c, of_out);
            for (std::int64_t n = 0; n < count; n += 4 * L) {
                U<L> word[4];
                dropout_words<Isa, L>(p, row, c + n, word);
                for (int w = 0; w < 4; ++w) {
                    for (int k = 0; k < L; ++k) { factor[4 * k + w] = word[w][k] >= p.threshold ? scale : 0.0F; }
                }
                const std::int64_t here = smaller<std::int64_t>(4 * L, count - n);
                for (std::int64_t k = 0; k < here; ++k) {
                    // A dropped infinity or NaN leaves 0.
                    const float kept = factor[k] == 0 ? 0.0F : factor[k] * x[n + k];
                    out.data[n + k] = residual == nullptr ? kept : kept + residual[n + k];
                }
            }
            end_numbers<Isa>(p.out, row, c, count, out);
        });
    }
}

}  // namespace heed::cpu
