#pragma once
#include "cpu/attention/call.h"
#include "cpu/simd/convert.h"

/// Rows of keys and values where they lie: in tensors of any float type, or in the pages of a cache.

namespace heed::cpu {

/// The rows of one entry and head.
struct HeadRows {
    const char* first = nullptr;
    std::int64_t row_bytes = 0;
    std::int64_t column = 1;  ///< elements from column to column
    KvStorage storage = KvStorage::f32;
    const std::int32_t* table = nullptr;  ///< numbers of the pages; null: no pages, rows simply follow one another
    std::int64_t page_size = 0, page_bytes = 0;
    const float* scales = nullptr;
    std::int64_t page_scales = 0, row_scales = 0;

    HEED_INLINE HeadRows(const Call& call, const Tensor4& t, const KvRows* pages, const Sequence& s, std::int64_t g) {
        if (pages == nullptr) {
            storage = t.dtype == DType::f32    ? KvStorage::f32
                      : t.dtype == DType::bf16 ? KvStorage::bf16
                                               : KvStorage::f16;
            first = t.data + (s.batch * t.b + g * t.h + s.key_begin * t.row) * t.element_size;
            row_bytes = t.row * t.element_size;
            column = t.column;
            return;
        }
        storage = pages->storage;
        first = pages->data + g * pages->head_bytes;
        row_bytes = pages->row_bytes;
        table = call.pages->tables[s.entry];
        page_size = call.pages->page_size;
        page_bytes = pages->page_bytes;
        scales = pages->scales == nullptr ? nullptr : pages->scales + g * pages->head_scales;
        page_scales = pages->page_scales;
        row_scales = pages->row_scales;
    }

    /// Of a whole number of bytes; i4 has two columns in one.
    HEED_INLINE std::int64_t element_bytes() const {
        return storage == KvStorage::f32 ? 4 : storage == KvStorage::i8 ? 1 : 2;
    }
    /// Bytes from the first to the last of so many columns that lie side by side.
    HEED_INLINE std::int64_t bytes_of(std::int64_t columns) const {
        return storage == KvStorage::i4 ? (columns + 1) / 2 : columns * element_bytes();
    }
    /// Do rows [begin, begin + count) follow one another? Pages that were taken one after the other do.
    HEED_INLINE bool is_run(std::int64_t begin, std::int64_t count) const {
        if (table == nullptr) { return true; }
        const auto size = static_cast<std::uint32_t>(page_size);
        const std::uint32_t first_page = static_cast<std::uint32_t>(begin) / size;
        const std::uint32_t last_page = static_cast<std::uint32_t>(begin + count - 1) / size;
        if (first_page == last_page) { return true; }
        bool follow = page_bytes == page_size * row_bytes && page_scales == page_size * row_scales;
        for (std::uint32_t page = first_page; page < last_page; ++page) {
            follow = follow && table[page + 1] == table[page] + 1;
        }
        return follow;
    }
    struct Found {
        const char* data;
        const float* scales;
    };
    HEED_INLINE Found row(std::int64_t j) const {
        if (table == nullptr) { return {first + j * row_bytes, nullptr}; }
        const std::int64_t page = static_cast<std::uint32_t>(j) / static_cast<std::uint32_t>(page_size);
        const std::int64_t slot = j - page * page_size;
        return {first + table[page] * page_bytes + slot * row_bytes,
                scales + table[page] * page_scales + slot * row_scales};
    }
    /// Calls visit(n, row, its scales) for rows begin + n, n < count, without a division for each.
    template <class Visit>
    HEED_INLINE void for_each(std::int64_t begin, std::int64_t count, Visit visit) const {
        if (table == nullptr) {
            for (std::int64_t n = 0; n < count; ++n) { visit(n, first + (begin + n) * row_bytes, nullptr); }
            return;
        }
        std::int64_t page = static_cast<std::uint32_t>(begin) / static_cast<std::uint32_t>(page_size);
        std::int64_t slot = begin - page * page_size;
        for (std::int64_t n = 0; n < count; ++page, slot = 0) {
            const char* at = first + table[page] * page_bytes;
            const float* scale = scales + table[page] * page_scales;
            for (; slot < page_size && n < count; ++slot, ++n) {
                visit(n, at + slot * row_bytes, scale + slot * row_scales);
            }
        }
    }
};

HEED_INLINE HeadRows key_rows(const Call& call, const Sequence& s, std::int64_t g) {
    return {call, call.k, call.pages == nullptr ? nullptr : &call.pages->k, s, g};
}
HEED_INLINE HeadRows value_rows(const Call& call, const Sequence& s, std::int64_t g) {
    return {call, call.v, call.pages == nullptr ? nullptr : &call.pages->v, s, g};
}

#if defined(__AVX2__)
/// 32 columns of i4: to[c] = (nibble c - 8) * unit.
HEED_INLINE void load_nibbles(const std::uint8_t* bytes, float unit, float* to) {
    const __m128i all = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
    const __m128i mask = _mm_set1_epi8(15);
    const __m128i even = _mm_and_si128(all, mask);
    const __m128i odd = _mm_and_si128(_mm_srli_epi16(all, 4), mask);
    const __m128i eight = _mm_set1_epi8(8);
    const __m128i columns[2] = {_mm_sub_epi8(_mm_unpacklo_epi8(even, odd), eight),
                                _mm_sub_epi8(_mm_unpackhi_epi8(even, odd), eight)};
    for (int half = 0; half < 2; ++half) {
#if defined(__AVX512F__)
        const __m512 x = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(columns[half]));
        _mm512_storeu_ps(to + 16 * half, _mm512_mul_ps(x, _mm512_set1_ps(unit)));
#else
        const __m256 low = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(columns[half]));
        const __m256 high = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(columns[half], 8)));
        _mm256_storeu_ps(to + 16 * half, _mm256_mul_ps(low, _mm256_set1_ps(unit)));
        _mm256_storeu_ps(to + 16 * half + 8, _mm256_mul_ps(high, _mm256_set1_ps(unit)));
