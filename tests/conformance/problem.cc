#include "conformance/problem.h"

#include <heed/random.h>

#include "base/dispatch.h"
#include "support/numbers.h"
#include "support/random.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <numeric>

namespace heed::conformance {
namespace {

DType dtype_named(std::string_view name) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
        if (name_of(dtype) == name) { return dtype; }
    }
    throw Error("[conformance] no dtype " + std::string(name));
}

Pattern make_pattern(std::string_view name, std::int64_t batches, std::int64_t heads) {
    using namespace patterns;
    std::vector<std::int64_t> lengths;
    std::vector<std::vector<std::int64_t>> ids(static_cast<std::size_t>(batches));
    for (std::int64_t b = 0; b < batches; ++b) {
        lengths.push_back(4 + 9 * b);
        for (std::int64_t n = 0; n < 300; ++n) { ids[static_cast<std::size_t>(b)].push_back(n / (6 + 5 * b)); }
    }
    if (name == "causal&window") { return causal() & window(8, 0); }
    if (name == "window|global") { return window(4, 4) | global_tokens({0, 5}); }
    if (name == "prefix|causal") { return prefix(lengths) | causal(); }
    if (name == "document&causal") { return document(ids) & causal(); }
    if (name == "strided") { return strided(3) & causal(); }
    if (name == "fixed&causal") { return fixed(8, 2) & causal(); }
    if (name == "dilated") { return dilated(3, 2, 2); }
    if (name == "random_blocks|window") { return random_blocks(8, 40, 11, 42) | window(2, 0); }
    if (name == "blocks") {
        const std::vector<BlockPair> pairs{{0, 0}, {1, 0}, {0, 2}, {2, 1}, {2, 2}, {2, 2}, {5, 4}, {3, 3}};
        return blocks(8, 16, pairs);
    }
    if (name == "per_head") {
        std::vector<Pattern> list;
        for (std::int64_t h = 0; h < heads; ++h) {
            list.push_back(h % 3 == 0 ? causal() : h % 3 == 1 ? window(h, 7) : Pattern());
        }
        return per_head(list);
    }
    if (name == "padding") { return padding(lengths); }
    return {};
}

}  // namespace

Problem::Problem(const Case& the_case) : c(the_case), seed_(static_cast<std::uint64_t>(the_case.number) * 7919 + 1) {
    packed = c[Axis::lengths].substr(0, 6) == "packed";
    B = packed ? 1 : c.integer(Axis::batch);
    H = c.query_heads();
    G = c.kv_heads();
    T = c.integer(Axis::queries);
    S = c.integer(Axis::keys);
    D = c.integer(Axis::head_size);
    E = c.integer(Axis::value_size);
    dtype = dtype_named(c[Axis::dtype]);
    out_dtype = c[Axis::out_dtype] == "same" ? dtype : DType::f32;
    lse_dtype = dtype_named(c[Axis::lse_dtype]);
    scale = 1 / std::sqrt(static_cast<double>(D));
    if (c[Axis::scale] != "default") { options.scale = scale = std::strtod(c[Axis::scale].data(), nullptr); }
    options.causal = c[Axis::causal] == "yes";
    options.align = c[Axis::align] == "top_left" ? Align::top_left : Align::bottom_right;
    if (c[Axis::window] != "none") {
        long long left = 0;
        long long right = 0;
        std::sscanf(c[Axis::window].data(), "%lld,%lld", &left, &right);
        options.window = {.left = left, .right = right};
    }
    options.softcap = std::strtod(c[Axis::softcap].data(), nullptr);
    make_pieces();
    make_positions();
    make_masks();
    make_bias();
    make_rows();
    find_visible();
    make_tensors();
    if (c[Axis::inputs] == "planted") { plant_hidden_bias(); }
    if (may_hold_nan()) { plant_visible_nan(); }
}

std::string_view Problem::layout(int index) const {
    if (c[Axis::layout] != "mixed") { return c[Axis::layout]; }
    return info(Axis::layout).values[static_cast<std::size_t>((index + c.number) % 6)];
}

View Problem::keep_integers(std::vector<std::int64_t> values, const Shape& shape, bool narrow) {
    Tensor& tensor = tensors_.emplace_back(narrow ? DType::i32 : DType::i64, shape);
    for (std::size_t n = 0; n < values.size(); ++n) {
        write_number(tensor.dtype(), tensor.data(), static_cast<std::int64_t>(n), static_cast<double>(values[n]));
    }
    return std::as_const(tensor).view();
}

