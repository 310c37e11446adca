/// Forward attention for Hopper: bands (causal, window, lengths, packed sequences), grouped heads, dropout, 16-bit
/// types.
///
/// A block stays on its multiprocessor and takes tiles of 64 rows a warpgroup. One warp copies queries, keys and values
/// into shared memory; the other warpgroups multiply. The softmax of a tile of keys runs while the tensor cores
/// multiply the weights of the tile before with its values:
///
///     copies          K4 .... V5 .... K3 .... V4 .... K2 ....
///     tensor cores    [ Q K4 ][ P5 V5 ][ Q K3 ][ P4 V4 ]
///     the rest                 softmax 4         softmax 3
///
/// What dropout keeps of a tile needs no product and is found while Q K runs.
///
/// What ptxas must not do is to move the wait for P5 V5 before the exponentials; a wait for the copy of the values
/// stands between the two and pins them (docs/gpu.md).

#include "cuda/sm90/forward.h"

#include "cuda/attention_any.h"
#include "cuda/sm90/forward_tiles.cuh"
#include "cuda/sm90/general.cuh"

namespace heed::cuda::sm90 {
namespace {

// ---- the warp that copies ------------------------------------------------------------------------------------------

template <class S>
__device__ void produce(Memory<S>& m, const CUtensorMap& q_map, const CUtensorMap& k_map, const CUtensorMap& v_map,
                        const AttentionCall& c, const TileOrder& order, int* counter) {
    Ring<S::k_stages> k;
    Ring<S::v_stages> v;
    Ring<S::slots> slot;
    Ring<S::q_stages> q;
    const int total = order.rows_tiles * order.planes;
    const auto publish = [&](int tile) {
        barrier_wait(m.tile_empty[slot.stage], slot.phase ^ 1);
        Work& work = m.work[slot.stage];
        if (tile < total) {
            find_work<S::row_tile, S::key_tile>(c, order, tile, work);
        } else {
            work.tile = -1;
        }
        barrier_arrive(m.tile_full[slot.stage]);
        slot.advance();
    };
    int tile = atomicAdd(counter, 1);
    int at = slot.stage;  // of the work
    publish(tile);
    while (tile < total) {
        const Work& work = m.work[at];
        at = slot.stage;
        const int next = atomicAdd(counter, 1);
        if (work.nothing()) {
            publish(next);
            tile = next;
            continue;
        }
        const int tile_end = work.tile_end, tile_begin = work.tile_begin;
        for (int n = tile_end - 1; n >= tile_begin; --n) {
            barrier_wait(m.k_empty[k.stage], k.phase ^ 1);
            copy_rows<S>(m.k[k.stage], k_map, m.k_full[k.stage], work, n);
            k.advance();
            if (n == tile_end - 1) {
                barrier_wait(m.q_empty[q.stage], q.phase ^ 1);
                Barrier& full = m.q_full[q.stage];
                barrier_arrive_expect(full, S::parts * S::row_tile * 128);
                for (int part = 0; part < S::parts; ++part) {
                    copy_box(m.q[q.stage][part], q_map, full, 64 * part, work.query_begin + work.first, work.head,
                             work.batch);
                }
                q.advance();
            } else {
                barrier_wait(m.v_empty[v.stage], v.phase ^ 1);
                copy_rows<S>(m.v[v.stage], v_map, m.v_full[v.stage], work, n + 1);
                v.advance();
                // Finding the next tile takes as long as a step: here copies are on their way meanwhile.
                if (n == tile_end - 2) { publish(next); }
            }
        }
        barrier_wait(m.v_empty[v.stage], v.phase ^ 1);
        copy_rows<S>(m.v[v.stage], v_map, m.v_full[v.stage], work, tile_begin);
        v.advance();
        if (tile_begin == tile_end - 1) { publish(next); }
        tile = next;
    }
}

// ---- the warpgroups that multiply ----------------------------------------------------------------------------------

/// Several copies of this are in a kernel, and a row meets one or the other: what may be fused is said, so that its
/// bits are the same in all of them.
template <class S, bool masked>
__device__ void softmax(Scores<S>& s, Rows& rows, float scale, int first_key) {
    const int column = first_key + static_cast<int>(threadIdx.x) % 4 * 2;
    float next[2] = {rows.largest[0], rows.largest[1]};
#pragma unroll
    for (int n = 0; n < S::key_tile / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            float& x = s[4 * n + e];
            const int r = e / 2;
            if constexpr (masked) {
                const int key = column + 8 * n + e % 2;
                if (key < rows.seen[r].begin || key >= rows.seen[r].end) { x = -__builtin_huge_valf(); }
            }
            next[r] = fmaxf(next[r], x);
        }
    }
    float shift[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        next[r] = fmaxf(next[r], __shfl_xor_sync(~0U, next[r], 1));
        next[r] = fmaxf(next[r], __shfl_xor_sync(~0U, next[r], 2));
        // A row that has seen nothing yet: exp2(-infinity - 0) = 0.
        shift[r] = masked && next[r] == -__builtin_huge_valf() ? 0.0F : next[r] * scale;
        rows.rescale[r] = exp2_fast(__fmaf_rn(rows.largest[r], scale, -shift[r]));
        rows.largest[r] = next[r];
        rows.sum[r] = __fmul_rn(rows.sum[r], rows.rescale[r]);
    }
#pragma unroll
    for (int n = 0; n < S::key_tile / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            float& x = s[4 * n + e];
            x = exp2_fast(__fmaf_rn(x, scale, -shift[e / 2]));
            rows.sum[e / 2] += x;
        }
    }
}