#endif
    }
}
#endif

/// to[0..n) = one row, as numbers.
template <class Isa>
void load_kv_row(const HeadRows& rows, const char* from, const float* scale, std::int64_t n, float* to) {
    switch (rows.storage) {
        case KvStorage::f32: return load_row<Isa>(DType::f32, from, rows.column, n, to);
        case KvStorage::bf16: return load_row<Isa>(DType::bf16, from, rows.column, n, to);
        case KvStorage::f16: return load_row<Isa>(DType::f16, from, rows.column, n, to);
        case KvStorage::i8: {
            const auto* bytes = reinterpret_cast<const std::int8_t*>(from);
            const float unit = *scale;
            for (std::int64_t c = 0; c < n; ++c) { to[c] = static_cast<float>(bytes[c]) * unit; }
            return;
        }
        case KvStorage::i4: {
            const auto* bytes = reinterpret_cast<const std::uint8_t*>(from);
            std::int64_t group = 0;
#if defined(__AVX2__)
            for (; group + 32 <= n; group += 32) { load_nibbles(bytes + group / 2, scale[group / 32], to + group); }
#endif
            for (; group < n; group += 32) {
                const float unit = scale[group / 32];
                const std::int64_t pairs = smaller<std::int64_t>(32, n - group) / 2;
                for (std::int64_t c = 0; c < pairs; ++c) {
                    const int byte = bytes[group / 2 + c];
                    to[group + 2 * c] = static_cast<float>((byte & 15) - 8) * unit;
                    to[group + 2 * c + 1] = static_cast<float>((byte >> 4) - 8) * unit;
                }
                if (n - group < 32 && n % 2 != 0) { to[n - 1] = static_cast<float>((bytes[n / 2] & 15) - 8) * unit; }
            }
            return;
        }
    }
}

// How L columns of a row, from column c on, become floats. What i8 still needs, its scale, is applied to the score or
// the weight.

struct FloatRows {
    using Product = FloatProduct;
    static constexpr int bytes = 4;  ///< of a column
    static constexpr bool scaled = false;
    template <class Isa, int L>
    static HEED_INLINE F<L> load(const char* row, std::int64_t c) {
        return Simd<Isa, L>::load(reinterpret_cast<const float*>(row) + c);
    }
};

struct Bf16Rows {
    using Product = FloatProduct;
    static constexpr int bytes = 2;  ///< of a column
    static constexpr bool scaled = false;
    template <class Isa, int L>
    static HEED_INLINE F<L> load(const char* row, std::int64_t c) {
        typedef std::uint16_t Words __attribute__((vector_size(2 * L)));
        Words words;
        __builtin_memcpy(&words, row + 2 * c, sizeof(words));
        return F<L>(__builtin_convertvector(words, U<L>) << 16);
    }
};

