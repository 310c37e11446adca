#include "cpu/attention/backward/plan.h"

#include <algorithm>
#include <limits>
#include <numbers>

namespace heed::cpu {
namespace {

/// Parts of dq that wait to be summed stay below this, unless one entry alone needs more.
constexpr std::int64_t wave_floats = std::int64_t{16} << 20;

std::int64_t entry_floats(const Call& c, const Sequence& s, const BackwardSplit& split) {
    return split.chunks > 1 ? (split.chunks - (c.dq_direct ? 1 : 0)) * c.heads * s.queries * c.head_size : 0;
}

double number_at(const View& view, const RowTile& tile, int row) {
    return read_number(view.dtype(), view.data(),
                       tile.batch * view.stride(0) + tile.head[row] * view.stride(1) +
                           (tile.query_begin + tile.index[row]) * view.stride(2));
}

void clear(const MutableView& view) {
    if (!view) { return; }
    const std::int64_t total = view.shape().elements();
    const Shape row_major = view.shape().row_major();
    for (std::int64_t n = 0; n < total; ++n) {
        std::int64_t offset = 0;
        for (int axis = 0; axis < view.rank(); ++axis) {
            offset += n / row_major[axis] % view.extent(axis) * view.stride(axis);
        }
        write_number(view.dtype(), view.data(), offset, 0);
    }
}

void add_to(const MutableView& view, std::int64_t offset, double more) {
    write_number(view.dtype(), view.data(), offset, read_number(view.dtype(), view.data(), offset) + more);
}

}  // namespace

BackwardSplit split_backward(const Call& c, const Sequence& s, std::int64_t bytes_per_key) {
    BackwardSplit split;
    split.rows = split_forward(c, s);
    // So many that 16 threads need not wait long for the last: with 32, a thread that fell behind on its second task
    // kept the others waiting for a quarter of the time.
    const std::int64_t enough_tasks = c.pattern ? 32 : 64;
    // Each costs a part of dq, and that its rows are made ready once more: next to the little that a pattern leaves to
    // do, four would be too many.
    const std::int64_t most_chunks = c.pattern ? 2 : BackwardSplit::most_chunks;
    const std::int64_t wanted = std::clamp<std::int64_t>(enough_tasks / c.kv_heads, 1, most_chunks);
    constexpr std::int64_t side = 512;  // a chunk has so many keys, or as many scores as if it had
    const std::int64_t by_scores = c.pattern ? 0 : s.queries * s.keys / (side * side);
    split.chunks = std::clamp<std::int64_t>(std::max(s.keys / side, by_scores), 1, wanted);
    const auto whole_tiles = [&](std::int64_t keys) { return (keys + c.tile_keys - 1) / c.tile_keys * c.tile_keys; };
    split.chunk_keys = std::max(c.tile_keys, whole_tiles((s.keys + split.chunks - 1) / split.chunks));
    split.chunks = std::max<std::int64_t>(1, (s.keys + split.chunk_keys - 1) / split.chunk_keys);
    // With a pattern a tile of rows meets few of these keys, and getting the rows ready has to pay off over them.
    const auto room = static_cast<std::int64_t>(level2_bytes()) / 2 * (c.pattern ? 8 : 1);
    split.super_keys =
        std::clamp<std::int64_t>(room / bytes_per_key / c.tile_keys, 1, BackwardSplit::most_super_tiles) * c.tile_keys;
    return split;
}

BackwardPlan plan_backward(const Call& c, detail::Pool& pool, std::int64_t first, std::int64_t bytes_per_key) {
    BackwardPlan plan;
    plan.first_entry = first;
    std::int64_t floats = 0;
    std::int64_t tiles = 0;
    for (std::int64_t b = first; b < c.batch; ++b) {
        const Sequence s = sequence_of(c, b);
        const BackwardSplit split = split_backward(c, s, bytes_per_key);
        const std::int64_t more = entry_floats(c, s, split);
        if (plan.entries > 0 && floats + more > wave_floats) { break; }
        floats += more;
        tiles += c.kv_heads * split.rows.tiles;
        ++plan.entries;
        plan.most_chunks = std::max(plan.most_chunks, split.chunks);
        plan.operations += 5.0 * static_cast<double>(c.heads * (c.head_size + c.value_size)) *
                           static_cast<double>(s.queries) * static_cast<double>(s.keys);
    }
    const MutableView& dbias = c.problem->gradients.dbias;
    if (dbias) {
        plan.loop_entries = dbias.extent(0) == 1;
        plan.loop_heads = dbias.extent(1) == 1;
        plan.loop_chunks = dbias.extent(3) == 1;
    }
    plan.tasks = (plan.loop_entries ? 1 : plan.entries) * (plan.loop_heads ? 1 : c.kv_heads) *
                 (plan.loop_chunks ? 1 : plan.most_chunks);
    plan.longest_first = has_few_tasks(plan.tasks, pool.threads());
    const auto slots = static_cast<std::size_t>(plan.entries * c.heads);
    const std::size_t doubles = slots * static_cast<std::size_t>(plan.most_chunks + 1);
    const auto whole_lines = [](std::size_t bytes) { return (bytes + 63) / 64 * 64; };
    const std::size_t deltas_at = whole_lines(doubles * sizeof(double));
    const std::size_t dq_filled_at = deltas_at + whole_lines(static_cast<std::size_t>(tiles) * sizeof(DeltaSlot));
    const std::size_t at = dq_filled_at + whole_lines(static_cast<std::size_t>(tiles * plan.most_chunks));
    char* memory = static_cast<char*>(pool.shared().at_least(at + static_cast<std::size_t>(floats) * 4));
    plan.slope_parts = reinterpret_cast<double*>(memory);
    plan.sink_parts = plan.slope_parts + slots * static_cast<std::size_t>(plan.most_chunks);
    plan.deltas = reinterpret_cast<DeltaSlot*>(memory + deltas_at);
    plan.dq_filled = reinterpret_cast<bool*>(memory + dq_filled_at);
    plan.dq_parts = reinterpret_cast<float*>(memory + at);
    std::fill(plan.slope_parts, plan.slope_parts + doubles, 0.0);
    std::fill_n(plan.deltas, tiles, DeltaSlot{});
    std::fill_n(plan.dq_filled, tiles * plan.most_chunks, false);
    return plan;
}

DqPart dq_part(const Call& c, const BackwardPlan& plan, const Sequence& s, const BackwardSplit& split, std::int64_t b,
               std::int64_t g, std::int64_t n, std::int64_t bytes_per_key) {
    if (c.dq_direct && n == 0) {
        const std::int64_t at = s.batch * c.dq.b + g * c.group * c.dq.h + s.query_begin * c.dq.row;
        return {reinterpret_cast<float*>(c.dq.data) + at, c.dq.h, c.dq.row};
    }
    const std::int64_t own_chunks = split.chunks - (c.dq_direct ? 1 : 0);
    const std::int64_t place = n - (c.dq_direct ? 1 : 0);
    std::int64_t at = (g * own_chunks + place) * c.group * s.queries * c.head_size;
    for (std::int64_t before = plan.first_entry; before < b; ++before) {
        const Sequence other = sequence_of(c, before);
        at += entry_floats(c, other, split_backward(c, other, bytes_per_key));
    }
    return {plan.dq_parts + at, s.queries * c.head_size, c.head_size};
}

std::int64_t delta_begin(const Call& c, const BackwardPlan& plan, std::int64_t b) {
    std::int64_t tiles = 0;
    for (std::int64_t n = plan.first_entry; n < b; ++n) {
        tiles += c.kv_heads * split_forward(c, sequence_of(c, n)).tiles;
    }
    return tiles;
}

void row_lses(const Call& c, const RowTile& tile, float* lse, float* rest) {
    constexpr double infinity = std::numeric_limits<double>::infinity();
    const View& view = c.problem->forward_lse;
    double exact[most_rows];
    std::fill_n(exact, most_rows, infinity);
    if (view.dtype() == DType::f32 &&
        tile.head[0] == tile.head[tile.rows - 1]) {  // rows of one head, one after the other
        const float* from = view.as<float>() + tile.batch * view.stride(0) + tile.head[0] * view.stride(1) +
                            (tile.query_begin + tile.index[0]) * view.stride(2);
        const std::int64_t step = view.stride(2);
        for (int r = 0; r < tile.rows; ++r) { exact[r] = static_cast<double>(from[r * step]); }
    } else {
        for (int r = 0; r < tile.rows; ++r) { exact[r] = number_at(view, tile, r); }
    }
    for (int r = 0; r < most_rows; ++r) {
        const double x = exact[r] == -infinity
                             ? infinity
                             : std::max(exact[r] * std::numbers::log2e, static_cast<double>(least_score));
        lse[r] = static_cast<float>(x);
        rest[r] = x == infinity ? 0.0F : static_cast<float>(x - static_cast<double>(lse[r]));
    }
}

float row_dlse(const Call& c, const RowTile& tile, int row) {
    return c.problem->dlse ? static_cast<float>(number_at(c.problem->dlse, tile, row)) : 0.0F;
}

void add_dbias(const Call& c, const RowTile& tile, int row, std::int64_t begin, std::int64_t count, const float* add) {
    const MutableView& dbias = c.problem->gradients.dbias;
    const std::int64_t at = AttentionProblem::broadcast(dbias, tile.sequence, tile.head[row], tile.index[row], begin);
    const std::int64_t step = dbias.extent(3) == 1 ? 0 : dbias.stride(3);
    const auto run = [&]<class T>() {
        T* to = dbias.template as<T>() + at;
        if (step == 1) {
            for (std::int64_t n = 0; n < count; ++n) { to[n] += static_cast<T>(add[n]); }
        } else {
            for (std::int64_t n = 0; n < count; ++n) { to[n * step] += static_cast<T>(add[n]); }
        }
    };
    if (dbias.dtype() == DType::f32) {
        run.operator()<float>();
    } else {
        run.operator()<double>();
    }
}

void clear_reduced(const Call& c) {
    clear(c.problem->gradients.dbias);
    clear(c.problem->gradients.dsinks);
    clear(c.problem->gradients.dalibi_slopes);
}

void add_reduced(const Call& c, const BackwardPlan& plan) {
    const AttentionGradients& g = c.problem->gradients;
    for (std::int64_t b = 0; b < plan.entries; ++b) {
        for (std::int64_t h = 0; h < c.heads; ++h) {
            const std::int64_t slot = b * c.heads + h;
            if (g.dsinks) { add_to(g.dsinks, h * g.dsinks.stride(0), plan.sink_parts[slot]); }
            if (!g.dalibi_slopes) { continue; }
            const MutableView& slopes = g.dalibi_slopes;
            const std::int64_t at = slopes.rank() == 2
                                        ? (plan.first_entry + b) * slopes.stride(0) + h * slopes.stride(1)
                                        : h * slopes.stride(0);
            double sum = 0;
            for (std::int64_t n = 0; n < plan.most_chunks; ++n) {
                sum += plan.slope_parts[slot * plan.most_chunks + n];
            }
            add_to(slopes, at, sum);
        }
    }
}

void clear_gradient_rows(const Call& c) {
    const AttentionOptions& o = c.problem->options;
    if (!o.query_lengths && !o.key_lengths) { return; }
    for (std::int64_t b = 0; b < c.batch; ++b) {
        const Sequence s = sequence_of(c, b);
        clear_rows_of_heads(c.dq, s.batch, c.heads, s.query_begin + s.queries, s.query_begin + s.rows, c.head_size);
        clear_rows_of_heads(c.dk, s.batch, c.kv_heads, s.key_begin + s.keys, s.key_begin + s.key_rows, c.head_size);
        clear_rows_of_heads(c.dv, s.batch, c.kv_heads, s.key_begin + s.keys, s.key_begin + s.key_rows, c.value_size);
    }
}

}  // namespace heed::cpu
