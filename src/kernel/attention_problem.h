#pragma once
#include <heed/attention.h>
#include <heed/random.h>

#include "base/dispatch.h"
#include "kernel/kv_pages.h"

namespace heed {

/// One batch entry, or one packed sequence: where its rows lie in the tensors.
struct Sequence {
    std::int64_t entry = 0;        ///< its number
    std::int64_t batch = 0;        ///< index along B of the tensors
    std::int64_t query_begin = 0;  ///< first row along T
    std::int64_t queries = 0;      ///< rows to read
    std::int64_t rows = 0;         ///< rows to write: those past `queries` come out as 0
    std::int64_t key_begin = 0;
    std::int64_t keys = 0;      ///< keys to read
    std::int64_t key_rows = 0;  ///< rows of dk and dv to write
    std::int64_t shift = 0;     ///< p_i = i + shift where positions are not explicit
};

/// A checked call: every size agrees, every view fits. Kernels trust it.
struct AttentionProblem {
    std::int64_t batch = 0;  ///< B, or N packed sequences
    std::int64_t heads = 0, kv_heads = 0, queries = 0, keys = 0, head_size = 0, value_size = 0;
    double scale = 1;
    bool packed = false;
    AttentionOptions options;
    /// For kernels that work in tiles: how far causal, window and the bands of the pattern let a query see together
    /// (-1: any distance), and the pattern without those bands.
    Window reach{};
    Pattern sparse{};

    View q, k, v;
    /// Where given, keys and values are read from here: k and v are absent, the entries are packed.
    const KvPages* pages = nullptr;
    MutableView out, lse;  // forward

    View forward_out, forward_lse, dout, dlse;  // backward
    AttentionGradients gradients;

    std::int64_t group() const { return heads / kv_heads; }

    Sequence sequence(std::int64_t b) const {
        Sequence s;
        s.entry = b;
        const AttentionOptions& o = options;
        if (packed) {
            const auto cu = [](const View& view, std::int64_t n) {
                return read_integer(view.dtype(), view.data(), n * view.stride(0));
            };
            s.query_begin = cu(o.cu_seqlens_q, b);
            s.rows = s.queries = cu(o.cu_seqlens_q, b + 1) - s.query_begin;
            s.key_begin = cu(o.cu_seqlens_k, b);
            s.key_rows = s.keys = cu(o.cu_seqlens_k, b + 1) - s.key_begin;
        } else {
            s.batch = b;
            s.rows = s.queries = queries;
            s.key_rows = s.keys = keys;
        }
        s.shift = o.align == Align::bottom_right ? s.keys - s.queries : 0;
        const auto shorten = [b](const View& lengths, std::int64_t& count) {
            if (lengths) {
                count = std::min(count, read_integer(lengths.dtype(), lengths.data(), b * lengths.stride(0)));
            }
        };
        shorten(o.query_lengths, s.queries);
        shorten(o.key_lengths, s.keys);
        return s;
    }

    std::int64_t query_position(const Sequence& s, std::int64_t i) const {
        return options.query_positions ? position(options.query_positions, s.batch, s.query_begin + i) : i + s.shift;
    }
    std::int64_t key_position(const Sequence& s, std::int64_t j) const {
        return options.key_positions ? position(options.key_positions, s.batch, s.key_begin + j) : j;
    }

    /// Step 4: may query i of head h see key j?
    bool allows(const Sequence& s, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
        const std::int64_t p = query_position(s, i);
        const std::int64_t at = key_position(s, j);
        const Window& window = options.window;
        if (options.causal && at > p) { return false; }
        if (window.left >= 0 && at < p - window.left) { return false; }
        if (window.right >= 0 && at > p + window.right) { return false; }
        if (options.allow &&
            static_cast<const std::uint8_t*>(options.allow.data())[broadcast(options.allow, b, h, i, j)] == 0) {
            return false;
        }
        return !options.pattern || options.pattern.allows(b, h, p, at);
    }

    double slope(std::int64_t b, std::int64_t h) const {
        const View& slopes = options.alibi_slopes;
        const std::int64_t at = slopes.rank() == 2 ? b * slopes.stride(0) + h * slopes.stride(1) : h * slopes.stride(0);
        return read_number(slopes.dtype(), slopes.data(), at);
    }
    double sink(std::int64_t h) const {
        return read_number(options.sinks.dtype(), options.sinks.data(), h * options.sinks.stride(0));
    }

    /// Step 6: is element (i, j) kept?
    bool keeps(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
        const AttentionDropout& d = options.dropout;
        if (d.keep) { return static_cast<const std::uint8_t*>(d.keep.data())[broadcast(d.keep, b, h, i, j)] != 0; }
        const auto word = [](std::int64_t n) { return static_cast<std::uint32_t>(n); };
        return dropout_word(d.seed.value_or(0), d.offset, word(b * heads + h), word(i), word(j)) >=
               dropout_threshold(d.p);
    }
    bool drops() const { return options.dropout.p > 0 || options.dropout.keep; }

    /// Offset of (b, h, i, j) in a view whose axes of extent 1 are repeated.
    template <class AnyView>
    static std::int64_t broadcast(const AnyView& view, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
        const std::int64_t index[4] = {b, h, i, j};
        std::int64_t offset = 0;
        for (int axis = 0; axis < 4; ++axis) {
            if (view.extent(axis) != 1) { offset += index[axis] * view.stride(axis); }
        }
        return offset;
    }

private:
    static std::int64_t position(const View& positions, std::int64_t batch, std::int64_t n) {
        const std::int64_t row = positions.extent(0) == 1 ? 0 : batch * positions.stride(0);
        return read_integer(positions.dtype(), positions.data(), row + n * positions.stride(1));
    }
};

}  // namespace heed
