/// Forward attention for Hopper with every option. The pipeline is that of forward.cu with one difference: between a
/// tile's scores and its weights stands code with branches, and ptxas keeps no product running across a branch. So the
/// products of a tile of keys with its values and those of the next tile's scores are queued together, and what runs
/// beside them is the other warpgroup's softmax:
///
///     warpgroup 1     [ P5 V5 ][ Q K4 ]  options, softmax 4     [ P4 V4 ][ Q K3 ]
///     warpgroup 2       options, softmax 5     [ P5 V5 ][ Q K4 ]  options, softmax 4

#include "cuda/attention_any.h"
#include "cuda/sm90/forward_tiles.cuh"
#include "cuda/sm90/general.cuh"

namespace heed::cuda::sm90 {
namespace {

/// A tile of keys, from the warp that copies to the others.
struct Step {
    int tile;
    bool edge;   ///< keys, or a band, end inside
    bool mixed;  ///< single pairs are hidden inside
    bool last;
};

template <class S>
struct alignas(1024) GeneralMemory {
    Memory<S> common;
    std::uint16_t bias[S::key_tile / 64][S::row_tile][64];
    Barrier bias_full, bias_empty;
    Step step[S::k_stages];
};

struct GeneralCall {
    AttentionCall call;
    TileOrder order;
    Squares squares;
    bool bias_is_copied;  ///< by the copy engine; else read where it lies
};

/// Tensors as the copy engine sees them.
struct GeneralMaps {
    CUtensorMap q, k, v, bias;
};

__device__ inline bool has_positions(const AttentionCall& c) {
    return c.query_positions.data != nullptr || c.key_positions.data != nullptr;
}

// ---- the warp that copies ------------------------------------------------------------------------------------------

/// The next tile of keys before `tile` that has anything to see, looked for by the whole warp; below tile_begin: none.
template <class S>
__device__ int next_tile(const Squares& squares, const Work& work, int tile, bool& mixed) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    mixed = false;
    if (squares.flags == nullptr) { return tile - 1; }
    for (int last = tile - 1; last >= work.tile_begin; last -= 32) {
        const int mine = last - lane;
        const unsigned flags = mine < work.tile_begin ? 0
                                                      : flags_of(squares, work, work.head, work.first,
                                                                 mine * S::key_tile, S::row_tile, S::key_tile);
        const unsigned found = __ballot_sync(~0U, (flags & Squares::some_seen) != 0);
        const unsigned hiding = __ballot_sync(~0U, (flags & Squares::some_hidden) != 0);
        if (found != 0) {
            const int first = __ffs(static_cast<int>(found)) - 1;
            mixed = (hiding >> first & 1U) != 0;
            return last - first;
        }
    }
    return work.tile_begin - 1;
}

template <class S>
__device__ void copy_bias(GeneralMemory<S>& memory, const GeneralMaps& maps, const AttentionCall& c, const Work& work,
                          int n) {
    barrier_arrive_expect(memory.bias_full, sizeof(memory.bias));
    for (int part = 0; part < S::key_tile / 64; ++part) {
        copy_box(memory.bias[part], maps.bias, memory.bias_full, n * S::key_tile + 64 * part, work.first,
                 c.bias.stride[1] != 0 ? work.head : 0, c.bias.stride[0] != 0 ? work.entry : 0);
    }
}

template <class S>
__device__ void produce(GeneralMemory<S>& memory, const GeneralMaps& maps, const GeneralCall& g, int* counter) {
    Memory<S>& m = memory.common;
    const AttentionCall& c = g.call;
    const bool leads = threadIdx.x == 0;
    Ring<S::k_stages> k, v;
    Ring<2> slot;
    Ring<S::q_stages> q;
    std::uint32_t bias_phase = 0;
    const int total = g.order.rows_tiles * g.order.planes;
    for (;;) {
        int tile = 0;
        if (leads) { tile = atomicAdd(counter, 1); }
        tile = __shfl_sync(~0U, tile, 0);
        barrier_wait(m.tile_empty[slot.stage], slot.phase ^ 1);
        Work& work = m.work[slot.stage];
        if (leads && tile < total) {
            find_work<S::row_tile, S::key_tile>(c, g.order, tile, work);
            if (has_positions(c)) {  // no row knows where its keys are
                work.tile_begin = work.whole_begin = 0;
                work.tile_end = work.first < work.queries ? (work.keys + S::key_tile - 1) / S::key_tile : 0;
                work.whole_end = work.keys / S::key_tile;
            }
        }
        if (leads && tile >= total) { work.tile = -1; }
        __syncwarp();
        bool mixed = false;
        int n = -1;
        if (tile < total && !work.nothing()) {
            n = next_tile<S>(g.squares, work, work.tile_end, mixed);
            __syncwarp();
            if (leads && n < work.tile_begin) { work.tile_end = work.tile_begin; }
        }
        __syncwarp();
        if (leads) { barrier_arrive(m.tile_full[slot.stage]); }
        slot.advance();
        if (tile >= total) { return; }
        if (work.nothing()) { continue; }
        const int tile_begin = work.tile_begin, whole_begin = work.whole_begin, whole_end = work.whole_end;
        int before = -1;
        for (bool first = true;; first = false) {
            bool next_mixed = false;
            const int next = next_tile<S>(g.squares, work, n, next_mixed);
            barrier_wait(m.k_empty[k.stage], k.phase ^ 1);
            if (leads) {
                memory.step[k.stage] = {n, n >= whole_end || n < whole_begin, mixed, next < tile_begin};
                copy_rows<S>(m.k[k.stage], maps.k, m.k_full[k.stage], work, n);
            }
            k.advance();
            if (first) {
                barrier_wait(m.q_empty[q.stage], q.phase ^ 1);
                if (leads) {
                    Barrier& full = m.q_full[q.stage];
                    barrier_arrive_expect(full, S::parts * S::row_tile * 128);
                    for (int part = 0; part < S::parts; ++part) {
                        copy_box(m.q[q.stage][part], maps.q, full, 64 * part, work.query_begin + work.first, work.head,
                                 work.batch);
                    }
                }
                q.advance();
            } else {
                barrier_wait(m.v_empty[v.stage], v.phase ^ 1);
                if (leads) { copy_rows<S>(m.v[v.stage], maps.v, m.v_full[v.stage], work, before); }
                v.advance();
            }
            if (g.bias_is_copied) {
                barrier_wait(memory.bias_empty, bias_phase ^ 1);
                if (leads) { copy_bias<S>(memory, maps, c, work, n); }
                bias_phase ^= 1;
            }
            before = n;
            mixed = next_mixed;
            n = next;
            if (n < tile_begin) { break; }
        }
        barrier_wait(m.v_empty[v.stage], v.phase ^ 1);
        if (leads) { copy_rows<S>(m.v[v.stage], maps.v, m.v_full[v.stage], work, before); }
        v.advance();
        __syncwarp();
    }
}

// ---- the warpgroups that multiply ----------------------------------------------------------------------------------

/// Scores in units of log2(e), from here on without a scale.
template <class S>
struct GeneralConsumer {
    GeneralMemory<S>& memory;
    const GeneralCall& g;
    Ring<S::k_stages> k{}, v{};
    Ring<S::q_stages> q_ring{};

