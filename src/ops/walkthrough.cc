#include <heed/inspect.h>
#include <heed/random.h>
#include <heed/walkthrough.h>

#include "ops/attention_checks.h"

#include <cmath>
#include <limits>
#include <numbers>

namespace heed {
namespace {

constexpr const char* function_name = "walk_through";
constexpr double infinity = std::numeric_limits<double>::infinity();
/// "Small example", in numbers: what one matrix may hold, and multiply-adds of one product.
constexpr double largest_matrix = 1 << 24;
constexpr double largest_product = 1e11;

void check_size(const char* what, double size, double most) {
    if (size > most) {
        refuse(function_name, what, "a small example, at most " + std::to_string(static_cast<std::int64_t>(most)),
               std::to_string(static_cast<std::int64_t>(size)));
    }
}

double number(std::int64_t n) { return static_cast<double>(n); }

Tensor identity(std::int64_t size) {
    Tensor result(DType::f64, {size, size});
    for (std::int64_t n = 0; n < size; ++n) { result.as<double>()[n * size + n] = 1; }
    return result;
}

/// The sizes of an example, and its tensors in double.
struct Example {
    Tensor x, wq, wk, wv, wo;
    std::int64_t batch = 0, tokens = 0, d_model = 0, heads = 0, kv_heads = 0, head_size = 0, value_size = 0;

    explicit Example(const WalkthroughInput& input) {
        if (!input.x || input.x.shape().rank() != 3 || !is_floating(input.x.dtype())) {
            refuse(function_name, "x", "floats of 3 axes [batch, tokens, size]",
                   input.x ? std::string(name_of(input.x.dtype())) + " " + to_string(input.x.shape()) : "none");
        }
        x = input.x.to(DType::f64);
        batch = x.shape()[0];
        tokens = x.shape()[1];
        d_model = x.shape()[2];
        heads = input.heads;
        kv_heads = input.kv_heads == 0 ? heads : input.kv_heads;
        if (d_model < 1) { refuse(function_name, "x", "tokens of size 1 or more", to_string(x.shape())); }
        if (heads < 1) { refuse(function_name, "heads", "1 or more", std::to_string(heads)); }
        if (kv_heads < 1 || heads % kv_heads != 0) {
            refuse(function_name, "kv_heads", "a divisor of " + std::to_string(heads) + " heads",
                   std::to_string(kv_heads));
        }
        check_size("x", number(x.elements()), largest_matrix);
        wq = matrix("wq", input.wq, d_model, heads);
        head_size = wq.shape()[1] / heads;
        wk = matrix("wk", input.wk, d_model, kv_heads);
        if (wk.shape()[1] != kv_heads * head_size) {
            refuse(function_name, "wk", to_string(Shape{d_model, kv_heads * head_size}), to_string(wk.shape()));
        }
        wv = matrix("wv", input.wv, d_model, kv_heads);
        value_size = wv.shape()[1] / kv_heads;
        wo = matrix("wo", input.wo, heads * value_size, 1);
        check_size("tokens x tokens x heads x batch", number(batch) * number(heads) * number(tokens) * number(tokens),
                   largest_matrix);
        for (const Tensor* w : {&wq, &wk, &wv, &wo}) {
            check_size("multiplications of a projection",
                       number(batch * tokens) * number(w->shape()[0]) * number(w->shape()[1]), largest_product);
        }
    }

