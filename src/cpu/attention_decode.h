#pragma once
#include "cpu/attention_decode_four_rows.h"
#include "cpu/attention_finish.h"

/// Attention of a few rows (decoding), bound by memory: each key and value is read once, from end to end, for
/// all rows. The lanes run along the head in the products and along the keys in the softmax, which is taken anew for
/// every few keys, so that K and V arrive as two steady streams.

namespace heed::cpu {

template <class Isa>
class Decode : DecodeSoftmax<Isa> {
    using Softmax = DecodeSoftmax<Isa>;
    using Softmax::block_keys, Softmax::L, Softmax::look_up, Softmax::most;
    using typename Softmax::Block, typename Softmax::Group, typename Softmax::Stream;
    using S = Simd<Isa, L>;

public:
    using typename Softmax::Scratch;

    /// Is the entry for this kernel? Dropout is left to the other one.
    static HEED_INLINE bool takes(const Call& call, const Split& split) {
        if (split.tiles != 1 || call.drop || call.keep.data != nullptr) { return false; }
        constexpr std::int64_t long_enough = 512;  // to wait for memory
        return split.tile_rows <= decode_rows ||
               (split.tile_rows <= most && split.part_keys >= long_enough && in_fours(call));
    }

    /// The one tile of key/value head g over keys [key_begin, key_end).
    static void task(const Call& call, const Sequence& s, const Split& split, std::int64_t b, std::int64_t g,
                     std::int64_t key_begin, std::int64_t key_end, const Scratch& scratch, const Partial* partial) {
        RowTile& tile = *scratch.tile;
        const Keys keys = keys_of(call, s);
        fill_rows(call, s, keys, split, b, g, 0, L, tile);
        const HeadRows k = key_rows(call, s, g);
        const HeadRows v = value_rows(call, s, g);
        Stream stream{call, s, keys, tile, k, v, scratch};
        stream.begin = larger<std::int64_t>(tile.begin, key_begin);
        stream.begin -= (stream.begin - key_begin) % block_keys;
        stream.end = smaller<std::int64_t>(tile.end, key_end);
        for (int r = 0; r < most; ++r) {
            stream.largest[r] = negative_infinity;
            stream.sum[r] = F<L>{};
        }
        const std::int64_t value_stride = round_up(call.value_size, L);
        __builtin_memset(scratch.sums, 0, static_cast<std::size_t>(most * value_stride) * 4);
        with_readers(call, k, v, [&]<class KeyRows, class ValueRows, bool Staged>() {
            load_queries<KeyRows>(call, tile, scratch.q);
            with_rows(tile.rows, [&]<int R>() {
#if defined(__AVX512F__)
                if constexpr (KeyRows::Product::depth_per_lane == 1 && !Staged && R > 1) {
                    const auto is = [&](std::int64_t size) {
                        return call.head_size == size && call.value_size == size;
                    };
                    if (is(128)) { return run<KeyRows, ValueRows, Staged, R, 8>(stream); }
                    if (is(64)) { return run<KeyRows, ValueRows, Staged, R, 4>(stream); }
                }
#endif
                if constexpr (R <= decode_rows) { run<KeyRows, ValueRows, Staged, R, 0>(stream); }
            });
        });
        float sum[most];
        for (int r = 0; r < tile.rows; ++r) { sum[r] = S::reduce_add(stream.sum[r]); }
        if (partial == nullptr) {
            Finish<Isa>::rows(call, tile, {scratch.sums, stream.largest, sum}, value_stride);
            return;
        }
        const auto rows = static_cast<std::size_t>(tile.rows);
        __builtin_memcpy(partial->sums, scratch.sums, rows * static_cast<std::size_t>(value_stride) * 4);
        __builtin_memcpy(partial->largest, stream.largest, rows * 4);
        __builtin_memcpy(partial->sum, sum, rows * 4);
    }

private:
    /// Is there a kernel for more rows, four at a time? Not for pairs of bf16, whose rows are few enough for the other.
    static HEED_INLINE bool in_fours(const Call& call) {
#if defined(__AVX512F__) && !defined(__AVX512BF16__)
        const bool sizes = call.head_size == call.value_size && (call.head_size == 64 || call.head_size == 128);
        if (!sizes) { return false; }
        if (call.pages != nullptr) {
            return call.pages->k.storage == call.pages->v.storage && call.pages->k.storage != KvStorage::i4;
        }
        return call.k.dtype == call.v.dtype && call.k.column == 1 && call.v.column == 1;
#else
        return call.head_size < 0;
#endif
    }