/// Two columns that share 32 bits are split by a shift and a mask, at half the cost of widening them, and come to lie
/// in different registers of L.
template <int L>
struct SplitRows : Bf16Rows {
    static constexpr int columns = 2 * L;  ///< that keep to two registers

    template <class Isa, int Lanes>
    static HEED_INLINE F<L> load(const char* row, std::int64_t c) {
        static_assert(Lanes == L);
        U<L> pairs;
        __builtin_memcpy(&pairs, row + c / columns * columns * 2, sizeof(pairs));
        return F<L>(c / L % 2 == 0 ? pairs << 16 : pairs & 0xffff0000U);
    }
    /// Where column c lies.
    static HEED_INLINE std::int64_t place(std::int64_t c) { return c - c % columns + c % 2 * L + c % columns / 2; }
};

struct HalfRows {
    using Product = FloatProduct;
    static constexpr int bytes = 2;
    static constexpr bool scaled = false;
    template <class Isa, int L>
    static HEED_INLINE F<L> load(const char* row, std::int64_t c) {
#if defined(__AVX512F__)
        if constexpr (L == 16) {
            return F<L>(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + 2 * c))));
        }
#endif
#if defined(__F16C__)
        if constexpr (L == 8) {
            return F<L>(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row + 2 * c))));
        }
#endif
        float lane[L];
        const auto* words = reinterpret_cast<const std::uint16_t*>(row) + c;
        for (int n = 0; n < L; ++n) { lane[n] = widen_f16(words[n]); }
        return Simd<Isa, L>::load(lane);
    }
};

struct ByteRows {
    using Product = FloatProduct;
    static constexpr int bytes = 1;  ///< of a column
    static constexpr bool scaled = true;
    template <class Isa, int L>
    static HEED_INLINE F<L> load(const char* row, std::int64_t c) {
#if defined(__AVX512F__)
        if constexpr (L == 16) {
            const __m128i numbers = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + c));
            return F<L>(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(numbers)));
        }
#endif
#if defined(__AVX2__)
        if constexpr (L == 8) {
            const __m128i numbers = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(row + c));
            return F<L>(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(numbers)));
        }
#endif
        float lane[L];
        for (int n = 0; n < L; ++n) { lane[n] = static_cast<float>(reinterpret_cast<const std::int8_t*>(row)[c + n]); }
        return Simd<Isa, L>::load(lane);
    }
};

#if defined(__AVX512BF16__)
/// Keys and queries as pairs of bf16, a pair a lane.
struct PairRows : FloatRows {
    using Product = Bf16Product;
};

/// Values of two keys at a time as pairs of bf16. Weaving them within quarters of a register is cheap, and leaves their
/// columns in an order of its own.
struct InterleavedRows : Bf16Rows {
    using Product = Bf16Product;
    static constexpr int columns = 32;  ///< that are interleaved together

    /// Vector n, of 16 columns, of rows a and b.
    template <class Isa, int L>
    static HEED_INLINE F<L> load_pair(const char* a, const char* b, std::int64_t n) {
        static_assert(L == 16);
        const __m512i x = _mm512_loadu_si512(a + n / 2 * 64);
        const __m512i y = _mm512_loadu_si512(b + n / 2 * 64);
        return F<L>(n % 2 == 0 ? _mm512_unpacklo_epi16(x, y) : _mm512_unpackhi_epi16(x, y));
    }
    /// Where the sum of column c lies.
    static HEED_INLINE std::int64_t place(std::int64_t c) {
        const std::int64_t within = c % columns;
        return c - within + within % 8 / 4 * 16 + within / 8 * 4 + within % 4;
    }
};
#endif

/// Rows in equal steps through memory.
struct RowRun {
    const char* first;
    std::int64_t step;  ///< bytes
};

/// Asks for keys and values that are needed soon, a few lines at a time between products: two streams in the order
/// of their addresses. The rate is what makes it fast: a row at once, or keys during one half of the work and
/// values during the other, came out 10 to 30 % slower.
class RowPrefetch {
    struct Cursor {
        const char* row = nullptr;
        std::int64_t step = 0, bytes = 0, offset = 0;

