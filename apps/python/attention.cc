#include <heed/attention.h>

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "array.h"
#include "context.h"
#include "keywords.h"
#include "libraries.h"
#include "module.h"
#include "quick_call.h"
#include "signatures.h"

namespace heed::python {

namespace {

nb::object attend_with(nb::handle q, nb::handle k, nb::handle v, const Keywords& keywords) {
    constexpr const char* f = "attend";
    nb::handle out, lse, context;
    const Own own[] = {{"out", &out}, {"lse", &lse}, {"context", &context}};
    AttentionKeywords attention(f, Where::anywhere);
    read_keywords(f, keywords, own, &attention);
    const Array queries(f, "q", q, Access::read, Where::anywhere);
    const Array keys(f, "k", k, Access::read, Where::anywhere);
    const Array values(f, "v", v, Access::read, Where::anywhere);
    const std::int64_t batch = queries.extent(0), heads = queries.extent(1), rows = queries.extent(2);
    const Result result = make_result(f, "out", out, q, queries.dtype(), {batch, heads, rows, values.extent(3)});
    const Result sums = make_requested(f, "lse", lse, q, wide(queries.dtype()), {batch, heads, rows});
    Context& team = choose_context(f, context, queries.device());
    without_gil(
        [&] { attend(team, queries, keys, values, {.out = result.view(), .lse = sums.view()}, attention.options); });
    return with_lse(result, sums);
}

nb::object attend_(nb::handle q, nb::handle k, nb::handle v, const nb::kwargs& keywords) {
    return attend_with(q, k, v, keywords);
}

nb::object attend_backward_with(nb::handle q, nb::handle k, nb::handle v, nb::handle out, nb::handle lse,
                                nb::handle dout, const Keywords& keywords) {
    constexpr const char* f = "attend_backward";
    nb::handle dlse = nb::none(), dq, dk, dv, dbias, dsinks, dalibi_slopes, context;
    const Own own[] = {
        {"dlse", &dlse},   {"dq", &dq},         {"dk", &dk},           {"dv", &dv},
        {"dbias", &dbias}, {"dsinks", &dsinks}, {"context", &context}, {"dalibi_slopes", &dalibi_slopes}};
    AttentionKeywords attention(f, Where::anywhere);
    read_keywords(f, keywords, own, &attention);
    const Array queries(f, "q", q, Access::read, Where::anywhere);
    const Array keys(f, "k", k, Access::read, Where::anywhere);
    const Array values(f, "v", v, Access::read, Where::anywhere);
    const Array outputs(f, "out", out, Access::read, Where::anywhere);
    const Array sums(f, "lse", lse, Access::read, Where::anywhere);
    const Array upstream(f, "dout", dout, Access::read, Where::anywhere);
    const Array upstream_lse(f, "dlse", dlse, Access::read, Where::anywhere);
    const AttentionOptions& options = attention.options;
    const Result rq = make_result(f, "dq", dq, q, queries.dtype(), queries.shape());
    const Result rk = make_result(f, "dk", dk, q, keys.dtype(), keys.shape());
    const Result rv = make_result(f, "dv", dv, q, values.dtype(), values.shape());
    const DType small = wide(queries.dtype());
    const Result rbias = make_requested(f, "dbias", dbias, q, small, options.bias.shape());
    const Result rsinks = make_requested(f, "dsinks", dsinks, q, small, options.sinks.shape());
    const Result rslopes = make_requested(f, "dalibi_slopes", dalibi_slopes, q, small, options.alibi_slopes.shape());
    const AttentionGradients gradients{.dq = rq.view(),
                                       .dk = rk.view(),
                                       .dv = rv.view(),
                                       .dbias = rbias.view(),
                                       .dsinks = rsinks.view(),
                                       .dalibi_slopes = rslopes.view()};
    Context& team = choose_context(f, context, queries.device());
    without_gil([&] {
        attend_backward(
            team,
            {.q = queries, .k = keys, .v = values, .out = outputs, .lse = sums, .dout = upstream, .dlse = upstream_lse},
            gradients, options);
    });
    static const nb::handle type = result_type("AttentionGradients").release();
    return type(rq.object, rk.object, rv.object, rbias.object, rsinks.object, rslopes.object);
}

nb::object attend_backward_(nb::handle q, nb::handle k, nb::handle v, nb::handle out, nb::handle lse, nb::handle dout,
                            const nb::kwargs& keywords) {
    return attend_backward_with(q, k, v, out, lse, dout, keywords);
}

/// What heed.torch.scaled_dot_product_attention mostly is asked for: no mask, no dropout, no gradient, q, k and v
/// [B,H,T,D]. None where something is otherwise, for Python to see to.
nb::object plain_attention_with(nb::handle q, nb::handle k, nb::handle v, nb::handle causal, nb::handle scale,
                                nb::handle grouped, const Keywords&) {
    constexpr const char* f = "attend";
    for (const nb::handle tensor : {q, k, v}) {
        const ArrayType& type = array_type(tensor);
        if (!type.is_torch || type.protocol == Protocol::opaque || requires_gradient(tensor)) { return nb::none(); }
    }
    if (is_autocast() || is_on_gpu(q)) { return nb::none(); }
    const Array queries(f, "q", q, Access::read_detached, Where::anywhere);
    const Array keys(f, "k", k, Access::read_detached, Where::anywhere);
    const Array values(f, "v", v, Access::read_detached, Where::anywhere);
    const bool four_axes = queries.rank() == 4 && keys.rank() == 4 && values.rank() == 4;
    const bool one_batch = queries.extent(0) == keys.extent(0) && keys.extent(0) == values.extent(0);
    const bool heads_fit = keys.extent(1) == values.extent(1) &&
                           (queries.extent(1) == keys.extent(1) || PyObject_IsTrue(grouped.ptr()) == 1);
    if (!four_axes || !one_batch || !heads_fit) { return nb::none(); }
    if (queries.view().stride(1) < queries.view().stride(2)) { return nb::none(); }  // [B,T,H,D]: so is the result
    AttentionOptions options;
    options.causal = PyObject_IsTrue(causal.ptr()) == 1;
    options.align = options.causal ? Align::top_left : options.align;
    if (!scale.is_none()) { options.scale = to_double(f, "scale", scale); }
    const Result result = make_result(f, "out", {}, q, queries.dtype(),
                                      {queries.extent(0), queries.extent(1), queries.extent(2), values.extent(3)});
    Context& team = choose_context(f, {}, queries.device());
    without_gil([&] { attend(team, queries, keys, values, result.view(), options); });
    return result.object;
}

nb::object plain_attention_(nb::handle q, nb::handle k, nb::handle v, nb::handle causal, nb::handle scale,
                            nb::handle grouped) {
    return plain_attention_with(q, k, v, causal, scale, grouped, {nullptr, nullptr});
}

DType to_dtype(const char* function, nb::handle value) {
    return choose<DType>(function, "dtype", value,
                         {{"f32", DType::f32}, {"bf16", DType::bf16}, {"f16", DType::f16}, {"f64", DType::f64}});
}

Explanation explain_(std::int64_t batch, std::int64_t heads, std::int64_t queries, std::int64_t keys,
                     const nb::kwargs& keywords) {
    constexpr const char* f = "explain";
    AttentionShape shape{.batch = batch, .heads = heads, .kv_heads = heads, .queries = queries, .keys = keys};
    nb::handle kv_heads, head_size, value_size, dtype;
    const Own own[] = {
        {"kv_heads", &kv_heads}, {"head_size", &head_size}, {"value_size", &value_size}, {"dtype", &dtype}};
    AttentionKeywords attention(f);
    read_keywords(f, keywords, own, &attention);
    if (kv_heads) { shape.kv_heads = to_integer(f, "kv_heads", kv_heads); }
    if (head_size) { shape.head_size = shape.value_size = to_integer(f, "head_size", head_size); }
    if (value_size) { shape.value_size = to_integer(f, "value_size", value_size); }
    if (dtype) { shape.dtype = to_dtype(f, dtype); }
    return explain(shape, attention.options);
}

std::vector<Explanation> explain_calls_(const nb::callable& calls, nb::handle context) {
    return explain(choose_context("explain_calls", context), [&](Context&) { calls(); });
}

/// Of the context that calls without one share.
std::string threads_of_default() {
    const Context& context = choose_context("explain", {});
    const int threads = context.threads();
    return context.runs_on() + ", " + std::to_string(threads) + (threads == 1 ? " thread" : " threads");
}

std::string explanation_text(const Explanation& explanation) {
    std::string text = "kernel: " + explanation.kernel + "\nthreads: " + threads_of_default();
    for (const KernelVerdict& verdict : explanation.verdicts) {
        text += "\n  " + verdict.kernel + (verdict.fits ? " fits: " : " does not fit: ") + verdict.reason;
    }
    return text;
}

}  // namespace

void bind_attention(nb::module_& m) {
    m.def("attend", attend_, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("keywords"),
          nb::sig("def attend(q: Array, k: ArrayLike, v: ArrayLike, *, lse: Literal[False] = False, "
                  "out: Array | None = None, " HEED_CONTEXT ", " HEED_ATTENTION_OPTIONS ") -> Array"),
          R"doc(Scaled dot-product attention: out [B,H,T,E] of q [B,H,T,D] over k [B,G,S,D] and v [B,G,S,E].

B batch entries, H query heads, G key/value heads (H is a multiple of G), T queries, S keys. q, k, v share one of
float32, bfloat16, float16, float64 (computed in float64). Any strides; nothing is copied.

scale          default 1/sqrt(D)
causal         query i sees key j only when p_j <= p_i; align says where query 0 stands: p_i = i + S - T, or i
window         (left, right): p_i - left <= p_j <= p_i + right, -1 is unlimited
allow          bool or uint8, each axis of [B,H,T,S] or 1: True may attend
pattern        a heed.Pattern or its text: "causal & (window(256, 0) | global(0))"
bias           float, each axis of [B,H,T,S] or 1, added to the scores
alibi_slopes   [H] or [B,H]: minus slope * |p_i - p_j|
softcap        softcap * tanh(score / softcap); 0: none
sinks          [H]: a logit that joins the denominator only
lengths        [B] of int: rows and keys from there on are not read; query_lengths, key_lengths apart
cu_seqlens     [N+1] of int: N sequences end to end, B is 1; cu_seqlens_q, cu_seqlens_k apart
query_positions, key_positions   [B,T], [B,S] of int: explicit positions
dropout        probability; its bits are a function of (seed, dropout_offset; b, h, i, j), or dropout_keep is the mask;
               one of seed and dropout_keep is needed where it is above 0
kernel         name of the one kernel to use, see explain
out            where to write, instead of a new array
lse            True: also return the logarithm of the denominator [B,H,T]; or an array to write it to

Returns out, or (out, lse). Results are PyTorch tensors where q is, otherwise NumPy arrays.

>>> x = numpy.array([[1, 0, 1, 0], [0, 1, 0, 1]], dtype="float32")[None, None]
>>> heed.attend(x, x, x, causal=True)[0, 0].round(4)
array([[1.    , 0.    , 1.    , 0.    ],
       [0.2689, 0.7311, 0.2689, 0.7311]], dtype=float32))doc");
    m.def("attend", attend_, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("keywords"),
          nb::sig("def attend(q: Array, k: ArrayLike, v: ArrayLike, *, lse: Literal[True] | ArrayLike, "
                  "out: Array | None = None, " HEED_CONTEXT ", " HEED_ATTENTION_OPTIONS ") -> tuple[Array, Array]"));
    m.def("attend_backward", attend_backward_, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("out"), nb::arg("lse"),
          nb::arg("dout"), nb::arg("keywords"),
          nb::sig("def attend_backward(q: Array, k: ArrayLike, v: ArrayLike, out: ArrayLike, lse: ArrayLike, "
                  "dout: ArrayLike, *, dlse: ArrayLike | None = None, dq: Array | None = None, "
                  "dk: Array | None = None, dv: Array | None = None, dbias: bool | Array = False, "
                  "dsinks: bool | Array = False, dalibi_slopes: bool | Array = False, " HEED_CONTEXT
                  ", " HEED_ATTENTION_OPTIONS ") -> AttentionGradients"),
          R"doc(Gradients of sum(dout * out) + sum(dlse * lse).

out [B,H,T,E] and lse [B,H,T] are what attend gave for the same inputs and options; dout [B,H,T,E], dlse [B,H,T].
dq, dk, dv may be arrays to write to. dbias, dsinks, dalibi_slopes: True for a new array in the shape of the option
(summed over the axes that are 1), or an array.

Returns a named tuple (dq, dk, dv, dbias, dsinks, dalibi_slopes), None for what was not asked for.

>>> x = numpy.ones((1, 1, 2, 4), dtype="float32")
>>> out, lse = heed.attend(x, x, x, lse=True)
>>> heed.attend_backward(x, x, x, out, lse, numpy.ones_like(out)).dv[0, 0, 0]
array([1., 1., 1., 1.], dtype=float32))doc");

    quick_call<attend_with>(m, "attend", std::make_index_sequence<3>());
    quick_call<attend_backward_with>(m, "attend_backward", std::make_index_sequence<6>());
    m.def("_plain_attention", plain_attention_, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("causal"),
          nb::arg("scale").none(), nb::arg("grouped"));
    quick_call<plain_attention_with>(m, "_plain_attention", std::make_index_sequence<6>());

    nb::class_<KernelVerdict>(m, "KernelVerdict", "What explain says of one kernel.")
        .def_ro("kernel", &KernelVerdict::kernel)
        .def_ro("fits", &KernelVerdict::fits)
        .def_ro("reason", &KernelVerdict::reason, "Why it runs, could run, or cannot.");
    nb::class_<Explanation>(m, "Explanation", "Which kernel would run, and of each other one why not.")
        .def_ro("kernel", &Explanation::kernel, "The one that would run.")
        .def_ro("verdicts", &Explanation::verdicts, "Best first, the reference last.")
        .def_ro("operation", &Explanation::operation, "The function it is for.")
        .def_prop_ro(
            "threads", [](const Explanation&) { return threads_of_default(); },
            "Whose threads the default context runs on now, and how many.")
        .def("__str__", [](const Explanation& self) { return explanation_text(self); })
        .def("__repr__", [](const Explanation& self) { return explanation_text(self); });
    m.def("explain", explain_, nb::arg("batch"), nb::arg("heads"), nb::arg("queries"), nb::arg("keys"),
          nb::arg("keywords"),
          nb::sig("def explain(batch: int, heads: int, queries: int, keys: int, *, kv_heads: int = ..., "
                  "head_size: int = 64, value_size: int = ..., dtype: Literal['f32', 'bf16', 'f16', 'f64'] = "
                  "'f32', " HEED_ATTENTION_OPTIONS ") -> Explanation"),
          R"doc(Which kernel a call of these sizes would run, and of each other one why not.

>>> heed.explain(1, 8, 128, 128, dtype="f64").kernel
'reference')doc");
    m.def("explain_calls", explain_calls_, nb::arg("calls"), nb::arg("context").none() = nb::none(),
          nb::sig("def explain_calls(calls: Callable[[], Any], context: Context | None = None) -> list[Explanation]"),
          R"doc(Which kernels the operations called in `calls` would run, in order, with these very arrays and options.

`calls` is called once; arguments are checked as always, but nothing is computed: what it returns holds no numbers. Of
any operation, not only attention; one that is made of others gives an entry for each. `context` is that of the calls.

>>> a = numpy.ones((4, 4))
>>> [(e.operation, e.kernel) for e in heed.explain_calls(lambda: heed.matmul(a, a))]
[('matmul', 'reference')])doc");
    m.def("attention_kernels", &attention_kernels,
          R"doc(Names that the option kernel takes, best first, whether or not this machine can run them.

>>> heed.attention_kernels()[-1]
'reference')doc");
}

}  // namespace heed::python
