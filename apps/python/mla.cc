#include <heed/mla.h>

#include "array.h"
#include "context.h"
#include "keywords.h"
#include "module.h"
#include "signatures.h"

namespace heed::python {

namespace {

nb::object mla_attend_(nb::handle q, nb::handle latent, nb::handle rotary_key, nb::handle up_key, nb::handle up_value,
                       const nb::kwargs& keywords) {
    constexpr const char* f = "mla_attend";
    nb::handle out, lse, context;
    const Own own[] = {{"out", &out}, {"lse", &lse}, {"context", &context}};
    AttentionKeywords attention(f, Where::anywhere);
    read_keywords(f, keywords, own, &attention);
    const Array queries(f, "q", q, Access::read, Where::anywhere);
    const Array latents(f, "latent", latent, Access::read, Where::anywhere);
    const Array rotary(f, "rotary_key", rotary_key, Access::read, Where::anywhere);
    const Array keys(f, "up_key", up_key, Access::read, Where::anywhere);
    const Array values(f, "up_value", up_value, Access::read, Where::anywhere);
    const std::int64_t batch = queries.extent(0), heads = queries.extent(1), rows = queries.extent(2);
    const Result result = make_result(f, "out", out, q, queries.dtype(), {batch, heads, rows, values.extent(1)});
    const Result sums = make_requested(f, "lse", lse, q, wide(queries.dtype()), {batch, heads, rows});
    Context& team = choose_context(f, context, queries.device());
    without_gil([&] {
        mla_attend(team, queries, latents, rotary, {keys, values}, {.out = result.view(), .lse = sums.view()},
                   attention.options);
    });
    return with_lse(result, sums);
}

nb::object mla_attend_absorbed_(nb::handle q, nb::handle cache, nb::handle up_key, nb::handle up_value,
                                const nb::kwargs& keywords) {
    constexpr const char* f = "mla_attend_absorbed";
    nb::handle out, lse, context;
    const Own own[] = {{"out", &out}, {"lse", &lse}, {"context", &context}};
    AttentionKeywords attention(f, Where::anywhere);
    read_keywords(f, keywords, own, &attention);
    const Array queries(f, "q", q, Access::read, Where::anywhere);
    const Array cached(f, "cache", cache, Access::read, Where::anywhere);
    const Array keys(f, "up_key", up_key, Access::read, Where::anywhere);
    const Array values(f, "up_value", up_value, Access::read, Where::anywhere);
    const std::int64_t batch = queries.extent(0), heads = queries.extent(1), rows = queries.extent(2);
    const Result result = make_result(f, "out", out, q, queries.dtype(), {batch, heads, rows, values.extent(1)});
    const Result sums = make_requested(f, "lse", lse, q, wide(queries.dtype()), {batch, heads, rows});
    Context& team = choose_context(f, context, queries.device());
    without_gil([&] {
        mla_attend_absorbed(team, queries, cached, {keys, values}, {.out = result.view(), .lse = sums.view()},
                            attention.options);
    });
    return with_lse(result, sums);
}

nb::object mla_attend_backward_(nb::handle q, nb::handle latent, nb::handle rotary_key, nb::handle up_key,
                                nb::handle up_value, nb::handle out, nb::handle lse, nb::handle dout,
                                const nb::kwargs& keywords) {
    constexpr const char* f = "mla_attend_backward";
    nb::handle dlse = Py_None, dbias, dsinks, dalibi_slopes, context;
    const Own own[] = {{"dlse", &dlse},
                       {"dbias", &dbias},
                       {"dsinks", &dsinks},
                       {"dalibi_slopes", &dalibi_slopes},
                       {"context", &context}};
    AttentionKeywords attention(f, Where::anywhere);
    read_keywords(f, keywords, own, &attention);
    const Array queries(f, "q", q, Access::read, Where::anywhere);
    const Array latents(f, "latent", latent, Access::read, Where::anywhere);
    const Array rotary(f, "rotary_key", rotary_key, Access::read, Where::anywhere);
    const Array keys(f, "up_key", up_key, Access::read, Where::anywhere);
    const Array values(f, "up_value", up_value, Access::read, Where::anywhere);
    const Array outputs(f, "out", out, Access::read, Where::anywhere);
    const Array sums(f, "lse", lse, Access::read, Where::anywhere);
    const Array upstream(f, "dout", dout, Access::read, Where::anywhere);
    const Array upstream_lse(f, "dlse", dlse, Access::read, Where::anywhere);
    const auto like = [&](const char* name, const Array& array) {
        return make_requested(f, name, array ? Py_True : Py_False, q, array.dtype(), array.shape());
    };
    const auto asked = [&](const char* name, nb::handle request, const View& option) {
        return make_requested(f, name, request, q, wide(queries.dtype()), option.shape());
    };
    const AttentionOptions& options = attention.options;
    const Result rq = like("dq", queries);
    const Result rlatent = like("dlatent", latents);
    const Result rrotary = like("drotary_key", rotary);
    const Result rkey = like("dup_key", keys);
    const Result rvalue = like("dup_value", values);
    const Result rbias = asked("dbias", dbias, options.bias);
    const Result rsinks = asked("dsinks", dsinks, options.sinks);
    const Result rslopes = asked("dalibi_slopes", dalibi_slopes, options.alibi_slopes);
    const MlaGradients gradients{rq.view(),     rlatent.view(), rrotary.view(), rkey.view(),
                                 rvalue.view(), rbias.view(),   rsinks.view(),  rslopes.view()};
    Context& team = choose_context(f, context, queries.device());
    without_gil([&] {
        mla_attend_backward(team,
                            {.q = queries,
                             .latent = latents,
                             .rotary_key = rotary,
                             .weights = {keys, values},
                             .out = outputs,
                             .lse = sums,
                             .dout = upstream,
                             .dlse = upstream_lse},
                            gradients, options);
    });
    return result_type("MlaGradients")(rq.object, rlatent.object, rrotary.object, rkey.object, rvalue.object,
                                       rbias.object, rsinks.object, rslopes.object);
}

}  // namespace

void bind_mla(nb::module_& m) {
    m.def("mla_scale", &mla_scale, nb::arg("head_size"), nb::arg("mscale") = 1.0,
          R"doc((n + p)^-1/2 * mscale^2: the scale where YaRN's factor belongs to the scores.

>>> heed.mla_scale(16)
0.25)doc");
    m.def("mla_attend", mla_attend_, nb::arg("q"), nb::arg("latent"), nb::arg("rotary_key").none(), nb::arg("up_key"),
          nb::arg("up_value"), nb::arg("keywords"),
          nb::sig("def mla_attend(q: Array, latent: ArrayLike, rotary_key: ArrayLike | None, up_key: ArrayLike, "
                  "up_value: ArrayLike, *, lse: bool | ArrayLike = False, out: Array | None = None, " HEED_CONTEXT
                  ", " HEED_ATTENTION_OPTIONS ") -> Any"),
          R"doc(Multi-head latent attention, expanded form: out [B,H,T,v], with lse=True (out, lse [B,H,T]).

q [B,H,T,n+p], latent [B,S,r], rotary_key [B,S,p] (None where p is 0), up_key [H,n,r], up_value [H,v,r]. Options as in
attend. For training and prefill.

>>> q, c = numpy.ones((1, 2, 3, 4), "float32"), numpy.ones((1, 3, 5), "float32")
>>> heed.mla_attend(q, c, None, numpy.ones((2, 4, 5), "float32"), numpy.ones((2, 6, 5), "float32")).shape
(1, 2, 3, 6))doc");
    m.def("mla_attend_backward", mla_attend_backward_, nb::arg("q"), nb::arg("latent"), nb::arg("rotary_key").none(),
          nb::arg("up_key"), nb::arg("up_value"), nb::arg("out"), nb::arg("lse"), nb::arg("dout"), nb::arg("keywords"),
          nb::sig("def mla_attend_backward(q: Array, latent: ArrayLike, rotary_key: ArrayLike | None, "
                  "up_key: ArrayLike, up_value: ArrayLike, out: ArrayLike, lse: ArrayLike, dout: ArrayLike, *, "
                  "dlse: ArrayLike | None = None, dbias: bool | Array = False, dsinks: bool | Array = False, "
                  "dalibi_slopes: bool | Array = False, " HEED_CONTEXT ", " HEED_ATTENTION_OPTIONS ") -> MlaGradients"),
          R"doc(Gradients of sum(dout * out) + sum(dlse * lse), from what mla_attend gave.

Returns a named tuple (dq, dlatent, drotary_key, dup_key, dup_value, dbias, dsinks, dalibi_slopes).

>>> q, c = numpy.ones((1, 2, 3, 4), "float32"), numpy.ones((1, 3, 5), "float32")
>>> up = numpy.ones((2, 4, 5), "float32")
>>> out, lse = heed.mla_attend(q, c, None, up, up, lse=True)
>>> heed.mla_attend_backward(q, c, None, up, up, out, lse, out).dlatent.shape
(1, 3, 5))doc");
    m.def("mla_attend_absorbed", mla_attend_absorbed_, nb::arg("q"), nb::arg("cache"), nb::arg("up_key"),
          nb::arg("up_value"), nb::arg("keywords"),
          nb::sig("def mla_attend_absorbed(q: Array, cache: ArrayLike, up_key: ArrayLike, up_value: ArrayLike, *, "
                  "lse: bool | ArrayLike = False, out: Array | None = None, " HEED_CONTEXT ", " HEED_ATTENTION_OPTIONS
                  ") -> Any"),
          R"doc(Multi-head latent attention over the latents themselves: out [B,H,T,v]. For decoding.

q [B,H,T,n+p], cache [B,S,r+p] (latents and rotary keys side by side), up_key [H,n,r], up_value [H,v,r].

>>> q, cache = numpy.ones((1, 2, 1, 4), "float32"), numpy.ones((1, 3, 5), "float32")
>>> heed.mla_attend_absorbed(q, cache, numpy.ones((2, 4, 5), "float32"), numpy.ones((2, 6, 5), "float32")).shape
(1, 2, 1, 6))doc");
}

}  // namespace heed::python
