#pragma once
#include "cpu/attention/backward/backward.h"
#include "cpu/attention/decode/decode.h"
#include "cpu/attention/forward/forward.h"
#include "cpu/attention/forward/short.h"
#include "cpu/attention/weights.h"
#include "cpu/isa/tables.h"
#if defined(__AMX_BF16__) || defined(HEED_MODEL_TILES)
#include "cpu/matmul/tiles.h"
#endif

/// Attention for one instruction set: what the files of isa/ instantiate.

namespace heed::cpu {

#if defined(HEED_MODEL_TILES)
using PairProduct = TileProduct<Bf16Product, ModelTiles>;
#elif defined(__AMX_BF16__)
using PairProduct = TileProduct<Bf16Product, AmxTiles>;
#elif defined(__AVX512BF16__)
using PairProduct = Bf16Product;
#endif

/// Short plain sequences: whole heads, several in a row for whoever claims them, as a claim waits for the other
/// threads'.
template <class Isa>
bool forward_short(detail::Pool& pool, const Call& call, const ForwardPlan& plan) {
    if (plan.tasks_per_entry == 0) { return false; }  // entries of several sizes
    const Sequence s = sequence_of(call, 0);
    if (Decode<Isa>::takes(call, plan.split) || !ShortHeads<Isa>::takes(call, plan.split, s)) { return false; }
    const ShortHeads<Isa> kernel(call, s);
    const bool far = has_far_heads(call);
    const std::int64_t heads = call.batch * call.heads;
    const std::int64_t at_once = larger<std::int64_t>(1, smaller<std::int64_t>(heads / (32 * pool.threads()), 8));
    detail::parallel(pool, (heads + at_once - 1) / at_once, plan.effort, [&](std::int64_t claim, int worker) {
        const std::int64_t first = claim * at_once;
        kernel.heads(first, smaller(at_once, heads - first), far, first + pool.threads() * at_once,
                     kernel.scratch(pool.scratch(worker)));
    });
    return true;
}

/// See AttentionFunctions::way.
template <class Isa, class Product>
AttentionWay way_with(const Call& call) {
    const AttentionOptions& o = call.problem->options;
    const bool alike = !call.problem->packed && !o.query_lengths && !o.key_lengths;
    bool decode = true, short_heads = Product::depth_per_lane == 1, any = false;
    for (std::int64_t b = 0; b < (alike ? smaller<std::int64_t>(call.batch, 1) : call.batch); ++b) {
        const Sequence s = sequence_of(call, b);
        const Split split = split_forward(call, s);
        if (split.tiles == 0) { continue; }  // an entry without queries
        any = true;
        const bool few_rows = Decode<Isa>::takes(call, split);
        decode = decode && few_rows;
        short_heads = short_heads && !few_rows && ShortHeads<Isa>::takes(call, split, s);
        if (!decode && !short_heads) { return AttentionWay::each_its_own; }
    }
    if (!any) { return AttentionWay::each_its_own; }
    return decode ? AttentionWay::decode : AttentionWay::short_heads;
}

/// The forward pass of a call whose threads are known: tasks, then the merging of tiles whose keys were split.
template <class Isa, class Product>
class ForwardRun {
public:
    ForwardRun(detail::Pool& pool, const Call& call, const ForwardPlan& plan)
        : pool_(pool),
          call_(call),
          plan_(plan),
          z_(call),
          far_heads_(has_far_heads(call)),
          alternates_heads_(call.pattern || has_few_tasks(plan.tasks, call.threads)) {}

    void run() const {
        detail::parallel(pool_, plan_.tasks, plan_.effort, [&](std::int64_t task, int worker) {
            [[maybe_unused]] const typename SessionOf<Product>::Type session;
            run_task(task, worker);
        });
        detail::parallel(pool_, plan_.merges, plan_.effort, [&](std::int64_t merge, int) { run_merge(merge); });
    }

private:
    using Kernel = Forward<Isa, Product>;
    using Scratch = ForwardScratch<Isa, Product>;
    using DecodeScratch = typename Decode<Isa>::Scratch;

