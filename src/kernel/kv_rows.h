#pragma once
/// Rows of a cache: how large they are, and where they lie.

#include "kernel/kv_pages.h"

#include <cstddef>

namespace heed {

/// Columns that share a scale in i4.
constexpr std::int64_t i4_group = 32;

/// One row of `columns` numbers as it is stored.
struct KvRowLayout {
    CacheStorage storage = CacheStorage::f32;
    std::int64_t columns = 0;
    std::int64_t bytes = 0;
    std::int64_t scales = 0;  ///< f32 numbers beside it

    std::int64_t all_bytes() const { return bytes + scales * static_cast<std::int64_t>(sizeof(float)); }
};
KvRowLayout kv_row_layout(CacheStorage storage, std::int64_t columns);

/// Row t of head g of page p.
inline const char* row_of(const KvRows& rows, std::int64_t g, std::int64_t p, std::int64_t t) {
    return rows.data + g * rows.head_bytes + p * rows.page_bytes + t * rows.row_bytes;
}
inline const float* scales_of(const KvRows& rows, std::int64_t g, std::int64_t p, std::int64_t t) {
    return rows.scales == nullptr ? nullptr
                                  : rows.scales + g * rows.head_scales + p * rows.page_scales + t * rows.row_scales;
}

}  // namespace heed
