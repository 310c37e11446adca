#include "cpu/attention/call.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numbers>

#include <unistd.h>

namespace heed::cpu {
namespace {

template <class AnyView>
Tensor4 plain(const AnyView& view) {
    Tensor4 t;
    if (!view) { return t; }
    t.data = static_cast<char*>(const_cast<void*>(static_cast<const void*>(view.data())));
    t.dtype = view.dtype();
    t.element_size = static_cast<int>(size_of(view.dtype()));
    const auto stride = [&](int axis) { return view.extent(axis) == 1 ? 0 : view.stride(axis); };
    t.b = stride(0);
    t.h = stride(1);
    t.row = stride(2);
    t.column = view.extent(3) == 1 ? 0 : view.stride(3);
    return t;
}

/// Strides of axes that are never repeated: an extent of 1 may then keep any stride.
template <class AnyView>
Tensor4 plain_rows(const AnyView& view) {
    Tensor4 t = plain(view);
    if (view && view.extent(3) == 1) { t.column = 1; }
    return t;
}

std::size_t cache_bytes(int name, std::size_t otherwise) {
    const long bytes = sysconf(name);
    return bytes > 0 ? static_cast<std::size_t>(bytes) : otherwise;
}

/// Output 0 and lse of nothing for rows that are past their length.
void clear_past_length(const Call& c, const Sequence& s) {
    const MutableView& lse = c.problem->lse;
    clear_rows_of_heads(c.out, s.batch, c.heads, s.query_begin + s.queries, s.query_begin + s.rows, c.value_size);
    for (std::int64_t h = 0; lse && h < c.heads; ++h) {
        for (std::int64_t t = s.query_begin + s.queries; t < s.query_begin + s.rows; ++t) {
            write_number(lse.dtype(), lse.data(), s.batch * lse.stride(0) + h * lse.stride(1) + t * lse.stride(2),
                         -std::numeric_limits<double>::infinity());
        }
    }
}

}  // namespace

Tensor4 rows_of(const MutableView& view) { return plain_rows(view); }

void clear_rows_of_heads(const Tensor4& t, std::int64_t batch, std::int64_t heads, std::int64_t begin, std::int64_t end,
                         std::int64_t columns) {
    for (std::int64_t h = 0; h < heads; ++h) {
        for (std::int64_t row = begin; row < end; ++row) {
            char* first = t.data + (batch * t.b + h * t.h + row * t.row) * t.element_size;
            if (t.column == 1) {  // 0 is all bits 0 in every type
                std::memset(first, 0, static_cast<std::size_t>(columns * t.element_size));
                continue;
            }
            for (std::int64_t c = 0; c < columns; ++c) { write_number(t.dtype, first, c * t.column, 0); }
        }
    }
}

std::size_t level2_bytes() {
    static const std::size_t bytes = cache_bytes(_SC_LEVEL2_CACHE_SIZE, std::size_t{512} << 10);
    return bytes;
}

const char* declines(const AttentionProblem& p) {
    if (p.q.dtype() == DType::f64) { return "float64 is for the reference"; }
    if (p.queries >= farthest || p.keys >= farthest) { return "more than 2^30 queries or keys"; }
    const AttentionOptions& o = p.options;
    for (std::int64_t b = 0; b < p.batch && (o.query_positions || o.key_positions); ++b) {
        const Sequence s = p.sequence(b);
        std::int64_t least = o.key_positions ? std::numeric_limits<std::int64_t>::max() : 0;
        std::int64_t most = o.key_positions ? std::numeric_limits<std::int64_t>::min() : 0;
        for (std::int64_t j = 0; o.key_positions && j < s.keys; ++j) {
            least = std::min(least, p.key_position(s, j));
            most = std::max(most, p.key_position(s, j));
        }
        for (std::int64_t i = 0; i < s.queries; ++i) {
            least = std::min(least, p.query_position(s, i));
            most = std::max(most, p.query_position(s, i));
        }
        if (least < most && most - least >= farthest) { return "positions more than 2^30 apart"; }
    }
    return nullptr;
}

Call make_call(const AttentionProblem& p) {
    Call c;
    const AttentionOptions& o = p.options;
    c.problem = &p;
    c.batch = p.batch;
    c.heads = p.heads;
    c.kv_heads = p.kv_heads;
    c.group = p.group();
    c.queries = p.queries;
    c.head_size = p.head_size;
    c.value_size = p.value_size;
    c.q = plain_rows(p.q);
    c.k = plain_rows(p.k);
    c.v = plain_rows(p.v);
    c.pages = p.pages;
    c.out = plain_rows(p.out ? View(p.out) : p.forward_out);
    c.dout = plain_rows(p.dout);
    c.dq = plain_rows(p.gradients.dq);
    c.dk = plain_rows(p.gradients.dk);
    c.dv = plain_rows(p.gradients.dv);
    c.bias = plain(o.bias);
    c.allow = plain(o.allow);
    c.keep = plain(o.dropout.keep);
    c.has_lse = static_cast<bool>(p.lse);
    c.scale = static_cast<float>(p.scale);
    c.factor = static_cast<float>(p.scale * std::numbers::log2e);
    if (o.softcap > 0) {
        c.cap = static_cast<float>(o.softcap * std::numbers::log2e);
        c.inverse_cap = static_cast<float>(p.scale / o.softcap);
    }
    c.alibi = static_cast<bool>(o.alibi_slopes);
    c.drop_factor = static_cast<float>(1 / (1 - o.dropout.p));
    const std::uint64_t threshold = dropout_threshold(o.dropout.p);
    c.drop = !o.dropout.keep && threshold > 0;
    c.drop_seed = o.dropout.seed.value_or(0);
    c.drop_offset = o.dropout.offset;
    c.drop_below = static_cast<std::uint32_t>(threshold - 1);
    // A block of keys and values takes at most a quarter of the second-level cache. 192 is the best of 48 ... 288 on
    // Zen 4, by 1 to 4 %; a multiple of 24 suits every register tile. With a pattern, whole squares.
    const auto row_bytes = static_cast<std::size_t>(c.head_size + c.value_size) * size_of(DType::f32);
    const auto fitting = static_cast<std::int64_t>(level2_bytes() / 4 / row_bytes) / 24 * 24;
    c.pattern = static_cast<bool>(p.sparse);
    c.tile_keys = c.pattern
                      ? std::clamp<std::int64_t>(fitting / pattern_keys * pattern_keys, pattern_keys, most_tile_keys)
                      : std::clamp<std::int64_t>(fitting, 48, most_tile_keys);
    c.sinks = static_cast<bool>(o.sinks);
    c.dx_wanted = p.gradients.dbias || p.gradients.dalibi_slopes;
    // Rows a multiple of 512 bytes apart compete for the same cache sets: dq is not accumulated in such memory.
    c.dq_direct = c.dq.dtype == DType::f32 && c.dq.column == 1 && (c.dq.row == c.head_size || c.dq.row * 4 % 512 != 0);
    return c;
}

std::int64_t partial_floats(const Split& split, std::int64_t value_stride) {
    return (split.tile_rows * (value_stride + 2) + 15) / 16 * 16;
}

Keys keys_of(const Call& c, const Sequence& s) {
    Keys keys{.begin = s.key_begin, .count = s.keys};
    if (c.problem->options.key_positions) {
        keys.explicit_positions = true;
        std::int64_t least = std::numeric_limits<std::int64_t>::max();
        for (std::int64_t j = 0; j < s.keys; ++j) { least = std::min(least, c.problem->key_position(s, j)); }
        keys.position_base = s.keys > 0 ? least : 0;
    }
    return keys;
}

Split split_forward(const Call& c, const Sequence& s) {
    Split split;
    const std::int64_t rows = s.queries;
    if (rows == 0) { return split; }
    if (c.group > 1 && 2 * rows <= most_rows) {
        split.heads_per_tile = std::min<std::int64_t>(c.group, most_rows / rows);
        split.rows_per_tile = rows;
        split.tiles = (c.group + split.heads_per_tile - 1) / split.heads_per_tile;
        split.tile_rows = split.heads_per_tile * rows;
    } else {
        split.rows_per_tile = most_rows;
        split.tiles = (rows + most_rows - 1) / most_rows * c.group;
        split.tile_rows = std::min<std::int64_t>(rows, most_rows);
    }
    // A task's queries and sums stay in half of the second-level cache; four tiles are enough to make packing keys and
    // values negligible, eight save another hundredth where they leave enough tasks. With a pattern tiles see different
    // keys, and share fewer the more they are.
    constexpr std::int64_t many_tasks = 64;
    const auto tile_bytes = static_cast<std::size_t>(most_rows * (c.head_size + c.value_size) * 4);
    const bool many = !c.pattern && split.tiles / most_task_tiles * c.kv_heads >= many_tasks;
    split.tiles_per_task = std::clamp<std::int64_t>(static_cast<std::int64_t>(level2_bytes() / 2 / tile_bytes), 1,
                                                    many ? most_task_tiles : most_task_tiles / 2);
    split.row_blocks = (split.tiles + split.tiles_per_task - 1) / split.tiles_per_task;
    // Too few tasks for a machine of many cores: cut the keys too, no finer than 512.
    constexpr std::int64_t enough_tasks = 32;
    constexpr std::int64_t least_keys = 512;
    const std::int64_t tasks = split.row_blocks * c.kv_heads;
    // Not for a prompt that goes into a cache: in whatever chunks of whole tiles it comes, its bits are the same.
    const bool may_cut = c.pages == nullptr || rows < most_rows;
    if (may_cut && tasks < enough_tasks && s.keys >= 2 * least_keys) {
        split.key_parts = std::min((enough_tasks + tasks - 1) / tasks, s.keys / least_keys);
    }
    split.part_keys = (s.keys + split.key_parts - 1) / split.key_parts;
    split.part_keys = (split.part_keys + c.tile_keys - 1) / c.tile_keys * c.tile_keys;
    if (split.part_keys > 0) {
        split.key_parts = std::max<std::int64_t>(1, (s.keys + split.part_keys - 1) / split.part_keys);
    }
    // Four tasks for every thread, so that none waits long for the last.
    while (!c.pattern && split.tiles_per_task > 1 && split.tasks(c.kv_heads) * c.batch < 4 * c.threads) {
        split.tiles_per_task /= 2;
        split.row_blocks = (split.tiles + split.tiles_per_task - 1) / split.tiles_per_task;
    }
    return split;
}

bool pairs_are_slow() {
#if defined(__x86_64__)
    static const bool intel = __builtin_cpu_is("intel") != 0;
    return intel;
#else
    return false;
#endif
}

bool has_far_heads(const Call& call) {
    constexpr std::int64_t most_keys = 128;
    const std::int64_t keys = call.problem->keys;
    if (keys > most_keys || call.queries > most_keys || call.pages != nullptr || call.problem->packed) { return false; }
    const std::int64_t rows = call.batch * (call.heads * call.queries + call.kv_heads * keys);
    const std::int64_t bytes = rows * (call.head_size + call.value_size) * call.q.element_size;
    return bytes > 8 * static_cast<std::int64_t>(level2_bytes());
}

Sequence sequence_of(const Call& c, std::int64_t b) { return c.problem->sequence(b); }

ForwardPlan plan_forward(const Call& c, detail::Pool& pool, std::int64_t value_stride) {
    ForwardPlan plan;
    double operations = 0;
    const auto header = static_cast<std::size_t>(c.batch + 1) * sizeof(ForwardPlan::Entry);
    const auto partial_at = (header + 63) / 64 * 64;
    const AttentionOptions& o = c.problem->options;
    const bool alike = !c.problem->packed && !o.query_lengths && !o.key_lengths && c.batch > 0;
    if (alike) { plan.split = split_forward(c, sequence_of(c, 0)); }
    ForwardPlan::Entry next;
    const auto advance = [&](std::int64_t b) {
        const Sequence s = sequence_of(c, b);
        const Split split = alike ? plan.split : split_forward(c, s);
        next.first_task += split.tasks(c.kv_heads);
        if (split.key_parts > 1) {
            const std::int64_t tiles = split.tiles * c.kv_heads;
            next.first_merge += tiles;
            next.first_partial += tiles * split.key_parts * partial_floats(split, value_stride);
        }
        // A byte of keys and values takes the time of an operation: all there is to decoding.
        const std::int64_t row_bytes = (c.head_size + c.value_size) * c.q.element_size;
        operations += 2.0 * static_cast<double>(c.heads * (c.head_size + c.value_size)) *
                          static_cast<double>(s.queries) * static_cast<double>(s.keys) +
                      static_cast<double>(c.kv_heads * row_bytes) * static_cast<double>(s.keys);
    };
    for (std::int64_t b = 0; b < c.batch; ++b) { advance(b); }
    char* memory =
        static_cast<char*>(pool.shared().at_least(partial_at + static_cast<std::size_t>(next.first_partial) * 4));
    auto* entries = reinterpret_cast<ForwardPlan::Entry*>(memory);
    plan.partials = reinterpret_cast<float*>(memory + partial_at);
    next = {};
    operations = 0;
    for (std::int64_t b = 0; b < c.batch; ++b) {
        entries[b] = next;
        advance(b);
    }
    entries[c.batch] = next;
    plan.entries = entries;
    plan.tasks = next.first_task;
    plan.tasks_per_entry = alike ? plan.tasks / c.batch : 0;
    plan.merges = next.first_merge;
    plan.effort = detail::effort_for(operations);
    return plan;
}

std::int64_t ForwardPlan::entry_of_task(std::int64_t batch, std::int64_t task) const {
    if (tasks_per_entry > 0) { return task / tasks_per_entry; }
    const auto after = [](std::int64_t value, const Entry& entry) { return value < entry.first_task; };
    return std::upper_bound(entries, entries + batch + 1, task, after) - entries - 1;
}

Split ForwardPlan::split_of(const Call& call, const Sequence& s) const {
    return tasks_per_entry > 0 ? split : split_forward(call, s);
}

std::int64_t ForwardPlan::entry_of_merge(std::int64_t batch, std::int64_t merge) const {
    const auto after = [](std::int64_t value, const Entry& entry) { return value < entry.first_merge; };
    return std::upper_bound(entries, entries + batch + 1, merge, after) - entries - 1;
}

double sink_of(const Call& c, std::int64_t head) { return c.problem->sink(head); }

void put_lse(const Call& c, std::int64_t batch, std::int64_t head, std::int64_t row, double lse) {
    const MutableView& view = c.problem->lse;
    write_number(view.dtype(), view.data(), batch * view.stride(0) + head * view.stride(1) + row * view.stride(2), lse);
}

void put_lse(const Call& c, const RowTile& tile, int row, double lse) {
    put_lse(c, tile.batch, tile.head[row], tile.query_begin + tile.index[row], lse);
}

void clear_all_rows(const Call& c) {
    const AttentionProblem& p = *c.problem;
    if (!p.options.query_lengths) { return; }
    for (std::int64_t b = 0; b < c.batch; ++b) { clear_past_length(c, sequence_of(c, b)); }
}

}  // namespace heed::cpu
