#pragma once
#include "cpu/attention_forward.h"
#include "cpu/isa/tables.h"

/// Attention for one instruction set: what the files of isa/ instantiate.

namespace heed::cpu {

/// Work below this is done where it is: waking a thread costs as much.
constexpr double operations_worth_waking = 1e6;

template <class Isa, class Product>
void forward_with(detail::Pool& pool, const Call& call) {
    using Kernel = Forward<Isa, Product>;
    using Scratch = ForwardScratch<Isa, Product>;
    const Sizes<Isa, Product> z(call);
    const ForwardPlan plan = plan_forward(call, pool, z.value_stride);
    const auto partial_of = [&](std::int64_t b, const Split& split, std::int64_t g, std::int64_t tile, std::int64_t part) {
        const std::int64_t index = (g * split.tiles + tile) * split.key_parts + part;
        float* memory = plan.partials + plan.entries[b].first_partial + index * partial_floats(split, z.value_stride);
        float* rows = memory + split.tile_rows * z.value_stride;
        return Partial{memory, rows, rows + split.tile_rows};
    };
    detail::parallel(pool, plan.tasks, plan.operations > operations_worth_waking, [&](std::int64_t task, int worker) {
        const std::int64_t b = plan.entry_of_task(call.batch, task);
        const Sequence s = sequence_of(call, b);
        const Split split = split_forward(call, s);
        // The last rows first: under a causal mask they have the most to do.
        std::int64_t n = task - plan.entries[b].first_task;
        const std::int64_t part = n % split.key_parts;
        n /= split.key_parts;
        const std::int64_t g = n % call.kv_heads;
        const std::int64_t first = (split.row_blocks - 1 - n / call.kv_heads) * split.tiles_per_task;
        const std::int64_t tiles = smaller(split.tiles_per_task, split.tiles - first);
        Scratch scratch;
        const std::size_t bytes = Scratch::layout(call, split.tiles_per_task, nullptr, nullptr);
        Scratch::layout(call, split.tiles_per_task, static_cast<char*>(pool.scratch(worker).at_least(bytes)), &scratch);
        const std::int64_t key_begin = part * split.part_keys;
        const std::int64_t key_end = smaller(s.keys, key_begin + split.part_keys);
        if (split.key_parts == 1) {
            Kernel::task(call, s, split, b, g, first, tiles, key_begin, key_end, scratch, nullptr);
            return;
        }
        Partial partial[4];
        for (std::int64_t t = 0; t < tiles; ++t) { partial[t] = partial_of(b, split, g, first + t, part); }
        Kernel::task(call, s, split, b, g, first, tiles, key_begin, key_end, scratch, partial);
    });
    detail::parallel(pool, plan.merges, plan.operations > operations_worth_waking, [&](std::int64_t merge, int) {
        const std::int64_t b = plan.entry_of_merge(call.batch, merge);
        const Sequence s = sequence_of(call, b);
        const Split split = split_forward(call, s);
        const std::int64_t n = merge - plan.entries[b].first_merge;
        const std::int64_t g = n / split.tiles;
        const std::int64_t t = n % split.tiles;
        RowTile tile;
        fill_rows(call, s, keys_of(call, s), split, b, g, t, Isa::lanes, tile);
        Partial parts[64];
        for (std::int64_t part = 0; part < split.key_parts; ++part) { parts[part] = partial_of(b, split, g, t, part); }
        Kernel::merge(call, tile, parts, split.key_parts);
    });
    clear_all_rows(call);
}

template <class Isa>
void forward(detail::Pool& pool, const AttentionProblem& problem) {
    const Call call = make_call(problem);
#if defined(__AVX512BF16__)
    if constexpr (Isa::bf16_products) {
        if (call.q.dtype == DType::bf16) {
            forward_with<Isa, Bf16Product>(pool, call);
            return;
        }
    }
#endif
    forward_with<Isa, FloatProduct>(pool, call);
}

template <class Isa>
constexpr AttentionFunctions functions() {
    return {forward<Isa>, nullptr, nullptr};
}

}  // namespace heed::cpu