    static constexpr int count = S::key_tile / 2;  ///< numbers of a thread
    std::uint32_t bias_phase = 0;

    /// take(n, two neighbouring numbers) of the tile of the bias in shared memory.
    template <class Take>
    __device__ void each_pair_of_bias(const Take& take) const {
        const int lane = static_cast<int>(threadIdx.x) % 32;
        const int row = (static_cast<int>(threadIdx.x) - 128) / 32 * 16 + lane / 4;
        const std::uint32_t first = shared_address(&memory.bias[0][row][0]) + lane % 4 * 4;
#pragma unroll
        for (int n = 0; n < count / 4; ++n) {
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const std::uint32_t chunk = static_cast<std::uint32_t>((n % 8 ^ lane / 4) * 16);  // swizzled by the row
                std::uint32_t pair;
                asm volatile("ld.shared.u32 %0, [%1];"
                             : "=r"(pair)
                             : "r"(first + chunk + (n / 8 * S::row_tile + 8 * r) * 128));
                take(4 * n + 2 * r, pair);
            }
        }
    }

    __device__ void add_copied_bias(Scores<S>& s) {
        barrier_wait(memory.bias_full, bias_phase);
        bias_phase ^= 1;
        if (g.call.bias.dtype == DType::bf16) {
            each_pair_of_bias([&](int n, std::uint32_t pair) {
                s[n] += __uint_as_float(pair << 16) * log2_e;
                s[n + 1] += __uint_as_float(pair & 0xFFFF0000U) * log2_e;
            });
        } else {
            each_pair_of_bias([&](int n, std::uint32_t pair) {
                s[n] += f16_to_float(static_cast<std::uint16_t>(pair)) * log2_e;
                s[n + 1] += f16_to_float(static_cast<std::uint16_t>(pair >> 16)) * log2_e;
            });
        }
        __syncwarp();
        if (threadIdx.x % 32 == 0) { barrier_arrive(memory.bias_empty); }
    }

