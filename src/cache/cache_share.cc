/// A prefix that several caches share, attended to once.
#include <heed/merge.h>

#include "base/dispatch.h"
#include "cache/cached_step.h"
#include "ops/cached_attention.h"

#include <algorithm>
#include <map>

namespace heed {
namespace {

/// Fewer keys saved than this, and two calls and a merge cost more than they save.
constexpr std::int64_t least_saved_keys = 1024;
/// More queries a cache than this, and time goes into products instead of memory.
constexpr std::int64_t most_queries = 16;

/// Whole pages that entry n holds before the keys of this call.
std::int64_t whole_pages(const CachedStep& step, std::size_t n) {
    return (step.lengths[n] - step.queries(n)) / step.config().page_size;
}

std::int64_t common_pages(const CachedStep& step, const std::vector<std::size_t>& members) {
    const std::vector<std::int32_t>& first = step.caches[members.front()]->table;
    std::int64_t common = whole_pages(step, members.front());
    for (const std::size_t n : members) {
        const std::vector<std::int32_t>& table = step.caches[n]->table;
        const std::int64_t most = std::min(common, whole_pages(step, n));
        common = std::mismatch(first.begin(), first.begin() + most, table.begin()).first - first.begin();
    }
    return common;
}

struct Grouping {
    std::int64_t saved = 0;  ///< pages that are not read again
    std::vector<PrefixGroup> groups{};
};
/// All of `members` as one group, or the best grouping of those that go on together, whichever saves more.
Grouping best_grouping(const CachedStep& step, const std::vector<std::size_t>& members) {
    if (members.size() < 2) { return {}; }
    const std::int64_t common = common_pages(step, members);
    std::map<std::int32_t, std::vector<std::size_t>> branches;
    for (const std::size_t n : members) {
        if (whole_pages(step, n) > common) {
            branches[step.caches[n]->table[static_cast<std::size_t>(common)]].push_back(n);
        }
    }
    Grouping parts;
    for (const auto& [page, branch] : branches) {
        Grouping inner = best_grouping(step, branch);
        parts.saved += inner.saved;
        std::ranges::move(inner.groups, std::back_inserter(parts.groups));
    }
    const std::int64_t together = (static_cast<std::int64_t>(members.size()) - 1) * common;
    return together > 0 && together >= parts.saved ? Grouping{together, {{members, common}}} : parts;
}

/// Rows of the members, end to end.
void pack(const CachedStep& step, const PrefixGroup& group, const View& all, const MutableView& packed) {
    std::int64_t at = 0;
    for (const std::size_t n : group.members) {
        const std::int64_t rows = step.queries(n);
        copy_rows(all.slice(2, step.cu_q[n], step.cu_q[n + 1]), packed.slice(2, at, at + rows));
        at += rows;
    }
}
void unpack(const CachedStep& step, const PrefixGroup& group, const View& packed, const MutableView& all) {
    std::int64_t at = 0;
    for (const std::size_t n : group.members) {
        const std::int64_t rows = step.queries(n);
        copy_rows(packed.slice(2, at, at + rows), all.slice(2, step.cu_q[n], step.cu_q[n + 1]));
        at += rows;
    }
}
/// [1,H,T] as [1,H,T,1].
template <class AnyView>
AnyView column(const AnyView& x) {
    return AnyView(x.dtype(), x.data(), Shape{x.extent(0), x.extent(1), x.extent(2), 1},
                   Shape{x.stride(0), x.stride(1), x.stride(2), 1});
}

/// Do two of them begin with the same page? Mostly not, and then nothing more is asked.
bool share_a_page(CachedStep& step, const std::vector<std::size_t>& candidates) {
    std::vector<std::int32_t>& first = step.buffers.pages;
    first.clear();
    for (const std::size_t n : candidates) {
        if (whole_pages(step, n) > 0) { first.push_back(step.caches[n]->table.front()); }
    }
    std::ranges::sort(first);
    return std::ranges::adjacent_find(first) != first.end();
}

}  // namespace

std::vector<PrefixGroup> prefix_groups(CachedStep& step, const AttentionProblem& problem,
                                       const std::vector<std::size_t>& candidates) {
    const AttentionOptions& o = problem.options;
    const bool by_entry =
        o.bias || o.allow || o.pattern || problem.drops() || (o.alibi_slopes && o.alibi_slopes.rank() == 2);
    const bool host = step.config().device.kind == DeviceKind::cpu;
    if (!host || step.share == SharedPrefix::never || by_entry || problem.q.dtype() == DType::f64) { return {}; }
    if (!share_a_page(step, candidates)) { return {}; }
    std::vector<std::size_t> members;
    for (const std::size_t n : candidates) {
        if (step.share == SharedPrefix::always || step.queries(n) <= most_queries) { members.push_back(n); }
    }
    std::map<std::int32_t, std::vector<std::size_t>> by_first_page;
    for (const std::size_t n : members) {
        if (whole_pages(step, n) > 0) { by_first_page[step.caches[n]->table.front()].push_back(n); }
    }
    std::vector<PrefixGroup> groups;
    for (const auto& [page, together] : by_first_page) {
        for (PrefixGroup& group : best_grouping(step, together).groups) {
            const std::int64_t saved =
                (static_cast<std::int64_t>(group.members.size()) - 1) * group.pages * step.config().page_size;
            if (step.share == SharedPrefix::always || saved >= least_saved_keys) { groups.push_back(std::move(group)); }
        }
    }
    return groups;
}

void attend_group(Context& context, const CachedStep& step, const AttentionKernel& kernel,
                  const AttentionProblem& problem, const PrefixGroup& group) {
    const std::int64_t shared_keys = group.pages * step.config().page_size;
    std::int64_t rows = 0;
    std::vector<std::int64_t> positions;  // by index: entries whose positions are otherwise are no candidates
    for (const std::size_t n : group.members) {
        rows += step.queries(n);
        for (std::int64_t i = 0; i < step.queries(n); ++i) {
            positions.push_back(step.lengths[n] - step.queries(n) + i);
        }
    }
    Tensor q = Tensor::uninitialised(problem.q.dtype(), {1, problem.heads, rows, problem.head_size});
    pack(step, group, problem.q, q);
    const auto results = [&] {
        return std::pair(Tensor::uninitialised(DType::f32, {1, problem.heads, rows, problem.value_size}),
                         Tensor::uninitialised(DType::f32, {1, problem.heads, rows}));
    };
    auto [shared_out, shared_lse] = results();
    auto [own_out, own_lse] = results();

    // All queries over the shared pages, which lie before every one of them: causal hides nothing.
    AttentionProblem shared_problem = problem;
    EntryCall shared;
    shared.begin(step, shared_problem);
    shared.add(step.caches[group.members.front()]->table.data(), rows, shared_keys);
    AttentionProblem& first = shared.finish(q, shared_out, shared_lse);
    first.options.causal = false;
    first.reach = first.options.window;
    first.options.sinks = {};
    const bool by_position = problem.options.window.left >= 0 || problem.options.window.right >= 0 ||
                             static_cast<bool>(problem.options.alibi_slopes);
    if (by_position) { first.options.query_positions = integers(positions, {1, rows}); }
    attend_pages(context, by_position ? choose_attention_kernel(context, step.function, first) : kernel, first);

    AttentionProblem own_problem = problem;
    EntryCall own;
    own.begin(step, own_problem);
    for (const std::size_t n : group.members) {
        own.add(step.caches[n]->table.data() + group.pages, step.queries(n), step.lengths[n] - shared_keys);
    }
    attend_pages(context, kernel, own.finish(q, own_out, own_lse));

    const PartialResult parts[] = {{shared_out, shared_lse}, {own_out, own_lse}};
    merge(context, parts, own_out, own_lse);
    unpack(step, group, own_out, problem.out);
    if (problem.lse) { unpack(step, group, column(View(own_lse)), column(problem.lse)); }
}

}  // namespace heed