    template <class Function>
    static HEED_INLINE void with_readers(const Call& call, const HeadRows& k, const HeadRows& v, Function&& function) {
        const bool whole = k.column == 1 && v.column == 1 && call.head_size % L == 0 && call.value_size % L == 0;
#if defined(__AVX512BF16__)
        if (whole && call.head_size % (2 * L) == 0 && call.value_size % WovenRows::columns == 0) {
            return function.template operator()<PairRows, WovenRows, false>();
        }
        if (whole) { return function.template operator()<Bf16Rows, Bf16Rows, false>(); }
#else
        if (whole && k.storage == v.storage) {
            switch (k.storage) {
                case KvStorage::f32: return function.template operator()<FloatRows, FloatRows, false>();
                case KvStorage::bf16: return function.template operator()<Bf16Rows, Bf16Rows, false>();
                case KvStorage::f16: return function.template operator()<HalfRows, HalfRows, false>();
                case KvStorage::i8: return function.template operator()<ByteRows, ByteRows, false>();
                default: break;
            }
        }
#endif
        function.template operator()<FloatRows, FloatRows, true>();
    }

    template <class Function>
    static HEED_INLINE void with_rows(int rows, Function&& function) {
        if (rows <= 1) { return function.template operator()<1>(); }
        if (rows <= 4) { return function.template operator()<4>(); }
        if constexpr (most > decode_rows) {
            if (rows > decode_rows) { return function.template operator()<most>(); }
        }
        function.template operator()<decode_rows>();
    }

    /// Lanes of a row of queries.
    template <class KeyRows>
    static HEED_INLINE std::int64_t query_stride(const Call& call) {
        return round_up(call.head_size, L) / KeyRows::Product::depth_per_lane;
    }

    template <class KeyRows>
    static void load_queries(const Call& call, const RowTile& tile, float* q) {
        const Tensor4& from = call.q;
        const std::int64_t stride = query_stride<KeyRows>(call);
        __builtin_memset(q, 0, static_cast<std::size_t>(most * stride) * 4);
        for (int r = 0; r < tile.rows; ++r) {
            const std::int64_t at =
                tile.batch * from.b + tile.head[r] * from.h + (tile.query_begin + tile.index[r]) * from.row;
            const char* row = from.data + at * from.element_size;
            if constexpr (KeyRows::Product::depth_per_lane == 2) {
                copy_pairs<Isa>(row, from.column, call.head_size, q + r * stride);
            } else {
                load_row<Isa>(from.dtype, row, from.column, call.head_size, q + r * stride);
            }
        }
    }

    /// Scores of one group, then values of the group before it, then weights of the first: a score is not asked for
    /// right after it was stored in pieces, which would cost a wait each time.
    /// NV: vectors of a key and of a value, where the products know them; otherwise 0.
    template <class KeyRows, class ValueRows, bool Staged, int R, int NV>
    static void run(Stream& stream) {
        Block block;
        Group groups[2];
        FetchAhead ahead;
        RowRun v{};
        bool waiting = false;  // weights whose values have not been added yet
        bool partial = false;
        int turn = 0;
        const auto add = [&](const Group& group) {
            if (!waiting) { return; }
            waiting = false;
            // 0 * NaN is NaN: what is hidden must not be multiplied.
            if (partial && !are_finite<ValueRows>(v, stream.call.value_size)) {
                add_seen_values<ValueRows>(stream, v, group);
            } else if constexpr (NV > 0) {
                using Four = DecodeFourRows<Isa, ValueRows, NV>;
                for (int r = 0; r < R; r += 4) {
                    Four::add(v, group, stream.scratch.sums + r * NV * L, r, typename Four::Fetch(v, r / 4, R / 4));
                }
            } else {
                add_values<ValueRows, R>(stream, v, group, ahead);
            }
        };
        for (std::int64_t from = stream.begin; from < stream.end; from += block_keys) {
            const std::int64_t to = smaller(stream.end, from + block_keys);
            if (!look_up(stream, from, to - from, block)) { continue; }
            for (std::int64_t j = from; j < to; j += L, turn ^= 1) {
                Group& group = groups[turn];
                const std::int64_t count = smaller<std::int64_t>(L, to - j);
                const RowRun k = find_rows<Isa, L, Staged>(stream.k, stream.call.head_size, j, count,
                                                           stream.scratch.staging_k, group.k_scale);
                if constexpr (NV > 0) {
                    using Four = DecodeFourRows<Isa, KeyRows, NV>;
                    for (int r = 0; r < R; r += 4) {
                        Four::scores(k, stream.scratch.q + r * NV * L, group, r, typename Four::Fetch(k, r / 4, R / 4));
                    }
                } else {
                    // Wanted next: the keys after these, and the values of these.
                    const std::int64_t next = j + 2 * L <= stream.end ? j + L : j;
                    ahead.keys(stream.k, stream.call.head_size, next);
                    ahead.values(stream.v, stream.call.value_size, j);
                    scores<KeyRows, R>(stream, k, group, ahead);
                }
                add(groups[turn ^ 1]);
                v = find_rows<Isa, L, Staged>(stream.v, stream.call.value_size, j, count, stream.scratch.staging_v,
                                              group.v_scale);
                waiting = true;
                partial = false;
                if constexpr (NV > 0 && !KeyRows::scaled && !ValueRows::scaled) {
                    if (block.plain && count == L) {
                        HEED_UNROLL
                        for (int r = 0; r < R; ++r) { Softmax::weigh_plain(stream, r, group); }
                        continue;
                    }
                }
                for (int r = 0; r < stream.tile.rows; ++r) {
                    partial = Softmax::template weigh<KeyRows, ValueRows>(stream, block, j - from, count, r, group) ||
                              partial;
                }
            }
        }
        add(groups[turn ^ 1]);
        if constexpr (ValueRows::Product::depth_per_lane == 2) { put_in_order<ValueRows>(stream); }
    }