        HEED_INLINE void start(const HeadRows& rows, std::int64_t columns, std::int64_t j) {
            row = rows.row(j).data;
            step = rows.row_bytes;
            bytes = rows.column == 1 ? rows.bytes_of(columns) : 0;
            offset = 0;
        }
        HEED_INLINE void ask(int line) const { __builtin_prefetch(row + offset + line * 64, 0, 2); }
        HEED_INLINE void advance(int lines) {
            offset += lines * 64;
            if (offset >= bytes) {
                row += step;
                offset = 0;
            }
        }
    };
    Cursor k_, v_;

public:
    HEED_INLINE void keys(const HeadRows& rows, std::int64_t columns, std::int64_t j) { k_.start(rows, columns, j); }
    HEED_INLINE void values(const HeadRows& rows, std::int64_t columns, std::int64_t j) { v_.start(rows, columns, j); }

    /// Share n of `shares` of as many lines as a step of the work reads itself, half of them keys.
    template <int Lines>
    HEED_INLINE void share(int n, int shares) const {
        for (int line = n * Lines / shares; line < (n + 1) * Lines / shares; ++line) {
            if (Lines < 4 ? line == 0 : line % 4 < 2) { k_.ask(Lines < 4 ? 0 : line / 4 * 2 + line % 2); }
            if (Lines < 4 ? line == Lines - 1 : line % 4 >= 2) { v_.ask(Lines < 4 ? 0 : line / 4 * 2 + line % 2); }
        }
    }
    /// After all shares of a step.
    template <int Lines>
    HEED_INLINE void advance() {
        if constexpr (Lines > 0) {
            k_.advance(larger(Lines / 2, 1));
            v_.advance(larger(Lines / 2, 1));
        }
    }
};

/// Copies `bytes`, or clears as many where there is nothing to copy, without a call for each short row.
template <class Isa>
HEED_INLINE void copy_row(const char* from, std::int64_t bytes, char* to) {
    typedef std::uint8_t Line __attribute__((vector_size(64)));
    std::int64_t at = 0;
    for (; at + 64 <= bytes; at += 64) {
        Line line = {};
        if (from != nullptr) { __builtin_memcpy(&line, from + at, 64); }
        __builtin_memcpy(to + at, &line, 64);
    }
    if (at == bytes) { return; }
    if (from == nullptr) {
        __builtin_memset(to + at, 0, static_cast<std::size_t>(bytes - at));
    } else {
        __builtin_memcpy(to + at, from + at, static_cast<std::size_t>(bytes - at));
    }
}

/// L rows from row j on, where they lie; or copied: as floats where they cannot be read as whole vectors, as they
/// are where a page, or the keys, end among them. Those past the end are 0. A list of L pointers would need no copies,
/// but reading through one gave 11 instead of 18 GB/s on Zen 4.
template <class Isa, int L, bool Staged>
HEED_INLINE RowRun find_rows(const HeadRows& rows, std::int64_t columns, std::int64_t j, std::int64_t count,
                             float* staging, float* scales) {
    const bool scaled = !Staged && rows.storage == KvStorage::i8;
    if (!Staged && count == L && rows.is_run(j, count)) {
        const auto found = rows.row(j);
        if (scaled && rows.row_scales == 1) { __builtin_memcpy(scales, found.scales, L * sizeof(float)); }
        for (int n = 0; scaled && rows.row_scales != 1 && n < L; ++n) { scales[n] = found.scales[n * rows.row_scales]; }
        return {found.data, rows.row_bytes};
    }
    char* copies = reinterpret_cast<char*>(staging);
    const std::int64_t bytes = columns * (Staged ? 4 : rows.element_bytes());
    const RowRun run{copies, round_up(bytes, 64)};
    rows.for_each(j, count, [&](std::int64_t n, const char* row, const float* scale) {
        char* copy = copies + n * run.step;
        if constexpr (Staged) {
            auto* to = reinterpret_cast<float*>(copy);
            load_kv_row<Isa>(rows, row, scale, columns, to);
            for (std::int64_t c = columns; c < round_up(columns, 16); ++c) { to[c] = 0; }
        } else {
            copy_row<Isa>(row, bytes, copy);
            if (scaled) { scales[n] = *scale; }
        }
    });
    copy_row<Isa>(nullptr, (L - count) * run.step, copies + count * run.step);
    for (std::int64_t n = count; scaled && n < L; ++n) { scales[n] = scales[count - 1]; }
    return run;
}

}  // namespace heed::cpu
