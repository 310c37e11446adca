/// Rows and pages of a pool as memory: where they are, how they are copied.
#include "base/device_api.h"
#include "cache/cache_state.h"

#include <algorithm>
#include <cstring>

namespace heed {
namespace {

/// The pool's own memory, that the kernels may only read.
char* writable(const KvRows& rows, std::int64_t g, std::int32_t page, std::int64_t row) {
    return const_cast<char*>(row_of(rows, g, page, row));
}
float* writable_scales(const KvRows& rows, std::int64_t g, std::int32_t page, std::int64_t row) {
    return const_cast<float*>(scales_of(rows, g, page, row));
}

/// Bytes to another place of the same device.
void move_bytes(Device device, void* to, const void* from, std::size_t bytes) {
    if (device.kind == DeviceKind::cpu) {
        std::memmove(to, from, bytes);
        return;
    }
    try {
        detail::copy_on({to, device, from, device, bytes}, nullptr);
    } catch (const DeviceError&) {  // a device that is lost says so to the call that follows
    }
}

/// `count` rows of one side and head.
void copy_rows(Device device, const KvRows& rows, std::int64_t g, std::int32_t from_page, std::int64_t from_row,
               std::int32_t to_page, std::int64_t to_row, std::int64_t count) {
    char* to = writable(rows, g, to_page, to_row);
    const char* from = row_of(rows, g, from_page, from_row);
    const auto bytes = static_cast<std::size_t>(count * rows.row_bytes);
    move_bytes(device, to, from, bytes);
    if (rows.scales == nullptr) { return; }
    move_bytes(device, writable_scales(rows, g, to_page, to_row), scales_of(rows, g, from_page, from_row),
               static_cast<std::size_t>(count * rows.row_scales) * sizeof(float));
}

char* part_of(Tensor& tensor, std::int32_t page, std::size_t bytes) {
    return static_cast<char*>(tensor.data()) + static_cast<std::size_t>(page) * bytes;
}
void copy_part(Tensor& tensor, std::int32_t from, std::int32_t to) {
    if (!tensor) { return; }
    const std::size_t bytes = tensor.bytes() / static_cast<std::size_t>(tensor.shape()[0]);
    move_bytes(tensor.device(), part_of(tensor, to, bytes), part_of(tensor, from, bytes), bytes);
}
void clear_part(Tensor& tensor, std::int32_t page) {
    if (!tensor) { return; }
    const std::size_t bytes = tensor.bytes() / static_cast<std::size_t>(tensor.shape()[0]);
    if (tensor.device().kind == DeviceKind::cpu) {
        std::memset(part_of(tensor, page, bytes), 0, bytes);
        return;
    }
    // A copy waits for those who had the page before.
    const Tensor zeros(DType::u8, {static_cast<std::int64_t>(bytes)}, tensor.device());
    move_bytes(tensor.device(), part_of(tensor, page, bytes), zeros.data(), bytes);
}
void copy_tensor(const Tensor& from, Tensor& to) {
    if (from) { move_bytes(from.device(), to.data(), from.data(), from.bytes()); }
}

}  // namespace

char* CachePool::State::k_row(std::int64_t layer, std::int64_t g, std::int32_t page, std::int64_t row) const {
    return writable(layers[static_cast<std::size_t>(layer)].k_rows, g, page, row);
}
float* CachePool::State::k_scales(std::int64_t layer, std::int64_t g, std::int32_t page, std::int64_t row) const {
    return writable_scales(layers[static_cast<std::size_t>(layer)].k_rows, g, page, row);
}
char* CachePool::State::v_row(std::int64_t layer, std::int64_t g, std::int32_t page, std::int64_t row) const {
    return writable(layers[static_cast<std::size_t>(layer)].v_rows, g, page, row);
}
float* CachePool::State::v_scales(std::int64_t layer, std::int64_t g, std::int32_t page, std::int64_t row) const {
    return writable_scales(layers[static_cast<std::size_t>(layer)].v_rows, g, page, row);
}
InfiniMemory& CachePool::State::memory(std::int32_t page, std::int64_t layer) {
    return memories[static_cast<std::size_t>(page * config.layers + layer)];
}

void CachePool::State::copy_page(std::int32_t from, std::int32_t to) {
    for (Layer& layer : layers) {
        copy_part(layer.s, from, to);
        copy_part(layer.z, from, to);
        for (std::int64_t g = 0; g < config.kv_heads && !is_state(config.kind); ++g) {
            copy_rows(config.device, layer.k_rows, g, from, 0, to, 0, config.page_size);
            if (config.kind == CacheKind::attention) {
                copy_rows(config.device, layer.v_rows, g, from, 0, to, 0, config.page_size);
            }
        }
    }
    for (std::int64_t layer = 0; layer < config.layers && config.kind == CacheKind::infini; ++layer) {
        const InfiniMemory& source = memory(from, layer);
        InfiniMemory& target = memory(to, layer);
        target.segments = source.segments;
        target.pending = source.pending;
        copy_tensor(source.m, target.m);
        copy_tensor(source.z, target.z);
        copy_tensor(source.k, target.k);
        copy_tensor(source.v, target.v);
        copy_tensor(source.memory_k, target.memory_k);
    }
}

void CachePool::State::move_row(std::int64_t layer, std::int32_t from_page, std::int64_t from_row, std::int32_t to_page,
                                std::int64_t to_row) {
    const Layer& l = layers[static_cast<std::size_t>(layer)];
    for (std::int64_t g = 0; g < config.kv_heads; ++g) {
        copy_rows(config.device, l.k_rows, g, from_page, from_row, to_page, to_row, 1);
        if (config.kind == CacheKind::attention) {
            copy_rows(config.device, l.v_rows, g, from_page, from_row, to_page, to_row, 1);
        }
    }
}

void CachePool::State::clear_state(std::int32_t page) {
    for (Layer& layer : layers) {
        clear_part(layer.s, page);
        clear_part(layer.z, page);
    }
    for (std::int64_t layer = 0; layer < config.layers && config.kind == CacheKind::infini; ++layer) {
        InfiniMemory& m = memory(page, layer);
        m.segments = m.pending = 0;
        clear_part(m.m, 0);
        clear_part(m.z, 0);
    }
}

}  // namespace heed