    /// The sums of woven values, column after column.
    template <class ValueRows>
    static void put_in_order(const Stream& stream) {
        const std::int64_t stride = round_up(stream.call.value_size, L);
        for (int r = 0; r < stream.tile.rows; ++r) {
            for (std::int64_t first = 0; first < stride; first += ValueRows::columns) {
                float* sums = stream.scratch.sums + r * stride + first;
                float ordered[ValueRows::columns];
                for (int c = 0; c < ValueRows::columns; ++c) { ordered[c] = sums[ValueRows::place(c)]; }
                __builtin_memcpy(sums, ordered, sizeof(ordered));
            }
        }
    }

    /// weights[r][n] = q_r . k_n
    template <class KeyRows, int R>
    static HEED_INLINE void scores(const Stream& stream, const RowRun& k, Group& group, FetchAhead& ahead) {
        const std::int64_t stride = query_stride<KeyRows>(stream.call);
        // Where the size is known, the compiler keeps what it can of q in registers over several keys.
        if constexpr (Isa::registers >= 32 && R <= 4) {
            if (stride == 8 * L) { return scores_of<KeyRows, R>(stream, k, 8 * L, group, ahead); }
            if (stride == 4 * L) { return scores_of<KeyRows, R>(stream, k, 4 * L, group, ahead); }
        }
        scores_of<KeyRows, R>(stream, k, stride, group, ahead);
    }

    /// One key after the other, each from end to end: the order in which the hardware fetches ahead. Four keys at
    /// once would share what is loaded of q, but came out slower from memory.
    template <class KeyRows, int R>
    static HEED_INLINE void scores_of(const Stream& stream, const RowRun& k, std::int64_t stride, Group& group,
                                      FetchAhead& ahead) {
        constexpr int rows = smaller(R, L);
        constexpr int at_once = L / rows;
        for (int first = 0; first < R; first += rows) {
            const float* q = stream.scratch.q + first * stride;
            for (int j = 0; j < L; j += at_once) {
                F<L> sum[L];
                HEED_UNROLL
                for (int n = 0; n < at_once; ++n) {
                    F<L> part[rows] = {};
                    dot<KeyRows, rows>(k.first + (j + n) * k.step, q, stride, part, ahead);
                    HEED_UNROLL
                    for (int r = 0; r < rows; ++r) { sum[r * at_once + n] = part[r]; }
                }
                float result[L];
                S::store(result, sums_of<Isa, L>(sum));
                HEED_UNROLL
                for (int r = 0; r < rows; ++r) {
                    __builtin_memcpy(group.weights[first + r] + j, result + r * at_once, at_once * sizeof(float));
                }
            }
        }
    }

    /// Part sums of q_r . key, lane by lane.
    template <class KeyRows, int R>
    static HEED_INLINE void dot(const char* key, const float* q, std::int64_t stride, F<L> (&part)[R],
                                FetchAhead& ahead) {
        std::int64_t c = 0;
        const auto columns = [&]<int NV>() __attribute__((always_inline)) {
            constexpr int lines = NV * L * KeyRows::bytes / 64;
            for (; c + NV * L <= stride; c += NV * L) {
                HEED_UNROLL
                for (int n = 0; n < NV; ++n) {
                    ahead.share<lines>(n, NV);
                    const F<L> x = S::rounded(KeyRows::template load<Isa, L>(key, c + n * L));
                    HEED_UNROLL
                    for (int r = 0; r < R; ++r) {
                        const F<L> y = S::load(q + r * stride + c + n * L);
                        part[r] = KeyRows::Product::template add<Isa, L>(part[r], x, y);
                    }
                }
                ahead.advance<lines>();
            }
        };
        columns.template operator()<8>();
        columns.template operator()<4>();
        columns.template operator()<2>();
        columns.template operator()<1>();
    }