void Problem::make_pieces() {
    testing::Random random(seed_ + 1);
    const std::string_view kind = c[Axis::lengths];
    N = packed ? (kind == "packed" ? 3 : 5) : B;
    const bool narrow = random.chance(0.5);
    if (packed) {
        const auto cut = [&](std::int64_t total) {
            std::vector<std::int64_t> cuts{0};
            for (std::int64_t n = 0; n < N; ++n) { cuts.push_back(random.below(total + 1)); }
            if (kind == "packed") { cuts.back() = total; }  // otherwise some rows lie behind the last sequence
            if (kind != "packed") { cuts[2] = cuts[1]; }    // and one sequence is empty
            std::sort(cuts.begin(), cuts.end());
            return cuts;
        };
        const std::vector<std::int64_t> cu_q = cut(T);
        const std::vector<std::int64_t> cu_k = cut(S);
        for (std::size_t n = 0; n + 1 < cu_q.size(); ++n) {
            pieces.push_back({0, cu_q[n], cu_q[n + 1] - cu_q[n], cu_k[n], cu_k[n + 1] - cu_k[n], {}, {}});
        }
        options.cu_seqlens_q = keep_integers(cu_q, {N + 1}, narrow);
        options.cu_seqlens_k = keep_integers(cu_k, {N + 1}, !narrow);
    } else {
        std::vector<std::int64_t> query_lengths;
        std::vector<std::int64_t> key_lengths;
        for (std::int64_t b = 0; b < B; ++b) {
            const bool extreme = kind == "extreme";
            const auto length = [&](std::int64_t full) {
                return extreme ? (random.chance(0.5) ? full : 0) : random.below(full + 1);
            };
            query_lengths.push_back(kind == "queries" || kind == "both" || extreme ? length(T) : T);
            key_lengths.push_back(kind == "keys" || kind == "both" || extreme ? length(S) : S);
            pieces.push_back({b, 0, query_lengths.back(), 0, key_lengths.back(), {}, {}});
        }
        if (kind == "queries" || kind == "both" || kind == "extreme") {
            options.query_lengths = keep_integers(query_lengths, {B}, narrow);
        }
        if (kind == "keys" || kind == "both" || kind == "extreme") {
            options.key_lengths = keep_integers(key_lengths, {B}, narrow);
        }
    }
    longest_queries = packed ? 0 : T;
    longest_keys = packed ? 0 : S;
    for (const Piece& piece : pieces) {
        longest_queries = std::max(longest_queries, piece.queries);
        longest_keys = std::max(longest_keys, piece.keys);
    }
}

void Problem::make_positions() {
    testing::Random random(seed_ + 2);
    const std::string_view kind = c[Axis::positions];
    const auto shuffled = [&](std::int64_t count) {
        std::vector<std::int64_t> order(static_cast<std::size_t>(count));
        std::iota(order.begin(), order.end(), std::int64_t{0});
        for (std::int64_t n = count - 1; n > 0; --n) {
            std::swap(order[static_cast<std::size_t>(n)], order[static_cast<std::size_t>(random.below(n + 1))]);
        }
        return order;
    };
    const std::int64_t rows = random.chance(0.5) ? B : 1;
    std::vector<std::int64_t> of_queries;
    std::vector<std::int64_t> of_keys;
    for (std::int64_t b = 0; b < rows; ++b) {
        for (std::int64_t t = 0; t < T; ++t) {
            if (kind == "decode") { of_queries.push_back(S - T + t + 3); }
            if (kind == "with gaps") { of_queries.push_back(2 * t + t / 3); }
            if (kind == "permuted both") { of_queries.push_back(random.below(S + 4)); }
        }
        if (kind == "with gaps") {
            for (std::int64_t s = 0; s < S; ++s) { of_keys.push_back(2 * s + b); }
        } else if (kind.substr(0, 8) == "permuted") {
            const std::vector<std::int64_t> order = shuffled(S);
            of_keys.insert(of_keys.end(), order.begin(), order.end());
        }
    }
    const bool queries_given = kind != "none" && kind != "permuted keys";
    const bool keys_given = kind != "none" && kind != "decode";
    if (queries_given) { options.query_positions = keep_integers(of_queries, {rows, T}, rows == 1); }
    if (keys_given) { options.key_positions = keep_integers(of_keys, {rows, S}, rows != 1); }
    for (Piece& piece : pieces) {
        const std::int64_t full_queries = packed ? piece.queries : T;
        const std::int64_t full_keys = packed ? piece.keys : S;
        const std::int64_t shift = options.align == Align::bottom_right ? full_keys - full_queries : 0;
        const std::int64_t row = rows == 1 ? 0 : piece.batch;
        for (std::int64_t i = 0; i < piece.queries; ++i) {
            const auto at = static_cast<std::size_t>(row * T + piece.query_begin + i);
            piece.query_positions.push_back(queries_given ? of_queries[at] : i + shift);
        }
        for (std::int64_t j = 0; j < piece.keys; ++j) {
            const auto at = static_cast<std::size_t>(row * S + piece.key_begin + j);
            piece.key_positions.push_back(keys_given ? of_keys[at] : j);
        }
    }
}

