#include <heed/inspect.h>
#include <heed/matmul.h>
#include <heed/random.h>
#include <heed/walkthrough.h>

#include "ops/attention_checks.h"
#include "reference/attention_steps.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace heed {
namespace {

constexpr const char* function_name = "walk_through";
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

/// [B,T,M] times [M,N].
Tensor times(Context& context, const Tensor& x, const Tensor& w) {
    const Shape one_matrix{1, w.shape()[0], w.shape()[1]};
    Tensor result(DType::f64, {x.shape()[0], x.shape()[1], w.shape()[1]});
    matmul(context, x, View(DType::f64, w.data(), one_matrix), result);
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

std::string decimal(double value) {
    std::string text = std::to_string(value);
    text.erase(text.find_last_not_of('0') + 1);
    if (text.back() == '.') { text.pop_back(); }
    return text;
}

/// Everything that is computed before it is told.
struct Calculation {
    const Example& e;
    const AttentionOptions& options;
    std::int64_t entry;
    Tensor q, k, v;
    View qh, kh, vh;
    AttentionProblem problem;
    Tensor joined;  ///< [B,T,H*E], the library's own answer
    Tensor y;
    reference::AttentionSteps steps;
    double largest_difference = 0;

    Calculation(Context& context, const Example& example, const AttentionOptions& o, std::int64_t batch_entry)
        : e(example),
          options(o),
          entry(batch_entry),
          q(times(context, e.x, e.wq)),
          k(times(context, e.x, e.wk)),
          v(times(context, e.x, e.wv)),
          qh(split_heads(q, e.heads)),
          kh(split_heads(k, e.kv_heads)),
          vh(split_heads(v, e.kv_heads)),
          problem(checked_scores(function_name, qh, kh, o)) {
        if (problem.packed) { refuse(function_name, "cu_seqlens_q", "none", "a tensor"); }
        problem.v = vh;
        problem.value_size = e.value_size;
        // The heads are joined by writing them side by side: [B,T,H,E] seen as [B,H,T,E].
        joined = Tensor(DType::f64, {e.batch, e.tokens, e.heads * e.value_size});
        const MutableView by_head =
            MutableView(DType::f64, joined.data(), Shape{e.batch, e.tokens, e.heads, e.value_size})
                .permute({0, 2, 1, 3});
        attend(context, qh, kh, vh, by_head, options);
        Tensor weights(DType::f64, {1, e.heads, e.tokens, e.tokens});
        attention_weights(context, qh, kh, weights, {.batches = {entry}, .heads = {}, .rows = {}}, options);
        y = times(context, joined, e.wo);
        steps = reference::attention_steps(problem, entry);
        largest_difference = std::max(reference::largest_difference(steps.weights, entry_of(weights, 0)),
                                      reference::largest_difference(steps.mixed, entry_of(by_head, entry)));
    }

    bool hides() const {
        return options.causal || options.window.left >= 0 || options.window.right >= 0 || options.allow ||
               options.pattern || options.key_lengths || options.query_lengths;
    }
};

/// The steps in order, with their titles and formulas.
class Story {
public:
    explicit Story(Calculation& calculation) : c_(calculation), e_(calculation.e) {
        told_.batch_entry = c_.entry;
        told_.heads = e_.heads;
        told_.kv_heads = e_.kv_heads;
        told_.scale = c_.problem.scale;
        told_.largest_difference = c_.largest_difference;
    }

    Walkthrough tell() {
        projections();
        scores();
        weights();
        output();
        told_.visible = std::move(c_.steps.visible);
        return std::move(told_);
    }

private:
    void add(const char* name, std::string title, std::string formula, std::vector<Shape> operands, const Shape& shape,
             Tensor values) {
        told_.steps.push_back(
            {name, std::move(title), std::move(formula), std::move(operands), shape, std::move(values)});
    }
    /// One whose values are those of the batch entry.
    void add_entry(const char* name, std::string title, std::string formula, std::vector<Shape> operands,
                   const View& values) {
        add(name, std::move(title), std::move(formula), std::move(operands), values.shape(),
            entry_of(values, c_.entry));
    }
    /// One that makes a T x T matrix of another.
    void add_square(const char* name, std::string title, std::string formula, Tensor& values) {
        add(name, std::move(title), std::move(formula), {square_}, square_, std::move(values));
    }

    void projections() {
        const auto project = [&](const char* name, const char* title, const char* formula, const Tensor& weight,
                                 const Tensor& values) {
            add_entry(name, title, formula, {e_.x.shape(), weight.shape()}, values);
        };
        add_entry("input", "The input: one row per token", "X", {}, e_.x);
        project("queries", "What each token looks for", "Q = X Wq", e_.wq, c_.q);
        project("keys", "What each token offers to be found by", "K = X Wk", e_.wk, c_.k);
        project("values", "What each token hands over when it is found", "V = X Wv", e_.wv, c_.v);
        add_entry("query_heads", "Split into heads: each looks at its own columns", "Q", {c_.q.shape()}, c_.qh);
        add_entry("key_heads", "Split into heads", "K", {c_.k.shape()}, c_.kh);
        add_entry("value_heads", "Split into heads", "V", {c_.v.shape()}, c_.vh);
    }

    void scores() {
        const AttentionOptions& o = c_.options;
        add("scores", "Compare every query with every key", "S = Q K^T", {c_.qh.shape(), c_.kh.shape()}, square_,
            std::move(c_.steps.dot));
        const std::string scale =
            !o.scale                ? "Scale by 1/sqrt(" + std::to_string(e_.head_size) + "), the root of the head size"
            : c_.problem.scale == 1 ? "No scale"
                                    : "Scale by a number of your choice";
        add_square("scaled", scale, "S = " + decimal(c_.problem.scale) + " S", c_.steps.scaled);
        if (o.softcap > 0) {
            const std::string cap = decimal(o.softcap);
            add_square("softcap", "Soft-cap: scores stay between -" + cap + " and " + cap,
                       "S = " + cap + " tanh(S / " + cap + ")", c_.steps.capped);
        }
        if (o.bias || o.alibi_slopes) {
            add_square("bias", "Add the bias",
                       std::string("S = S") + (o.bias ? " + bias" : "") + (o.alibi_slopes ? " - slope |i - j|" : ""),
                       c_.steps.biased);
        }
        if (c_.hides()) {
            add_square("mask", "Hide what a query may not see", "S = -inf where hidden", c_.steps.masked);
        }
    }

    void weights() {
        const bool sinks = static_cast<bool>(c_.options.sinks);
        add_square("weights",
                   sinks ? "Softmax: each row becomes weights; the sink takes the rest of 1"
                         : "Softmax: each row of scores becomes weights that add up to 1",
                   sinks ? "W = exp(S) / (sum exp(S) + exp(sink))" : "W = exp(S) / sum exp(S)", c_.steps.weights);
        if (!c_.problem.drops()) { return; }
        add_square("dropout", "Dropout: some weights are struck out, the others grow by 1/(1-p)",
                   "W = W keep / (1 - " + decimal(c_.options.dropout.p) + ")", c_.steps.dropped);
        told_.kept = std::move(c_.steps.kept);
    }

    void output() {
        const Shape mixed{e_.batch, e_.heads, e_.tokens, e_.value_size};
        add("mixed", "Each token collects the values, by weight", "O = W V", {square_, c_.vh.shape()}, mixed,
            std::move(c_.steps.mixed));
        add_entry("joined", "Join the heads", "O", {mixed}, c_.joined);
        add_entry("output", "Project the result", "Y = O Wo", {c_.joined.shape(), e_.wo.shape()}, c_.y);
    }

    Calculation& c_;
    const Example& e_;
    Shape square_{e_.batch, e_.heads, e_.tokens, e_.tokens};
    Walkthrough told_;
};

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
    Calculation calculation(context, e, options, batch_entry);
    return Story(calculation).tell();
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
