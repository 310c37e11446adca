#pragma once
#include <heed/cache_storage.h>

#include <cstdint>

namespace heed {

/// i8: value = byte * scale of its row. i4: value = (nibble - 8) * scale of its group of 32 columns; the low half of
/// byte n is column 2n.
using KvStorage = CacheStorage;

/// Keys, or values, of all pages of a pool. Row t of head g of page p begins at
/// data + g * head_bytes + p * page_bytes + t * row_bytes, its scales at
/// scales + g * head_scales + p * page_scales + t * row_scales.
struct KvRows {
    const char* data = nullptr;
    KvStorage storage = KvStorage::f32;
    std::int64_t head_bytes = 0, page_bytes = 0, row_bytes = 0;
    const float* scales = nullptr;  ///< i8: one a row; i4: one for each 32 columns, the last group may be short
    std::int64_t head_scales = 0, page_scales = 0, row_scales = 0;
};

/// Where the keys and values of a call lie when they are in the pages of a cache instead of in tensors. Key j of entry
/// b is row j % page_size of page tables[b][j / page_size].
struct KvPages {
    KvRows k, v;
    std::int64_t page_size = 0;
    const std::int32_t* const* tables = nullptr;  ///< [entries]
};

}  // namespace heed
