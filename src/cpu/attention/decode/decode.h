#pragma once
#include "cpu/attention/decode/any_size.h"
#include "cpu/attention/decode/bytes.h"
#include "cpu/attention/decode/whole_rows.h"
#include "cpu/attention/forward/finish.h"

/// Attention of a few rows (decoding), bound by memory: each key and value is read once, from end to end, for
/// all rows. The lanes run along the head in the products and along the keys in the softmax, which is taken anew for
/// every few keys, so that K and V arrive as two steady streams.

namespace heed::cpu {

template <class Isa>
class Decode : DecodeSoftmax<Isa> {
    using Softmax = DecodeSoftmax<Isa>;
    using AnySize = DecodeAnySize<Isa>;
    using Softmax::block_keys, Softmax::L, Softmax::look_up, Softmax::most;
    using typename Softmax::Block, typename Softmax::Group, typename Softmax::Stream;
    using S = Simd<Isa, L>;
    static constexpr int bytes_by_bytes = -1;  ///< for a number of vectors: i8 is multiplied as it is

public:
    using typename Softmax::Scratch;

    /// Is the entry for this kernel? Dropout is left to the other one.
    static HEED_INLINE bool takes(const Call& call, const Split& split) {
        if (call.tiles_only || split.tiles != 1 || call.drop || call.keep.data != nullptr) { return false; }
        constexpr std::int64_t long_enough = 512;  // to wait for memory
        return split.tile_rows <= decode_rows ||
               (split.tile_rows <= most && split.part_keys >= long_enough && in_fours(call));
    }