template <class S>
struct Consumer {
    Memory<S>& m;
    const AttentionCall& c;
    float scale;  ///< times log2(e)
    Ring<S::k_stages> k{};
    Ring<S::v_stages> v{};
    Ring<S::slots> slot{};
    Ring<S::q_stages> q_ring{};
    std::uint32_t plane = 0;  ///< of dropout's generator
    int row = 0;              ///< the thread's first

    __device__ Bits kept(int first_key) const {
        return random_bits<S::key_tile / 2>(c, plane,
                                            Spot<false>{row, first_key + static_cast<int>(threadIdx.x) % 4 * 2});
    }
    __device__ static void drop(Scores<S>& s, Bits kept) {
#pragma unroll
        for (int n = 0; n < S::key_tile / 2; ++n) {
            if (!kept(n)) { s[n] = 0; }
        }
    }

    __device__ static void give_back(Barrier& barrier) {
        if (threadIdx.x % 32 == 0) { barrier_arrive(barrier); }
    }
    /// The warpgroup's queries in that buffer.
    __device__ const void* queries(const Ring<S::q_stages>& ring) const {
        return &m.q[ring.stage][0][64 * (static_cast<int>(threadIdx.x) / 128 - 1)];
    }
    __device__ Ring<S::q_stages> next_queries() const {
        Ring<S::q_stages> next = q_ring;
        next.advance();
        return next;
    }

    /// One tile of keys while the products of the tile before run.
    /// `other`: the products are those of the rows before, whose output is not to be scaled.
    template <bool masked, bool other = false>
    __device__ void step(const void* q, Scores<S>& s, Weights<S>& p, Output<S>& o, Rows& rows, bool add,
                         int first_key) {
        barrier_wait(m.k_full[k.stage], k.phase);
        wgmma_fence();
        multiply_keys<S>(s, fresh_descriptor(q), fresh_descriptor(m.k[k.stage]));
        wgmma_commit();
        multiply_values<S>(o, p, fresh_descriptor(m.v[v.stage], S::key_tile * 128), add);
        wgmma_commit();
        Bits keeps;
        if constexpr (S::drops) {
            keeps = kept(first_key);
            barrier_wait(m.k_full[k.stage], k.phase);  // long there; it keeps the random words before the next line
        }
        wgmma_wait<1>();
        const int k_read = k.stage, v_read = v.stage;
        give_back(m.k_empty[k_read]);
        k.advance();
        v.advance();
        softmax<S, masked>(s, rows, scale, first_key);
        if constexpr (S::drops) { drop(s, keeps); }
        if constexpr (other) {
            // Of what is there already: the sum, never below 0, pins the next line behind the exponentials.
            barrier_wait(m.q_full[next_queries().stage], next_queries().phase + (rows.sum[0] + rows.sum[1] < 0.0F));
        } else {
            barrier_wait(m.v_full[v.stage], v.phase);  // needed for the next products, and here it pins the next line
        }
        wgmma_wait<0>();
        give_back(m.v_empty[v_read]);
        if constexpr (!other) { scale_output<S>(o, rows.rescale); }
        pack<S>(s, p);
    }

