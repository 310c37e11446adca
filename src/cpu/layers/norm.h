#pragma once
#include "cpu/layers/rows.h"
#include "kernel/norm_problem.h"

/// Layer norm and RMS norm, a row at a time in L1: the mean, then the squares of what is left, then the result.

namespace heed::cpu {

template <class Isa>
struct NormRows {
    static constexpr int L = Isa::lanes;
    using S = Simd<Isa, L>;
    using V = F<L>;

    const NormProblem& p;
    const std::int64_t columns = p.shape.columns;

    /// Sum over the row of what f gives for its vectors; f sees zeros behind the end and must give zeros there.
    template <class Function>
    HEED_INLINE float sum(Function&& f) const {
        V part[4] = {};
        std::int64_t c = 0;
        for (; c + 4 * L <= columns; c += 4 * L) {
            HEED_UNROLL
            for (int n = 0; n < 4; ++n) { part[n] += f(c + n * L, std::int64_t{L}); }
        }
        for (; c < columns; c += L) { part[0] += f(c, columns - c); }
        return S::reduce_add((part[0] + part[1]) + (part[2] + part[3]));
    }
    static HEED_INLINE V at(const float* x, std::int64_t c, std::int64_t left) {
        return load_some<Isa, L>(x + c, left);
    }
    /// Zeros behind the end, whatever is there.
    static HEED_INLINE V inside(V v, std::int64_t left) {
        if (left >= L) { return v; }
        float lane[L];
        S::store(lane, v);
        for (std::int64_t n = left; n < L; ++n) { lane[n] = 0; }
        return S::load(lane);
    }
    HEED_INLINE float mean_of(const float* x) const {
        return sum([&](std::int64_t c, std::int64_t left) HEED_INLINE_LAMBDA { return at(x, c, left); }) /
               static_cast<float>(columns);
    }

    struct Statistics {
        float mean, rstd;
    };
    HEED_INLINE Statistics statistics(const float* s) const {
        const float mean = p.centred ? mean_of(s) : 0.0F;
        const float square = sum([&](std::int64_t c, std::int64_t left) HEED_INLINE_LAMBDA {
            const V x = inside(at(s, c, left) - S::all(mean), left);
            return x * x;
        });
        const float variance = square / static_cast<float>(columns);
        return {mean, 1.0F / __builtin_sqrtf(variance + static_cast<float>(p.eps))};
    }

    /// offset + weight, loaded once for many rows; null: 1.
    HEED_INLINE const float* weights(float* buffer) const {
        if (!p.weight.present) { return nullptr; }
        load_row<Isa>(p.weight.dtype, p.weight.row(0), p.weight.stride, columns, buffer);
        const auto offset = static_cast<float>(p.weight_offset);
        for (std::int64_t c = 0; c < columns; ++c) { buffer[c] += offset; }
        return buffer;
    }
    static HEED_INLINE V weight_at(const float* weight, std::int64_t c, std::int64_t left) {
        return weight == nullptr ? S::all(1.0F) : at(weight, c, left);
    }

    void forward(std::int64_t row, const float* weight, const float* bias, float* buffer, float* more) const {
        const float* s = numbers_in<Isa>(p.x, row, 0, columns, buffer);
        if (p.residual.present || p.sum.present) {
            const float* residual = numbers_in<Isa>(p.residual, row, 0, columns, more);
            const NumbersOut sum = numbers_out<Isa>(p.sum, row, 0, buffer);
            for (std::int64_t c = 0; c < columns; ++c) {
                sum.data[c] = residual == nullptr ? s[c] : s[c] + residual[c];
            }
            end_numbers<Isa>(p.sum, row, 0, columns, sum);
            s = sum.data;
        }
        const auto [mean, rstd] = statistics(s);
        const NumbersOut out = numbers_out<Isa>(p.out, row, 0, more);
        for (std::int64_t c = 0; c < columns; c += L) {
            const std::int64_t left = columns - c;
            V y = (at(s, c, left) - S::all(mean)) * S::all(rstd) * weight_at(weight, c, left);
            if (bias != nullptr) { y += at(bias, c, left); }
            store_some<Isa, L>(out.data + c, y, left);
        }
        end_numbers<Isa>(p.out, row, 0, columns, out);
    }