    /// sums += weights V, some columns at a time: by now V is in the second-level cache.
    template <class ValueRows, int R>
    static HEED_INLINE void add_values(const Stream& stream, const RowRun& v, const Group& group, FetchAhead& ahead) {
        constexpr bool many_registers = Isa::registers >= 32;
        constexpr int widest = many_registers && R == 1 ? 8 : 4;
        const std::int64_t stride = round_up(stream.call.value_size, L);
        const auto vectors = static_cast<int>(stride / L);
        int first = 0;
        const auto columns = [&]<int NV>() __attribute__((always_inline)) {
            constexpr int rows = smaller(R, many_registers || NV < 4 ? 4 : 2);
            for (; first + NV <= vectors; first += NV) {
                HEED_UNROLL
                for (int r = 0; r < R; r += rows) {
                    add_some<ValueRows, rows, NV>(v, group, r, stream.scratch.sums + r * stride, stride, first, ahead);
                }
            }
        };
        columns.template operator()<widest>();
        columns.template operator()<widest / 2>();
        columns.template operator()<1>();
    }

    template <class ValueRows, int R, int NV>
    static HEED_INLINE void add_some(const RowRun& v, const Group& group, int row, float* sums, std::int64_t stride,
                                     int first, FetchAhead& ahead) {
        F<L> sum[R][NV];
        HEED_UNROLL
        for (int r = 0; r < R; ++r) {
            HEED_UNROLL
            for (int n = 0; n < NV; ++n) { sum[r][n] = S::load(sums + r * stride + (first + n) * L); }
        }
        using Product = typename ValueRows::Product;
        constexpr bool woven = Product::depth_per_lane == 2;
        constexpr int lines = NV * L * ValueRows::bytes * Product::depth_per_lane / 64;
        for (std::int64_t j = 0; j < L; j += Product::depth_per_lane) {
            const char* value = v.first + j * v.step;
            F<L> w[R];
            HEED_UNROLL
            for (int r = 0; r < R; ++r) {
                w[r] = S::all(woven ? group.pairs[row + r][j / 2] : group.weights[row + r][j]);
            }
            HEED_UNROLL
            for (int n = 0; n < NV; ++n) {
                if (row == 0) { ahead.share<lines>(n, NV); }
                F<L> x;
                if constexpr (woven) {
                    x = S::rounded(ValueRows::template load_pair<Isa, L>(value, value + v.step, first + n));
                } else {
                    x = S::rounded(ValueRows::template load<Isa, L>(value, (first + n) * L));
                }
                HEED_UNROLL
                for (int r = 0; r < R; ++r) { sum[r][n] = Product::template add<Isa, L>(sum[r][n], x, w[r]); }
            }
            if (row == 0) { ahead.advance<lines>(); }
        }
        HEED_UNROLL
        for (int r = 0; r < R; ++r) {
            HEED_UNROLL
            for (int n = 0; n < NV; ++n) { S::store(sums + r * stride + (first + n) * L, sum[r][n]); }
        }
    }

    template <class ValueRows>
    static bool are_finite(const RowRun& v, std::int64_t columns) {
        if (ValueRows::scaled) { return true; }
        F<L> zero = {};  // x - x is NaN unless x is finite
        for (int j = 0; j < L; ++j) {
            for (std::int64_t e = 0; e < columns; e += L) {
                const F<L> x = ValueRows::template load<Isa, L>(v.first + j * v.step, e);
                zero += S::rounded(x) - x;
            }
        }
        return S::every(zero == F<L>{});
    }

    /// The same as add_values, passing over what is hidden.
    template <class ValueRows>
    static void add_seen_values(const Stream& stream, const RowRun& v, const Group& group) {
        const std::int64_t stride = round_up(stream.call.value_size, L);
        for (int r = 0; r < stream.tile.rows; ++r) {
            float* sums = stream.scratch.sums + r * stride;
            for (int j = 0; j < L; ++j) {
                if (group.seen[r][j] == 0) { continue; }
                const char* value = v.first + j * v.step;
                const float w = group.weights[r][j];
                if constexpr (ValueRows::Product::depth_per_lane == 2) {
                    const auto* words = reinterpret_cast<const std::uint16_t*>(value);
                    for (std::int64_t e = 0; e < stride; ++e) { sums[ValueRows::place(e)] += w * widen_bf16(words[e]); }
                    continue;
                }
                for (std::int64_t e = 0; e < stride; e += L) {
                    S::store(sums + e, S::load(sums + e) + S::all(w) * ValueRows::template load<Isa, L>(value, e));
                }
            }
        }
    }
};

}  // namespace heed::cpu
