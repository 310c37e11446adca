#include "kernel/kv_rows.h"

namespace heed {

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

}  // namespace heed
