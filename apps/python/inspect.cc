#include <heed/inspect.h>

#include <nanobind/stl/string.h>

#include <algorithm>

#include "array.h"
#include "context.h"
#include "keywords.h"
#include "module.h"
#include "signatures.h"

#define HEED_SELECTION "batches: ArrayLike | None = None, heads: ArrayLike | None = None"

namespace heed::python {

namespace {

std::vector<std::int64_t> chosen(const char* function, const char* argument, nb::handle value) {
    if (!value || value.is_none()) { return {}; }
    std::vector<std::int64_t> list = to_integers(function, argument, value);
    // For the library an empty list means all of them; whoever writes [] means none.
    if (list.empty()) { refuse(function, argument, "None for all, or at least one index", "an empty list"); }
    return list;
}

std::int64_t count(const std::vector<std::int64_t>& list, std::int64_t all) {
    return list.empty() ? all : static_cast<std::int64_t>(list.size());
}

nb::object attention_weights_(nb::handle q, nb::handle k, const nb::kwargs& keywords) {
    constexpr const char* f = "attention_weights";
    nb::handle batches, heads, rows, out, context;
    const Own own[] = {{"batches", &batches}, {"heads", &heads}, {"rows", &rows}, {"out", &out}, {"context", &context}};
    AttentionKeywords attention(f, Where::anywhere);
    read_keywords(f, keywords, own, &attention);
    const AttentionSelection selection{chosen(f, "batches", batches), chosen(f, "heads", heads),
                                       chosen(f, "rows", rows)};
    const Array queries(f, "q", q, Access::read, Where::anywhere);
    const Array keys(f, "k", k, Access::read, Where::anywhere);
    const Shape shape{count(selection.batches, queries.extent(0)), count(selection.heads, queries.extent(1)),
                      count(selection.rows, queries.extent(2)), keys.extent(2)};
    const Result result = make_result(f, "out", out, q, wide(queries.dtype()), shape);
    Context& team = choose_context(f, context, queries.device());
    without_gil([&] { attention_weights(team, queries, keys, result.view(), selection, attention.options); });
    return result.object;
}

nb::object attention_scores_(nb::handle q, nb::handle k, const nb::kwargs& keywords) {
    constexpr const char* f = "attention_scores";
    nb::handle stage, batches, heads, rows, out, context;
    const Own own[] = {{"stage", &stage}, {"batches", &batches}, {"heads", &heads},
                       {"rows", &rows},   {"out", &out},         {"context", &context}};
    AttentionKeywords attention(f, Where::anywhere);
    read_keywords(f, keywords, own, &attention);
    ScoreStage behind = ScoreStage::product;
    if (stage) {
        behind = choose<ScoreStage>(f, "stage", stage,
                                    {{"product", ScoreStage::product},
                                     {"capped", ScoreStage::capped},
                                     {"biased", ScoreStage::biased},
                                     {"weight", ScoreStage::weight}});
    }
    const AttentionSelection selection{chosen(f, "batches", batches), chosen(f, "heads", heads),
                                       chosen(f, "rows", rows)};
    const Array queries(f, "q", q, Access::read, Where::anywhere);
    const Array keys(f, "k", k, Access::read, Where::anywhere);
    const Shape shape{count(selection.batches, queries.extent(0)), count(selection.heads, queries.extent(1)),
                      count(selection.rows, queries.extent(2)), keys.extent(2)};
    const Result result = make_result(f, "out", out, q, wide(queries.dtype()), shape);
    Context& team = choose_context(f, context, queries.device());
    without_gil([&] { attention_scores(team, queries, keys, result.view(), behind, selection, attention.options); });
    return result.object;
}

nb::object score_parts_(nb::handle q, nb::handle k, const nb::kwargs& keywords) {
    constexpr const char* f = "score_parts";
    nb::handle batch, head, row, column;
    const Own own[] = {{"batch", &batch}, {"head", &head}, {"row", &row}, {"column", &column}};
    AttentionKeywords attention(f);
    read_keywords(f, keywords, own, &attention);
    if (!row || !column) { refuse(f, !row ? "row" : "column", "a whole number", "none"); }
    const auto index = [&](const char* name, nb::handle value) { return value ? to_integer(f, name, value) : 0; };
    const ScorePlace place{.batch = index("batch", batch),
                           .head = index("head", head),
                           .row = index("row", row),
                           .column = index("column", column)};
    const Array queries(f, "q", q);
    const Array keys(f, "k", k);
    std::vector<ScoreParts> parts;
    without_gil([&] { parts = score_parts(queries, keys, {&place, 1}, attention.options); });
    const ScoreParts& p = parts.front();
    const nb::object why = p.hidden_by == HiddenBy::nothing ? nb::none() : nb::cast(std::string(name_of(p.hidden_by)));
    const View products(p.products.data(), {static_cast<std::int64_t>(p.products.size())});
    return result_type("ScoreParts")(copy_out(products, nb::none()), p.dot, p.scale, p.scaled, p.capped, p.bias,
                                     p.alibi, p.score, why, p.log_sum, p.weight, p.sink);
}

nb::object attention_statistics_(nb::handle q, nb::handle k, const nb::kwargs& keywords) {
    constexpr const char* f = "attention_statistics";
    nb::handle entropy = Py_True, max_weight = Py_True, argmax = Py_True, window_mass = Py_True, first_mass = Py_True;
    nb::handle mass_window, context;
    const Own own[] = {{"entropy", &entropy},         {"max_weight", &max_weight}, {"argmax", &argmax},
                       {"window_mass", &window_mass}, {"first_mass", &first_mass}, {"mass_window", &mass_window},
                       {"context", &context}};
    AttentionKeywords attention(f, Where::anywhere);
    read_keywords(f, keywords, own, &attention);
    const Array queries(f, "q", q, Access::read, Where::anywhere);
    const Array keys(f, "k", k, Access::read, Where::anywhere);
    const DType type = wide(queries.dtype());
    const Shape shape{queries.extent(0), queries.extent(1), queries.extent(2)};
    const Result r_entropy = make_requested(f, "entropy", entropy, q, type, shape);
    const Result r_max = make_requested(f, "max_weight", max_weight, q, type, shape);
    const Result r_argmax = make_requested(f, "argmax", argmax, q, DType::i64, shape);
    const Result r_window = make_requested(f, "window_mass", window_mass, q, type, shape);
    const Result r_first = make_requested(f, "first_mass", first_mass, q, type, shape);
    AttentionStatistics statistics{.entropy = r_entropy.view(),
                                   .max_weight = r_max.view(),
                                   .argmax = r_argmax.view(),
                                   .window_mass = r_window.view(),
                                   .first_mass = r_first.view()};
    if (mass_window) { statistics.window = to_window(f, "mass_window", mass_window); }
    Context& team = choose_context(f, context, queries.device());
    without_gil([&] { attention_statistics(team, queries, keys, statistics, attention.options); });
    return result_type("AttentionStatistics")(r_entropy.object, r_max.object, r_argmax.object, r_window.object,
                                              r_first.object);
}

nb::object attention_map_(nb::handle q, nb::handle k, const nb::kwargs& keywords) {
    constexpr const char* f = "attention_map";
    nb::handle size, pooling, batches, heads, out, context;
    const Own own[] = {{"size", &size},   {"pooling", &pooling}, {"batches", &batches},
                       {"heads", &heads}, {"out", &out},         {"context", &context}};
    AttentionKeywords attention(f, Where::anywhere);
    read_keywords(f, keywords, own, &attention);
    const AttentionSelection selection{chosen(f, "batches", batches), chosen(f, "heads", heads), {}};
    const Array queries(f, "q", q, Access::read, Where::anywhere);
    const Array keys(f, "k", k, Access::read, Where::anywhere);
    std::int64_t cell_rows = std::min<std::int64_t>(64, queries.extent(2));
    std::int64_t cell_columns = std::min<std::int64_t>(64, keys.extent(2));
    if (size) {
        const std::vector<std::int64_t> sides = to_integers(f, "size", size);
        if (sides.size() != 2 || sides[0] < 1 || sides[1] < 1) {
            refuse(f, "size", "(rows, columns), 1 or more each", nb::cast<std::string>(nb::repr(size)));
        }
        cell_rows = sides[0];
        cell_columns = sides[1];
    }
    const Pooling how = pooling
                            ? choose<Pooling>(f, "pooling", pooling, {{"mean", Pooling::mean}, {"max", Pooling::max}})
                            : Pooling::mean;
    const Shape shape{count(selection.batches, queries.extent(0)), count(selection.heads, queries.extent(1)), cell_rows,
                      cell_columns};
    const Result result = make_result(f, "out", out, q, wide(queries.dtype()), shape);
    Context& team = choose_context(f, context, queries.device());
    without_gil([&] { attention_map(team, queries, keys, result.view(), how, selection, attention.options); });
    return nb::module_::import_("heed._pictures")
        .attr("AttentionMap")(result.object, queries.extent(2), keys.extent(2), how == Pooling::mean ? "mean" : "max");
}

}  // namespace

void bind_inspect(nb::module_& m) {
    m.def("attention_weights", attention_weights_, nb::arg("q"), nb::arg("k"), nb::arg("keywords"),
          nb::sig("def attention_weights(q: Array, k: ArrayLike, *, " HEED_SELECTION
                  ", rows: ArrayLike | None = None, out: Array | None = None, " HEED_CONTEXT ", " HEED_ATTENTION_OPTIONS
                  ") -> Array"),
          R"doc(Weights [chosen batches, chosen heads, chosen rows, S] of q [B,H,T,D] over k [B,G,S,D], before dropout.

batches, heads, rows: indices, None for all. Memory is proportional to what is asked for. Options as in attend.

>>> x = numpy.eye(4, dtype="float32")[None, None]
>>> heed.attention_weights(x, x, rows=[1], causal=True).round(2)
array([[[[0.38, 0.62, 0.  , 0.  ]]]], dtype=float32))doc");
    m.def(
        "attention_scores", attention_scores_, nb::arg("q"), nb::arg("k"), nb::arg("keywords"),
        nb::sig("def attention_scores(q: Array, k: ArrayLike, *, stage: Literal['product', 'capped', 'biased', "
                "'weight'] = 'product', " HEED_SELECTION
                ", rows: ArrayLike | None = None, out: Array | None = None, " HEED_CONTEXT ", " HEED_ATTENTION_OPTIONS
                ") -> Array"),
        R"doc(Scores [chosen batches, chosen heads, chosen rows, S] of q [B,H,T,D] over k [B,G,S,D] before the softmax.

stage is "product" (scale * q.k), "capped" (after the soft-cap), "biased" (with bias and ALiBi, -inf where hidden) or
"weight" (attention_weights): ONNX's qk_matmul_output_mode 0, 1, 2 and 3. The first two do not look at masks.

>>> x = numpy.eye(2, dtype="float32")[None, None]
>>> heed.attention_scores(x, x, stage="biased", causal=True, scale=1.0)[0, 0]
array([[  1., -inf],
       [  0.,   1.]], dtype=float32))doc");
    m.def(
        "score_parts", score_parts_, nb::arg("q"), nb::arg("k"), nb::arg("keywords"),
        nb::sig("def score_parts(q: Array, k: ArrayLike, *, row: int, column: int, head: int = 0, batch: int = "
                "0, " HEED_ATTENTION_OPTIONS ") -> ScoreParts"),
        R"doc(How the weight of query `row` over key `column` came about, of one head of q [B,H,T,D] over k [B,G,S,D]: a named tuple.

products   q_d k_d, dimension by dimension; dot is their sum
scaled     scale * dot; capped: behind the soft-cap
bias       what the bias adds; alibi: what ALiBi does
score      capped + bias + alibi, which goes into the softmax
hidden_by  None, or the first reason: "length", "causal", "window", "mask", "pattern", "bias"
log_sum    ln of the row's denominator; weight is e^(score - log_sum), sink the share that a sink takes

Summed in double. Options as in attend.

>>> x = numpy.eye(2, dtype="float32")[None, None]
>>> parts = heed.score_parts(x, x, row=1, column=1, scale=2.0, causal=True)
>>> parts.products.tolist(), parts.scaled, round(parts.weight, 4)
([0.0, 1.0], 2.0, 0.8808)
>>> heed.score_parts(x, x, row=0, column=1, causal=True).hidden_by
'causal')doc");
    m.def("attention_statistics", attention_statistics_, nb::arg("q"), nb::arg("k"), nb::arg("keywords"),
          nb::sig("def attention_statistics(q: Array, k: ArrayLike, *, entropy: bool | Array = True, "
                  "max_weight: bool | Array = True, argmax: bool | Array = True, window_mass: bool | Array = True, "
                  "first_mass: bool | Array = True, mass_window: tuple[int, int] = (0, 0), " HEED_CONTEXT
                  ", " HEED_ATTENTION_OPTIONS ") -> AttentionStatistics"),
          R"doc(One number a row of q [B,H,T,D] over k [B,G,S,D], at any length, without a T x S matrix; each [B,H,T].

entropy      -sum w ln w, in nats
max_weight   the largest weight
argmax       the key that has it, the first of equals; -1 for a row that sees nothing
window_mass  weight on keys from p_i - left to p_i + right, mass_window=(left, right)
first_mass   weight of key 0

True for a new array, False for none, or an array to write to. Options as in attend. Returns a named tuple.

>>> x = numpy.zeros((1, 1, 4, 8), dtype="float32")
>>> heed.attention_statistics(x, x).entropy.round(4)
array([[[1.3863, 1.3863, 1.3863, 1.3863]]], dtype=float32))doc");
    m.def("attention_map", attention_map_, nb::arg("q"), nb::arg("k"), nb::arg("keywords"),
          nb::sig("def attention_map(q: Array, k: ArrayLike, *, size: tuple[int, int] = ..., "
                  "pooling: Literal['mean', 'max'] = 'mean', " HEED_SELECTION
                  ", out: Array | None = None, " HEED_CONTEXT ", " HEED_ATTENTION_OPTIONS ") -> AttentionMap"),
          R"doc(The T x S weights of each head pooled to R x C cells: size=(R, C), up to 64 x 64 unless given.

Returns a heed.AttentionMap: its `values` are [chosen batches, chosen heads, R, C], and a notebook shows it as pictures.
Options as in attend.

>>> x = numpy.zeros((1, 1, 4, 8), dtype="float32")
>>> heed.attention_map(x, x, size=(2, 2)).values
array([[[[0.25, 0.25],
         [0.25, 0.25]]]], dtype=float32))doc");
}

}  // namespace heed::python
