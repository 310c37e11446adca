#include "cpu/kv_transfer.h"

#include "base/dispatch.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace heed::cpu {
namespace {

/// To the nearest integer, ties to even, for |x| < 2^22: adding 1.5 * 2^23 leaves no bit for the fraction. Unlike a
/// library call, this compiles to vector code for every CPU.
float rounded(float x) { return (x + 12582912.0F) - 12582912.0F; }

float largest_magnitude(const float* x, std::int64_t n) {
    float largest = 0;
    for (std::int64_t c = 0; c < n; ++c) { largest = std::max(largest, std::abs(x[c])); }
    return largest;
}

/// x / scale in whole steps of -most to most. The scale of a row of tiny numbers may be 0: then so are the steps.
float step_of(float x, float scale, float most) {
    return scale > 0 ? std::clamp(rounded(x / scale), -most, most) : 0.0F;
}

void write_i8(const float* x, std::int64_t n, char* row, float* scale) {
    *scale = largest_magnitude(x, n) / 127;
    for (std::int64_t c = 0; c < n; ++c) { row[c] = static_cast<char>(static_cast<int>(step_of(x[c], *scale, 127))); }
}

void write_i4(const float* x, std::int64_t n, char* row, float* scales) {
    for (std::int64_t begin = 0; begin < n; begin += i4_group, ++scales) {
        const std::int64_t end = std::min(begin + i4_group, n);
        *scales = largest_magnitude(x + begin, end - begin) / 7;
        const auto nibble = [&](std::int64_t c) {
            return c < end ? static_cast<unsigned>(static_cast<int>(step_of(x[c], *scales, 7)) + 8) : 8U;
        };
        for (std::int64_t c = begin; c < end; c += 2) {
            row[c / 2] = static_cast<char>(nibble(c) | nibble(c + 1) << 4U);
        }
    }
}

template <class Half>
void write_half(const float* x, std::int64_t n, char* row) {
    auto* to = reinterpret_cast<Half*>(row);
    for (std::int64_t c = 0; c < n; ++c) { to[c] = Half(x[c]); }
}
template <class Half>
void read_half(const char* row, std::int64_t n, float* x) {
    const auto* from = reinterpret_cast<const Half*>(row);
    for (std::int64_t c = 0; c < n; ++c) { x[c] = static_cast<float>(from[c]); }
}

constexpr std::uint32_t exponent_bits = 0x7f800000U;

/// run(head, first row, behind the last, worker) in tasks whose sizes depend on the shapes alone.
template <class Run>
void for_row_blocks(detail::Pool& pool, std::int64_t heads, std::span<const std::int32_t> rows, Run run) {
    constexpr std::int64_t rows_per_task = 64;
    const auto count = static_cast<std::int64_t>(rows.size());
    const std::int64_t blocks = (count + rows_per_task - 1) / rows_per_task;
    const auto lock = pool.lock();
    detail::parallel(pool, blocks * heads, count * heads > rows_per_task, [&](std::int64_t task, int worker) {
        const std::int64_t begin = task / heads * rows_per_task;
        run(task % heads, begin, std::min(begin + rows_per_task, count), worker);
    });
}

float* row_buffer(detail::Pool& pool, int worker, std::int64_t columns) {
    return static_cast<float*>(pool.scratch(worker).at_least(static_cast<std::size_t>(columns) * sizeof(float)));
}

}  // namespace

void write_kv_row(const KvRowLayout& layout, const float* x, char* row, float* scales) {
    const std::int64_t n = layout.columns;
    switch (layout.storage) {
        case CacheStorage::f32: std::memcpy(row, x, static_cast<std::size_t>(n) * 4); break;
        case CacheStorage::bf16: write_half<bf16>(x, n, row); break;
        case CacheStorage::f16: write_half<f16>(x, n, row); break;
        case CacheStorage::i8: write_i8(x, n, row, scales); break;
        case CacheStorage::i4: write_i4(x, n, row, scales); break;
    }
}