template <class Fill>
View Problem::pairwise(DType pairwise_dtype, std::string_view form, Fill fill) {
    const std::int64_t full[4] = {N, H, longest_queries, longest_keys};
    Shape shape{1, 1, 1, 1};
    for (int axis = 0; axis < 4; ++axis) {
        const char letter = form[static_cast<std::size_t>(axis)];
        if (letter >= 'A' && letter <= 'Z') { shape[axis] = full[axis]; }
    }
    Placed& placed = placed_.emplace_back(pairwise_dtype, shape, layout(static_cast<int>(placed_.size()) + 3));
    for (std::int64_t n = 0; n < shape.elements(); ++n) {
        const std::int64_t j = n % shape[3];
        const std::int64_t i = n / shape[3] % shape[2];
        placed.store(n, fill(i, j));
    }
    Shape strides = placed.view().strides();
    for (int axis = 0; axis < 4; ++axis) {
        const char letter = form[static_cast<std::size_t>(axis)];
        if (letter >= 'a' && letter <= 'z') {
            shape[axis] = full[axis];
            strides[axis] = 0;
        }
    }
    return View(pairwise_dtype, placed.view().data(), shape, strides);
}

void Problem::make_masks() {
    testing::Random random(seed_ + 3);
    options.pattern = make_pattern(c[Axis::pattern], N, H);
    if (c[Axis::allow] != "none") {
        const bool is_boolean = random.chance(0.5);
        const std::int64_t dead_row = random.below(8);
        options.allow =
            pairwise(is_boolean ? DType::boolean : DType::u8, c[Axis::allow], [&](std::int64_t i, std::int64_t) {
                const bool allowed = random.chance(0.75) && i % 8 != dead_row;
                return allowed ? (is_boolean ? 1 : 1.0 + static_cast<double>(random.below(255))) : 0;
            });
    }
    const std::string_view kind = c[Axis::dropout];
    options.dropout.seed = random.next();
    options.dropout.offset = static_cast<std::uint32_t>(random.next());
    if (kind.substr(0, 4) == "keep") {
        options.dropout.p = 0.25;
        options.dropout.keep = pairwise(DType::u8, kind.substr(5), [&](std::int64_t, std::int64_t) {
            return random.chance(0.75) ? 1.0 + static_cast<double>(random.below(255)) : 0.0;
        });
    } else if (kind.substr(0, 2) == "0.") {
        options.dropout.p = std::strtod(kind.data(), nullptr);
    }
}

void Problem::make_bias() {
    testing::Random random(seed_ + 4);
    if (c[Axis::bias] == "none") { return; }
    const bool far = c[Axis::inputs] == "far bias";
    options.bias = pairwise(dtype_named(c[Axis::bias_dtype]), c[Axis::bias], [&](std::int64_t i, std::int64_t j) {
        if (far) { return i % 3 == 0 || j % 2 == 0 ? -1e4 : random.normal(); }
        return random.chance(0.06) ? -testing::infinity : random.normal();
    });
}