    // With y the normalised row and h = w dout: ds = rstd (h - mean(h) - y mean(h y)), without mean(h) in RMS norm.
    void backward(std::int64_t row, const float* weight, float* buffer, float* more, float* dweight,
                  float* dbias) const {
        const float* s = numbers_in<Isa>(p.x, row, 0, columns, buffer);
        const float* dout = numbers_in<Isa>(p.dout, row, 0, columns, more);
        // Not a structured binding: Clang does not let lambdas capture those.
        const Statistics of_s = statistics(s);
        const float mean = of_s.mean, rstd = of_s.rstd;
        const auto normal = [&](std::int64_t c, std::int64_t left)
                                HEED_INLINE_LAMBDA { return (at(s, c, left) - S::all(mean)) * S::all(rstd); };
        for (std::int64_t c = 0; dweight != nullptr && c < columns; c += L) {
            const std::int64_t left = columns - c;
            store_some<Isa, L>(dweight + c, at(dweight, c, left) + at(dout, c, left) * normal(c, left), left);
        }
        for (std::int64_t c = 0; dbias != nullptr && c < columns; ++c) { dbias[c] += dout[c]; }
        if (!p.dx.present) { return; }
        const auto h = [&](std::int64_t c, std::int64_t left)
                           HEED_INLINE_LAMBDA { return at(dout, c, left) * weight_at(weight, c, left); };
        const auto count = static_cast<float>(columns);
        const float mean_h = p.centred ? sum(h) / count : 0.0F;
        const float along =
            sum([&](std::int64_t c, std::int64_t left) HEED_INLINE_LAMBDA { return h(c, left) * normal(c, left); }) /
            count;
        // dx may lie where dsum does, which is read through the buffer's place only when it is needed.
        const NumbersOut dx = numbers_out<Isa>(p.dx, row, 0, more);
        const bool direct = p.dsum.present && p.dsum.dtype == DType::f32 && p.dsum.stride == 1;
        const auto* dsum = direct ? reinterpret_cast<const float*>(p.dsum.row(row)) : nullptr;
        for (std::int64_t c = 0; c < columns; c += L) {
            const std::int64_t left = columns - c;
            V ds = S::all(rstd) * (h(c, left) - S::all(mean_h) - normal(c, left) * S::all(along));
            if (direct) {
                ds += at(dsum, c, left);
            } else if (p.dsum.present) {
                float lane[L] = {};
                load_row<Isa>(p.dsum.dtype, p.dsum.at(row, c), p.dsum.stride, smaller<std::int64_t>(L, left), lane);
                ds += S::load(lane);
            }
            store_some<Isa, L>(dx.data + c, ds, left);
        }
        end_numbers<Isa>(p.dx, row, 0, columns, dx);
    }
};

template <class Isa>
void norm_rows(const NormProblem& p, std::int64_t begin, std::int64_t end, float* scratch) {
    const NormRows<Isa> rows{p};
    const std::int64_t columns = p.shape.columns;
    const float* weight = rows.weights(scratch + 2 * columns);
    const float* bias = nullptr;
    if (p.bias.present) {
        load_row<Isa>(p.bias.dtype, p.bias.row(0), p.bias.stride, columns, scratch + 3 * columns);
        bias = scratch + 3 * columns;
    }
    for (std::int64_t row = begin; row < end; ++row) { rows.forward(row, weight, bias, scratch, scratch + columns); }
}

template <class Isa>
void norm_backward_rows(const NormProblem& p, std::int64_t begin, std::int64_t end, float* scratch, float* dweight,
                        float* dbias) {
    const NormRows<Isa> rows{p};
    const std::int64_t columns = p.shape.columns;
    const float* weight = rows.weights(scratch + 2 * columns);
    for (std::int64_t c = 0; dweight != nullptr && c < columns; ++c) { dweight[c] = 0; }
    for (std::int64_t c = 0; dbias != nullptr && c < columns; ++c) { dbias[c] = 0; }
    for (std::int64_t row = begin; row < end; ++row) {
        rows.backward(row, weight, scratch, scratch + columns, dweight, dbias);
    }
}

}  // namespace heed::cpu