void read_kv_row(const KvRowLayout& layout, const char* row, const float* scales, std::int64_t columns, float* x) {
    switch (layout.storage) {
        case CacheStorage::f32: std::memcpy(x, row, static_cast<std::size_t>(columns) * 4); break;
        case CacheStorage::bf16: read_half<bf16>(row, columns, x); break;
        case CacheStorage::f16: read_half<f16>(row, columns, x); break;
        case CacheStorage::i8:
            for (std::int64_t c = 0; c < columns; ++c) {
                x[c] = static_cast<float>(static_cast<signed char>(row[c])) * scales[0];
            }
            break;
        case CacheStorage::i4:
            for (std::int64_t c = 0; c < columns; ++c) {
                const unsigned byte = static_cast<unsigned char>(row[c / 2]);
                const int nibble = static_cast<int>(c % 2 == 0 ? byte & 15U : byte >> 4U);
                x[c] = static_cast<float>(nibble - 8) * scales[c / i4_group];
            }
            break;
    }
}

void load_kv_row(const View& x, std::int64_t g, std::int64_t t, float* row) {
    dispatch_float(x.dtype(), [&]<class T>() {
        const T* from = x.as<T>() + g * x.stride(1) + t * x.stride(2);
        const std::int64_t stride = x.stride(3);
        if (stride == 1) {
            for (std::int64_t c = 0; c < x.extent(3); ++c) { row[c] = static_cast<float>(from[c]); }
        } else {
            for (std::int64_t c = 0; c < x.extent(3); ++c) { row[c] = static_cast<float>(from[c * stride]); }
        }
    });
}

bool all_finite(const float* x, std::int64_t n) {
    std::uint32_t largest = 0;
    for (std::int64_t c = 0; c < n; ++c) {
        largest = std::max(largest, std::bit_cast<std::uint32_t>(x[c]) & exponent_bits);
    }
    return largest < exponent_bits;
}

void write_kv_rows(detail::Pool& pool, const KvWriteProblem& p) {
    const std::int64_t columns = p.x.extent(3);
    const KvRowLayout layout = kv_row_layout(p.to.storage, columns);
    for_row_blocks(pool, p.x.extent(1), p.rows, [&](std::int64_t g, std::int64_t begin, std::int64_t end, int worker) {
        float* numbers = row_buffer(pool, worker, columns);
        for (std::int64_t t = begin; t < end; ++t) {
            const std::int64_t row = p.rows[static_cast<std::size_t>(t)];
            load_kv_row(p.x, g, t, numbers);
            // What a problem is to write to, it may write to.
            write_kv_row(layout, numbers, const_cast<char*>(row_of(p.to, g, 0, row)),
                         const_cast<float*>(scales_of(p.to, g, 0, row)));
        }
    });
}

void gather_kv_rows(detail::Pool& pool, const KvGatherProblem& p) {
    const std::int64_t columns = p.out.extent(3), stride = p.out.stride(3);
    const KvRowLayout layout = kv_row_layout(p.from.storage, columns);
    const bool in_place = p.out.dtype() == DType::f32 && stride == 1;
    for_row_blocks(pool, p.out.extent(1), p.rows,
                   [&](std::int64_t g, std::int64_t begin, std::int64_t end, int worker) {
                       float* numbers = in_place ? nullptr : row_buffer(pool, worker, columns);
                       for (std::int64_t t = begin; t < end; ++t) {
                           const std::int64_t row = p.rows[static_cast<std::size_t>(t)];
                           const std::int64_t at = g * p.out.stride(1) + t * p.out.stride(2);
                           float* to = in_place ? p.out.as<float>() + at : numbers;
                           read_kv_row(layout, row_of(p.from, g, 0, row), scales_of(p.from, g, 0, row), columns, to);
                           for (std::int64_t c = 0; !in_place && c < columns; ++c) {
                               write_number(p.out.dtype(), p.out.data(), at + c * stride, numbers[c]);
                           }
                       }
                   });
}

}  // namespace heed::cpu
