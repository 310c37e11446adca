#pragma once
#include "cpu/layers/rows.h"
#include "kernel/cross_entropy_problem.h"

/// Rows of logits in three passes: the largest, the sum of exponentials, the gradient. Nothing is kept between them.

namespace heed::cpu {

template <class Isa>
struct CrossEntropyRow {
    static constexpr int L = Isa::lanes;
    using S = Simd<Isa, L>;
    using M = Math<Isa, L>;
    using V = F<L>;

    const CrossEntropyProblem& p;
    std::int64_t row;
    const float cap = static_cast<float>(p.softcap);

    HEED_INLINE V capped(V z) const { return p.softcap == 0 ? z : S::all(cap) * M::tanh(z * S::all(1.0F / cap)); }

    /// Calls f(numbers, column, count) for chunks of the row.
    template <class Function>
    HEED_INLINE void chunks(Function&& f) const {
        float buffer[layer_chunk];
        for_chunks(0, p.shape.columns, [&](std::int64_t c, std::int64_t count) {
            f(numbers_in<Isa>(p.logits, row, c, count, buffer), c, count);
        });
    }

    float largest() const {
        float most = negative_infinity;
        bool defined = true;
        chunks([&](const float* z, std::int64_t, std::int64_t count) {
            V largest = S::all(negative_infinity), sound = S::all(0.0F);
            for (std::int64_t n = 0; n < count; n += L) {
                V v = capped(load_some<Isa, L>(z + n, count - n));
                if (count - n < L) {
                    float lane[L];
                    S::store(lane, v);
                    for (std::int64_t k = count - n; k < L; ++k) { lane[k] = lane[0]; }
                    v = S::load(lane);
                }
                largest = S::max(v, largest);
                sound += v - v;  // NaN for NaN, and for infinities
            }
            float lane[L];
            S::store(lane, largest);
            for (int n = 0; n < L; ++n) { most = lane[n] > most ? lane[n] : most; }
            S::store(lane, sound);
            for (int n = 0; n < L; ++n) { defined = defined && lane[n] == 0; }
        });
        if (!defined) { most = nan_safe_largest(most); }
        return most;
    }
    /// NaN where there is one: comparisons above pass it by.
    HEED_NOINLINE float nan_safe_largest(float most) const {
        chunks([&](const float* z, std::int64_t, std::int64_t count) {
            for (std::int64_t n = 0; n < count; ++n) {
                if (z[n] != z[n]) { most = z[n]; }
            }
        });
        return most;
    }

    struct Sums {
        double exponentials = 0, plain = 0;
    };
    Sums sums(float most) const {
        Sums total;
        chunks([&](const float* z, std::int64_t, std::int64_t count) {
            V e = S::all(0.0F), plain = S::all(0.0F);
            for (std::int64_t n = 0; n < count; n += L) {
                const std::int64_t left = count - n;
                V v = capped(load_some<Isa, L>(z + n, left)) - S::all(most);
                V each = M::exp(v);
                if (left < L) {
                    float lane[2][L];
                    S::store(lane[0], v);
                    S::store(lane[1], each);
                    for (std::int64_t k = left; k < L; ++k) { lane[0][k] = lane[1][k] = 0; }
                    v = S::load(lane[0]);
                    each = S::load(lane[1]);
                }
                e += each;
                plain += v;
            }
            total.exponentials += static_cast<double>(S::reduce_add(e));
            total.plain += static_cast<double>(S::reduce_add(plain));
        });
        return total;
    }

    void gradient(float most, double exponentials) const {
        const V share = S::all(static_cast<float>(p.gradient / exponentials));
        const V base = S::all(static_cast<float>(p.gradient * p.base));
        const auto target = static_cast<float>(p.gradient * (p.base - p.target));
        float of_out[layer_chunk];
        chunks([&](const float* z, std::int64_t c, std::int64_t count) {
            const NumbersOut out = numbers_out<Isa>(p.dlogits, row, c, of_out);
            const std::int64_t here = p.targets[row] - c;
            // The logits may lie where the gradient goes.
            float inside = 1;
            if (p.softcap != 0 && here >= 0 && here < count) {
                float lane[L];
                S::store(lane, capped(S::all(z[here])) * S::all(1.0F / cap));
                inside = 1 - lane[0] * lane[0];
            }
            for (std::int64_t n = 0; n < count; n += L) {
                const V v = capped(load_some<Isa, L>(z + n, count - n));
                V d = M::exp(v - S::all(most)) * share - base;
                if (p.softcap != 0) {
                    const V t = v * S::all(1.0F / cap);
                    d *= S::all(1.0F) - t * t;
                }
                store_some<Isa, L>(out.data + n, d, count - n);
            }
            if (here >= 0 && here < count) { out.data[here] += target * inside; }
            end_numbers<Isa>(p.dlogits, row, c, count, out);
        });
    }

    float target_logit() const {
        float z[L] = {};
        load_row<Isa>(p.logits.dtype, p.logits.at(row, p.targets[row]), 1, 1, z);
        S::store(z, capped(S::load(z)));
        return z[0];
    }
};

template <class Isa>
void cross_entropy_rows(const CrossEntropyProblem& p, std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
        p.losses[row] = p.nlls[row] = 0;
        if (p.targets[row] == p.ignore) {
            float zeros[layer_chunk] = {};
            for_chunks(0, p.dlogits.present ? p.shape.columns : 0, [&](std::int64_t c, std::int64_t count) {
                store_row<Isa>(p.dlogits.dtype, p.dlogits.at(row, c), p.dlogits.stride, count, zeros, 1.0F);
            });
            continue;
        }
        const CrossEntropyRow<Isa> r{p, row};
        const float most = r.largest();
        const auto [exponentials, plain] = r.sums(most);
        const double log_sum = __builtin_log(exponentials);
        const double relative = static_cast<double>(r.target_logit()) - static_cast<double>(most);
        p.nlls[row] = log_sum - relative;
        p.losses[row] = log_sum - (p.target - p.base) * relative - (p.base == 0 ? 0 : p.base * plain);
        if (p.dlogits.present) { r.gradient(most, exponentials); }
    }
}

}  // namespace heed::cpu