    static Tensor matrix(const char* name, const Tensor& given, std::int64_t rows, std::int64_t parts) {
        if (given && (given.shape().rank() != 2 || given.shape()[0] != rows || !is_floating(given.dtype()))) {
            refuse(function_name, name, "floats [" + std::to_string(rows) + ", ...]",
                   std::string(name_of(given.dtype())) + " " + to_string(given.shape()));
        }
        const std::int64_t columns = given ? given.shape()[1] : rows;
        check_size(name, number(rows) * number(columns), largest_matrix);
        if (columns < 1 || columns % parts != 0) {
            refuse(function_name, name,
                   "columns that divide into " + std::to_string(parts) + (parts == 1 ? " head" : " heads"),
                   (given ? "" : "the identity of ") + std::to_string(columns));
        }
        return given ? given.to(DType::f64) : identity(rows);
    }
};

/// [..., M] times [M, N].
Tensor times(const Tensor& x, const Tensor& w) {
    Shape shape = x.shape();
    const std::int64_t inner = w.shape()[0];
    const std::int64_t columns = w.shape()[1];
    const std::int64_t rows = x.elements() / inner;
    shape[shape.rank() - 1] = columns;
    Tensor result(DType::f64, shape);
    for (std::int64_t r = 0; r < rows; ++r) {
        double* out = result.as<double>() + r * columns;
        for (std::int64_t m = 0; m < inner; ++m) {
            const double factor = x.as<double>()[r * inner + m];
            const double* row = w.as<double>() + m * columns;
            for (std::int64_t n = 0; n < columns; ++n) { out[n] += factor * row[n]; }
        }
    }
    return result;
}

/// [B,T,heads*size] seen as [B,heads,T,size]: no number moves.
View split_heads(const Tensor& x, std::int64_t heads) {
    const std::int64_t size = x.shape()[2] / heads;
    return View(DType::f64, x.data(), Shape{x.shape()[0], x.shape()[1], heads, size}).permute({0, 2, 1, 3});
}

/// One batch entry of a view of any rank, without the batch axis.
Tensor entry_of(const View& view, std::int64_t b) {
    const Tensor copy = Tensor::copy_of(view.slice(0, b, b + 1));
    const Shape& shape = copy.shape();
    return Tensor::copy_of(View(copy.dtype(), copy.data(), Shape(std::span(shape.begin() + 1, shape.end()))));
}

/// The T x T steps of one batch entry, each [H,T,T], in the order of <heed/attention.h>.
struct Scores {
    Tensor dot, scaled, capped, biased, masked, weights, dropped, visible, kept;

    Scores(const AttentionProblem& p, std::int64_t b) {
        const Shape shape{p.heads, p.queries, p.keys};
        for (Tensor* t : {&dot, &scaled, &capped, &biased, &masked, &weights, &dropped}) {
            *t = Tensor(DType::f64, shape);
        }
        visible = Tensor(DType::u8, shape);
        kept = Tensor(DType::u8, shape);
        const Sequence s = p.sequence(b);
        for (std::int64_t h = 0; h < p.heads; ++h) {
            for (std::int64_t i = 0; i < p.queries; ++i) { row(p, s, b, h, i); }
        }
    }