    /// One head after the other, so that its keys and values are still in the last cache; of a head the last rows
    /// first: under a causal mask they have the most to do. With a pattern any rows may have, and where threads have
    /// few tasks each the last one counts: then the heads alternate, so that no thread is left with the longest alone.
    ForwardTask task_at(std::int64_t task) const {
        const std::int64_t b = plan_.entry_of_task(call_.batch, task);
        const Sequence s = sequence_of(call_, b);
        const Split split = plan_.split_of(call_, s);
        std::int64_t n = task - plan_.entries[b].first_task;
        const std::int64_t part = n % split.key_parts;
        n /= split.key_parts;
        const std::int64_t g = alternates_heads_ ? n % call_.kv_heads : n / split.row_blocks;
        const std::int64_t rows = alternates_heads_ ? n / call_.kv_heads : n % split.row_blocks;
        const std::int64_t first = (split.row_blocks - 1 - rows) * split.tiles_per_task;
        const std::int64_t tiles = smaller(split.tiles_per_task, split.tiles - first);
        const std::int64_t key_begin = part * split.part_keys;
        const std::int64_t key_end = smaller(s.keys, key_begin + split.part_keys);
        return ForwardTask{s, split, b, g, part, first, tiles, key_begin, key_end};
    }

    Partial partial_of(std::int64_t b, const Split& split, std::int64_t g, std::int64_t tile, std::int64_t part) const {
        const std::int64_t index = (g * split.tiles + tile) * split.key_parts + part;
        float* memory =
            plan_.partials + plan_.entries[b].first_partial + index * partial_floats(split, z_.value_stride);
        float* rows = memory + split.tile_rows * z_.value_stride;
        return Partial{memory, rows, rows + split.tile_rows};
    }

    void run_task(std::int64_t number, int worker) const {
        const ForwardTask task = task_at(number);
        if (Decode<Isa>::takes(call_, task.split)) { return run_decode(task, worker); }
        if constexpr (Product::depth_per_lane == 1) {
            if (ShortHeads<Isa>::takes(call_, task.split, task.s)) {
                const ShortHeads<Isa> kernel(call_, task.s);
                const std::int64_t head = task.b * call_.heads + task.g * call_.group;
                kernel.heads(head, call_.group, far_heads_, head + pool_.threads() * call_.group,
                             kernel.scratch(pool_.scratch(worker)));
                return;
            }
        }
        run_tiles(number, task, worker);
    }

    void run_decode(const ForwardTask& task, int worker) const {
        DecodeScratch scratch;
        const std::size_t bytes = DecodeScratch::layout(call_, nullptr, nullptr);
        DecodeScratch::layout(call_, static_cast<char*>(pool_.scratch(worker).at_least(bytes)), &scratch);
        const bool whole = task.split.key_parts == 1;
        const Partial partial = whole ? Partial{} : partial_of(task.b, task.split, task.g, 0, task.part);
        Decode<Isa>::task(call_, task, scratch, whole ? nullptr : &partial);
    }

    void run_tiles(std::int64_t number, const ForwardTask& task, int worker) const {
        const Split& split = task.split;
        Scratch scratch;
        const std::size_t bytes = Scratch::layout(call_, split.tiles_per_task, nullptr, nullptr);
        Scratch::layout(call_, split.tiles_per_task, static_cast<char*>(pool_.scratch(worker).at_least(bytes)),
                        &scratch);
        if (far_heads_ && split.row_blocks == 1) {
            const std::int64_t head = task.g + pool_.threads();  // this thread's next task, most likely
            const std::int64_t entry = task.b + head / call_.kv_heads;
            if (entry < call_.batch) {
                scratch.next = {&call_, entry, head % call_.kv_heads, task.s.queries, task.s.keys};
            }
        }
        ForwardTask next;
        if (Kernel::worth_prefetching(call_, split) &&
            number + pool_.threads() < plan_.tasks) {  // its next one, most likely
            next = task_at(number + pool_.threads());
            if (Kernel::worth_prefetching(call_, next.split)) { scratch.next_task = &next; }
        }
        if (split.key_parts == 1) { return Kernel::task(call_, task, scratch, nullptr); }
        Partial partial[most_task_tiles];
        for (std::int64_t t = 0; t < task.tiles; ++t) {
            partial[t] = partial_of(task.b, split, task.g, task.first + t, task.part);
        }
        Kernel::task(call_, task, scratch, partial);
    }

    void run_merge(std::int64_t merge) const {
        const std::int64_t b = plan_.entry_of_merge(call_.batch, merge);
        const Sequence s = sequence_of(call_, b);
        const Keys keys = keys_of(call_, s);
        const Split split = plan_.split_of(call_, s);
        const std::int64_t n = merge - plan_.entries[b].first_merge;
        const std::int64_t g = n / split.tiles, t = n % split.tiles;
        RowTile tile;
        fill_rows(call_, {s, keys, b, g}, split, t, Isa::lanes, tile);
        Partial parts[64];
        for (std::int64_t part = 0; part < split.key_parts; ++part) { parts[part] = partial_of(b, split, g, t, part); }
        Finish<Isa>::merge(call_, tile, parts, split.key_parts, z_.value_stride);
    }