    /// The first tile of keys of a tile of rows.
    __device__ void first(const void* q, Scores<S>& s, Weights<S>& p, Rows& rows, int first_key) {
        barrier_wait(m.k_full[k.stage], k.phase);
        wgmma_fence();
        multiply_keys<S>(s, fresh_descriptor(q), fresh_descriptor(m.k[k.stage]));
        wgmma_commit();
        wgmma_wait<0>();
        give_back(m.k_empty[k.stage]);
        k.advance();
        softmax<S, true>(s, rows, scale, first_key);
        if constexpr (S::drops) { drop(s, kept(first_key)); }
        pack<S>(s, p);
        barrier_wait(m.v_full[v.stage], v.phase);
    }

    /// The other tiles of keys of a tile of rows, but for the last products.
    __device__ void middle(const Work& work, const void* q, Scores<S>& s, Weights<S>& p, Output<S>& o, Rows& rows,
                           bool& add) {
        int n = work.tile_end - 2;
        for (; n >= max(work.tile_begin, work.whole_end); --n) {
            step<true>(q, s, p, o, rows, add, n * S::key_tile);
            add = true;
        }
        for (; n >= max(work.tile_begin, work.whole_begin); --n) {
            step<false>(q, s, p, o, rows, add, n * S::key_tile);
            add = true;
        }
        for (; n >= work.tile_begin; --n) {
            step<true>(q, s, p, o, rows, add, n * S::key_tile);
            add = true;
        }
    }
    __device__ void last(const Weights<S>& p, Output<S>& o, bool add) {
        wgmma_fence();
        multiply_values<S>(o, p, fresh_descriptor(m.v[v.stage], S::key_tile * 128), add);
        wgmma_commit();
        wgmma_wait<0>();
        give_back(m.v_empty[v.stage]);
        v.advance();
    }

    __device__ static int row_of(const Work& work) {
        return work.first + (static_cast<int>(threadIdx.x) - 128) / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
    }
    __device__ void begin_rows(const Work& work, Rows& rows) {
        row = row_of(work);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            rows.largest[r] = -__builtin_huge_valf();
            rows.sum[r] = 0;
            rows.seen[r] = seen_by(c, work, row + 8 * r);
        }
        if constexpr (S::drops) { plane = plane_of(c, work, work.head); }
    }
    __device__ void store(const Work& work, const Rows& rows, Output<S>& o);

    /// The last products of a tile of rows beside the scores and weights of the next one.
    template <bool masked>
    __device__ void join(const Work& next, Scores<S>& s, Weights<S>& p, Output<S>& o, Rows& next_rows, bool add) {
        barrier_wait(m.q_full[next_queries().stage], next_queries().phase);
        step<masked, true>(queries(next_queries()), s, p, o, next_rows, add, (next.tile_end - 1) * S::key_tile);
    }

    /// Every tile of rows, one after the other. Where tiles are joined, the first weights of one are found while the
    /// last products of the one before run, and then that one's rows are written.
    __device__ void run() {
        Scores<S> s;
        Weights<S> p;
        Output<S> o;
        Rows rows;
        barrier_wait(m.tile_full[slot.stage], slot.phase);
        for (;;) {
            const Work* work = &m.work[slot.stage];
            if (work->tile < 0) { return; }
#pragma unroll
            for (int n = 0; n < S::size / 2; ++n) { o[n] = 0; }
            begin_rows(*work, rows);
            if (work->nothing()) {
                store(*work, rows, o);
                barrier_wait(m.tile_full[slot.stage], slot.phase);
                continue;
            }
            barrier_wait(m.q_full[q_ring.stage], q_ring.phase);
            first(queries(q_ring), s, p, rows, (work->tile_end - 1) * S::key_tile);
            for (;;) {
                bool add = false;
                middle(*work, queries(q_ring), s, p, o, rows, add);
                Ring<S::slots> next_slot = slot;
                next_slot.advance();
                barrier_wait(m.tile_full[next_slot.stage], next_slot.phase);
                const Work& next = m.work[next_slot.stage];
                const bool joined = S::joined && next.tile >= 0 && !next.nothing();
                Rows next_rows;
                if constexpr (S::joined) {
                    if (joined) {
                        begin_rows(next, next_rows);
                        const int n = next.tile_end - 1;
                        if (n >= next.whole_begin && n < next.whole_end) {
                            join<false>(next, s, p, o, next_rows, add);
                        } else {
                            join<true>(next, s, p, o, next_rows, add);
                        }
                    }
                }
                if (!joined) { last(p, o, add); }
                store(*work, rows, o);
                if (!joined) { break; }
                barrier_wait(m.v_full[v.stage], v.phase);
                work = &next;
                rows = next_rows;
            }
        }
    }
};

