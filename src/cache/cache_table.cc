/// Which token of a cache is where: the block table and what moves in it.
#include "cache/cached_step.h"

#include <algorithm>
#include <numeric>

namespace heed {
namespace {

/// Room of a table from the start, so that decoding does not ask for more after every few pages.
constexpr std::size_t least_entries = 64;

}  // namespace

Cache::State::State(std::shared_ptr<CachePool::State> its_pool) : pool(std::move(its_pool)) {
    const CacheConfig& c = config();
    written.assign(static_cast<std::size_t>(c.layers), 0);
    if (c.sinks > 0 && !pool->rotate_on_read) {
        sinks.assign(static_cast<std::size_t>(c.layers * c.kv_heads * c.sinks * c.head_size), 0);
        sink_tokens.reserve(static_cast<std::size_t>(c.sinks));
    }
}
Cache::State::~State() { pool->release(table); }

bool Cache::State::level() const {
    return std::ranges::all_of(written, [&](std::int64_t count) { return count == tokens; });
}

std::int64_t Cache::State::position(std::int64_t j) const {
    if (config().positions == CachePositions::slots) { return j; }
    const auto behind = std::ranges::upper_bound(stretches, j, {}, &CacheStretch::first);
    return std::prev(behind)->position + j - std::prev(behind)->first;
}

void Cache::State::fill_positions(std::span<std::int64_t> to) const {
    if (config().positions == CachePositions::slots) {
        std::iota(to.begin(), to.end(), std::int64_t{0});
        return;
    }
    const auto count = static_cast<std::int64_t>(to.size());
    for (std::size_t n = 0; n < stretches.size() && stretches[n].first < count; ++n) {
        const std::int64_t end = n + 1 < stretches.size() ? std::min(count, stretches[n + 1].first) : count;
        std::iota(to.begin() + stretches[n].first, to.begin() + end, stretches[n].position);
    }
}

void Cache::State::fill_rows(std::span<std::int32_t> to) const {
    const auto count = static_cast<std::int64_t>(to.size());
    for (std::size_t n = 0; n < runs.size() && runs[n].first < count; ++n) {
        const std::int64_t end = std::min(count, runs[n].first + runs[n].end - runs[n].begin);
        // The pool has fewer rows than 2^31.
        const std::int64_t row = table[n] * config().page_size + runs[n].begin;
        std::iota(to.begin() + runs[n].first, to.begin() + end, static_cast<std::int32_t>(row));
    }
}

bool Cache::State::rising() const {
    if (config().positions == CachePositions::slots) { return true; }
    for (std::size_t n = 1; n < stretches.size(); ++n) {
        const CacheStretch &before = stretches[n - 1], &behind = stretches[n];
        if (behind.position < before.position + behind.first - before.first) { return false; }
    }
    return true;
}

std::size_t Cache::State::run_of(std::int64_t j) const {
    return static_cast<std::size_t>(std::ranges::upper_bound(runs, j, {}, &CacheRun::first) - runs.begin()) - 1;
}

std::int64_t Cache::State::slots(std::int64_t count) const {
    if (count == 0) { return 0; }
    const std::size_t run = run_of(count - 1);
    return static_cast<std::int64_t>(run) * config().page_size + row_of(run, count - 1) + 1;
}

bool Cache::State::has_gaps() const { return slots(tokens) != tokens; }

bool Cache::State::is_shared(std::size_t n, std::int32_t references) const {
    std::int32_t own = 1;  // entries of the same page stand side by side
    for (std::size_t i = n; i > 0 && table[i - 1] == table[n]; --i) { ++own; }
    for (std::size_t i = n + 1; i < table.size() && table[i] == table[n]; ++i) { ++own; }
    return references > own;
}

float* Cache::State::sink(std::int64_t layer, std::int64_t g, std::int64_t j) {
    const auto found = std::ranges::lower_bound(sink_tokens, j);
    if (found == sink_tokens.end() || *found != j) { return nullptr; }
    const CacheConfig& c = config();
    const std::int64_t place = (layer * c.kv_heads + g) * c.sinks + (found - sink_tokens.begin());
    return &sinks[static_cast<std::size_t>(place * c.head_size)];
}

void Cache::State::add_sink(std::int64_t j) {
    if (sinks.empty() || j >= config().sinks) { return; }
    // As many as there are tokens before `sinks`, of which none has two: there is room.
    if (sink_tokens.empty() || sink_tokens.back() < j) { sink_tokens.push_back(j); }
}

void Cache::State::needs(std::int64_t begin, std::int64_t end, Needs& needs,
                         std::vector<std::int32_t>& references) const {
    needs.copies.clear();
    const std::int64_t page_size = config().page_size;
    const std::int64_t room = runs.empty() ? 0 : page_size - runs.back().end;
    needs.fresh = std::max<std::int64_t>(0, (end - tokens - room + page_size - 1) / page_size);
    if (runs.empty() || begin == end) { return; }
    const std::size_t first = begin < tokens ? run_of(begin) : runs.size() - 1;
    pool->references(std::span(table).subspan(first), references);
    for (std::size_t n = first; n < runs.size(); ++n) {
        const std::int64_t behind = n + 1 < runs.size() ? runs[n + 1].first : runs[n].first + page_size - runs[n].begin;
        const bool written_to = runs[n].first < end && behind > begin;
        if (written_to && is_shared(n, references[n - first])) { needs.copies.push_back(n); }
    }
}

void Cache::State::room_for(const Needs& needs) {
    const std::size_t count = runs.size() + static_cast<std::size_t>(needs.fresh);
    // Twice as many at a time: one page a step must not copy the list each time.
    if (runs.capacity() < count) { runs.reserve(std::max({count, 2 * runs.size(), least_entries})); }
    if (table.capacity() < count) { table.reserve(std::max({count, 2 * table.size(), least_entries})); }
}

void Cache::State::provide(const Needs& needs, std::span<const std::int32_t> pages, std::int64_t end) noexcept {
    std::size_t used = 0;
    for (const std::size_t run : needs.copies) {
        const std::int32_t page = pages[used++];
        pool->copy_page(table[run], page);
        pool->release({&table[run], 1});
        table[run] = page;
    }
    const std::int64_t page_size = config().page_size;
    while (tokens < end) {
        if (runs.empty() || runs.back().end == page_size) {
            runs.push_back({tokens, 0, 0});
            table.push_back(pages[used++]);
        }
        CacheRun& last = runs.back();
        const std::int64_t more = std::min(end - tokens, page_size - last.end);
        last.end += more;
        tokens += more;
    }
}

void Cache::State::add_positions(std::int64_t first, std::span<const std::int64_t> positions) {
    for (std::size_t n = 0; n < positions.size(); ++n) {
        const std::int64_t j = first + static_cast<std::int64_t>(n);
        const bool follows =
            !stretches.empty() && stretches.back().position + j - stretches.back().first == positions[n];
        if (!follows) { stretches.push_back({j, positions[n]}); }
        next = positions[n] + 1;
    }
}

void Cache::State::shrink(std::int64_t count) noexcept {
    if (count >= tokens) { return; }
    while (!runs.empty() && runs.back().first >= count) {
        pool->release({&table.back(), 1});
        table.pop_back();
        runs.pop_back();
    }
    if (!runs.empty()) { runs.back().end = std::min(runs.back().end, runs.back().begin + count - runs.back().first); }
    while (!stretches.empty() && stretches.back().first >= count) { stretches.pop_back(); }
    while (!sink_tokens.empty() && sink_tokens.back() >= count) { sink_tokens.pop_back(); }
    tokens = std::min(tokens, count);
    for (std::int64_t& layer : written) { layer = std::min(layer, count); }
    if (count == 0) {
        next = shift = 0;
    } else if (config().positions == CachePositions::original) {
        next = position(count - 1) + 1;
    }
}

void Cache::State::cut(std::int64_t begin, std::int64_t end) {
    const std::int64_t gone = end - begin;
    std::vector<CacheRun> kept;
    std::vector<std::int32_t> kept_table, released, again;
    const std::size_t most = std::max(2 * runs.size() + 1, least_entries);
    kept.reserve(most);
    kept_table.reserve(most);
    for (std::size_t n = 0; n < runs.size(); ++n) {
        const CacheRun& run = runs[n];
        const std::int64_t last = run.first + run.end - run.begin;
        int parts = 0;
        const auto keep = [&](std::int64_t from, std::int64_t to) {
            if (from >= to) { return; }
            kept.push_back(
                {from < begin ? from : from - gone, run.begin + from - run.first, run.begin + to - run.first});
            kept_table.push_back(table[n]);
            ++parts;
        };
        keep(run.first, std::min(last, begin));
        keep(std::max(run.first, end), last);
        if (parts == 0) { released.push_back(table[n]); }
        if (parts == 2) { again.push_back(table[n]); }
    }
    std::vector<CacheStretch> positions;
    for (std::size_t n = 0; n < stretches.size(); ++n) {
        const CacheStretch& s = stretches[n];
        const std::int64_t last = n + 1 < stretches.size() ? stretches[n + 1].first : tokens;
        if (s.first < begin) { positions.push_back(s); }
        const std::int64_t from = std::max(s.first, end);
        if (from < last) { positions.push_back({from - gone, s.position + from - s.first}); }
    }
    // Neighbours that a cut between two equal steps has brought together again.
    const auto joined = std::unique(
        positions.begin(), positions.end(),
        [](const CacheStretch& a, const CacheStretch& b) { return b.position - a.position == b.first - a.first; });
    positions.erase(joined, positions.end());
    pool->share(again);
    cut_sinks(begin, end);
    runs = std::move(kept);
    table = std::move(kept_table);
    stretches = std::move(positions);
    pool->release(released);
    tokens -= gone;
    for (std::int64_t& layer : written) { layer -= gone; }
    if (tokens == 0) { shift = 0; }
}

void Cache::State::cut_sinks(std::int64_t begin, std::int64_t end) noexcept {
    const auto first = std::ranges::lower_bound(sink_tokens, begin) - sink_tokens.begin();
    const auto last = std::ranges::lower_bound(sink_tokens, end) - sink_tokens.begin();
    const auto count = static_cast<std::ptrdiff_t>(sink_tokens.size());
    const CacheConfig& c = config();
    for (std::int64_t plane = 0; first < last && plane < c.layers * c.kv_heads; ++plane) {
        const auto keys = sinks.begin() + plane * c.sinks * c.head_size;
        std::copy(keys + last * c.head_size, keys + count * c.head_size, keys + first * c.head_size);
    }
    sink_tokens.erase(sink_tokens.begin() + first, sink_tokens.begin() + last);
    for (auto n = static_cast<std::size_t>(first); n < sink_tokens.size(); ++n) { sink_tokens[n] -= end - begin; }
}

bool Cache::State::is_scattered() const {
    // Each gap makes kernels copy the 16 rows around it; moving all rows once for every 64th of them that stands
    // behind a gap costs a drop no more than 64 rows.
    constexpr std::int64_t few = 4, rows_a_gap = 64;
    std::int64_t gaps = 0;
    for (std::size_t n = 1; n < runs.size(); ++n) {
        gaps += runs[n - 1].end != config().page_size || runs[n].begin != 0 ? 1 : 0;
    }
    if (gaps <= few + tokens / rows_a_gap) { return false; }
    const std::vector<std::int32_t> references = pool->references(table);
    for (std::size_t n = 0; n < table.size(); ++n) {
        if (is_shared(n, references[n])) { return false; }
    }
    return true;
}

void Cache::State::compact(const char* function) {
    if (!has_gaps()) { return; }
    const std::int64_t page_size = config().page_size;
    const auto count = static_cast<std::size_t>((tokens + page_size - 1) / page_size);
    std::vector<std::int32_t> own;  // each page once, in the order of the tokens
    bool alone = true;
    const std::vector<std::int32_t> references = pool->references(table);
    for (std::size_t n = 0; n < table.size(); ++n) {
        if (own.empty() || own.back() != table[n]) { own.push_back(table[n]); }
        alone = alone && !is_shared(n, references[n]);
    }
    std::vector<std::int32_t> pages(own.begin(),
                                    own.begin() + static_cast<std::ptrdiff_t>(std::min(count, own.size())));
    if (!alone) { pool->take(static_cast<std::int64_t>(count), -1, function, "cache", pages); }
    // In place, a row's new place is never behind its old one.
    std::vector<CacheRun> dense;
    dense.reserve(std::max(count, least_entries));  // nothing throws once rows move
    pages.reserve(std::max(count, least_entries));
    for (std::int64_t j = 0; j < tokens; ++j) {
        const std::size_t run = run_of(j);
        const auto target = static_cast<std::size_t>(j / page_size);
        for (std::int64_t layer = 0; layer < config().layers; ++layer) {
            pool->move_row(layer, table[run], row_of(run, j), pages[target], j % page_size);
        }
        if (j % page_size == 0) { dense.push_back({j, 0, 0}); }
        ++dense.back().end;
    }
    if (alone) { pool->share(pages); }
    pool->release(table);
    table = std::move(pages);
    runs = std::move(dense);
}

}  // namespace heed
