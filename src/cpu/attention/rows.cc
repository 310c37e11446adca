/// Tiles of query rows: which rows, where they stand, which keys they may see.
#include "cpu/attention/call.h"

#include <algorithm>
#include <limits>
#include <numbers>

namespace heed::cpu {

int lanes_for(int rows, int widest) {
    const auto padded = [rows](int lanes) { return (rows + lanes - 1) / lanes * lanes; };
    int lanes = widest;
    while (lanes > 8 && rows <= 2 * widest && padded(lanes / 2) < padded(lanes)) { lanes /= 2; }
    while (lanes > 4 && rows <= lanes / 2) { lanes /= 2; }
    return lanes;
}

namespace {

std::int32_t narrow(std::int64_t x) {
    return static_cast<std::int32_t>(std::clamp<std::int64_t>(x, -2 * farthest + 2, 2 * farthest - 2));
}

/// What all rows of a head have in common.
struct HeadOfRows {
    std::int64_t left, right;  ///< reach of the window, causal included; unlimited: beyond any position
    float slope;
    std::uint32_t plane;

    HeadOfRows(const Call& c, std::int64_t b, std::int64_t head)
        : slope(c.alibi ? static_cast<float>(c.problem->slope(b, head) * std::numbers::log2e) : 0.0F),
          plane(static_cast<std::uint32_t>(b * c.heads + head)) {
        const Window& reach = c.problem->reach;
        left = reach.left >= 0 ? reach.left : 4 * farthest;
        right = reach.right >= 0 ? reach.right : 4 * farthest;
    }
};

void fill_row(const HeadOfRows& common, std::int64_t head, std::int64_t i, std::int64_t at, int r, RowTile& tile) {
    tile.head[r] = static_cast<std::int32_t>(head);
    tile.index[r] = static_cast<std::int32_t>(i);
    tile.position[r] = narrow(at);
    tile.low[r] = narrow(at - common.left);
    tile.high[r] = narrow(at + common.right);
    tile.slope[r] = common.slope;
    tile.plane[r] = common.plane;
}

/// Which keys the tile's vectors see, from the rows' windows.
void fill_spans(const Call& c, const Keys& keys, RowTile& tile) {
    const Window& reach = c.problem->reach;
    const auto count = static_cast<std::int32_t>(keys.count);
    const bool unlimited = reach.left < 0 && reach.right < 0;
    // With explicit positions every key has to be looked at, unless nothing depends on its position.
    const bool look = keys.explicit_positions && !unlimited;
    tile.begin = count;
    tile.end = 0;
    if (!keys.explicit_positions && unlimited) {  // all see all
        for (int n = 0; n < tile.vectors; ++n) {
            tile.some_begin[n] = tile.all_begin[n] = 0;
            tile.some_end[n] = tile.all_end[n] = count;
        }
        tile.begin = 0;
        tile.end = count;
        tile.visible = count > 0;
        return;
    }
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

/// Rows i, i+1, ... at positions at, at+1, ...: the same as fill_row, in loops that vectorise. Short sequences notice.
void fill_run(const HeadOfRows& common, std::int64_t head, std::int64_t i, std::int64_t at, int begin, int rows,
              RowTile& tile) {
    const std::int32_t first = narrow(at);
    const std::int32_t low = narrow(at - common.left);
    const std::int32_t high = narrow(at + common.right);
    // Beyond any position the bound stays where it is; otherwise it moves with the row.
    const std::int32_t low_step = common.left < 2 * farthest ? 1 : 0;
    const std::int32_t high_step = common.right < 2 * farthest ? 1 : 0;
    for (int r = 0; r < rows; ++r) { tile.head[begin + r] = static_cast<std::int32_t>(head); }
    for (int r = 0; r < rows; ++r) { tile.index[begin + r] = static_cast<std::int32_t>(i) + r; }
    for (int r = 0; r < rows; ++r) { tile.position[begin + r] = first + r; }
    for (int r = 0; r < rows; ++r) { tile.low[begin + r] = low + low_step * r; }
    for (int r = 0; r < rows; ++r) { tile.high[begin + r] = high + high_step * r; }
    for (int r = 0; r < rows; ++r) { tile.slope[begin + r] = common.slope; }
    for (int r = 0; r < rows; ++r) { tile.plane[begin + r] = common.plane; }
}

void repeat_last_row(RowTile& tile) {
    for (int r = tile.rows; r < tile.stride(); ++r) {
        const int last = tile.rows - 1;
        tile.head[r] = tile.head[last];
        tile.index[r] = tile.index[last];
        tile.position[r] = tile.position[last];
        tile.low[r] = tile.low[last];
        tile.high[r] = tile.high[last];
        tile.slope[r] = tile.slope[last];
        tile.plane[r] = tile.plane[last];
    }
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

void fill_rows(const Call& c, const EntryHead& of, const Split& split, std::int64_t t, int widest_lanes,
               RowTile& tile) {
    const auto& [s, keys, b, g] = of;
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
    int r = 0;
    for (std::int64_t n = 0; n < heads; ++n) {
        const std::int64_t head = g * c.group + first_head + n;
        const HeadOfRows common(c, b, head);
        if (!c.problem->options.query_positions) {
            fill_run(common, head, first_row, first_row + s.shift - keys.position_base, r, static_cast<int>(rows),
                     tile);
            r += static_cast<int>(rows);
            continue;
        }
        for (std::int64_t i = first_row; i < first_row + rows; ++i, ++r) {
            fill_row(common, head, i, c.problem->query_position(s, i) - keys.position_base, r, tile);
        }
    }
    repeat_last_row(tile);
    fill_spans(c, keys, tile);
}

void fill_listed_rows(const Call& c, const EntryHead& of, const std::int64_t* rows, std::int64_t count,
                      int widest_lanes, RowTile& tile) {
    const auto& [s, keys, b, h] = of;
    start_tile(s, b, s.queries > 0 ? static_cast<int>(count) : 0, widest_lanes, tile);
    const HeadOfRows common(c, b, h);
    for (int r = 0; r < tile.rows; ++r) {
        const std::int64_t i = rows[r] < s.queries ? rows[r] : 0;
        fill_row(common, h, i, c.problem->query_position(s, i) - keys.position_base, r, tile);
    }
    repeat_last_row(tile);
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

namespace {

/// What the pattern says of the tile's rows and keys at positions [least, most].
Cover cover_of(const Call& c, const RowTile& tile, const Keys& keys, std::int64_t least, std::int64_t most) {
    bool all = true;
    bool none = true;
    const bool in_order = !c.problem->options.query_positions;
    for (int r = 0; r < tile.rows;) {
        int end = in_order && tile.head[tile.rows - 1] == tile.head[r] ? tile.rows : r;
        std::int32_t first = tile.position[r];
        std::int32_t last = end > r ? tile.position[end - 1] : first;
        for (; end < tile.rows && tile.head[end] == tile.head[r]; ++end) {
            first = std::min(first, tile.position[end]);
            last = std::max(last, tile.position[end]);
        }
        const Cover cover = c.problem->sparse.cover({.batch = tile.sequence,
                                                     .head = tile.head[r],
                                                     .query_begin = first + keys.position_base,
                                                     .query_end = last + keys.position_base + 1,
                                                     .key_begin = least,
                                                     .key_end = most + 1});
        all = all && cover == Cover::all;
        none = none && cover == Cover::none;
        r = end;
    }
    return all ? Cover::all : none ? Cover::none : Cover::some;
}

/// Leaves out what no row sees at either end of a run: of a square with one global key that is most.
void trim(const Call& c, const RowTile& tile, const Keys& keys, std::int64_t begin, PatternRun& run) {
    const auto hidden = [&](std::int64_t from, std::int64_t to) {
        return cover_of(c, tile, keys, begin + from, begin + to - 1) == Cover::none;
    };
    while (run.end - run.begin > pattern_step && hidden(run.begin, run.begin + pattern_step)) {
        run.begin += pattern_step;
    }
    while (run.end - run.begin > pattern_step) {
        const std::int64_t last = run.begin + (run.end - run.begin - 1) / pattern_step * pattern_step;
        if (!hidden(last, run.end)) { break; }
        run.end = last;
    }
}

}  // namespace

bool pattern_sees(const Call& c, const Keys& keys, const RowTile& tile, std::int64_t begin, std::int64_t count) {
    if (tile.begin >= begin + count || tile.end <= begin) { return false; }
    return keys.explicit_positions || cover_of(c, tile, keys, begin, begin + count - 1) != Cover::none;
}

int pattern_runs(const Call& c, const Sequence& s, const Keys& keys, const RowTile& tile, std::int64_t begin,
                 std::int64_t count, PatternRun* runs) {
    if (count > pattern_keys && !keys.explicit_positions) {
        const Cover whole = cover_of(c, tile, keys, begin, begin + count - 1);
        runs[0] = {0, count, whole};
        if (whole != Cover::some) { return whole == Cover::all ? 1 : 0; }
    }
    int size = 0;
    for (std::int64_t at = 0; at < count; at += pattern_keys) {
        const std::int64_t end = std::min(at + pattern_keys, count);
        if (tile.begin >= begin + end || tile.end <= begin + at) { continue; }
        std::int64_t least = begin + at;
        std::int64_t most = begin + end - 1;
        if (keys.explicit_positions) {
            least = most = c.problem->key_position(s, begin + at);
            for (std::int64_t n = at + 1; n < end; ++n) {
                const std::int64_t position = c.problem->key_position(s, begin + n);
                least = std::min(least, position);
                most = std::max(most, position);
            }
        }
        const Cover cover = cover_of(c, tile, keys, least, most);
        if (cover == Cover::none) { continue; }
        if (size > 0 && cover == Cover::all && runs[size - 1].cover == Cover::all && runs[size - 1].end == at) {
            runs[size - 1].end = end;
        } else {
            runs[size++] = {at, end, cover};
        }
        if (cover == Cover::some && !keys.explicit_positions) { trim(c, tile, keys, begin, runs[size - 1]); }
    }
    return size;
}

bool pattern_work(const Call& c, const Sequence& s, const Keys& keys, const RowTile& tile, std::int64_t begin,
                  std::int64_t count, PatternWork& work) {
    std::fill_n(work.count, pattern_blocks, 0);
    if (!pattern_sees(c, keys, tile, begin, count)) { return false; }
    bool anything = false;
    for (std::int64_t n = 0; n * c.tile_keys < count; ++n) {
        const std::int64_t at = n * c.tile_keys;
        work.count[n] = pattern_runs(c, s, keys, tile, begin + at, std::min(c.tile_keys, count - at), work.runs[n]);
        anything = anything || work.count[n] > 0;
    }
    return anything;
}

void pattern_row(const Call& c, const RowTile& tile, const Keys& keys, int row, std::int64_t begin, std::int64_t count,
                 const std::int32_t* positions, std::uint8_t* allowed) {
    const Pattern& pattern = c.problem->sparse;
    const std::int64_t query = tile.position[row] + keys.position_base;
    if (!keys.explicit_positions) {
        pattern.row(tile.sequence, tile.head[row], query, begin, begin + count, allowed);
        return;
    }
    for (std::int64_t n = 0; n < count; ++n) {
        const std::int64_t key = positions[n] + keys.position_base;
        allowed[n] = pattern.allows(tile.sequence, tile.head[row], query, key) ? 1 : 0;
    }
}

}  // namespace heed::cpu