    void row(const AttentionProblem& p, const Sequence& s, std::int64_t b, std::int64_t h, std::int64_t i) {
        const std::int64_t begin = (h * p.queries + i) * p.keys;
        const auto element = [](const View& x, std::int64_t entry, std::int64_t head, std::int64_t r, std::int64_t c) {
            return x.as<double>()[entry * x.stride(0) + head * x.stride(1) + r * x.stride(2) + c * x.stride(3)];
        };
        double largest = p.options.sinks ? p.sink(h) : -infinity;
        for (std::int64_t j = 0; j < p.keys; ++j) {
            const std::int64_t n = begin + j;
            double x = 0;
            for (std::int64_t c = 0; c < p.head_size; ++c) {
                x += element(p.q, b, h, i, c) * element(p.k, b, h / p.group(), j, c);
            }
            dot.as<double>()[n] = x;
            scaled.as<double>()[n] = x *= p.scale;
            const double cap = p.options.softcap;
            capped.as<double>()[n] = x = cap > 0 ? cap * std::tanh(x / cap) : x;
            if (p.options.bias) {
                const View& bias = p.options.bias;
                x += read_number(bias.dtype(), bias.data(), AttentionProblem::broadcast(bias, b, h, i, j));
            }
            if (p.options.alibi_slopes) {
                x -= p.slope(b, h) * std::abs(number(p.query_position(s, i) - p.key_position(s, j)));
            }
            biased.as<double>()[n] = x;
            const bool sees = i < s.queries && j < s.keys && p.allows(s, b, h, i, j) && x != -infinity;
            visible.as<std::uint8_t>()[n] = sees ? 1 : 0;
            masked.as<double>()[n] = x = sees ? x : -infinity;
            largest = std::max(largest, x);
        }
        if (largest == -infinity) { return; }  // sees nothing: weights 0
        double sum = p.options.sinks ? std::exp(p.sink(h) - largest) : 0;
        for (std::int64_t n = begin; n < begin + p.keys; ++n) { sum += std::exp(masked.as<double>()[n] - largest); }
        const double factor = 1 / (1 - p.options.dropout.p);
        for (std::int64_t j = 0; j < p.keys; ++j) {
            const std::int64_t n = begin + j;
            const double w = std::exp(masked.as<double>()[n] - largest) / sum;
            const bool keep = !p.drops() || p.keeps(b, h, i, j);
            weights.as<double>()[n] = w;
            kept.as<std::uint8_t>()[n] = keep ? 1 : 0;
            dropped.as<double>()[n] = !p.drops() ? w : keep ? w * factor : 0;
        }
    }
};

/// [H,T,E] = weights [H,T,T] times values [G,T,E] of the head's group.
Tensor mix(const Tensor& weights, const Tensor& values) {
    const std::int64_t heads = weights.shape()[0], rows = weights.shape()[1], keys = weights.shape()[2];
    const std::int64_t size = values.shape()[2], group = heads / values.shape()[0];
    Tensor result(DType::f64, {heads, rows, size});
    for (std::int64_t r = 0; r < heads * rows; ++r) {
        const double* value = values.as<double>() + r / rows / group * keys * size;
        for (std::int64_t j = 0; j < keys; ++j) {
            const double w = weights.as<double>()[r * keys + j];
            if (w == 0) { continue; }  // hidden or dropped: whatever the value is, it does not count
            for (std::int64_t e = 0; e < size; ++e) { result.as<double>()[r * size + e] += w * value[j * size + e]; }
        }
    }
    return result;
}

double largest_difference(const Tensor& a, const Tensor& b) {
    double largest = 0;
    for (std::int64_t n = 0; n < a.elements(); ++n) {
        const double difference = std::abs(a.as<double>()[n] - b.as<double>()[n]);
        if (!(difference <= largest)) { largest = difference; }  // NaN counts
    }
    return largest;
}

std::string decimal(double value) {
    std::string text = std::to_string(value);
    text.erase(text.find_last_not_of('0') + 1);
    if (text.back() == '.') { text.pop_back(); }
    return text;
}

}  // namespace

const WalkthroughStep* Walkthrough::find(const std::string& name) const {
    for (const WalkthroughStep& step : steps) {
        if (step.name == name) { return &step; }
    }
    return nullptr;
}

Walkthrough walk_through(Context& context, const WalkthroughInput& input, const AttentionOptions& options,
                         std::int64_t batch_entry) {
    const Example e(input);
    if (batch_entry < 0 || batch_entry >= e.batch) {
        refuse(function_name, "batch_entry", "0 to " + std::to_string(e.batch - 1), std::to_string(batch_entry));
    }
    const Tensor q = times(e.x, e.wq);
    const Tensor k = times(e.x, e.wk);
    const Tensor v = times(e.x, e.wv);
    const View qh = split_heads(q, e.heads);
    const View kh = split_heads(k, e.kv_heads);
    const View vh = split_heads(v, e.kv_heads);
    const AttentionProblem problem = checked_scores(function_name, qh, kh, options);
    if (problem.packed) { refuse(function_name, "cu_seqlens_q", "none", "a tensor"); }

    // The library's own answer. The heads are joined by writing them side by side: [B,T,H,E] seen as [B,H,T,E].
    Tensor joined(DType::f64, {e.batch, e.tokens, e.heads, e.value_size});
    attend(context, qh, kh, vh, joined.view().permute({0, 2, 1, 3}), options);
    Tensor library_weights(DType::f64, {1, e.heads, e.tokens, e.tokens});
    attention_weights(context, qh, kh, library_weights, {.batches = {batch_entry}, .heads = {}, .rows = {}}, options);
    const Tensor flat =
        Tensor::copy_of(View(DType::f64, joined.data(), Shape{e.batch, e.tokens, e.heads * e.value_size}));
    const Tensor y = times(flat, e.wo);

    Scores scores(problem, batch_entry);
    Tensor mixed = mix(scores.dropped, entry_of(vh, batch_entry));

    Walkthrough result;
    result.batch_entry = batch_entry;
    result.heads = e.heads;
    result.kv_heads = e.kv_heads;
    result.scale = problem.scale;
    result.largest_difference =
        std::max(largest_difference(scores.weights, entry_of(library_weights, 0)),
                 largest_difference(mixed, entry_of(joined.view().permute({0, 2, 1, 3}), batch_entry)));

    const auto add = [&](const char* name, std::string title, std::string formula, std::vector<Shape> operands,
                         const Shape& shape, Tensor values) {
        result.steps.push_back(
            {name, std::move(title), std::move(formula), std::move(operands), shape, std::move(values)});
    };
    const Shape square{e.batch, e.heads, e.tokens, e.tokens};
    add("input", "The input: one row per token", "X", {}, e.x.shape(), entry_of(e.x, batch_entry));
    add("queries", "What each token looks for", "Q = X Wq", {e.x.shape(), e.wq.shape()}, q.shape(),
        entry_of(q, batch_entry));
    add("keys", "What each token offers to be found by", "K = X Wk", {e.x.shape(), e.wk.shape()}, k.shape(),
        entry_of(k, batch_entry));
    add("values", "What each token hands over when it is found", "V = X Wv", {e.x.shape(), e.wv.shape()}, v.shape(),
        entry_of(v, batch_entry));
    add("query_heads", "Split into heads: each looks at its own columns", "Q", {q.shape()}, qh.shape(),
        entry_of(qh, batch_entry));
    add("key_heads", "Split into heads", "K", {k.shape()}, kh.shape(), entry_of(kh, batch_entry));
    add("value_heads", "Split into heads", "V", {v.shape()}, vh.shape(), entry_of(vh, batch_entry));
    add("scores", "Compare every query with every key", "S = Q K^T", {qh.shape(), kh.shape()}, square,
        std::move(scores.dot));
    const bool default_scale = !options.scale;
    add("scaled",
        default_scale        ? "Scale by 1/sqrt(" + std::to_string(e.head_size) + "), the root of the head size"
        : problem.scale == 1 ? "No scale"
                             : "Scale by a number of your choice",
        "S = " + decimal(problem.scale) + " S", {square}, square, std::move(scores.scaled));
    if (options.softcap > 0) {
        const std::string cap = decimal(options.softcap);
        add("softcap", "Soft-cap: scores stay between -" + cap + " and " + cap, "S = " + cap + " tanh(S / " + cap + ")",
            {square}, square, std::move(scores.capped));
    }
    if (options.bias || options.alibi_slopes) {
        add("bias", "Add the bias",
            std::string("S = S") + (options.bias ? " + bias" : "") + (options.alibi_slopes ? " - slope |i - j|" : ""),
            {square}, square, std::move(scores.biased));
    }
    const bool hides = options.causal || options.window.left >= 0 || options.window.right >= 0 || options.allow ||
                       options.pattern || options.key_lengths || options.query_lengths;
    if (hides) {
        add("mask", "Hide what a query may not see", "S = -inf where hidden", {square}, square,
            std::move(scores.masked));
    }
    add("weights",
        options.sinks ? "Softmax: each row becomes weights; the sink takes the rest of 1"
                      : "Softmax: each row of scores becomes weights that add up to 1",
        options.sinks ? "W = exp(S) / (sum exp(S) + exp(sink))" : "W = exp(S) / sum exp(S)", {square}, square,
        std::move(scores.weights));
    if (problem.drops()) {
        add("dropout", "Dropout: some weights are struck out, the others grow by 1/(1-p)",
            "W = W keep / (1 - " + decimal(options.dropout.p) + ")", {square}, square, std::move(scores.dropped));
        result.kept = std::move(scores.kept);
    }
    const Shape out_shape{e.batch, e.heads, e.tokens, e.value_size};
    add("mixed", "Each token collects the values, by weight", "O = W V", {square, vh.shape()}, out_shape,
        std::move(mixed));
    add("joined", "Join the heads", "O", {out_shape}, flat.shape(), entry_of(flat, batch_entry));
    add("output", "Project the result", "Y = O Wo", {flat.shape(), e.wo.shape()}, y.shape(), entry_of(y, batch_entry));
    result.visible = std::move(scores.visible);
    return result;
}

WalkthroughInput teaching_example() {
    WalkthroughInput input;
    input.x = Tensor(DType::f64, {1, 2, 4});
    for (const int n : {0, 2, 5, 7}) { input.x.as<double>()[n] = 1; }
    return input;
}

WalkthroughInput random_example(std::int64_t batch, std::int64_t tokens, std::int64_t d_model, std::int64_t heads,
                                std::int64_t kv_heads, std::uint64_t seed) {
    const auto need = [](const char* name, std::int64_t value, bool right, const std::string& expected) {
        if (!right) { refuse("random_example", name, expected, std::to_string(value)); }
    };
    need("batch", batch, batch >= 1 && batch <= 1 << 20, "1 to 1048576");
    need("tokens", tokens, tokens >= 1 && tokens <= 1 << 20, "1 to 1048576");
    need("d_model", d_model, d_model >= 1 && d_model <= 1 << 20, "1 to 1048576");
    need("heads", heads, heads >= 1 && d_model % heads == 0, "a divisor of d_model " + std::to_string(d_model));
    kv_heads = kv_heads == 0 ? heads : kv_heads;
    need("kv_heads", kv_heads, kv_heads >= 1 && heads % kv_heads == 0,
         "a divisor of " + std::to_string(heads) + " heads");
    const double most = largest_matrix;
    need("tokens", tokens, number(batch) * number(tokens) * number(d_model) <= most,
         "batch * tokens * d_model up to 2^24");
    need("d_model", d_model, number(d_model) * number(d_model) <= most, "a size up to 4096");

    std::uint32_t stream = 0;
    const auto normal = [&](Shape shape, double deviation) {
        Tensor result(DType::f64, shape);
        for (std::int64_t n = 0; n < result.elements(); ++n) {
            // Box-Muller on two 32-bit uniforms; the half keeps the logarithm away from 0.
            const auto words = philox4x32({static_cast<std::uint32_t>(n), 0, stream, 0}, seed);
            const double u = (number(words[0]) + 0.5) / 4294967296.0;
            const double angle = 2 * std::numbers::pi * number(words[1]) / 4294967296.0;
            result.as<double>()[n] = deviation * std::sqrt(-2 * std::log(u)) * std::cos(angle);
        }
        ++stream;
        return result;
    };
    const double deviation = 1 / std::sqrt(number(d_model));
    const std::int64_t kv_size = d_model / heads * kv_heads;
    WalkthroughInput input;
    input.heads = heads;
    input.kv_heads = kv_heads;
    input.x = normal({batch, tokens, d_model}, 1);
    input.wq = normal({d_model, d_model}, deviation);
    input.wk = normal({d_model, kv_size}, deviation);
    input.wv = normal({d_model, kv_size}, deviation);
    input.wo = normal({d_model, d_model}, deviation);
    return input;
}

}  // namespace heed
