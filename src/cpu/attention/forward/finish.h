#pragma once
#include "cpu/attention/call.h"
#include "cpu/simd/convert.h"
#include "kernel/merge_rule.h"

#include <cmath>

/// The end of the forward pass: parts of a tile whose keys were split are merged, sums are divided, out and lse
/// written.

namespace heed::cpu {

/// What a task leaves behind where keys are split: sums, largest and sum per row.
struct Partial {
    float* sums;     ///< [rows][value_stride]
    float* largest;  ///< [rows]
    float* sum;
};

template <class Isa>
class Finish {
public:
    /// Step 7's division, the sink, and the writing of out and lse.
    static void rows(const Call& call, const RowTile& tile, const Partial& state, std::int64_t value_stride) {
        constexpr int L = Isa::lanes;
        using S = Simd<Isa, L>;
        float factor[most_rows];
        factors(call, tile, state, factor);
        const bool whole_vectors = takes_vectors(call, value_stride);
        [[maybe_unused]] const bool whole_pairs =
            call.out.dtype == DType::bf16 && call.out.column == 1 && call.value_size == value_stride;
        for (int r = 0; r < tile.rows; ++r) {
            char* to = row_address(call.out, tile, r);
            const float* from = state.sums + r * value_stride;
#if defined(__AVX512BF16__)
            if (whole_pairs) {
                auto* pairs = reinterpret_cast<float*>(to);
                const F<L> scale = S::all(factor[r]);
                for (std::int64_t e = 0; e < value_stride; e += L) {
                    S::store_bf16(pairs + e / 2, S::load(from + e) * scale);
                }
                continue;
            }
#endif
            if (whole_vectors) {
                auto* out = reinterpret_cast<float*>(to);
                const F<L> scale = S::all(factor[r]);
                for (std::int64_t e = 0; e < value_stride; e += L) { S::store(out + e, S::load(from + e) * scale); }
            } else {
                store_row<Isa>(call.out.dtype, to, call.out.column, call.value_size, from, factor[r]);
            }
        }
        put_sums(call, tile, state);
    }

    /// Can the last product of a tile write its rows to out itself, each multiplied by its factor?
    static bool can_write_products(const Call& call, const RowTile& tile, std::int64_t value_stride) {
        return takes_vectors(call, value_stride) && tile.head[0] == tile.head[tile.rows - 1];
    }
    /// What the sums are multiplied by.
    static void factors(const Call& call, const RowTile& tile, const Partial& state, float* factor) {
        if (call.sinks) {
            for (int r = 0; r < tile.rows; ++r) {
                factor[r] = with_sink(call, tile, r, state.largest[r], state.sum[r]).factor;
            }
            return;
        }
        for (int r = 0; r < tile.rows; ++r) {
            // A row whose every score is NaN has no largest either, but a sum that says so.
            factor[r] =
                state.largest[r] == negative_infinity && state.sum[r] == 0 ? 0.0F : call.drop_factor / state.sum[r];
        }
    }
    static void put_sums(const Call& call, const RowTile& tile, const Partial& state) {
        for (int r = 0; call.has_lse && r < tile.rows; ++r) {
            put_lse(call, tile, r, with_sink(call, tile, r, state.largest[r], state.sum[r]).lse);
        }
    }

    /// Of a row's largest score, in powers of two, and the sum of its weights.
    static double lse_of(float largest, float sum) {
        constexpr double ln_2 = 0.69314718055994531;
        if (largest == negative_infinity && sum == 0) { return -__builtin_inf(); }
        // Of lowest floats alone it is the lowest float, whatever least_bias made of them.
        const bool least = largest <= 0.999F * least_score && largest > negative_infinity && sum == sum;
        return least ? -static_cast<double>(__FLT_MAX__) : largest * ln_2 + static_cast<double>(logf(sum));
    }

    /// Merges the parts of one tile, in order, and writes its output.
    static void merge(const Call& call, const RowTile& tile, const Partial* parts, std::int64_t count,
                      std::int64_t value_stride) {
        for (int r = 0; r < tile.rows; ++r) {
            float largest = negative_infinity;
            for (std::int64_t n = 0; n < count; ++n) { largest = merged_logarithm(largest, parts[n].largest[r]); }
            float* sums = parts[0].sums + r * value_stride;
            float total = 0;
            for (std::int64_t n = 0; n < count; ++n) {
                const float weight = merge_weight(parts[n].largest[r], largest, power_of_two);
                total += weight * parts[n].sum[r];
                const float* from = parts[n].sums + r * value_stride;
                if (n == 0) {
                    for (std::int64_t e = 0; e < value_stride; ++e) { sums[e] = weight * from[e]; }
                } else if (weight != 0) {
                    for (std::int64_t e = 0; e < value_stride; ++e) { sums[e] += weight * from[e]; }
                }
            }
            parts[0].largest[r] = largest;
            parts[0].sum[r] = total;
        }
        rows(call, tile, parts[0], value_stride);
    }

private:
    static constexpr auto power_of_two = [](float x) { return exp2f(x); };

    static bool takes_vectors(const Call& call, std::int64_t value_stride) {
        return call.out.dtype == DType::f32 && call.out.column == 1 && call.value_size == value_stride;
    }

    struct Normaliser {
        float factor;
        double lse;
    };

    static Normaliser with_sink(const Call& call, const RowTile& tile, int r, float largest, float sum) {
        constexpr double ln_2 = 0.69314718055994531;
        float top = largest;
        float total = sum;
        float weight = 1;
        if (call.sinks) {
            const double logit = sink_of(call, tile.head[r]);
            const auto sink = static_cast<float>(logit / ln_2);
            // A row that sees nothing but its sink has exactly the sink's logit.
            if (largest == negative_infinity && sum == 0) { return {0.0F, logit}; }
            // The sink is a part whose sum is 1 and whose values are 0.
            top = merged_logarithm(largest, sink);
            weight = merge_weight(largest, top, power_of_two);
            total = weight * total + power_of_two(sink - top);  // 0 for a sink of -infinity
        }
        const bool nothing = top == negative_infinity && total == 0;
        return {nothing ? 0.0F : call.drop_factor * weight / total, lse_of(top, total)};
    }
};

}  // namespace heed::cpu
