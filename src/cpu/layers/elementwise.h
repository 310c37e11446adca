#pragma once
#include "cpu/layers/rows.h"
#include "kernel/adam_problem.h"
#include "kernel/elementwise_problem.h"

/// Loops that the compiler turns into vectors by itself.

namespace heed::cpu {

template <class Isa>
void elementwise_row(const ElementwiseProblem& p, std::int64_t row, std::int64_t begin, std::int64_t end) {
    float of_a[layer_chunk], of_b[layer_chunk], of_out[layer_chunk];
    const auto alpha = static_cast<float>(p.alpha), beta = static_cast<float>(p.beta);
    for_chunks(begin, end, [&](std::int64_t c, std::int64_t count) {
        const float* a = numbers_in<Isa>(p.a, row, c, count, of_a);
        const float* b = numbers_in<Isa>(p.b, row, c, count, of_b);
        const NumbersOut out = numbers_out<Isa>(p.out, row, c, of_out);
        if (a == nullptr) {
            for (std::int64_t n = 0; n < count; ++n) { out.data[n] = alpha; }
        } else if (p.product) {
            for (std::int64_t n = 0; n < count; ++n) { out.data[n] = a[n] * b[n]; }
        } else if (b != nullptr) {
            for (std::int64_t n = 0; n < count; ++n) { out.data[n] = alpha * a[n] + beta * b[n]; }
        } else if (p.alpha != 1) {
            for (std::int64_t n = 0; n < count; ++n) { out.data[n] = alpha * a[n]; }
        } else {
            for (std::int64_t n = 0; n < count; ++n) { out.data[n] = a[n]; }
        }
        end_numbers<Isa>(p.out, row, c, count, out);
    });
}

/// Sums of 64 rows at a time are added up, so that rounding errors do not grow with the number of rows.
template <class Isa>
void sum_leading_row(const SumProblem& p, std::int64_t row, std::int64_t begin, std::int64_t end) {
    constexpr std::int64_t block = 64;
    float part[layer_chunk], total[layer_chunk], buffer[layer_chunk];
    const auto factor = static_cast<float>(p.factor);
    for_chunks(begin, end, [&](std::int64_t c, std::int64_t count) {
        for (std::int64_t n = 0; n < count; ++n) { total[n] = 0; }
        for (std::int64_t first = 0; first < p.repeats; first += block) {
            for (std::int64_t n = 0; n < count; ++n) { part[n] = 0; }
            for (std::int64_t r = first; r < smaller(p.repeats, first + block); ++r) {
                const float* x = numbers_in<Isa>(p.x, row + r * p.shape.rows, c, count, buffer);
                for (std::int64_t n = 0; n < count; ++n) { part[n] += x[n]; }
            }
            for (std::int64_t n = 0; n < count; ++n) { total[n] += part[n]; }
        }
        const float* before = p.accumulate ? numbers_in<Isa>(p.out, row, c, count, buffer) : nullptr;
        for (std::int64_t n = 0; n < count; ++n) {
            part[n] = before == nullptr ? factor * total[n] : before[n] + factor * total[n];
        }
        store_row<Isa>(p.out.dtype, p.out.at(row, c), p.out.stride, count, part, 1.0F);
    });
}

/// Where numbers [begin, begin + count) of a line are, or a copy of them as floats.
template <class Isa>
HEED_INLINE float* line_at(const Numbers& x, std::int64_t begin, std::int64_t count, float* buffer) {
    char* from = x.data + begin * element_bytes(x.dtype);
    if (x.dtype == DType::f32) { return reinterpret_cast<float*>(from); }
    load_row<Isa>(x.dtype, from, 1, count, buffer);
    return buffer;
}
template <class Isa>
HEED_INLINE void end_line(const Numbers& x, std::int64_t begin, std::int64_t count, const float* data) {
    if (x.dtype != DType::f32) {
        store_row<Isa>(x.dtype, x.data + begin * element_bytes(x.dtype), 1, count, data, 1.0F);
    }
}

template <class Isa>
double sum_of_squares_line(const Numbers& x, std::int64_t begin, std::int64_t end) {
    constexpr int L = Isa::lanes;
    float buffer[layer_chunk];
    double total = 0;
    for_chunks(begin, end, [&](std::int64_t c, std::int64_t count) {
        const float* numbers = line_at<Isa>(x, c, count, buffer);
        F<L> part[2] = {};
        for (std::int64_t n = 0; n < count; n += 2 * L) {
            HEED_UNROLL
            for (int h = 0; h < 2; ++h) {
                const F<L> v = load_some<Isa, L>(numbers + n + h * L, larger<std::int64_t>(0, count - n - h * L));
                part[h] += v * v;
            }
        }
        total += static_cast<double>(Simd<Isa, L>::reduce_add(part[0] + part[1]));
    });
    return total;
}

template <class Isa>
HEED_NOINLINE void adam_numbers(const AdamProblem& p, std::int64_t count, float* __restrict value,
                                const float* __restrict gradient, float* __restrict first, float* __restrict second) {
    const auto scale = static_cast<float>(p.gradient_scale), decay = static_cast<float>(p.decay);
    const auto beta1 = static_cast<float>(p.beta1), rest1 = static_cast<float>(1 - p.beta1);
    const auto beta2 = static_cast<float>(p.beta2), rest2 = static_cast<float>(1 - p.beta2);
    const auto keep = static_cast<float>(p.keep), rate = static_cast<float>(p.rate);
    const auto root = static_cast<float>(p.root), eps = static_cast<float>(p.eps);
    for (std::int64_t n = 0; n < count; ++n) {
        const float g = scale * gradient[n] + decay * value[n];
        const float m = beta1 * first[n] + rest1 * g;
        const float v = beta2 * second[n] + rest2 * g * g;
        first[n] = m;
        second[n] = v;
        value[n] = keep * value[n] - rate * m / (__builtin_sqrtf(v) * root + eps);
    }
}

template <class Isa>
void adam_line(const AdamProblem& p, std::int64_t begin, std::int64_t end) {
    float of_value[layer_chunk], of_gradient[layer_chunk], of_first[layer_chunk], of_second[layer_chunk];
    for_chunks(begin, end, [&](std::int64_t c, std::int64_t count) {
        float* value = line_at<Isa>(p.value, c, count, of_value);
        float* first = line_at<Isa>(p.first, c, count, of_first);
        float* second = line_at<Isa>(p.second, c, count, of_second);
        adam_numbers<Isa>(p, count, value, line_at<Isa>(p.gradient, c, count, of_gradient), first, second);
        end_line<Isa>(p.first, c, count, first);
        end_line<Isa>(p.second, c, count, second);
        end_line<Isa>(p.value, c, count, value);
        if (p.rounded.data != nullptr) {
            store_row<Isa>(p.rounded.dtype, p.rounded.data + c * element_bytes(p.rounded.dtype), 1, count, value, 1.0F);
        }
    });
}

}  // namespace heed::cpu
