#include "cpu/attention_call.h"

#include "cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <unistd.h>

namespace heed::cpu {
namespace {

constexpr double log2_e = 1.4426950408889634;
constexpr std::int64_t far = std::int64_t{1} << 30;  ///< positions of one entry lie within this of each other

template <class AnyView>
Tensor4 plain(const AnyView& view) {
    Tensor4 t;
    if (!view) { return t; }
    t.data = static_cast<char*>(const_cast<void*>(static_cast<const void*>(view.data())));
    t.dtype = view.dtype();
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

std::int32_t narrow(std::int64_t x) {
    return static_cast<std::int32_t>(std::clamp<std::int64_t>(x, -2 * far + 2, 2 * far - 2));
}

std::size_t cache_bytes(int name, std::size_t otherwise) {
    const long bytes = sysconf(name);
    return bytes > 0 ? static_cast<std::size_t>(bytes) : otherwise;
}

/// Output 0 and lse of nothing for rows that are past their length.
void clear_rows(const Call& c, const Sequence& s) {
    const AttentionProblem& p = *c.problem;
    for (std::int64_t h = 0; h < c.heads; ++h) {
        for (std::int64_t i = s.queries; i < s.rows; ++i) {
            const std::int64_t t = s.query_begin + i;
            for (std::int64_t e = 0; e < c.value_size; ++e) {
                write_number(c.out.dtype, c.out.data,
                             s.batch * c.out.b + h * c.out.h + t * c.out.row + e * c.out.column, 0);
            }
            if (p.lse) {
                write_number(p.lse.dtype(), p.lse.data(),
                             s.batch * p.lse.stride(0) + h * p.lse.stride(1) + t * p.lse.stride(2),
                             -std::numeric_limits<double>::infinity());
            }
        }
    }
}

}  // namespace

std::size_t level2_bytes() {
    static const std::size_t bytes = cache_bytes(_SC_LEVEL2_CACHE_SIZE, std::size_t{512} << 10);
    return bytes;
}

std::string declines(const AttentionProblem& p) {
    if (p.q.dtype() == DType::f64) { return "float64 is for the reference"; }
    if (p.queries >= far || p.keys >= far) { return "more than 2^30 queries or keys"; }
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
        if (least < most && most - least >= far) { return "positions more than 2^30 apart"; }
    }
    return {};
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
    c.factor = static_cast<float>(p.scale * log2_e);
    if (o.softcap > 0) {
        c.cap = static_cast<float>(o.softcap * log2_e);
        c.inverse_cap = static_cast<float>(p.scale / o.softcap);
    }
    c.alibi = static_cast<bool>(o.alibi_slopes);
    c.kept = static_cast<float>(1 / (1 - o.dropout.p));
    const std::uint64_t threshold = dropout_threshold(o.dropout.p);
    c.drop = !o.dropout.keep && threshold > 0;
    c.drop_seed = o.dropout.seed;
    c.drop_offset = o.dropout.offset;
    c.drop_below = static_cast<std::uint32_t>(threshold - 1);
    c.pattern = static_cast<bool>(o.pattern);
    c.sinks = static_cast<bool>(o.sinks);
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
    // values negligible.
    const auto tile_bytes = static_cast<std::size_t>(most_rows * (c.head_size + c.value_size) * 4);
    split.tiles_per_task = std::clamp<std::int64_t>(static_cast<std::int64_t>(level2_bytes() / 2 / tile_bytes), 1, 4);
    split.row_blocks = (split.tiles + split.tiles_per_task - 1) / split.tiles_per_task;
    // Too few tasks for a machine of many cores: cut the keys too, no finer than 512.
    constexpr std::int64_t enough_tasks = 32;
    constexpr std::int64_t least_keys = 512;
    const std::int64_t tasks = split.row_blocks * c.kv_heads;
    if (tasks < enough_tasks && s.keys >= 2 * least_keys) {
        split.key_parts = std::min((enough_tasks + tasks - 1) / tasks, s.keys / least_keys);
    }
    split.part_keys = (s.keys + split.key_parts - 1) / split.key_parts;
    split.part_keys = (split.part_keys + c.tile_keys - 1) / c.tile_keys * c.tile_keys;
    if (split.part_keys > 0) {
        split.key_parts = std::max<std::int64_t>(1, (s.keys + split.part_keys - 1) / split.part_keys);
    }
    return split;
}

Sequence sequence_of(const Call& c, std::int64_t b) { return c.problem->sequence(b); }

ForwardPlan plan_forward(const Call& c, detail::Pool& pool, std::int64_t value_stride) {
    ForwardPlan plan;
    const auto header = static_cast<std::size_t>(c.batch + 1) * sizeof(ForwardPlan::Entry);
    const auto partial_at = (header + 63) / 64 * 64;
    ForwardPlan::Entry next;
    const auto advance = [&](std::int64_t b) {
        const Sequence s = sequence_of(c, b);
        const Split split = split_forward(c, s);
        next.first_task += split.tasks(c.kv_heads);
        if (split.key_parts > 1) {
            const std::int64_t tiles = split.tiles * c.kv_heads;
            next.first_merge += tiles;
            next.first_partial += tiles * split.key_parts * partial_floats(split, value_stride);
        }
        plan.operations += 2.0 * static_cast<double>(c.heads * (c.head_size + c.value_size)) *
                           static_cast<double>(s.queries) * static_cast<double>(s.keys);
    };
    for (std::int64_t b = 0; b < c.batch; ++b) { advance(b); }
    char* memory =
        static_cast<char*>(pool.shared().at_least(partial_at + static_cast<std::size_t>(next.first_partial) * 4));
    auto* entries = reinterpret_cast<ForwardPlan::Entry*>(memory);
    plan.partials = reinterpret_cast<float*>(memory + partial_at);
    next = {};
    plan.operations = 0;
    for (std::int64_t b = 0; b < c.batch; ++b) {
        entries[b] = next;
        advance(b);
    }
    entries[c.batch] = next;
    plan.entries = entries;
    plan.tasks = next.first_task;
    plan.merges = next.first_merge;
    return plan;
}

std::int64_t ForwardPlan::entry_of_task(std::int64_t batch, std::int64_t task) const {
    const auto after = [](std::int64_t value, const Entry& entry) { return value < entry.first_task; };
    return std::upper_bound(entries, entries + batch + 1, task, after) - entries - 1;
}

std::int64_t ForwardPlan::entry_of_merge(std::int64_t batch, std::int64_t merge) const {
    const auto after = [](std::int64_t value, const Entry& entry) { return value < entry.first_merge; };
    return std::upper_bound(entries, entries + batch + 1, merge, after) - entries - 1;
}

namespace {

/// Lanes that waste least: a vector half as wide where the rows fill no more of the full one.
int lanes_for(int rows, int widest) {
    const auto padded = [rows](int lanes) { return (rows + lanes - 1) / lanes * lanes; };
    int lanes = widest;
    while (lanes > 8 && rows <= 2 * widest && padded(lanes / 2) < padded(lanes)) { lanes /= 2; }
    while (lanes > 4 && rows <= lanes / 2) { lanes /= 2; }
    return lanes;
}

void fill_row(const Call& c, const Sequence& s, const Keys& keys, std::int64_t b, std::int64_t head, std::int64_t i,
              int r, RowTile& tile) {
    const AttentionProblem& p = *c.problem;
    const AttentionOptions& o = p.options;
    const std::int64_t at = p.query_position(s, i) - keys.position_base;
    tile.head[r] = static_cast<std::int32_t>(head);
    tile.index[r] = static_cast<std::int32_t>(i);
    tile.position[r] = narrow(at);
    tile.low[r] = o.window.left >= 0 ? narrow(at - o.window.left) : narrow(-2 * far);
    std::int64_t high = o.window.right >= 0 ? at + o.window.right : 2 * far;
    if (o.causal) { high = std::min(high, at); }
    tile.high[r] = narrow(high);
    tile.slope[r] = c.alibi ? static_cast<float>(p.slope(b, head) * log2_e) : 0.0F;
    tile.plane[r] = static_cast<std::uint32_t>(b * c.heads + head);
}

/// Which keys the tile's vectors see, from the rows' windows.
void fill_spans(const Call& c, const Keys& keys, RowTile& tile) {
    const AttentionOptions& o = c.problem->options;
    const auto count = static_cast<std::int32_t>(keys.count);
    // With explicit positions every key has to be looked at, unless nothing asks for its position.
    const bool look = keys.explicit_positions && (o.causal || o.window.left >= 0 || o.window.right >= 0);
    tile.begin = count;
    tile.end = 0;
    for (int n = 0; n < tile.vectors; ++n) {
        std::int32_t some_begin = count, some_end = 0, all_begin = 0, all_end = count;
        for (int r = n * tile.lanes; r < (n + 1) * tile.lanes; ++r) {
            const std::int32_t begin = keys.explicit_positions ? 0 : std::clamp(tile.low[r], 0, count);
            const std::int32_t end = keys.explicit_positions ? count : std::clamp(tile.high[r] + 1, 0, count);
            if (begin < end) {
                some_begin = std::min(some_begin, begin);
                some_end = std::max(some_end, end);
            }
            all_begin = std::max(all_begin, begin);
            all_end = std::min(all_end, end);
        }
        const bool anything = some_begin < some_end;
        tile.some_begin[n] = anything ? some_begin : 0;
        tile.some_end[n] = anything ? some_end : 0;
        tile.all_begin[n] = look || all_begin >= all_end ? tile.some_end[n] : all_begin;
        tile.all_end[n] = look || all_begin >= all_end ? tile.some_end[n] : all_end;
        if (anything) {
            tile.begin = std::min(tile.begin, some_begin);
            tile.end = std::max(tile.end, some_end);
        }
    }
    tile.visible = tile.begin < tile.end;
    if (!tile.visible) { tile.begin = tile.end = 0; }
}

void start_tile(const Sequence& s, std::int64_t b, int rows, int widest_lanes, RowTile& tile) {
    tile.batch = s.batch;
    tile.sequence = b;
    tile.query_begin = s.query_begin;
    tile.rows = rows;
    tile.lanes = lanes_for(rows, widest_lanes);
    tile.vectors = (rows + tile.lanes - 1) / tile.lanes;
}

}  // namespace

void fill_rows(const Call& c, const Sequence& s, const Keys& keys, const Split& split, std::int64_t b, std::int64_t g,
               std::int64_t t, int widest_lanes, RowTile& tile) {
    std::int64_t first_head = 0;
    std::int64_t heads = 1;
    std::int64_t first_row = 0;
    std::int64_t rows = 0;
    if (split.heads_per_tile > 1) {
        first_head = t * split.heads_per_tile;
        heads = std::min(split.heads_per_tile, c.group - first_head);
        rows = s.queries;
    } else {  // neighbouring tiles: the same rows of the group's heads
        first_head = t % c.group;
        first_row = t / c.group * split.rows_per_tile;
        rows = std::min(split.rows_per_tile, s.queries - first_row);
    }
    start_tile(s, b, static_cast<int>(heads * rows), widest_lanes, tile);
    for (int r = 0; r < tile.stride(); ++r) {
        const std::int64_t real = std::min(r, tile.rows - 1);
        fill_row(c, s, keys, b, g * c.group + first_head + real / rows, first_row + real % rows, r, tile);
    }
    fill_spans(c, keys, tile);
}

void fill_listed_rows(const Call& c, const Sequence& s, const Keys& keys, std::int64_t b, std::int64_t h,
                      const std::int64_t* rows, std::int64_t count, int widest_lanes, RowTile& tile) {
    start_tile(s, b, s.queries > 0 ? static_cast<int>(count) : 0, widest_lanes, tile);
    for (int r = 0; r < tile.stride(); ++r) {
        const std::int64_t i = rows[std::min(r, tile.rows - 1)];
        fill_row(c, s, keys, b, h, i < s.queries ? i : 0, r, tile);
    }
    fill_spans(c, keys, tile);
}

void fill_key_positions(const Call& c, const Sequence& s, const Keys& keys, std::int64_t begin, std::int64_t count,
                        std::int32_t* positions, std::int32_t& least, std::int32_t& most) {
    if (!keys.explicit_positions) {
        least = static_cast<std::int32_t>(begin);
        most = static_cast<std::int32_t>(begin + count - 1);
        for (std::int64_t n = 0; n < count; ++n) { positions[n] = static_cast<std::int32_t>(begin + n); }
        return;
    }
    least = std::numeric_limits<std::int32_t>::max();
    most = std::numeric_limits<std::int32_t>::min();
    for (std::int64_t n = 0; n < count; ++n) {
        positions[n] = narrow(c.problem->key_position(s, begin + n) - keys.position_base);
        least = std::min(least, positions[n]);
        most = std::max(most, positions[n]);
    }
}

Cover pattern_cover(const Call& c, const RowTile& tile, const Keys& keys, std::int32_t least, std::int32_t most) {
    bool all = true;
    bool none = true;
    for (int r = 0; r < tile.rows;) {
        int end = r;
        std::int32_t first = tile.position[r];
        std::int32_t last = first;
        for (; end < tile.rows && tile.head[end] == tile.head[r]; ++end) {
            first = std::min(first, tile.position[end]);
            last = std::max(last, tile.position[end]);
        }
        const Cover cover = c.problem->options.pattern.cover({.batch = tile.sequence,
                                                              .head = tile.head[r],
                                                              .query_begin = first + keys.position_base,
                                                              .query_end = last + keys.position_base + 1,
                                                              .key_begin = least + keys.position_base,
                                                              .key_end = most + keys.position_base + 1});
        all = all && cover == Cover::all;
        none = none && cover == Cover::none;
        r = end;
    }
    return all ? Cover::all : none ? Cover::none : Cover::some;
}

void pattern_row(const Call& c, const RowTile& tile, const Keys& keys, int row, std::int64_t begin, std::int64_t count,
                 const std::int32_t* positions, float* add) {
    constexpr float hidden = -std::numeric_limits<float>::infinity();
    constexpr std::int64_t chunk = 256;
    const Pattern& pattern = c.problem->options.pattern;
    const std::int64_t query = tile.position[row] + keys.position_base;
    if (keys.explicit_positions) {
        for (std::int64_t n = 0; n < count; ++n) {
            if (!pattern.allows(tile.sequence, tile.head[row], query, positions[n] + keys.position_base)) {
                add[n] = hidden;
            }
        }
        return;
    }
    std::uint8_t allowed[chunk];
    for (std::int64_t from = 0; from < count; from += chunk) {
        const std::int64_t size = std::min(chunk, count - from);
        pattern.row(tile.sequence, tile.head[row], query, begin + from, begin + from + size, allowed);
        for (std::int64_t n = 0; n < size; ++n) {
            if (allowed[n] == 0) { add[from + n] = hidden; }
        }
    }
}

double sink_of(const Call& c, std::int64_t head) { return c.problem->sink(head); }

void put_lse(const Call& c, const RowTile& tile, int row, double lse) {
    const MutableView& view = c.problem->lse;
    write_number(view.dtype(), view.data(),
                 tile.batch * view.stride(0) + tile.head[row] * view.stride(1) +
                     (tile.query_begin + tile.index[row]) * view.stride(2),
                 lse);
}

void clear_all_rows(const Call& c) {
    const AttentionProblem& p = *c.problem;
    if (!p.options.query_lengths) { return; }
    for (std::int64_t b = 0; b < c.batch; ++b) { clear_rows(c, sequence_of(c, b)); }
}

}  // namespace heed::cpu
