#pragma once
/// Pages whose every row that holds no token is NaN, scales too: whoever reads one shows it.
#include <heed/cache.h>

#include "base/access.h"
#include "cache/cache_state.h"

#include <cstring>
#include <limits>

namespace heed::testing {

/// All bits set are NaN in f32, bf16 and f16; the bytes of i8 and i4 have their NaN in the scale.
inline void poison_row(const CachePool::State& pool, std::size_t layer, std::int64_t g, std::int64_t page,
                       std::int64_t row) {
    const CachePool::State::Layer& memory = pool.layers[layer];
    const bool latent = pool.config.kind == CacheKind::latent;
    for (const KvRows* rows : {&memory.k_rows, latent ? &memory.k_rows : &memory.v_rows}) {
        std::memset(const_cast<char*>(row_of(*rows, g, page, row)), 0xFF, static_cast<std::size_t>(rows->row_bytes));
        for (std::int64_t n = 0; rows->scales != nullptr && n < rows->row_scales; ++n) {
            const_cast<float*>(scales_of(*rows, g, page, row))[n] = std::numeric_limits<float>::quiet_NaN();
        }
    }
}

inline void poison_rows(const CachePool::State& pool, const std::vector<const Cache::State*>& caches) {
    const CacheConfig& c = pool.config;
    for (std::size_t layer = 0; layer < pool.layers.size(); ++layer) {
        std::vector<bool> used(static_cast<std::size_t>(c.pages * c.page_size), false);
        for (const Cache::State* cache : caches) {
            for (std::int64_t j = 0; j < cache->written[layer]; ++j) {
                const std::size_t run = cache->run_of(j);
                used[static_cast<std::size_t>(cache->table[run] * c.page_size + cache->row_of(run, j))] = true;
            }
        }
        for (std::int64_t row = 0; row < c.pages * c.page_size; ++row) {
            for (std::int64_t g = 0; g < c.kv_heads && !used[static_cast<std::size_t>(row)]; ++g) {
                poison_row(pool, layer, g, row / c.page_size, row % c.page_size);
            }
        }
    }
}

inline void poison_all(const MutableView& part) {
    if (!part) { return; }
    const auto bytes = static_cast<std::size_t>(part.shape().elements()) * size_of(part.dtype());
    std::memset(part.data(), 0xFF, bytes);
}

inline void poison_states(CachePool::State& pool, const std::vector<const Cache::State*>& caches) {
    const CacheConfig& c = pool.config;
    for (std::int32_t page = 0; page < c.pages; ++page) {
        const Cache::State* owner = nullptr;
        for (const Cache::State* cache : caches) {
            if (!cache->table.empty() && cache->table.front() == page) { owner = cache; }
        }
        for (std::int64_t l = 0; l < c.layers; ++l) {
            CachePool::State::Layer& layer = pool.layers[static_cast<std::size_t>(l)];
            if (c.kind == CacheKind::linear && owner == nullptr) {
                poison_all(layer.s.view().slice(0, page, page + 1));
                if (layer.z) { poison_all(layer.z.view().slice(0, page, page + 1)); }
            }
            if (c.kind != CacheKind::infini) { continue; }
            InfiniMemory& memory = pool.memory(page, l);
            if (owner == nullptr) {
                memory.segments = memory.pending = 77;
                poison_all(memory.m);
                poison_all(memory.z);
            }
            // Of the open segment only the rows of its tokens are anybody's.
            const std::int64_t pending = owner == nullptr ? 0 : memory.pending;
            for (Tensor* rows : {&memory.k, &memory.v, &memory.memory_k}) {
                for (std::int64_t g = 0; *rows && g < c.kv_heads; ++g) {
                    poison_all(rows->view().slice(1, g, g + 1).slice(2, pending, c.segment));
                }
            }
        }
    }
}

/// Everything in the pool that none of the caches holds: free pages, rows behind the last token, gaps.
inline void poison(const CachePool& pool, const std::vector<const Cache*>& caches = {}) {
    const Cache probe = pool.create();
    std::vector<const Cache::State*> states;
    for (const Cache* cache : caches) {
        if (*cache) { states.push_back(detail::Access::state(*cache)); }
    }
    CachePool::State& memory = *detail::Access::state(probe)->pool;
    if (is_state(memory.config.kind)) {
        poison_states(memory, states);
    } else {
        poison_rows(memory, states);
    }
}

inline CachePool poisoned(const CacheConfig& config) {
    CachePool pool(config);
    poison(pool);
    return pool;
}

}  // namespace heed::testing
