#include "base/dispatch.h"
#include "base/place.h"
#include "base/pool.h"
#include "cache/cached_step.h"
#include "ops/attention_checks.h"
#include "ops/attention_kernels.h"
#include "ops/cached_attention.h"

#include <algorithm>

namespace heed {
namespace {

/// Are the queries the last tokens that the cache has, at their positions?
bool queries_are_last(const CachedStep& step, std::size_t n) {
    const Cache::State& cache = *step.caches[n];
    const std::int64_t first = step.lengths[n] - step.queries(n);
    for (std::int64_t i = 0; i < step.queries(n); ++i) {
        const std::int64_t position = step.positions[static_cast<std::size_t>(step.cu_q[n] + i)];
        if (first < 0 || cache.position(first + i) != position) { return false; }
    }
    return true;
}

bool needs_positions(const CachedStep& step, std::size_t n, const AttentionOptions& options) {
    const Cache::State& cache = *step.caches[n];
    const Window& window = options.window;
    const bool by_distance = options.pattern || options.alibi_slopes || window.left >= 0 || window.right >= 0;
    if (!by_distance && !options.causal) { return false; }
    if (!by_distance && cache.rising() && queries_are_last(step, n)) { return false; }
    const std::int64_t base = cache.first_position();
    if (!cache.consecutive() || (options.pattern && base != 0)) { return true; }
    for (std::int64_t i = 0; i < step.queries(n); ++i) {
        const std::int64_t at_index = base + step.lengths[n] - step.queries(n) + i;
        if (step.positions[static_cast<std::size_t>(step.cu_q[n] + i)] != at_index) { return true; }
    }
    return false;
}

Way way_of(const CachedStep& step, std::size_t n, const AttentionOptions& options) {
    if (step.pool->rotate_on_read) { return {.dense = true}; }
    return {.by_row = step.caches[n]->slots(step.lengths[n]) != step.lengths[n],
            .by_position = needs_positions(step, n, options)};
}

void find_ways(CachedStep& step, const AttentionOptions& options) {
    std::vector<Way>& ways = step.buffers.ways;
    ways.clear();
    for (std::size_t n = 0; n < step.count(); ++n) { ways.push_back(way_of(step, n, options)); }
    // A pattern and the generator of dropout count entries of the call, which therefore has to be one.
    if (options.pattern || options.dropout.p > 0) {
        Way all;
        for (const Way& way : ways) {
            all = {all.dense || way.dense, all.by_row || way.by_row, all.by_position || way.by_position};
        }
        std::ranges::fill(ways, all);
    }
}

View cut(const View& view, std::int64_t begin, std::int64_t end) {
    return view && view.extent(0) != 1 ? view.slice(0, begin, end) : view;
}
/// Options with an axis of entries, for entries [begin, end).
void cut_options(AttentionOptions& o, std::int64_t begin, std::int64_t end) {
    o.bias = cut(o.bias, begin, end);
    o.allow = cut(o.allow, begin, end);
    o.dropout.keep = cut(o.dropout.keep, begin, end);
    if (o.alibi_slopes && o.alibi_slopes.rank() == 2) { o.alibi_slopes = o.alibi_slopes.slice(0, begin, end); }
}

/// Tables by index reach as far as the longest entry of the whole call; those of some entries end with theirs.
void cut_to_longest(AttentionOptions& o, std::int64_t queries, std::int64_t keys) {
    for (View* view : {&o.bias, &o.allow, &o.dropout.keep}) {
        if (*view && view->extent(2) != 1) { *view = view->slice(2, 0, queries); }
        if (*view && view->extent(3) != 1) { *view = view->slice(3, 0, keys); }
    }
}

/// Entries [begin, end), which go the same way.
struct Range {
    std::size_t begin, end;
};

/// At least so many elements; twice as many at a time, as a cache grows step by step.
template <class T>
void make_room(std::vector<T>& buffer, std::int64_t count) {
    const auto least = static_cast<std::size_t>(count);
    if (buffer.size() < least) { buffer.resize(std::max(least, std::min(2 * least, least + 65536))); }
}

/// `problem` is that of all entries, and is used up.
void attend_in_pages(Context& context, CachedStep& step, const AttentionKernel& kernel, AttentionProblem& problem,
                     Range range, Way way) {
    EntryCall& call = step.buffers.call;
    call.begin(step, problem);
    std::int64_t tokens = 0;
    for (std::size_t n = range.begin; n < range.end; ++n) { tokens += step.lengths[n]; }
    std::vector<std::int32_t>& rows = step.buffers.rows;
    std::vector<std::int64_t>& key_positions = step.buffers.key_positions;
    make_room(rows, way.by_row ? tokens : 0);
    make_room(key_positions, way.by_position ? tokens : 0);
    if (way.by_row) { call.by_row(); }
    std::size_t at = 0;
    for (std::size_t n = range.begin; n < range.end; ++n) {
        const Cache::State& cache = *step.caches[n];
        const auto count = static_cast<std::size_t>(step.lengths[n]);
        if (way.by_row) { cache.fill_rows(std::span(rows).subspan(at, count)); }
        if (way.by_position) { cache.fill_positions(std::span(key_positions).subspan(at, count)); }
        call.add(way.by_row ? rows.data() + at : cache.table.data(), step.queries(n), step.lengths[n]);
        at += count;
    }
    const std::int64_t first = step.cu_q[range.begin], last = step.cu_q[range.end];
    const auto queries = [&](auto view) { return view ? view.slice(2, first, last) : view; };
    cut_options(problem.options, static_cast<std::int64_t>(range.begin), static_cast<std::int64_t>(range.end));
    call.finish(queries(problem.q), queries(problem.out), queries(problem.lse));
    if (way.by_position) {
        problem.options.query_positions = View(DType::i64, step.positions.data() + first, Shape{1, last - first});
        problem.options.key_positions = View(DType::i64, key_positions.data(), Shape{1, problem.keys});
        // Positions may be too far apart for it.
        attend_pages(context, choose_attention_kernel(context, step.function, problem), problem);
        return;
    }
    // Of a GPU's kernels some read pages, some are given tensors: with the pages it is known whose this is.
    const bool host = step.config().device.kind == DeviceKind::cpu;
    attend_pages(context, host ? kernel : choose_attention_kernel(context, step.function, problem), problem);
}

/// The tokens of entries [begin, end), one after the other, without gaps: rows of the pool, counted through its pages.
std::vector<std::int32_t> rows_of_tokens(const CachedStep& step, Range range) {
    std::vector<std::int32_t> rows;
    for (std::size_t n = range.begin; n < range.end; ++n) {
        const Cache::State& cache = *step.caches[n];
        for (std::int64_t j = 0; j < step.lengths[n]; ++j) {
            const std::size_t run = cache.run_of(j);
            rows.push_back(
                static_cast<std::int32_t>(cache.table[run] * step.config().page_size + cache.row_of(run, j)));
        }
    }
    return rows;
}

void attend_dense(Context& context, const CachedStep& step, const AttentionProblem& whole, Range range) {
    const CacheConfig& c = step.config();
    std::vector<std::int64_t> cu_q{0}, cu_k{0}, positions;
    std::int64_t longest_queries = 0, longest_keys = 0;
    for (std::size_t n = range.begin; n < range.end; ++n) {
        longest_queries = std::max(longest_queries, step.queries(n));
        longest_keys = std::max(longest_keys, step.lengths[n]);
        cu_q.push_back(cu_q.back() + step.queries(n));
        cu_k.push_back(cu_k.back() + step.lengths[n]);
        positions.resize(static_cast<std::size_t>(cu_k.back()));
        step.caches[n]->fill_positions(std::span(positions).last(static_cast<std::size_t>(step.lengths[n])));
    }
    const DType dtype = whole.q.dtype() == DType::f64 ? DType::f64 : DType::f32;
    const std::vector<std::int32_t> tokens = rows_of_tokens(step, range);
    const auto gathered = [&](const KvRows& from, std::int64_t columns) {
        Tensor all = Tensor::uninitialised(dtype, {1, c.kv_heads, cu_k.back(), columns});
        gather_kv_rows(context, {.from = from, .rows = tokens, .out = all});
        return all;
    };
    Tensor k = gathered(step.memory().k_rows, c.head_size);
    const Tensor v = gathered(step.memory().v_rows, c.value_size);
    Tensor q = Tensor::uninitialised(dtype, {1, whole.heads, cu_q.back(), c.head_size});
    const std::int64_t first = step.cu_q[range.begin], last = step.cu_q[range.end];
    copy_rows(whole.q.slice(2, first, last), q);
    for (std::size_t n = range.begin; n < range.end && step.pool->rotate_on_read; ++n) {
        if (step.lengths[n] == 0) { continue; }
        // The table that this length asks for, for the queries and all keys alike.
        const RopeTable table = rope_table(*c.rope, step.caches[n]->position(step.lengths[n] - 1) + 1);
        const auto rotate = [&](Tensor& x, std::int64_t begin, std::int64_t end, const std::int64_t* where) {
            if (begin == end) { return; }
            const MutableView part = x.view().slice(2, begin, end).slice(3, step.pool->rotated_from(), c.head_size);
            rope(context, part, part, table, {.positions = View(DType::i64, where, Shape{1, end - begin})});
        };
        const std::size_t entry = n - range.begin;
        rotate(k, cu_k[entry], cu_k[entry + 1], positions.data() + cu_k[entry]);
        rotate(q, cu_q[entry], cu_q[entry + 1], step.positions.data() + step.cu_q[n]);
    }
    AttentionOptions options = whole.options;
    options.scale = whole.scale;
    cut_options(options, static_cast<std::int64_t>(range.begin), static_cast<std::int64_t>(range.end));
    cut_to_longest(options, longest_queries, longest_keys);
    options.cu_seqlens_q = integers(cu_q, {static_cast<std::int64_t>(cu_q.size())});
    options.cu_seqlens_k = integers(cu_k, {static_cast<std::int64_t>(cu_k.size())});
    options.query_positions = View(DType::i64, step.positions.data() + first, Shape{1, last - first});
    options.key_positions = integers(positions, {1, cu_k.back()});
    const auto rows = [&](auto view) { return view ? view.slice(2, first, last) : view; };
    attend_mixed(context, q, k, v, {.out = rows(whole.out), .lse = rows(whole.lse)}, options);
}

/// Queries as the stored keys are: rotated, where that is ours to do.
View rotated_queries(Context& context, CachedStep& step, const View& q) {
    const CachePool::State& pool = *step.pool;
    if (!pool.table || q.shape().elements() == 0) { return q; }
    const MutableView rotated = step.buffers.q.view(q.dtype(), q.shape());
    const RopeOptions where{.positions = integers(step.rope_positions, {1, step.all_queries()})};
    if (pool.rotated_from() == 0) {
        rope(context, q, rotated, *pool.table, where);
        return rotated;
    }
    copy_rows(q, rotated);
    const MutableView part = rotated.slice(3, pool.rotated_from(), q.extent(3));
    rope(context, part, part, *pool.table, where);
    return rotated;
}

void refuse_given(const char* function, const AttentionOptions& o) {
    const std::pair<const char*, const View*> left_alone[] = {{"query_lengths", &o.query_lengths},
                                                              {"key_lengths", &o.key_lengths},
                                                              {"cu_seqlens_q", &o.cu_seqlens_q},
                                                              {"cu_seqlens_k", &o.cu_seqlens_k},
                                                              {"key_positions", &o.key_positions}};
    for (const auto& [name, view] : left_alone) {
        if (*view) { refuse(function, name, "none, as the caches know", "a tensor"); }
    }
    if (o.align != Align::bottom_right) { refuse(function, "align", "bottom_right", "top_left"); }
}

}  // namespace

void EntryCall::begin(const CachedStep& step, AttentionProblem& target) {
    const CachePool::State::Layer& memory = step.memory();
    problem = &target;
    pages = {.k = memory.k_rows, .v = memory.v_rows, .page_size = step.config().page_size, .tables = nullptr};
    cu_q.assign(1, 0);
    cu_k.assign(1, 0);
    tables.clear();
}

void EntryCall::by_row() {
    // A row is a page of one token.
    pages.page_size = 1;
    for (KvRows* rows : {&pages.k, &pages.v}) {
        rows->page_bytes = rows->row_bytes;
        rows->page_scales = rows->row_scales;
    }
}

void EntryCall::add(const std::int32_t* table, std::int64_t queries, std::int64_t keys) {
    tables.push_back(table);
    cu_q.push_back(cu_q.back() + queries);
    cu_k.push_back(cu_k.back() + keys);
}

AttentionProblem& EntryCall::finish(const View& q, const MutableView& out, const MutableView& lse) {
    const auto count = static_cast<std::int64_t>(cu_q.size());
    AttentionProblem& p = *problem;
    pages.tables = tables.data();
    p.pages = &pages;
    p.q = q;
    p.out = out;
    p.lse = lse;
    p.batch = count - 1;
    p.queries = cu_q.back();
    p.keys = cu_k.back();
    p.options.cu_seqlens_q = integers(cu_q, {count});
    p.options.cu_seqlens_k = integers(cu_k, {count});
    p.options.query_positions = {};
    return p;
}

void attend_caches(Context& context, CachedStep& step, const AttentionKernel& kernel, AttentionProblem& problem) {
    problem.q = rotated_queries(context, step, problem.q);
    find_ways(step, problem.options);
    const std::vector<Way>& ways = step.buffers.ways;
    std::vector<char>& done = step.buffers.done;
    std::vector<std::size_t>& plain = step.buffers.candidates;
    done.assign(step.count(), 0);
    plain.clear();
    for (std::size_t n = 0; n < step.count(); ++n) {
        if (ways[n] == Way{} && step.queries(n) > 0) { plain.push_back(n); }
    }
    for (const PrefixGroup& group : prefix_groups(step, problem, plain)) {
        attend_group(context, step, kernel, problem, group);
        for (const std::size_t n : group.members) { done[n] = 1; }
    }
    for (std::size_t begin = 0; begin < step.count();) {
        std::size_t end = begin;
        while (end < step.count() && done[end] == 0 && ways[end] == ways[begin]) { ++end; }
        if (end == begin) {
            ++begin;
        } else if (ways[begin].dense) {
            attend_dense(context, step, problem, {begin, end});
            begin = end;
        } else if (begin == 0 && end == step.count()) {
            return attend_in_pages(context, step, kernel, problem, {begin, end}, ways[begin]);
        } else {
            AttentionProblem part = problem;
            attend_in_pages(context, step, kernel, part, {begin, end}, ways[begin]);
            begin = end;
        }
    }
}

void attend_step(Context& context, CachedStep& step, const View& q, const View& k, const View& v,
                 const AttentionOutputs& outputs, const AttentionOptions& given) {
    AttentionOptions options = given;
    check_device(context, step);
    refuse_given(step.function, options);
    std::vector<std::int64_t>& cu_k = step.buffers.cu_k;
    cu_k.assign(1, 0);
    for (const std::int64_t length : step.lengths) { cu_k.push_back(cu_k.back() + length); }
    const auto count = static_cast<std::int64_t>(cu_k.size());
    options.cu_seqlens_q = integers(step.cu_q, {count});
    options.cu_seqlens_k = integers(cu_k, {count});
    const CacheConfig& c = step.config();
    AttentionProblem problem = checked_cached(step.caller(), q,
                                              {.kv_heads = c.kv_heads,
                                               .queries = step.all_queries(),
                                               .keys = cu_k.back(),
                                               .head_size = c.head_size,
                                               .value_size = c.value_size},
                                              outputs, options);
    for (const auto& [name, input] : {std::pair("k", k), std::pair("v", v)}) {
        for (const auto& [output_name, output] : {std::pair("out", outputs.out), std::pair("lse", outputs.lse)}) {
            check_disjoint(step.function, output_name, output, name, input);
        }
    }
    // Complains now rather than with the tokens in.
    const AttentionKernel& kernel = choose_attention_kernel(context, step.function, problem);
    if (!step.appends) {
        attend_caches(context, step, kernel, problem);
        return;
    }
    CacheAppend append(context, step, k, v);
    attend_caches(context, step, kernel, problem);
    append.keep();
}

void cached_attend(Context& context, const CacheBatch& batch, const View& q, const View& k, const View& v,
                   const AttentionOutputs& outputs, const AttentionOptions& options) {
    constexpr const char* function = "cached_attend";
    if (!q || q.rank() != 4) {
        refuse(function, "q", "a tensor [1,H,T,D]", q ? to_string(q.shape()) : std::string("none"));
    }
    const bool appends = k || v;
    CachedStep& step =
        checked_step(function, batch, CacheKind::attention, q.extent(2), appends, {options.query_positions});
    if (appends) { check_rows(step, "k", k, v, q.dtype()); }
    attend_step(context, step, q, k, v, outputs, options);
}

}  // namespace heed
