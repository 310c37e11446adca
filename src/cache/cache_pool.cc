#include "base/count.h"
#include "base/refuse.h"
#include "cache/cache_state.h"

#include <sys/mman.h>
#include <bit>
#include <limits>

namespace heed {
namespace {

constexpr const char* function = "CachePool";

void at_least(const char* argument, std::int64_t value, std::int64_t least) {
    if (value < least) { refuse(function, argument, std::to_string(least) + " or more", std::to_string(value)); }
    // So that the product of any two of them still is a number.
    if (value > std::int64_t{1} << 30) { refuse(function, argument, "at most 2^30", std::to_string(value)); }
}

void check_kind(const CacheConfig& c) {
    if (c.kind > CacheKind::infini) {
        refuse(function, "kind", "attention, latent, linear or infini", std::to_string(static_cast<int>(c.kind)));
    }
    if (c.storage > CacheStorage::i4) {
        refuse(function, "storage", "f32, bf16, f16, i8 or i4", std::to_string(static_cast<int>(c.storage)));
    }
    if (c.kind == CacheKind::latent) {
        if (c.kv_heads != 1) { refuse(function, "kv_heads", "1 for a latent cache", std::to_string(c.kv_heads)); }
        if (c.value_size > c.head_size) {
            refuse(function, "value_size", "the latent's size r, at most head_size = r + p",
                   std::to_string(c.value_size));
        }
    }
    if (c.kind == CacheKind::linear && c.storage != CacheStorage::f32) {
        refuse(function, "storage", "f32 for a linear state", std::string(name_of(c.storage)));
    }
    if (c.kind == CacheKind::infini && c.storage > CacheStorage::f16) {
        refuse(function, "storage", "f32, bf16 or f16 for an infini state", std::string(name_of(c.storage)));
    }
    if (is_state(c.kind) && (c.rope || c.positions != CachePositions::original)) {
        refuse(function, c.rope ? "rope" : "positions", "none for a state, whose inputs come rotated", "one");
    }
}

void check_positions(const CacheConfig& c) {
    if (c.positions > CachePositions::slots) {
        refuse(function, "positions", "original or slots", std::to_string(static_cast<int>(c.positions)));
    }
    at_least("rope_length", c.rope_length, 0);
    at_least("sinks", c.sinks, 0);
    if (c.sinks > 0 && (c.positions != CachePositions::slots || !c.rope)) {
        refuse(function, "sinks", "0 but for slots with rope", std::to_string(c.sinks));
    }
    if (!c.rope) { return; }
    const std::int64_t rotary = c.kind == CacheKind::latent ? c.head_size - c.value_size : c.head_size;
    if (c.rope->size < 2 || c.rope->size > rotary) {
        refuse(function, "rope.size", "2 to " + std::to_string(rotary), std::to_string(c.rope->size));
    }
    (void)rope_table(*c.rope, c.rope_length);  // checks the rest
}

void check_device(const CacheConfig& c) {
    if (c.device.kind == DeviceKind::cpu) { return; }
    const std::string where = " on " + to_string(c.device);
    if (c.rope) { refuse(function, "rope", "none" + where + ": keys come rotated", "one"); }
}

CacheConfig checked(CacheConfig c) {
    check_kind(c);
    at_least("layers", c.layers, 1);
    at_least("kv_heads", c.kv_heads, 1);
    at_least("head_size", c.head_size, 1);
    at_least("value_size", c.value_size, 1);
    at_least("page_size", c.page_size, 1);
    at_least("pages", c.pages, 0);
    at_least("pages_per_cache", c.pages_per_cache, 0);
    check_positions(c);
    check_device(c);
    if (c.kind == CacheKind::linear) {
        at_least("features", c.features, 0);
        at_least("states", c.states, 0);
        if (c.features == 0) { c.features = c.head_size; }
        if (c.states == 0) { c.states = c.kv_heads; }
        if (c.states % c.kv_heads != 0) {
            refuse(function, "states", "a multiple of kv_heads " + std::to_string(c.kv_heads),
                   std::to_string(c.states));
        }
    }
    if (c.kind == CacheKind::infini) { at_least("segment", c.segment, 1); }
    return c;
}

std::uint64_t bit(std::int64_t page) { return std::uint64_t{1} << (page % 64); }

DType type_of(CacheStorage storage) {
    return storage == CacheStorage::bf16 ? DType::bf16 : storage == CacheStorage::f16 ? DType::f16 : DType::f32;
}

/// Bytes of one token and layer (attention, latent), of one state and layer (linear, infini).
Count unit_bytes(const CacheConfig& c) {
    const Count g = c.kv_heads, d = c.head_size, e = c.value_size;
    switch (c.kind) {
        case CacheKind::attention:
            return g * (Count(kv_row_layout(c.storage, c.head_size).all_bytes()) +
                        kv_row_layout(c.storage, c.value_size).all_bytes());
        case CacheKind::latent: return kv_row_layout(c.storage, c.head_size).all_bytes();
        case CacheKind::linear: return Count(4) * c.states * c.features * (e + (c.normalise ? 1 : 0));
        case CacheKind::infini: {
            const Count pending = Count(c.segment) * (d * (c.memory_keys ? 2 : 1) + e) *
                                  static_cast<std::int64_t>(size_of(type_of(c.storage)));
            return g * (Count(4) * d * (e + 1) + pending);
        }
    }
    return 0;
}

std::int64_t counted(const char* name, const CacheConfig& config, Count (*count)(const CacheConfig&)) {
    try {
        return count(checked(config)).value();
    } catch (const CountOverflow&) { refuse(name, "config", "sizes whose bytes fit 63 bits", "larger ones"); }
}

KvRows rows_of(const CachePool::State::Side& side, const KvRowLayout& layout, const CacheConfig& c) {
    KvRows rows;
    rows.data = static_cast<const char*>(side.data.data());
    rows.storage = layout.storage;
    rows.row_bytes = layout.bytes;
    rows.page_bytes = layout.bytes * c.page_size;
    rows.head_bytes = rows.page_bytes * c.pages;
    if (layout.scales > 0) {
        rows.scales = side.scales.as<float>();
        rows.row_scales = layout.scales;
        rows.page_scales = layout.scales * c.page_size;
        rows.head_scales = rows.page_scales * c.pages;
    }
    return rows;
}

/// Asks for large pages of the system's, where there are some: decoding walks through all of it, and half of the time
/// that the walk loses to 4 KiB pages goes into finding them.
void prefer_large_pages(Tensor& memory) {
    constexpr std::uintptr_t large = std::uintptr_t{2} << 20U;
    const auto begin = (reinterpret_cast<std::uintptr_t>(memory.data()) + large - 1) & ~(large - 1);
    const auto end = (reinterpret_cast<std::uintptr_t>(memory.data()) + memory.bytes()) & ~(large - 1);
#if defined(MADV_HUGEPAGE)
    if (memory && begin < end) { (void)madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE); }
#endif
}

CachePool::State::Side make_side(const KvRowLayout& layout, const CacheConfig& c) {
    CachePool::State::Side side;
    side.data = Tensor::uninitialised(DType::u8, {c.kv_heads, c.pages, c.page_size, layout.bytes}, c.device);
    if (c.device.kind == DeviceKind::cpu) { prefer_large_pages(side.data); }
    if (layout.scales > 0) {
        side.scales = Tensor::uninitialised(DType::f32, {c.kv_heads, c.pages, c.page_size, layout.scales}, c.device);
    }
    return side;
}

}  // namespace

