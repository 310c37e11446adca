#include "base/dispatch.h"
#include "base/place.h"
#include "base/pool.h"
#include "cache/cached_step.h"
#include "ops/kv_transfer.h"

#include <bit>
#include <cstring>

namespace heed {
namespace {

constexpr std::int64_t rows_per_task = 64;

/// Row t of head g of [1,G,T,D], as float32.
void load(const View& x, std::int64_t g, std::int64_t t, float* row) {
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

/// Finite: exponent bits not all set.
bool finite(const float* x, std::int64_t n) {
    std::uint32_t largest = 0;
    for (std::int64_t c = 0; c < n; ++c) {
        largest = std::max(largest, std::bit_cast<std::uint32_t>(x[c]) & 0x7f800000U);
    }
    return largest < 0x7f800000U;
}

/// A scale of infinity would lose the whole row.
void check_finite(CachedStep& step, const char* name, const View& x) {
    std::vector<float>& row = step.buffers.numbers;
    row.resize(std::max(row.size(), static_cast<std::size_t>(x.extent(3))));
    for (std::int64_t g = 0; g < x.extent(1); ++g) {
        for (std::int64_t t = 0; t < x.extent(2); ++t) {
            load(x, g, t, row.data());
            if (!finite(row.data(), x.extent(3))) {
                refuse(step.function, name, "finite numbers for storage " + std::string(name_of(step.config().storage)),
                       "infinity or NaN in token " + std::to_string(t) + " of head " + std::to_string(g));
            }
        }
    }
}

/// Keys as they will be stored: in float32 where that is not as they came.
View rotated(Context& context, CachedStep& step, const View& k) {
    const CachePool::State& pool = *step.pool;
    if (!pool.table || k.shape().elements() == 0) { return k; }
    const MutableView keys = step.buffers.k.view(DType::f32, k.shape());
    const std::int64_t first = pool.rotated_from();
    const RopeOptions where{.positions = integers(step.rope_positions, {1, step.all_queries()})};
    if (first == 0) {
        rope(context, k, keys, *pool.table, where);
        return keys;
    }
    for (std::int64_t t = 0; t < k.extent(2); ++t) { load(k, 0, t, keys.as<float>() + t * k.extent(3)); }
    const MutableView part = keys.slice(3, first, k.extent(3));
    rope(context, part, part, *pool.table, where);
    return keys;
}

void find_places(CachedStep& step) {
    std::vector<CachedStep::Place>& places = step.buffers.places;
    places.clear();
    places.reserve(static_cast<std::size_t>(step.all_queries()));
    for (std::size_t n = 0; n < step.count(); ++n) {
        const Cache::State& cache = *step.caches[n];
        for (std::int64_t j = step.lengths[n] - step.queries(n); j < step.lengths[n]; ++j) {
            const std::size_t run = cache.run_of(j);
            places.push_back({cache.table[run], cache.row_of(run, j)});
        }
    }
}

void write_on_device(Context& context, CachedStep& step, const View& k, const View& v) {
    std::vector<std::int32_t>& rows = step.buffers.rows;
    rows.clear();
    for (const auto& [page, at] : step.buffers.places) {
        rows.push_back(static_cast<std::int32_t>(page * step.config().page_size + at));
    }
    write_kv_rows(context, {.x = k, .to = step.memory().k_rows, .rows = rows});
    write_kv_rows(context, {.x = v, .to = step.memory().v_rows, .rows = rows});
}

void write_rows(Context& context, CachedStep& step, const View& k, const View& v) {
    const CachePool::State& pool = *step.pool;
    const CacheConfig& c = pool.config;
    find_places(step);
    if (c.device.kind != DeviceKind::cpu) { return write_on_device(context, step, k, v); }
    const std::int64_t tokens = step.all_queries();
    const std::int64_t blocks = (tokens + rows_per_task - 1) / rows_per_task;
    const auto lock = detail::pool_of(context).lock();
    const auto columns = static_cast<std::size_t>(std::max(c.head_size, c.value_size));
    std::vector<float>& numbers = step.buffers.numbers;  // a row a worker
    numbers.resize(std::max(numbers.size(), columns * static_cast<std::size_t>(detail::pool_of(context).threads())));
    auto write = [&](std::int64_t task, int worker) {
        const std::int64_t g = task % c.kv_heads;
        const std::int64_t begin = task / c.kv_heads * rows_per_task;
        float* row = numbers.data() + static_cast<std::size_t>(worker) * columns;
        for (std::int64_t t = begin; t < std::min(begin + rows_per_task, tokens); ++t) {
            const auto [page, at] = step.buffers.places[static_cast<std::size_t>(t)];
            load(k, g, t, row);
            write_kv_row(pool.k_layout, row, pool.k_row(step.layer, g, page, at),
                         pool.k_scales(step.layer, g, page, at));
            if (!v) { continue; }
            load(v, g, t, row);
            write_kv_row(pool.v_layout, row, pool.v_row(step.layer, g, page, at),
                         pool.v_scales(step.layer, g, page, at));
        }
    };
    detail::parallel(detail::pool_of(context), blocks * c.kv_heads, tokens * c.kv_heads > rows_per_task, write);
}

/// Unrotated keys of the first tokens, from which they are rotated anew when a gap behind them moves them up.
void keep_sinks(const CachedStep& step, const View& k) {
    const CacheConfig& c = step.config();
    for (std::size_t n = 0; n < step.count(); ++n) {
        Cache::State& cache = *step.caches[n];
        const std::int64_t first = step.lengths[n] - step.queries(n);
        for (std::int64_t j = first; j < std::min(c.sinks, step.lengths[n]); ++j) {
            cache.add_sink(j);
            for (std::int64_t g = 0; g < c.kv_heads; ++g) {
                float* sink = cache.sink(step.layer, g, j);
                if (sink != nullptr) { load(k, g, step.cu_q[n] + j - first, sink); }
            }
        }
    }
}

}  // namespace

void CacheAppend::take_pages() {
    const CacheConfig& c = step_.config();
    CachedStep::Buffers& buffers = step_.buffers;
    if (buffers.needs.size() < step_.count()) { buffers.needs.resize(step_.count()); }
    std::int64_t count = 0;
    for (std::size_t n = 0; n < step_.count(); ++n) {
        Cache::State& cache = *step_.caches[n];
        Cache::State::Needs& needs = buffers.needs[n];
        cache.needs(step_.lengths[n] - step_.queries(n), step_.lengths[n], needs, buffers.references);
        count += needs.pages();
        const std::int64_t pages = static_cast<std::int64_t>(cache.runs.size()) + needs.fresh;
        if (c.pages_per_cache > 0 && pages > c.pages_per_cache) {
            throw CacheFull("[" + std::string(step_.function) + "] caches[" + std::to_string(n) +
                                "]: expected at most " + std::to_string(c.pages_per_cache * c.page_size) +
                                " tokens (pages_per_cache " + std::to_string(c.pages_per_cache) + "), got " +
                                std::to_string(step_.lengths[n]),
                            pages, c.pages_per_cache);
        }
        cache.room_for(needs);
    }
    const Cache::State& first = *step_.caches.front();
    step_.pool->take(count, first.table.empty() ? -1 : first.table.back(), step_.function, "caches", buffers.pages);
    std::size_t used = 0;
    for (std::size_t n = 0; n < step_.count(); ++n) {
        const auto share = static_cast<std::size_t>(buffers.needs[n].pages());
        step_.caches[n]->provide(buffers.needs[n], std::span(buffers.pages).subspan(used, share), step_.lengths[n]);
        used += share;
    }
}

CacheAppend::CacheAppend(Context& context, CachedStep& step, const View& k, const View& v) : step_(step) {
    const bool quantised = step.config().storage >= CacheStorage::i8;
    const View keys = rotated(context, step, k);
    if (quantised) {
        check_finite(step, "k", keys);
        if (v) { check_finite(step, "v", v); }
    }
    const auto layer = static_cast<std::size_t>(step.layer);
    std::vector<CachedStep::Before>& before = step.buffers.before;
    before.clear();
    for (const Cache::State* cache : step.caches) {
        before.push_back({cache->tokens, cache->written[layer], cache->next});
    }
    take_pages();
    try {  // a destructor does not run for an object half made
        for (std::size_t n = 0; n < step.count(); ++n) {
            Cache::State& cache = *step.caches[n];
            const std::int64_t known = before[n].tokens;
            const std::int64_t first = step.lengths[n] - step.queries(n);
            if (step.config().positions == CachePositions::original && step.lengths[n] > known) {
                const std::int64_t skipped = std::max<std::int64_t>(0, known - first);
                cache.add_positions(first + skipped, std::span(step.positions)
                                                         .subspan(static_cast<std::size_t>(step.cu_q[n] + skipped),
                                                                  static_cast<std::size_t>(step.queries(n) - skipped)));
            }
            cache.written[layer] = step.lengths[n];
        }
        write_rows(context, step, keys, v);
    } catch (...) {
        undo();
        throw;
    }
    keep_sinks(step, k);
}

void CacheAppend::undo() noexcept {
    for (std::size_t n = 0; n < step_.count(); ++n) {
        Cache::State& cache = *step_.caches[n];
        const CachedStep::Before& before = step_.buffers.before[n];
        if (cache.tokens > before.tokens) { cache.shrink(before.tokens); }
        cache.next = before.next;
        cache.written[static_cast<std::size_t>(step_.layer)] = before.written;
    }
}

CacheAppend::~CacheAppend() {
    if (!kept_) { undo(); }
}

void take_states(CachedStep& step) {
    std::vector<std::size_t>& takers = step.buffers.candidates;
    takers.clear();
    for (std::size_t n = 0; n < step.count(); ++n) {
        Cache::State& cache = *step.caches[n];
        cache.table.reserve(1);
        step.pool->references(cache.table, step.buffers.references);
        if (cache.table.empty() || step.buffers.references.front() > 1) { takers.push_back(n); }
    }
    std::vector<std::int32_t>& pages = step.buffers.pages;
    step.pool->take(static_cast<std::int64_t>(takers.size()), -1, step.function, "caches", pages);
    for (std::size_t n = 0; n < takers.size(); ++n) {
        Cache::State& cache = *step.caches[takers[n]];
        if (cache.table.empty()) {
            step.pool->clear_state(pages[n]);
            cache.table.push_back(pages[n]);
        } else {
            step.pool->copy_page(cache.table.front(), pages[n]);
            step.pool->release(cache.table);
            cache.table.front() = pages[n];
        }
    }
}

void cache_append(Context& context, const CacheBatch& batch, const View& k, const View& v, const View& positions) {
    constexpr const char* function = "cache_append";
    if (!k || k.rank() != 4) {
        refuse(function, "k", "a tensor [1,G,T,D]", k ? to_string(k.shape()) : std::string("none"));
    }
    check_dtype(function, "k", k, float_types);
    const bool latent = !batch.caches.empty() &&
                        checked_cache(function, "caches[0]", batch.caches[0]).config().kind == CacheKind::latent;
    CachedStep& step = checked_step(function, batch, latent ? CacheKind::latent : CacheKind::attention, k.extent(2),
                                    true, {positions, "positions"});
    if (latent && v) { refuse(function, "v", "none for a latent cache, whose rows are k alone", "a tensor"); }
    check_device(context, step);
    check_rows(step, "k", k, v, k.dtype());
    CacheAppend append(context, step, k, v);
    append.keep();
}

}  // namespace heed