/// One row again, by a warp, from the tensors themselves: for rows whose result is not finite. Weights of 0 times NaN
/// or infinity in a key or value that the row does not see must not count, and tensor cores cannot leave anything out.
template <class S>
__device__ void repair_row(const AttentionCall& c, const Work& work, int i, float scale, float (&out)[S::size / 32],
                           float& lse) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const auto row_of = [&](const Tensor4& x, int head, std::int64_t row) {
        return static_cast<const std::uint16_t*>(x.data) + work.batch * x.stride[0] + head * x.stride[1] +
               row * x.stride[2];
    };
    const std::uint16_t* q = row_of(c.q, work.head, work.query_begin + i);
    const Seen seen = seen_by(c, work, i);
    float largest = -__builtin_huge_valf(), sum = 0;
#pragma unroll
    for (int n = 0; n < S::size / 32; ++n) { out[n] = 0; }
    for (int pass = 0; pass < 2; ++pass) {
        for (int key = seen.begin; key < seen.end; key += 32) {
            float x = -__builtin_huge_valf();
            if (key + lane < seen.end) {
                const std::uint16_t* k = row_of(c.k, work.kv_head, work.key_begin + key + lane);
                x = 0;
#pragma unroll 1
                for (int e = 0; e < S::size; ++e) { x += half_to_float(S::type, q[e]) * half_to_float(S::type, k[e]); }
            }
            if (pass == 0) {
                largest = fmaxf(largest, x);
                continue;
            }
            const bool nothing = largest == -__builtin_huge_valf();
            const float w =
                key + lane < seen.end && !(nothing && x == largest) ? exp2_fast((x - largest) * scale) : 0.0F;
            sum += w;
            float applied = w;
            if constexpr (S::drops) {
                const auto group = static_cast<std::uint32_t>(key + lane) / 4;
                const std::uint32_t keeps =
                    kept_of_four(c, plane_of(c, work, work.head), i, static_cast<int>(group)) >> (key + lane) % 4;
                applied = keeps % 2 != 0 ? w * c.drop_factor : 0.0F;
            }
#pragma unroll 1
            for (int n = 0; n < min(32, seen.end - key); ++n) {
                const float weight = __shfl_sync(~0U, applied, n);
                const std::uint16_t* v = row_of(c.v, work.kv_head, work.key_begin + key + n);
#pragma unroll
                for (int part = 0; part < S::size / 32; ++part) {
                    out[part] += weight * half_to_float(S::type, v[lane + 32 * part]);
                }
            }
        }
        for (int apart = 16; apart > 0; apart /= 2) {
            if (pass == 0) {
                largest = fmaxf(largest, __shfl_xor_sync(~0U, largest, apart));
            } else {
                sum += __shfl_xor_sync(~0U, sum, apart);
            }
        }
    }
    const bool empty = largest == -__builtin_huge_valf() && sum == 0;
    lse = empty ? -__builtin_huge_valf() : (largest * scale + log2f(sum)) * 0.6931471805599453F;
#pragma unroll
    for (int n = 0; n < S::size / 32; ++n) { out[n] = empty ? 0 : out[n] / sum; }
}

/// `factor`: what all weights are multiplied with.
template <class S>
__device__ Ends ends_of(const Work& work, const Rows& rows, float scale, float factor) {
    Ends ends;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        float sum = rows.sum[r];
        sum += __shfl_xor_sync(~0U, sum, 1);
        sum += __shfl_xor_sync(~0U, sum, 2);
        const bool empty = work.nothing() || rows.largest[r] == -__builtin_huge_valf() && sum == 0;
        ends.factor[r] = empty ? 0.0F : factor / sum;
        ends.lse[r] =
            empty ? -__builtin_huge_valf() : __fmaf_rn(rows.largest[r], scale, log2f(sum)) * 0.6931471805599453F;
    }
    return ends;
}