    __device__ void score(Scores<S>& s, const Work& work, const Rows& rows, const Step& step, Spot<false> spot) {
        const AttentionCall& c = g.call;
        if (c.softcap > 0) {
            const float outside = static_cast<float>(c.softcap) * log2_e;
            each_bent(c, s, [&](int n, float bent) { s[n] = outside * bent; });
        } else {
            const float scale = static_cast<float>(c.scale * 1.4426950408889634);
#pragma unroll
            for (int n = 0; n < count; ++n) { s[n] *= scale; }
        }
        if (g.bias_is_copied) {
            add_copied_bias(s);
        } else if (c.bias.data != nullptr) {
            each_bias<count>(c, work, work.head, spot, [&](int n, float bias) { s[n] += bias * log2_e; });
        }
        if (c.slopes.data != nullptr) {
            const float slope = slope_of(c, work, work.head) * log2_e;
            each_distance<count>(c, work, spot, [&](int n, float distance) { s[n] -= slope * distance; });
        }
        if (step.mixed) {
            const Bits allowed = allowed_bits<count>(c, work, work.head, spot);
#pragma unroll
            for (int n = 0; n < count; ++n) {
                if (!allowed(n)) { s[n] = -__builtin_huge_valf(); }
            }
        }
        if (step.edge) {
#pragma unroll
            for (int n = 0; n < count; ++n) {
                const int key = spot.key(n), r = n % 4 / 2;
                if (key < rows.seen[r].begin || key >= rows.seen[r].end) { s[n] = -__builtin_huge_valf(); }
            }
        }
    }