    detail::Pool& pool_;
    const Call& call_;
    const ForwardPlan& plan_;
    Sizes<Isa, Product> z_;
    bool far_heads_;
    bool alternates_heads_;  ///< tasks that follow one another are of different heads
};

template <class Isa, class Product>
void forward_with(detail::Pool& pool, Call call) {
    call.threads = pool.threads();
    const ForwardPlan plan = plan_forward(call, pool, Sizes<Isa, Product>(call).value_stride);
    if constexpr (Product::depth_per_lane == 1) {
        if (forward_short<Isa>(pool, call, plan)) { return; }
    }
    ForwardRun<Isa, Product>(pool, call, plan).run();
    clear_all_rows(call);
}

template <class Isa, class Product>
void backward_with(detail::Pool& pool, const Call& call) {
    using Kernel = Backward<Isa, Product>;
    using Scratch = BackwardScratch<Isa, Product>;
    const std::int64_t bytes_per_key = BackwardSizes<Isa, Product>(call).bytes_per_key();
    clear_reduced(call);
    for (std::int64_t first = 0; first < call.batch;) {
        const BackwardPlan plan = plan_backward(call, pool, first, bytes_per_key);
        const detail::Effort effort = detail::effort_for(plan.operations);
        detail::parallel(pool, plan.tasks, effort, [&](std::int64_t task, int worker) {
            [[maybe_unused]] const typename SessionOf<Product>::Type session;
            for_each_chunk(call, plan, task, [&](std::int64_t b, std::int64_t g, std::int64_t n) {
                const Sequence s = sequence_of(call, b);
                const BackwardSplit split = split_backward(call, s, bytes_per_key);
                if (n >= split.chunks) { return; }
                const bool own_dq = split.chunks == 1 && !call.dq_direct;
                const std::int64_t dq_floats = own_dq ? call.group * s.queries * call.head_size : 0;
                Scratch scratch;
                const std::size_t bytes = Scratch::layout(call, split.super_keys, dq_floats, nullptr, nullptr);
                char* memory = static_cast<char*>(pool.scratch(worker).at_least(bytes));
                Scratch::layout(call, split.super_keys, dq_floats, memory, &scratch);
                const DqPart dq = own_dq ? DqPart{scratch.dq, s.queries * call.head_size, call.head_size}
                                         : dq_part(call, plan, s, split, b, g, n, bytes_per_key);
                const BackwardTask of{s, split, b, g, n};
                Kernel::chunk(call, plan, of, dq, scratch);
                for (std::int64_t m = 0; split.chunks == 1 && m < call.group; ++m) {
                    Kernel::store_dq(call, plan, of, g * call.group + m, {0, s.queries}, &dq, scratch.dq_tile);
                }
            });
        });
        // Where keys were cut up, the parts of dq are summed in order, a block of rows at a time.
        if (plan.most_chunks > 1) {
            constexpr std::int64_t rows = 256;
            const std::int64_t blocks = (call.queries + rows - 1) / rows;
            detail::parallel(pool, plan.entries * call.heads * blocks, effort, [&](std::int64_t task, int worker) {
                const std::int64_t b = plan.first_entry + task / blocks / call.heads;
                const std::int64_t h = task / blocks % call.heads;
                const Sequence s = sequence_of(call, b);
                const BackwardSplit split = split_backward(call, s, bytes_per_key);
                if (split.chunks == 1) { return; }
                auto* sum =
                    static_cast<float*>(pool.scratch(worker).at_least(static_cast<std::size_t>(call.head_size) * 4));
                DqPart parts[BackwardSplit::most_chunks];
                for (std::int64_t n = 0; n < split.chunks; ++n) {
                    parts[n] = dq_part(call, plan, s, split, b, h / call.group, n, bytes_per_key);
                }
                const std::int64_t begin = task % blocks * rows;
                Kernel::store_dq(call, plan, {s, split, b, h / call.group, 0}, h,
                                 {begin, smaller(s.queries, begin + rows)}, parts, sum);
            });
        }
        add_reduced(call, plan);
        first += plan.entries;
    }
    clear_gradient_rows(call);
}

template <class Isa, class Product>
void weights_with(const Call& call, detail::Scratch& scratch, std::int64_t b, std::int64_t h, const std::int64_t* rows,
                  std::int64_t count, std::int64_t stride, float* out) {
    const Sequence s = sequence_of(call, b);
    const Keys keys = keys_of(call, s);
    [[maybe_unused]] const typename SessionOf<Product>::Type session;
    for (std::int64_t first = 0; first < count; first += most_rows) {
        RowTile tile;
        fill_listed_rows(call, {s, keys, b, h}, rows + first, smaller<std::int64_t>(most_rows, count - first),
                         Isa::lanes, tile);
        if (tile.rows > 0) { Weights<Isa, Product>::rows(call, s, keys, tile, scratch, stride, out + first * stride); }
        // Rows past their length are 0.
        for (std::int64_t r = 0; r < smaller<std::int64_t>(most_rows, count - first); ++r) {
            if (rows[first + r] >= s.queries) {
                __builtin_memset(out + (first + r) * stride, 0, static_cast<std::size_t>(s.keys) * 4);
            }
        }
    }
}

/// Calls function.template operator()<Product>(call) with the products of this instruction set; where it has products
/// of bf16 and the call is of another type, `others` instead, the functions of a set without: the same code made once.
template <class Function, class Others>
HEED_INLINE void with_product(const AttentionProblem& problem, Function&& function, [[maybe_unused]] Others&& others) {
    const Call call = make_call(problem);
#if defined(__AVX512BF16__)
    const bool slow = !UsesTiles<PairProduct> && pairs_are_slow();
    const bool stored =
        call.pages == nullptr || (call.pages->k.storage == KvStorage::bf16 && call.pages->v.storage == KvStorage::bf16);
    if (call.q.dtype == DType::bf16 && stored && !slow) { return function.template operator()<PairProduct>(call); }
    others(avx512_kernels.attention);
#else
    function.template operator()<FloatProduct>(call);
#endif
}

template <class Isa>
AttentionWay way(const AttentionProblem& problem) {
    AttentionWay answer = AttentionWay::each_its_own;
    with_product(
        problem,
        [&]<class Product>(Call call) {
            if (!problem.out) {  // only sizes are known: as if it were a new tensor
                call.out = call.q;
                call.out.row = call.value_size;
            }
            answer = way_with<Isa, Product>(call);
        },
        [&](const AttentionFunctions& others) { answer = others.way(problem); });
    return answer;
}

template <class Isa>
void forward(detail::Pool& pool, const AttentionProblem& problem, AttentionWay way) {
    with_product(
        problem,
        [&]<class Product>(Call call) {
            call.tiles_only = way == AttentionWay::tiles;
            forward_with<Isa, Product>(pool, call);
        },
        [&](const AttentionFunctions& others) { others.forward_with_bytes(pool, problem, way); });
}

/// Called by the set with products of bf16: a CPU that has those has products of bytes.
template <class Isa>
void forward_with_bytes(detail::Pool& pool, const AttentionProblem& problem, AttentionWay way) {
#if defined(__AVX512F__) && !defined(__AVX512BF16__)
    Call call = make_call(problem);
    call.byte_products = true;
    call.tiles_only = way == AttentionWay::tiles;
    forward_with<Isa, FloatProduct>(pool, call);
#else
    forward<Isa>(pool, problem, way);
#endif
}

template <class Isa>
void backward(detail::Pool& pool, const AttentionProblem& problem) {
    with_product(
        problem, [&]<class Product>(const Call& call) { backward_with<Isa, Product>(pool, call); },
        [&](const AttentionFunctions& others) { others.backward(pool, problem); });
}

template <class Isa>
void weights(const AttentionProblem& problem, detail::Scratch& scratch, std::int64_t b, std::int64_t h,
             const std::int64_t* rows, std::int64_t count, std::int64_t stride, float* out) {
    with_product(
        problem,
        [&]<class Product>(const Call& call) {
            weights_with<Isa, Product>(call, scratch, b, h, rows, count, stride, out);
        },
        [&](const AttentionFunctions& others) { others.weights(problem, scratch, b, h, rows, count, stride, out); });
}

template <class Isa>
constexpr AttentionFunctions attention_functions() {
    return {way<Isa>, forward<Isa>, forward_with_bytes<Isa>, backward<Isa>, weights<Isa>};
}

}  // namespace heed::cpu