    /// The one tile of the task's key/value head over its keys.
    static void task(const Call& call, const ForwardTask& of, const Scratch& scratch, const Partial* partial) {
        const Sequence& s = of.s;
        const std::int64_t g = of.g, key_begin = of.key_begin, key_end = of.key_end;
        RowTile& tile = *scratch.tile;
        const Keys keys = keys_of(call, s);
        fill_rows(call, {s, keys, of.b, g}, of.split, 0, L, tile);
        const HeadRows k = key_rows(call, s, g);
        const HeadRows v = value_rows(call, s, g);
        const int rows = rows_computed(tile.rows);
        Stream stream(call, s, keys, tile, k, v, scratch, rows);
        stream.begin = larger<std::int64_t>(tile.begin, key_begin);
        stream.begin -= (stream.begin - key_begin) % block_keys;
        stream.end = smaller<std::int64_t>(tile.end, key_end);
        const std::int64_t value_stride = round_up(call.value_size, L);
        clear(scratch.sums, rows * value_stride);
        with_readers(call, k, v, [&]<class KeyRows, class ValueRows, bool Staged>() {
            load_queries<KeyRows>(call, tile, rows, scratch.q);
            with_rows(tile.rows, [&]<int R>() {
#if defined(__AVX512F__)
                if constexpr (KeyRows::scaled) {
                    if (in_bytes(call)) { return run<KeyRows, ValueRows, Staged, R, bytes_by_bytes>(stream); }
                }
                if constexpr (!Staged && (R == 1 || KeyRows::Product::depth_per_lane == 1)) {
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
        const auto bytes = static_cast<std::size_t>(tile.rows) * 4;
        __builtin_memcpy(partial->sums, scratch.sums, bytes * static_cast<std::size_t>(value_stride));
        __builtin_memcpy(partial->largest, stream.largest, bytes);
        __builtin_memcpy(partial->sum, sum, bytes);
    }

private:
    static HEED_INLINE bool in_bytes([[maybe_unused]] const Call& call) {
#if defined(__AVX512F__)
        return call.byte_products && call.pages != nullptr && call.pages->k.storage == KvStorage::i8 &&
               call.pages->v.storage == KvStorage::i8 && DecodeBytes<Isa>::takes(call.head_size, call.value_size);
#else
        return false;
#endif
    }

    /// Is there a kernel for more rows, four at a time? Not for pairs of bf16, whose rows are few enough for the other.
    static HEED_INLINE bool in_fours(const Call& call) {
#if defined(__AVX512F__) && (!defined(__AVX512BF16__) || defined(HEED_WIDENS_BF16))
        if (in_bytes(call)) { return true; }
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
#if defined(HEED_WIDENS_BF16)
        if (whole && call.head_size % (2 * L) == 0 && call.value_size % (2 * L) == 0) {
            return function.template operator()<SplitRows<L>, SplitRows<L>, false>();
        }
        if (whole) { return function.template operator()<Bf16Rows, Bf16Rows, false>(); }
#elif defined(__AVX512BF16__)
        if (whole && call.head_size % (2 * L) == 0 && call.value_size % InterleavedRows::columns == 0) {
            return function.template operator()<PairRows, InterleavedRows, false>();
        }
        if (whole) { return function.template operator()<Bf16Rows, Bf16Rows, false>(); }
#else
        if (whole && k.storage == v.storage) {
            switch (k.storage) {
                case KvStorage::f32: return function.template operator()<FloatRows, FloatRows, false>();
                case KvStorage::bf16:
                    if (call.head_size % (2 * L) == 0 && call.value_size % (2 * L) == 0) {
                        return function.template operator()<SplitRows<L>, SplitRows<L>, false>();
                    }
                    return function.template operator()<Bf16Rows, Bf16Rows, false>();
                case KvStorage::f16: return function.template operator()<HalfRows, HalfRows, false>();
                case KvStorage::i8: return function.template operator()<ByteRows, ByteRows, false>();
                default: break;
            }
        }
#endif
        function.template operator()<FloatRows, FloatRows, true>();
    }

    /// Rows that the products for so many rows take: those past the last are 0.
    static HEED_INLINE int rows_computed(int rows) {
        return rows <= 1 ? 1 : rows <= 4 ? 4 : rows <= decode_rows ? decode_rows : most;
    }
    template <class Function>
    static HEED_INLINE void with_rows(int rows, Function&& function) {
        switch (rows_computed(rows)) {
            case 1: return function.template operator()<1>();
            case 4: return function.template operator()<4>();
            case decode_rows: return function.template operator()<decode_rows>();
            default: break;
        }
        if constexpr (most > decode_rows) { function.template operator()<most>(); }
    }

    static HEED_INLINE void clear(float* to, std::int64_t count) {
        for (std::int64_t n = 0; n < count; n += L) { S::store(to + n, F<L>{}); }
    }

    template <class KeyRows>
    static void load_queries(const Call& call, const RowTile& tile, int rows, float* q) {
        const Tensor4& from = call.q;
        const std::int64_t stride = AnySize::template query_stride<KeyRows>(call);
        for (int r = 0; r < tile.rows; ++r) {
            const char* row = row_address(from, tile, r);
            if (call.head_size % L != 0) { clear(q + r * stride, stride); }  // the columns past the last
            if constexpr (KeyRows::Product::depth_per_lane == 2) {
                copy_pairs<Isa>(row, from.column, call.head_size, q + r * stride);
            } else {
                load_row<Isa>(from.dtype, row, from.column, call.head_size, q + r * stride);
                if constexpr (requires { KeyRows::columns; }) { move<KeyRows, true>(q + r * stride, stride); }
            }
        }
        clear(q + tile.rows * stride, (rows - tile.rows) * stride);
    }

    /// The queries in digits, where they are multiplied so.
    template <int NV, int R>
    struct Digits {
        explicit Digits(const Stream&) {}
    };
    template <int R>
    struct Digits<bytes_by_bytes, R> {
        typename DecodeBytes<Isa>::Query query[R];
        explicit Digits(const Stream& stream) {
            const std::int64_t size = stream.call.head_size;
            for (int r = 0; r < R; ++r) {
                query[r] = DecodeBytes<Isa>::split_query(size, stream.scratch.q + r * size, stream.scratch.staging_k);
            }
        }
    };

    /// Scores of one group, then values of the group before it, then weights of the first: a score is not loaded
    /// right after it was stored in pieces, which would cost a stall each time.
    /// NV: vectors of a key and of a value, where the products know them; otherwise 0, or bytes_by_bytes.
    template <class KeyRows, class ValueRows, bool Staged, int R, int NV>
    static void run(Stream& stream) {
        constexpr int at_once = smaller(R, 4);  // rows
        const Digits<NV, R> digits(stream);
        Block block;
        Group groups[2];
        RowPrefetch ahead;
        RowRun v{};
        const char* next_v = nullptr;  // values to prefetch
        bool waiting = false;          // weights whose values have not been added yet
        bool partial = false;
        int slot = 0;
        const auto add = [&](const Group& group) {
            if (!waiting) { return; }
            waiting = false;
            if constexpr (NV == bytes_by_bytes) {
                for (int r = 0; r < R; r += at_once) {
                    float* sums = stream.scratch.sums + r * stream.call.value_size;
                    DecodeBytes<Isa>::template add<at_once>(v, next_v, stream.call.value_size, group, sums, r);
                }
                return;
            }
            // 0 * NaN is NaN: what is hidden must not be multiplied.
            if (partial && !AnySize::template are_finite<ValueRows>(v, stream.call.value_size)) {
                AnySize::template add_seen_values<ValueRows>(stream, v, group);
            } else if constexpr (NV > 0) {
                using Whole = DecodeWholeRows<Isa, ValueRows, NV, at_once>;
                for (int r = 0; r < R; r += at_once) {
                    const typename Whole::Fetch fetch(v, r / at_once, R / at_once);
                    Whole::add(v, group, stream.scratch.sums + r * NV * L, r, fetch);
                }
            } else {
                AnySize::template add_values<ValueRows, R>(stream, v, group, ahead);
            }
        };
        for (std::int64_t from = stream.begin; from < stream.end; from += block_keys) {
            const std::int64_t to = smaller(stream.end, from + block_keys);
            if (!look_up(stream, from, to - from, block)) { continue; }
            for (std::int64_t j = from; j < to; j += L, slot ^= 1) {
                Group& group = groups[slot];
                const std::int64_t count = smaller<std::int64_t>(L, to - j);
                const RowRun k = find_rows<Isa, L, Staged>(stream.k, stream.call.head_size, j, count,
                                                           stream.scratch.staging_k, group.k_scale);
                // Wanted next: the keys after these, and the values of these.
                const std::int64_t next = j + 2 * L <= stream.end ? j + L : j;
                if constexpr (NV == bytes_by_bytes) {
                    const char* next_k = stream.k.row(next).data;
                    for (int r = 0; r < R; r += at_once) {
                        DecodeBytes<Isa>::template scores<at_once>(k, next_k, stream.call.head_size, digits.query + r,
                                                                   group, r);
                    }
                    next_v = stream.v.row(j).data;
                } else if constexpr (NV > 0) {
                    using Whole = DecodeWholeRows<Isa, KeyRows, NV, at_once>;
                    for (int r = 0; r < R; r += at_once) {
                        const typename Whole::Fetch fetch(k, r / at_once, R / at_once);
                        Whole::scores(k, stream.scratch.q + r * Whole::key_vectors * L, group, r, fetch);
                    }
                } else {
                    ahead.keys(stream.k, stream.call.head_size, next);
                    ahead.values(stream.v, stream.call.value_size, j);
                    AnySize::template scores<KeyRows, R>(stream, k, group, ahead);
                }
                add(groups[slot ^ 1]);
                v = find_rows<Isa, L, Staged>(stream.v, stream.call.value_size, j, count, stream.scratch.staging_v,
                                              group.v_scale);
                waiting = true;
                partial = false;
                if constexpr (NV != 0) {
                    if (block.plain && count == L) {
                        HEED_UNROLL
                        for (int r = 0; r < R; ++r) {
                            Softmax::template weigh_plain<KeyRows, ValueRows>(stream, r, group);
                        }
                        continue;
                    }
                }
                for (int r = 0; r < stream.tile.rows; ++r) {
                    partial = Softmax::template weigh<KeyRows, ValueRows>(stream, block, j - from, count, r, group) ||
                              partial;
                }
            }
        }
        add(groups[slot ^ 1]);
        const std::int64_t stride = round_up(stream.call.value_size, L);
        for (int r = 0; r < stream.tile.rows; ++r) {
            float* sums = stream.scratch.sums + r * stride;
            if constexpr (NV == bytes_by_bytes) {
                move<DecodeBytes<Isa>, false>(sums, stride);
            } else if constexpr (requires { ValueRows::columns; }) {
                move<ValueRows, false>(sums, stride);
            }
        }
    }

    template <class Order, std::size_t... Lane>
    static HEED_INLINE F<L> pick(F<L> a, F<L> b, int begin, std::index_sequence<Lane...>) {
        const I<L> from{static_cast<std::int32_t>(Order::place(begin + static_cast<int>(Lane)))...};
#if defined(__clang__)
        F<L> result{};
        ((result[Lane] = from[Lane] < L ? a[from[Lane]] : b[from[Lane] - L]), ...);
        return result;
#else
        return __builtin_shuffle(a, b, from);
#endif
    }

    /// Numbers to the places that the order of columns in registers gives them, or back.
    template <class Order, bool There>
    static void move(float* numbers, std::int64_t count) {
        for (std::int64_t first = 0; first < count; first += Order::columns, numbers += Order::columns) {
            if constexpr (!There && Order::columns == 2 * L) {
                const F<L> a = S::load(numbers);
                const F<L> b = S::load(numbers + L);
                S::store(numbers, pick<Order>(a, b, 0, std::make_index_sequence<L>{}));
                S::store(numbers + L, pick<Order>(a, b, L, std::make_index_sequence<L>{}));
                continue;
            }
            float moved[Order::columns];
            for (int c = 0; c < Order::columns; ++c) {
                const std::int64_t at = Order::place(c);
                There ? moved[at] = numbers[c] : moved[c] = numbers[at];
            }
            __builtin_memcpy(numbers, moved, sizeof(moved));
        }
    }
};

}  // namespace heed::cpu