    __device__ static void softmax(Scores<S>& s, Rows& rows) {
        float next[2] = {rows.largest[0], rows.largest[1]}, shift[2];
#pragma unroll
        for (int n = 0; n < count; ++n) { next[n % 4 / 2] = fmaxf(next[n % 4 / 2], s[n]); }
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            next[r] = fmaxf(next[r], __shfl_xor_sync(~0U, next[r], 1));
            next[r] = fmaxf(next[r], __shfl_xor_sync(~0U, next[r], 2));
            // A row that has seen nothing yet: exp2(-infinity - 0) = 0.
            shift[r] = next[r] == -__builtin_huge_valf() ? 0.0F : next[r];
            rows.rescale[r] = exp2_fast(rows.largest[r] - shift[r]);
            rows.largest[r] = next[r];
            rows.sum[r] *= rows.rescale[r];
        }
#pragma unroll
        for (int n = 0; n < count; ++n) {
            s[n] = exp2_fast(s[n] - shift[n % 4 / 2]);
            rows.sum[n % 4 / 2] += s[n];
        }
    }

    /// What dropout keeps, found while products run: it needs none of them.
    __device__ Bits kept_beside(const Work& work, Spot<false> spot) const {
        return g.call.drops ? kept_bits<count>(g.call, work, work.head, spot) : Bits{{~0U, ~0U}};
    }

    /// From products to weights that are ready to meet their values.
    __device__ void weigh(Scores<S>& s, Weights<S>& p, Output<S>& o, const Work& work, Rows& rows, const Step& step,
                          Spot<false> spot, Bits kept) {
        score(s, work, rows, step, spot);
        softmax(s, rows);
        if (g.call.drops) {
#pragma unroll
            for (int n = 0; n < count; ++n) {
                if (!kept(n)) { s[n] = 0; }
            }
        }
        scale_output<S>(o, rows.rescale);
        pack<S>(s, p);
    }

    /// All tiles of keys of a tile of rows.
    __device__ void multiply(const Work& work, Output<S>& o, Rows& rows, int row) {
        Memory<S>& m = memory.common;
        const int warpgroup = static_cast<int>(threadIdx.x) / 128 - 1;
        const int column = static_cast<int>(threadIdx.x) % 4 * 2;
        const void* q = &m.q[q_ring.stage][0][64 * warpgroup];
        Scores<S> s;
        Weights<S> p;
        barrier_wait(m.q_full[q_ring.stage], q_ring.phase);
        barrier_wait(m.k_full[k.stage], k.phase);
        Step step = memory.step[k.stage];
        Spot<false> spot{row, step.tile * S::key_tile + column};
        wgmma_fence();
        multiply_keys<S>(s, fresh_descriptor(q), fresh_descriptor(m.k[k.stage]));
        wgmma_commit();
        Bits kept = kept_beside(work, spot);
        wgmma_wait<0>();
        for (;;) {
            if (threadIdx.x % 32 == 0) { barrier_arrive(m.k_empty[k.stage]); }
            k.advance();
            weigh(s, p, o, work, rows, step, spot, kept);
            barrier_wait(m.v_full[v.stage], v.phase);
            if (step.last) { break; }
            barrier_wait(m.k_full[k.stage], k.phase);
            step = memory.step[k.stage];
            spot.column = step.tile * S::key_tile + column;
            wgmma_fence();
            multiply_values<S>(o, p, fresh_descriptor(m.v[v.stage], S::key_tile * 128), true);
            wgmma_commit();
            multiply_keys<S>(s, fresh_descriptor(q), fresh_descriptor(m.k[k.stage]));
            wgmma_commit();
            kept = kept_beside(work, spot);
            wgmma_wait<0>();
            if (threadIdx.x % 32 == 0) { barrier_arrive(m.v_empty[v.stage]); }
            v.advance();
        }
        wgmma_fence();
        multiply_values<S>(o, p, fresh_descriptor(m.v[v.stage], S::key_tile * 128), true);
        wgmma_commit();
        wgmma_wait<0>();
        if (threadIdx.x % 32 == 0) { barrier_arrive(m.v_empty[v.stage]); }
        v.advance();
    }
};

/// Steps 4 and 6 of a row: its sink, the sum, and what dropout multiplies with.
__device__ inline void end_row(const AttentionCall& c, const Work& work, float largest, float sum, float& factor,
                               float& lse) {
    constexpr float none = -__builtin_huge_valf();
    float top = largest;
    factor = 1;
    if (c.sinks.data != nullptr) {
        const float sink = load_as<float>(c.sinks.dtype, c.sinks.data, work.head * c.sinks.stride[0]) * log2_e;
        const float next = sink > top || sink != sink ? sink : top;
        factor = top == none ? 0.0F : exp2_fast(top - next);
        if (next != none) { sum = (top == none ? sum : sum * factor) + exp2_fast(sink - next); }
        top = next;
    }
    const bool something = top != none || sum != sum;
    factor = something ? factor / sum : 0.0F;
    lse = something ? (top + log2f(sum)) * 0.6931471805599453F : none;
    if (c.drops) { factor *= c.drop_factor; }
}