CacheConfig contiguous_cache(CacheConfig config, std::int64_t capacity, std::int64_t sequences) {
    config.page_size = capacity;
    config.pages = sequences;
    config.pages_per_cache = 1;
    return config;
}

std::int64_t cache_bytes_per_token(const CacheConfig& config) {
    return counted("cache_bytes_per_token", config,
                   [](const CacheConfig& c) { return is_state(c.kind) ? Count(0) : unit_bytes(c) * c.layers; });
}

std::int64_t cache_bytes_per_page(const CacheConfig& config) {
    return counted("cache_bytes_per_page", config, [](const CacheConfig& c) {
        return unit_bytes(c) * c.layers * (is_state(c.kind) ? 1 : c.page_size);
    });
}

CachePool::State::State(const CacheConfig& given) : config(checked(given)) {
    const CacheConfig& c = config;
    counted(function, c, [](const CacheConfig& all) {
        return unit_bytes(all) * all.layers * (is_state(all.kind) ? 1 : all.page_size) * all.pages;
    });
    if (!is_state(c.kind) && c.pages * c.page_size > std::numeric_limits<std::int32_t>::max()) {
        refuse(function, "pages", "at most 2^31 - 1 tokens in all",
               std::to_string(c.pages) + " pages of " + std::to_string(c.page_size));
    }
    k_layout = kv_row_layout(c.storage, c.head_size);
    v_layout = c.kind == CacheKind::latent ? k_layout : kv_row_layout(c.storage, c.value_size);
    if (c.rope) {
        rotate_on_read = c.rope_length == 0 && depends_on_length(c.rope->scaling);
        if (!rotate_on_read) { table = rope_table(*c.rope, c.rope_length); }
    }
    layers.resize(static_cast<std::size_t>(c.layers));
    for (Layer& layer : layers) {
        if (c.kind == CacheKind::linear) {
            layer.s = Tensor::uninitialised(DType::f32, {c.pages, c.states, c.features, c.value_size}, c.device);
            if (c.normalise) { layer.z = Tensor::uninitialised(DType::f32, {c.pages, c.states, c.features}, c.device); }
        } else if (!is_state(c.kind)) {
            layer.k = make_side(k_layout, c);
            layer.k_rows = layer.v_rows = rows_of(layer.k, k_layout, c);
            if (c.kind == CacheKind::attention) {
                layer.v = make_side(v_layout, c);
                layer.v_rows = rows_of(layer.v, v_layout, c);
            }
        }
    }
    if (c.kind == CacheKind::infini) {
        const DType dtype = type_of(c.storage);
        const Shape keys{1, c.kv_heads, c.segment, c.head_size};
        memories.resize(static_cast<std::size_t>(c.pages * c.layers));
        for (InfiniMemory& m : memories) {
            m.m = Tensor(DType::f32, {1, c.kv_heads, c.head_size, c.value_size}, c.device);
            m.z = Tensor(DType::f32, {1, c.kv_heads, c.head_size}, c.device);
            m.k = Tensor(dtype, keys, c.device);
            m.v = Tensor(dtype, {1, c.kv_heads, c.segment, c.value_size}, c.device);
            if (c.memory_keys) { m.memory_k = Tensor(dtype, keys, c.device); }
        }
    }
    references_.assign(static_cast<std::size_t>(c.pages), 0);
    free_.assign(static_cast<std::size_t>((c.pages + 63) / 64), 0);
    for (std::int64_t page = 0; page < c.pages; ++page) { free_[static_cast<std::size_t>(page / 64)] |= bit(page); }
    free_count_ = c.pages;
}

