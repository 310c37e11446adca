#include "cache/cached_step.h"
#include "ops/host_copy.h"
#include "ops/kv_transfer.h"

namespace heed {
namespace {

/// A scale of infinity would lose the whole row.
void check_finite(Context& context, CachedStep& step, const char* name, const View& given) {
    const Tensor copied = on_host(context) ? Tensor() : host_copy(context, given);
    const View x = copied ? copied.view() : given;
    std::vector<float>& row = step.buffers.numbers;
    row.resize(std::max(row.size(), static_cast<std::size_t>(x.extent(3))));
    for (std::int64_t g = 0; g < x.extent(1); ++g) {
        for (std::int64_t t = 0; t < x.extent(2); ++t) {
            load_kv_row(x, g, t, row.data());
            if (!fits_scales(row.data(), x.extent(3))) {
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
    for (std::int64_t t = 0; t < k.extent(2); ++t) { load_kv_row(k, 0, t, keys.as<float>() + t * k.extent(3)); }
    const MutableView part = keys.slice(3, first, k.extent(3));
    rope(context, part, part, *pool.table, where);
    return keys;
}

/// Where the new tokens go: rows of the pool, counted through its pages.
void find_rows(CachedStep& step) {
    std::vector<std::int32_t>& rows = step.buffers.new_rows;
    rows.clear();
    rows.reserve(static_cast<std::size_t>(step.all_queries()));
    for (std::size_t n = 0; n < step.count(); ++n) {
        const Cache::State& cache = *step.caches[n];
        for (std::int64_t j = step.lengths[n] - step.queries(n); j < step.lengths[n]; ++j) {
            const std::size_t run = cache.run_of(j);
            rows.push_back(
                static_cast<std::int32_t>(cache.table[run] * step.config().page_size + cache.row_of(run, j)));
        }
    }
}

void write_rows(Context& context, CachedStep& step, const View& k, const View& v) {
    find_rows(step);
    write_kv_rows(context, {.x = k, .to = step.memory().k_rows, .rows = step.buffers.new_rows});
    if (v) { write_kv_rows(context, {.x = v, .to = step.memory().v_rows, .rows = step.buffers.new_rows}); }
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
                if (sink != nullptr) { load_kv_row(k, g, step.cu_q[n] + j - first, sink); }
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
        check_finite(context, step, "k", keys);
        if (v) { check_finite(context, step, "v", v); }
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
    if (!committed_) { undo(); }
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
