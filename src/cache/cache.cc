#include <heed/cache.h>

#include "base/access.h"
#include "base/device_api.h"
#include "cache/cache_state.h"

#include <algorithm>
#include <cmath>

namespace heed {
namespace {

void check_count(const char* function, const char* argument, std::int64_t value, std::int64_t most) {
    if (value < 0 || value > most) {
        refuse(function, argument, "0 to " + std::to_string(most), std::to_string(value));
    }
}
std::size_t checked_layer(const char* function, const Cache::State& cache, std::int64_t layer) {
    check_count(function, "layer", layer, cache.config().layers - 1);
    return static_cast<std::size_t>(layer);
}
void check_level(const char* function, const Cache::State& cache) {
    if (!cache.level()) {
        refuse(function, "cache", "every layer at one length", "a step that some layers have not seen");
    }
}

/// A copy for this cache alone of every page of runs [0, count) that others have too.
void unshare(const char* function, Cache::State& cache, std::size_t count) {
    Cache::State::Needs needs;
    const std::vector<std::int32_t> references = cache.pool->references(std::span(cache.table).first(count));
    for (std::size_t n = 0; n < count; ++n) {
        if (cache.is_shared(n, references[n])) { needs.copies.push_back(n); }
    }
    std::vector<std::int32_t> pages;
    cache.pool->take(needs.pages(), -1, function, "cache", pages);
    cache.provide(needs, pages, cache.tokens);
}

/// slots: the keys of tokens [0, count), which a gap behind them moves up by `by`, in every layer.
void move_up(Cache::State& cache, std::int64_t count, std::int64_t by) {
    CachePool::State& pool = *cache.pool;
    const CacheConfig& c = cache.config();
    const auto size = static_cast<std::size_t>(c.head_size);
    std::vector<float> row(size);
    for (std::int64_t layer = 0; layer < c.layers; ++layer) {
        for (std::int64_t g = 0; g < c.kv_heads; ++g) {
            for (std::int64_t j = 0; j < count; ++j) {
                const std::size_t run = cache.run_of(j);
                char* stored = pool.k_row(layer, g, cache.table[run], cache.row_of(run, j));
                float* scales = pool.k_scales(layer, g, cache.table[run], cache.row_of(run, j));
                if (const float* sink = cache.sink(layer, g, j); sink != nullptr) {
                    std::copy(sink, sink + size, row.begin());
                    rotate_row(*pool.table, j + cache.shift + by, pool.table->attention_factor,
                               row.data() + pool.rotated_from());
                } else {
                    read_kv_row(pool.k_layout, stored, scales, c.head_size, row.data());
                    rotate_row(*pool.table, by, 1, row.data() + pool.rotated_from());
                }
                write_kv_row(pool.k_layout, row.data(), stored, scales);
            }
        }
    }
}

void drop_tokens(const char* function, Cache::State& cache, std::int64_t begin, std::int64_t end) {
    if (begin == end) { return; }
    const CacheConfig& c = cache.config();
    const bool slots = c.positions == CachePositions::slots;
    if (slots && end == cache.tokens) {
        cache.shrink(begin);
        return;
    }
    const bool rotates = slots && c.rope && !cache.pool->rotate_on_read && begin > 0;
    // A cache of few pages closes its gaps at once; elsewhere only rows that change need a page of their own.
    if (c.pages_per_cache > 0) {
        unshare(function, cache, cache.runs.size());
    } else if (rotates) {
        unshare(function, cache, cache.run_of(begin - 1) + 1);
    }
    if (rotates) { move_up(cache, begin, end - begin); }
    cache.cut(begin, end);
    if (slots) { cache.shift += end - begin; }
    if (c.pages_per_cache > 0 || cache.is_scattered()) { cache.compact(function); }
}

Tensor stored_rows(const char* function, const Cache::State& cache, std::int64_t layer, std::int64_t begin,
                   std::int64_t end, bool keys) {
    const CacheConfig& c = cache.config();
    if (is_state(c.kind)) { refuse(function, "cache", "one of keys and values", "a state"); }
    const std::size_t l = checked_layer(function, cache, layer);
    check_count(function, "end", end, cache.written[l]);
    check_count(function, "begin", begin, end);
    const CachePool::State& pool = *cache.pool;
    const std::int64_t columns = keys ? c.head_size : c.value_size;
    Tensor rows = Tensor::uninitialised(DType::f32, {1, c.kv_heads, end - begin, columns});
    const KvRowLayout& layout = keys ? pool.k_layout : pool.v_layout;
    std::vector<char> copy(static_cast<std::size_t>(layout.bytes));  // from a GPU, as are these
    std::vector<float> scales(static_cast<std::size_t>(layout.scales));
    for (std::int64_t g = 0; g < c.kv_heads; ++g) {
        for (std::int64_t j = begin; j < end; ++j) {
            const std::size_t run = cache.run_of(j);
            const KvRows& from = keys ? pool.layers[l].k_rows : pool.layers[l].v_rows;
            const std::int64_t row = cache.row_of(run, j);
            const char* stored = row_of(from, g, cache.table[run], row);
            const float* its_scales = scales_of(from, g, cache.table[run], row);
            if (c.device.kind != DeviceKind::cpu) {
                detail::copy_on({copy.data(), Device{}, stored, c.device, copy.size()}, nullptr);
                detail::copy_on({scales.data(), Device{}, its_scales, c.device, scales.size() * sizeof(float)},
                                nullptr);
                stored = copy.data();
                its_scales = scales.data();
            }
            read_kv_row(layout, stored, its_scales, columns,
                        rows.as<float>() + (g * (end - begin) + j - begin) * columns);
        }
    }
    return rows;
}

}  // namespace

void rotate_row(const RopeTable& table, std::int64_t by, double factor, float* x) {
    const std::size_t pairs = table.frequencies.size();
    const bool halves = table.pairing == Pairing::halves;
    for (std::size_t i = 0; i < pairs; ++i) {
        const double angle = static_cast<double>(by) * table.frequencies[i];
        const double cosine = factor * std::cos(angle), sine = factor * std::sin(angle);
        float& a = x[halves ? i : 2 * i];
        float& b = x[halves ? i + pairs : 2 * i + 1];
        const double first = a, second = b;
        a = static_cast<float>(first * cosine - second * sine);
        b = static_cast<float>(first * sine + second * cosine);
    }
}

Cache::State& checked_cache(const char* function, const std::string& argument, const Cache* cache) {
    if (cache == nullptr) { refuse(function, argument, "a cache", "a null pointer"); }
    Cache::State* const state = detail::Access::state(*cache);
    if (state == nullptr) { refuse(function, argument, "a cache", "one that was freed, moved or never made"); }
    return *state;
}

Cache CachePool::create() const { return Cache(std::make_unique<Cache::State>(state_)); }

Cache::Cache() noexcept = default;
Cache::Cache(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
Cache::Cache(Cache&&) noexcept = default;
Cache& Cache::operator=(Cache&&) noexcept = default;
Cache::~Cache() = default;

CachePool Cache::pool() const {
    State& cache = checked_cache("Cache::pool", "cache", this);
    return CachePool(cache.pool);
}

std::int64_t Cache::length() const { return std::ranges::min(checked_cache("Cache::length", "cache", this).written); }
std::int64_t Cache::length(std::int64_t layer) const {
    const State& cache = checked_cache("Cache::length", "cache", this);
    return cache.written[checked_layer("Cache::length", cache, layer)];
}
std::int64_t Cache::next_position() const {
    const State& cache = checked_cache("Cache::next_position", "cache", this);
    return cache.config().positions == CachePositions::slots ? cache.tokens : cache.next;
}
std::vector<std::int64_t> Cache::positions() const {
    const State& cache = checked_cache("Cache::positions", "cache", this);
    if (is_state(cache.config().kind)) { refuse("Cache::positions", "cache", "one of keys and values", "a state"); }
    std::vector<std::int64_t> positions(static_cast<std::size_t>(cache.tokens));
    cache.fill_positions(positions);
    return positions;
}

std::int64_t Cache::pages() const {
    // A page that a gap has cut in two is listed twice, one entry behind the other.
    std::vector<std::int32_t> table = checked_cache("Cache::pages", "cache", this).table;
    return std::unique(table.begin(), table.end()) - table.begin();
}
std::int64_t Cache::shared_pages() const {
    const State& cache = checked_cache("Cache::shared_pages", "cache", this);
    const std::vector<std::int32_t> references = cache.pool->references(cache.table);
    std::int64_t shared = 0;
    for (std::size_t n = 0; n < references.size(); ++n) {
        const bool listed = n > 0 && cache.table[n] == cache.table[n - 1];
        if (!listed && cache.is_shared(n, references[n])) { ++shared; }
    }
    return shared;
}
std::int64_t Cache::bytes() const { return pages() * cache_bytes_per_page(pool().config()); }

Cache Cache::fork() const {
    const State& cache = checked_cache("Cache::fork", "cache", this);
    auto copy = std::make_unique<State>(cache.pool);
    copy->runs = cache.runs;
    copy->stretches = cache.stretches;
    copy->tokens = cache.tokens;
    copy->written = cache.written;
    copy->next = cache.next;
    copy->shift = cache.shift;
    copy->sinks = cache.sinks;
    std::ranges::copy(cache.sink_tokens, std::back_inserter(copy->sink_tokens));  // where there is room for more
    std::vector<std::int32_t> table = cache.table;
    cache.pool->share(table);
    copy->table = std::move(table);
    return Cache(std::move(copy));
}

void Cache::truncate(std::int64_t length) {
    constexpr const char* function = "Cache::truncate";
    State& cache = checked_cache(function, "cache", this);
    check_count(function, "length", length, cache.tokens);
    if (is_state(cache.config().kind)) {
        if (length != 0 && length != cache.tokens) {
            refuse(function, "length", "0 or " + std::to_string(cache.tokens) + ", as a state cannot go back",
                   std::to_string(length));
        }
        if (length == cache.tokens) { return; }
        cache.pool->release(cache.table);
        cache.table.clear();
    }
    cache.shrink(length);
}

void Cache::drop(std::int64_t begin, std::int64_t end) {
    constexpr const char* function = "Cache::drop";
    State& cache = checked_cache(function, "cache", this);
    if (is_state(cache.config().kind)) { refuse(function, "cache", "one of keys and values", "a state"); }
    check_level(function, cache);
    check_count(function, "end", end, cache.tokens);
    check_count(function, "begin", begin, end);
    drop_tokens(function, cache, begin, end);
}

void Cache::keep_window(std::int64_t sinks, std::int64_t recent) {
    constexpr const char* function = "Cache::keep_window";
    State& cache = checked_cache(function, "cache", this);
    if (is_state(cache.config().kind)) { refuse(function, "cache", "one of keys and values", "a state"); }
    check_level(function, cache);
    if (sinks < 0) { refuse(function, "sinks", "0 or more", std::to_string(sinks)); }
    if (recent < 0) { refuse(function, "recent", "0 or more", std::to_string(recent)); }
    if (sinks < cache.tokens && recent < cache.tokens - sinks) {
        drop_tokens(function, cache, sinks, cache.tokens - recent);
    }
}

void Cache::free() {
    checked_cache("Cache::free", "cache", this);
    state_.reset();
}

Tensor Cache::keys(std::int64_t layer, std::int64_t begin, std::int64_t end) const {
    return stored_rows("Cache::keys", checked_cache("Cache::keys", "cache", this), layer, begin, end, true);
}
Tensor Cache::values(std::int64_t layer, std::int64_t begin, std::int64_t end) const {
    return stored_rows("Cache::values", checked_cache("Cache::values", "cache", this), layer, begin, end, false);
}

}  // namespace heed