/// One row again, by a warp, from the tensors themselves, one pair at a time: see forward.cu.
template <class S>
__device__ void repair_row(const AttentionCall& c, const Work& work, int i, float (&out)[S::size / 32], float& lse) {
    constexpr float none = -__builtin_huge_valf();
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const Entry s = entry_of(work);
    const auto row_of = [&](const Tensor4& x, int head, std::int64_t row) {
        return static_cast<const std::uint16_t*>(x.data) + work.batch * x.stride[0] + head * x.stride[1] +
               row * x.stride[2];
    };
    const std::uint16_t* q = row_of(c.q, work.head, work.query_begin + i);
    const std::int64_t p = query_position(c, s, i);
    float largest = none, sum = 0;
#pragma unroll
    for (int n = 0; n < S::size / 32; ++n) { out[n] = 0; }
#pragma unroll 1
    for (int key = 0; key < work.keys; key += 32) {
        Score<float> score;
        const Pair pair{work.head, i, key + lane, p, key + lane < work.keys ? key_position(c, s, key + lane) : 0};
        if (key + lane < work.keys) {
            const std::uint16_t* k = row_of(c.k, work.kv_head, work.key_begin + key + lane);
            float dot = 0;
#pragma unroll 1
            for (int e = 0; e < S::size; ++e) { dot += half_to_float(S::type, q[e]) * half_to_float(S::type, k[e]); }
            score = score_of<float, false>(c, s, pair, dot);
        }
        const unsigned visible = __ballot_sync(~0U, score.visible);
        if (visible == 0) { continue; }
        const float x = score.visible ? score.x * log2_e : none;
        float next = fmaxf(largest, x);
        for (int apart = 16; apart > 0; apart /= 2) { next = fmaxf(next, __shfl_xor_sync(~0U, next, apart)); }
        const float rescale = next == none ? 1.0F : exp2f(largest - next);
        float w = 0;
        if (score.visible) { w = next == none && x == none ? 0.0F : exp2f(x - next); }
        sum = sum * rescale + w;
        largest = next;
        if (c.drops && score.visible) { w *= kept<float>(c, s, pair) == 0 ? 0.0F : 1.0F; }
#pragma unroll
        for (int part = 0; part < S::size / 32; ++part) { out[part] *= rescale; }
#pragma unroll 1
        for (int n = 0; n < 32; ++n) {
            const float weight = __shfl_sync(~0U, w, n);
            if ((visible >> n & 1U) == 0) { continue; }
            const std::uint16_t* v = row_of(c.v, work.kv_head, work.key_begin + key + n);
#pragma unroll
            for (int part = 0; part < S::size / 32; ++part) {
                out[part] += weight * half_to_float(S::type, v[lane + 32 * part]);
            }
        }
    }
    for (int apart = 16; apart > 0; apart /= 2) { sum += __shfl_xor_sync(~0U, sum, apart); }
    float factor;
    end_row(c, work, largest, sum, factor, lse);
#pragma unroll
    for (int n = 0; n < S::size / 32; ++n) { out[n] = factor == 0 ? 0 : out[n] * factor; }
}

template <class S>
__device__ Ends ends_of(const AttentionCall& c, const Work& work, const Rows& rows) {
    Ends ends;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        float sum = rows.sum[r];
        sum += __shfl_xor_sync(~0U, sum, 1);
        sum += __shfl_xor_sync(~0U, sum, 2);
        end_row(c, work, rows.largest[r], sum, ends.factor[r], ends.lse[r]);
    }
    return ends;
}