std::int32_t CachePool::State::next_free(std::int64_t page) const {
    std::int64_t at = page + 1 < config.pages ? page + 1 : 0;
    std::uint64_t word = free_[static_cast<std::size_t>(at / 64)] & ~(bit(at) - 1);
    while (word == 0) {
        at = at / 64 + 1 < static_cast<std::int64_t>(free_.size()) ? (at / 64 + 1) * 64 : 0;
        word = free_[static_cast<std::size_t>(at / 64)];
    }
    return static_cast<std::int32_t>(at / 64 * 64 + std::countr_zero(word));
}

void CachePool::State::take(std::int64_t count, std::int32_t after, const char* name, const char* argument,
                            std::vector<std::int32_t>& pages) {
    pages.clear();
    pages.reserve(static_cast<std::size_t>(count));
    const std::lock_guard lock(mutex_);
    if (count > free_count_) {
        throw CacheFull("[" + std::string(name) + "] " + argument + ": expected a pool with " + std::to_string(count) +
                            " free pages, got " + std::to_string(free_count_) + " of " + std::to_string(config.pages),
                        count, free_count_);
    }
    for (std::int64_t n = 0; n < count; ++n) {
        after = next_free(after);
        pages.push_back(after);
        references_[static_cast<std::size_t>(after)] = 1;
        free_[static_cast<std::size_t>(after / 64)] &= ~bit(after);
    }
    free_count_ -= count;
}

void CachePool::State::share(std::span<const std::int32_t> pages) {
    const std::lock_guard lock(mutex_);
    for (const std::int32_t page : pages) { ++references_[static_cast<std::size_t>(page)]; }
}

void CachePool::State::release(std::span<const std::int32_t> pages) noexcept {
    const std::lock_guard lock(mutex_);
    for (const std::int32_t page : pages) {
        if (--references_[static_cast<std::size_t>(page)] == 0) {
            free_[static_cast<std::size_t>(page / 64)] |= bit(page);
            ++free_count_;
        }
    }
}

void CachePool::State::references(std::span<const std::int32_t> pages, std::vector<std::int32_t>& counts) const {
    counts.clear();
    counts.reserve(pages.size());
    const std::lock_guard lock(mutex_);
    for (const std::int32_t page : pages) { counts.push_back(references_[static_cast<std::size_t>(page)]); }
}

std::int64_t CachePool::State::free_pages() const {
    const std::lock_guard lock(mutex_);
    return free_count_;
}

DType CachePool::State::infini_type() const { return type_of(config.storage); }

CachePool::CachePool(const CacheConfig& config) : state_(std::make_shared<State>(config)) {}
const CacheConfig& CachePool::config() const { return state_->config; }
std::int64_t CachePool::free_pages() const { return state_->free_pages(); }
std::int64_t CachePool::bytes() const { return pages() * cache_bytes_per_page(config()); }
std::int64_t CachePool::used_bytes() const { return (pages() - free_pages()) * cache_bytes_per_page(config()); }

}  // namespace heed