void Problem::make_rows() {
    testing::Random random(seed_ + 5);
    if (c[Axis::alibi] != "none") {
        const bool by_batch = c[Axis::alibi] == "BH";
        Shape shape{H};
        if (by_batch) { shape = Shape{N, H}; }
        Tensor& slopes = tensors_.emplace_back(by_batch ? DType::f64 : DType::f32, shape);
        for (std::int64_t n = 0; n < slopes.elements(); ++n) {
            write_number(slopes.dtype(), slopes.data(), n, std::exp2(-1.0 - static_cast<double>(n % H)));
        }
        options.alibi_slopes = std::as_const(slopes).view();
    }
    if (c[Axis::sinks] != "none") {
        Tensor& sinks = tensors_.emplace_back(c[Axis::sinks] == "f32" ? DType::f32 : DType::f64, Shape{H});
        for (std::int64_t h = 0; h < H; ++h) {
            const bool off = c[Axis::sinks] == "some -inf" && h % 2 == 0;
            write_number(sinks.dtype(), sinks.data(), h, off ? -testing::infinity : random.normal());
        }
        options.sinks = std::as_const(sinks).view();
    }
}

void Problem::find_visible() {
    visible_.assign(static_cast<std::size_t>(N * H * longest_queries * longest_keys), 0);
    for (std::int64_t n = 0; n < N; ++n) {
        const Piece& piece = pieces[static_cast<std::size_t>(n)];
        for (std::int64_t h = 0; h < H; ++h) {
            for (std::int64_t i = 0; i < piece.queries; ++i) {
                for (std::int64_t j = 0; j < piece.keys; ++j) {
                    const std::int64_t p = piece.query_positions[static_cast<std::size_t>(i)];
                    const std::int64_t at = piece.key_positions[static_cast<std::size_t>(j)];
                    bool sees = !options.causal || at <= p;
                    sees = sees && (options.window.left == -1 || p - at <= options.window.left);
                    sees = sees && (options.window.right == -1 || at - p <= options.window.right);
                    sees = sees && (!options.pattern || options.pattern.allows(n, h, p, at));
                    if (sees && options.allow) {
                        const View& a = options.allow;
                        const auto part = [&](int axis, std::int64_t index) {
                            return a.extent(axis) == 1 ? 0 : index * a.stride(axis);
                        };
                        sees = read_number(a.dtype(), a.data(), part(0, n) + part(1, h) + part(2, i) + part(3, j)) != 0;
                    }
                    sees = sees && bias(n, h, i, j) != -testing::infinity;
                    visible_[static_cast<std::size_t>(((n * H + h) * longest_queries + i) * longest_keys + j)] = sees;
                }
            }
        }
    }
}

double Problem::bias(std::int64_t n, std::int64_t h, std::int64_t i, std::int64_t j) const {
    const View& view = options.bias;
    if (!view) { return 0; }
    const std::int64_t index[4] = {n, h, i, j};
    std::int64_t offset = 0;
    for (int axis = 0; axis < 4; ++axis) { offset += view.extent(axis) == 1 ? 0 : index[axis] * view.stride(axis); }
    return read_number(view.dtype(), view.data(), offset);
}

double Problem::slope(std::int64_t n, std::int64_t h) const {
    const View& slopes = options.alibi_slopes;
    return slopes ? read_number(slopes.dtype(), slopes.data(), slopes.rank() == 2 ? n * H + h : h) : 0;
}

double Problem::sink(std::int64_t h) const {
    return options.sinks ? read_number(options.sinks.dtype(), options.sinks.data(), h) : -testing::infinity;
}

bool Problem::keeps(std::int64_t n, std::int64_t h, std::int64_t i, std::int64_t j) const {
    const AttentionDropout& d = options.dropout;
    if (d.keep) {
        const std::int64_t index[4] = {n, h, i, j};
        std::int64_t offset = 0;
        for (int axis = 0; axis < 4; ++axis) {
            offset += d.keep.extent(axis) == 1 ? 0 : index[axis] * d.keep.stride(axis);
        }
        return read_number(d.keep.dtype(), d.keep.data(), offset) != 0;
    }
    if (d.p == 0) { return true; }
    const auto word = [](std::int64_t x) { return static_cast<std::uint32_t>(x); };
    const auto words = philox4x32({word(j) / 4, word(i), word(n * H + h), d.offset}, d.seed.value_or(0));
    return static_cast<double>(words[static_cast<std::size_t>(j % 4)]) >= std::round(d.p * 4294967296.0);
}

}  // namespace heed::conformance