template <class S>
__global__ void __launch_bounds__(S::threads, 1)
    forward_general(const __grid_constant__ GeneralMaps maps, const __grid_constant__ GeneralCall g, int* counter) {
    extern __shared__ char raw[];
    auto& memory = aligned_memory<GeneralMemory<S>>(raw);
    Memory<S>& m = memory.common;
    const AttentionCall& c = g.call;
    if (threadIdx.x == 0) {
        barrier_init(memory.bias_full, 1);
        barrier_init(memory.bias_empty, 4 * S::warpgroups);
    }
    init_barriers(m);
    if (threadIdx.x < 128) {
        fewer_registers<40>();
        if (threadIdx.x < 32) {
            produce<S>(memory, maps, g, counter);
            if (threadIdx.x == 0) { finish_counter(counter); }
        }
    } else {
        more_registers<232>();
        GeneralConsumer<S> consumer{memory, g};
        Ring<2> slot;
        for (;;) {
            barrier_wait(m.tile_full[slot.stage], slot.phase);
            const Work& work = m.work[slot.stage];
            if (work.tile < 0) { break; }
            Output<S> o;
            Rows rows;
            const int row =
                work.first + (static_cast<int>(threadIdx.x) - 128) / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
            const bool everywhere = has_positions(c);
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                rows.largest[r] = -__builtin_huge_valf();
                rows.sum[r] = 0;
                rows.seen[r] = everywhere ? Seen{0, work.keys} : seen_by(c, work, row + 8 * r);
            }
#pragma unroll
            for (int n = 0; n < S::size / 2; ++n) { o[n] = 0; }
            if (!work.nothing()) { consumer.multiply(work, o, rows, row); }
            store_rows<S>(m.q[consumer.q_ring.stage], c, work, o, ends_of<S>(c, work, rows),
                          [&](int i, float(&out)[S::size / 32], float& lse) { repair_row<S>(c, work, i, out, lse); });
            if (!work.nothing()) {
                async_fence();
                __syncwarp();
                if (threadIdx.x % 32 == 0) { barrier_arrive(m.q_empty[consumer.q_ring.stage]); }
                consumer.q_ring.advance();
            }
            barrier_arrive(m.tile_empty[slot.stage]);
            slot.advance();
        }
    }
}

template <class S>
bool launch(cudaStream_t stream, const AttentionCall& c, const ForwardPlan& plan, const Squares& squares) {
    GeneralMaps maps{};
    if (!plan.memo->rows_map(maps.q, c.q, {c.head_size, c.queries, c.heads, c.batch}, S::row_tile) ||
        !plan.memo->rows_map(maps.k, c.k, {c.head_size, c.keys, c.kv_heads, c.batch}, S::key_tile) ||
        !plan.memo->rows_map(maps.v, c.v, {c.value_size, c.keys, c.kv_heads, c.batch}, S::key_tile)) {
        return false;
    }
    const GeneralCall g{c, order_of_rows(c, S::row_tile, squares.flags != nullptr), squares,
                        plan.memo->bias_map(maps.bias, c, S::row_tile)};
    const int bytes_shared = static_cast<int>(sizeof(GeneralMemory<S>)) + 1024;
    if (!plan.memo->allow_shared(forward_general<S>, bytes_shared)) { return false; }
    const int blocks = g.order.total() < plan.multiprocessors ? g.order.total() : plan.multiprocessors;
    if (blocks > 0) { forward_general<S><<<blocks, S::threads, bytes_shared, stream>>>(maps, g, plan.counter); }
    return true;
}

template <Half type>
bool launch_type(cudaStream_t stream, const AttentionCall& c, const ForwardPlan& plan, const Squares& squares) {
    if (c.head_size == 64) { return launch<Shape<64, 128, 2, 2, type>>(stream, c, plan, squares); }
    if (c.head_size == 256) { return launch<Shape<256, 64, 2, 1, type>>(stream, c, plan, squares); }
    return launch<Shape<128, 128, 2, 2, type>>(stream, c, plan, squares);
}

}  // namespace

bool launch_general_forward(void* stream, const AttentionCall& call, const ForwardPlan& plan, const Squares& squares) {
    launch_clear_behind(stream, call, call.out, false, call.value_size, 0);
    launch_clear_behind(stream, call, call.lse, false, 1, minus_infinity);
    launch_squares(stream, call, squares);
    const auto queue = static_cast<cudaStream_t>(stream);
    return call.q.dtype == DType::bf16 ? launch_type<Half::bf16>(queue, call, plan, squares)
                                       : launch_type<Half::f16>(queue, call, plan, squares);
}

}  // namespace heed::cuda::sm90