template <class S>
__device__ void Consumer<S>::store(const Work& work, const Rows& rows, Output<S>& o) {
    const float factor = S::drops ? c.drop_factor : 1.0F;
    store_rows<S>(m.q[q_ring.stage], c, work, o, ends_of<S>(work, rows, scale, factor),
                  [&](int i, float(&out)[S::size / 32], float& lse) { repair_row<S>(c, work, i, scale, out, lse); });
    if (!work.nothing()) {
        async_fence();
        __syncwarp();
        if (threadIdx.x % 32 == 0) { barrier_arrive(m.q_empty[q_ring.stage]); }
        q_ring.advance();
    }
    barrier_arrive(m.tile_empty[slot.stage]);
    slot.advance();
}

template <class S>
__global__ void __launch_bounds__(S::threads, 1)
    forward(const __grid_constant__ CUtensorMap q_map, const __grid_constant__ CUtensorMap k_map,
            const __grid_constant__ CUtensorMap v_map, const __grid_constant__ AttentionCall c,
            const __grid_constant__ TileOrder order, int* counter) {
    extern __shared__ char memory[];
    auto& m = aligned_memory<Memory<S>>(memory);
    init_barriers(m);
    if (threadIdx.x < 128) {
        fewer_registers<S::producer_registers>();
        if (threadIdx.x == 0) {
            prefetch(q_map);
            prefetch(k_map);
            prefetch(v_map);
            produce<S>(m, q_map, k_map, v_map, c, order, counter);
            finish_counter(counter);
        }
    } else {
        more_registers<S::consumer_registers>();
        Consumer<S> consumer{m, c, static_cast<float>(c.scale * 1.4426950408889634)};
        consumer.run();
    }
}

template <class S>
bool launch(cudaStream_t stream, const AttentionCall& c, const ForwardPlan& plan) {
    CUtensorMap q, k, v;
    if (!plan.memo->rows_map(q, c.q, {c.head_size, c.queries, c.heads, c.batch}, S::row_tile) ||
        !plan.memo->rows_map(k, c.k, {c.head_size, c.keys, c.kv_heads, c.batch}, S::key_tile) ||
        !plan.memo->rows_map(v, c.v, {c.value_size, c.keys, c.kv_heads, c.batch}, S::key_tile)) {
        return false;
    }
    const TileOrder order = order_of_rows(c, S::row_tile, false);
    const int bytes_shared = static_cast<int>(sizeof(Memory<S>)) + 1024;
    static_assert(sizeof(Memory<S>) + 1024 <= 227 * 1024, "what a multiprocessor has");
    if (!plan.memo->allow_shared(forward<S>, bytes_shared)) { return false; }
    const int blocks = order.total() < plan.multiprocessors ? order.total() : plan.multiprocessors;
    if (blocks > 0) { forward<S><<<blocks, S::threads, bytes_shared, stream>>>(q, k, v, c, order, plan.counter); }
    return true;
}

template <Half type, bool drops>
bool launch_type(cudaStream_t stream, const AttentionCall& c, const ForwardPlan& plan) {
    // With dropout the third warpgroup of head size 64 leaves too few registers.
    if (c.head_size == 64) { return launch<Shape<64, 128, drops ? 2 : 3, 2, type, drops>>(stream, c, plan); }
    if constexpr (!drops) {
        if (c.head_size == 256) { return launch<Shape<256, 80, 2, 1, type>>(stream, c, plan); }
        // Joined tiles are 3 % faster, but for the few keys that a short causal row sees: there 5 % slower.
        if (c.right < 0 || c.keys > 1024) { return launch<JoinedShape<128, 128, 2, type>>(stream, c, plan); }
    }
    return launch<Shape<128, 128, 2, 2, type, drops>>(stream, c, plan);
}
template <bool drops>
bool launch_drops(cudaStream_t stream, const AttentionCall& c, const ForwardPlan& plan) {
    return c.q.dtype == DType::bf16 ? launch_type<Half::bf16, drops>(stream, c, plan)
                                    : launch_type<Half::f16, drops>(stream, c, plan);
}

}  // namespace

bool launch_forward(void* stream, const AttentionCall& call, const ForwardPlan& plan) {
    launch_clear_behind(stream, call, call.out, false, call.value_size, 0);
    launch_clear_behind(stream, call, call.lse, false, 1, minus_infinity);
    const auto queue = static_cast<cudaStream_t>(stream);
    return call.drops ? launch_drops<true>(queue, call, plan) : launch_drops<false>(queue, call, plan);
}

}  // namespace heed::cuda::sm90
