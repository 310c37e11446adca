#include "ops/kv_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace heed {
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

}  // namespace

std::string_view name_of(CacheStorage storage) {
    switch (storage) {
        case CacheStorage::f32: return "f32";
        case CacheStorage::bf16: return "bf16";
        case CacheStorage::f16: return "f16";
        case CacheStorage::i8: return "i8";
        case CacheStorage::i4: return "i4";
    }
    return "unknown";
}

KvRowLayout kv_row_layout(CacheStorage storage, std::int64_t columns) {
    switch (storage) {
        case CacheStorage::f32: return {storage, columns, columns * 4, 0};
        case CacheStorage::bf16:
        case CacheStorage::f16: return {storage, columns, columns * 2, 0};
        case CacheStorage::i8: return {storage, columns, columns, 1};
        case CacheStorage::i4: return {storage, columns, (columns + 1) / 2, (columns + i4_group - 1) / i4_group};
    }
    return {};
}

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

}  // namespace heed
