#include <heed/linear_attention.h>

#include <nanobind/stl/optional.h>

#include <memory>

#include "array.h"
#include "context.h"
#include "linear_keywords.h"
#include "module.h"
#include "signatures.h"

#define HEED_LINEAR_SHARED                                  \
    "causal: bool = True, " HEED_LINEAR_OPTIONS             \
    ", key_lengths: ArrayLike | None = None, "              \
    "cu_seqlens: ArrayLike | None = None, chunk: int = 0, " \
    "form: Literal['automatic', 'recurrent', 'chunked', 'quadratic'] = 'automatic'"

namespace heed::python {

namespace {

nb::object to_numpy(std::span<const double> row) {
    return copy_out(View(row.data(), {static_cast<std::int64_t>(row.size())}), nb::none());
}

void from_python(nb::handle result, std::span<double> row) {
    const Array array("feature", "result", result);
    const auto size = static_cast<std::int64_t>(row.size());
    if (!(array.shape() == Shape{size}) || array.dtype() != DType::f64) {
        refuse("feature", "result", to_string(Shape{size}) + " of f64",
               to_string(array.shape()) + " of " + std::string(name_of(array.dtype())));
    }
    const View view = array;
    for (std::int64_t n = 0; n < size; ++n) {
        row[static_cast<std::size_t>(n)] = view.as<double>()[n * view.stride(0)];
    }
}

/// (s, z) of a state that the caller gave; z is None without normaliser.
struct StateArrays {
    Array s, z;

    StateArrays() = default;
    StateArrays(const char* f, const char* argument, nb::handle given, Access access) {
        if (!given || given.is_none()) { return; }
        if (PyTuple_Check(given.ptr()) == 0 || nb::len(given) != 2) {
            refuse(f, argument, "(s, z), z None without normaliser", nb::cast<std::string>(nb::repr(given)));
        }
        const nb::tuple pair = nb::borrow<nb::tuple>(given);
        s = Array(f, argument, nb::object(pair[0]), access, Where::anywhere);
        z = Array(f, argument, nb::object(pair[1]), access, Where::anywhere);
    }
    LinearState view() const { return {s, z}; }
    MutableLinearState mutable_view() const { return {s.mutable_view(), z.mutable_view()}; }
};

/// A new state, where one is asked for.
struct StateResults {
    Result s{nb::none(), {}}, z{nb::none(), {}};

    StateResults(const LinearKeywords& own, const char* argument, nb::handle asked, nb::handle like, const Array& q,
                 const Array& v, std::int64_t kv_heads) {
        const char* f = own.function;
        if (!asked || !to_bool(f, argument, asked)) { return; }
        const std::int64_t batch = own.sequences(q);
        const std::int64_t states = linear_states(own.options, kv_heads);
        const std::int64_t features = own.features(q);
        const DType type = wide(q.dtype());
        s = make_result(f, argument, {}, like, type, {batch, states, features, v.extent(v.rank() - 1)});
        if (own.options.normalise) { z = make_result(f, argument, {}, like, type, {batch, states, features}); }
    }
    MutableLinearState view() const { return {s.view(), z.view()}; }
    nb::object object() const { return s ? result_type("LinearState")(s.object, z.object) : nb::none(); }
};

nb::object linear_attend_(nb::handle q, nb::handle k, nb::handle v, const nb::kwargs& keywords) {
    LinearKeywords own("linear_attend");
    const char* f = own.function;
    nb::handle out, initial, final;
    own.read(keywords, {{"out", &out}, {"initial", &initial}, {"final", &final}});
    const Array queries(f, "q", q, Access::read, Where::anywhere);
    const Array keys(f, "k", k, Access::read, Where::anywhere);
    const Array values(f, "v", v, Access::read, Where::anywhere);
    const StateArrays before(f, "initial", initial, Access::read);
    const Result result = make_result(f, "out", out, q, queries.dtype(),
                                      {queries.extent(0), queries.extent(1), queries.extent(2), values.extent(3)});
    const StateResults after(own, "final", final, q, queries, values, keys.extent(1));
    Context& team = choose_context(f, own.context, queries.device());
    without_gil([&] {
        linear_attend(team, queries, keys, values, {.out = result.view(), .final = after.view()}, own.options,
                      before.view());
    });
    return after.s ? nb::make_tuple(result.object, after.object()) : result.object;
}

nb::object linear_attend_step_(nb::handle q, nb::handle k, nb::handle v, nb::handle state, const nb::kwargs& keywords) {
    LinearKeywords own("linear_attend_step");
    const char* f = own.function;
    nb::handle out;
    own.read(keywords, {{"out", &out}});
    const Array queries(f, "q", q, Access::read, Where::anywhere);
    const Array keys(f, "k", k, Access::read, Where::anywhere);
    const Array values(f, "v", v, Access::read, Where::anywhere);
    const StateArrays moving(f, "state", state, Access::write);
    const Result result =
        make_result(f, "out", out, q, queries.dtype(), {queries.extent(0), queries.extent(1), values.extent(2)});
    Context& team = choose_context(f, own.context, queries.device());
    without_gil(
        [&] { linear_attend_step(team, queries, keys, values, result.view(), moving.mutable_view(), own.options); });
    return result.object;
}

nb::object linear_attend_backward_(nb::handle q, nb::handle k, nb::handle v, nb::handle dout,
                                   const nb::kwargs& keywords) {
    LinearKeywords own("linear_attend_backward");
    const char* f = own.function;
    nb::handle initial, dfinal, dinitial, ddecay, dlog_decay, dbeta;
    own.read(keywords, {{"initial", &initial},
                        {"dfinal", &dfinal},
                        {"dinitial", &dinitial},
                        {"ddecay", &ddecay},
                        {"dlog_decay", &dlog_decay},
                        {"dbeta", &dbeta}});
    const Array queries(f, "q", q, Access::read, Where::anywhere);
    const Array keys(f, "k", k, Access::read, Where::anywhere);
    const Array values(f, "v", v, Access::read, Where::anywhere);
    const Array upstream(f, "dout", dout, Access::read, Where::anywhere);
    const StateArrays before(f, "initial", initial, Access::read);
    const StateArrays after(f, "dfinal", dfinal, Access::read);
    const Result rq = make_result(f, "dq", {}, q, queries.dtype(), queries.shape());
    const Result rk = make_result(f, "dk", {}, q, keys.dtype(), keys.shape());
    const Result rv = make_result(f, "dv", {}, q, values.dtype(), values.shape());
    const StateResults rstate(own, "dinitial", dinitial, q, queries, values, keys.extent(1));
    const Result rdecay = make_requested(f, "ddecay", ddecay, q, wide(queries.dtype()), own.options.decay.shape());
    const Result rlog =
        make_requested(f, "dlog_decay", dlog_decay, q, own.options.log_decay.dtype(), own.options.log_decay.shape());
    const Result rbeta = make_requested(f, "dbeta", dbeta, q, own.options.beta.dtype(), own.options.beta.shape());
    const LinearAttentionGradients gradients{rq.view(),     rk.view(),   rv.view(),   rstate.view(),
                                             rdecay.view(), rlog.view(), rbeta.view()};
    Context& team = choose_context(f, own.context, queries.device());
    without_gil([&] {
        linear_attend_backward(
            team,
            {.q = queries, .k = keys, .v = values, .initial = before.view(), .dout = upstream, .dfinal = after.view()},
            gradients, own.options);
    });
    return result_type("LinearGradients")(rq.object, rk.object, rv.object, rstate.object(), rdecay.object, rlog.object,
                                          rbeta.object);
}

}  // namespace

FeatureFunction to_function(const PythonFeatures& features) {
    FeatureFunction function{.size = features.size};
    // The caller holds `features` for the length of the call.
    function.map = [map = nb::handle(features.map)](std::span<const double> x, std::span<double> y) {
        const nb::gil_scoped_acquire held;
        from_python(map(to_numpy(x)), y);
    };
    if (!features.backward.is_none()) {
        function.backward = [backward = nb::handle(features.backward)](
                                std::span<const double> x, std::span<const double> dy, std::span<double> dx) {
            const nb::gil_scoped_acquire held;
            from_python(backward(to_numpy(x), to_numpy(dy)), dx);
        };
    }
    return function;
}

void bind_linear_attention(nb::module_& m) {
    nb::class_<PythonFeatures>(m, "FeatureFunction",
                               R"doc(A feature map of your own for linear attention, a row at a time.

map(x [D]) gives phi(x) [F]; backward(x [D], dy [F]) gives dx [D] and is needed for the backward pass only. size is F,
0 for D. Rows are NumPy arrays of float64. Python is called for every row: for experiments. (feature="identity" takes
features that were computed beforehand, for all rows at once.)

>>> square = heed.FeatureFunction(lambda x: x * x, lambda x, dy: 2 * x * dy)
>>> x = numpy.ones((1, 1, 2, 4), dtype="float32")
>>> heed.linear_attend(x, x, x, feature=square, epsilon=0).shape
(1, 1, 2, 4))doc")
        .def(
            "__init__",
            [](PythonFeatures* self, nb::object map, nb::object backward, std::int64_t size) {
                new (self) PythonFeatures{size, std::move(map), std::move(backward)};
            },
            nb::arg("map"), nb::arg("backward") = nb::none(), nb::arg("size") = 0,
            nb::sig("def __init__(self, map: Callable[[Any], Any], backward: Callable[[Any, Any], Any] | None = None, "
                    "size: int = 0) -> None"));
    m.def("linear_attend", linear_attend_, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("keywords"),
          nb::sig("def linear_attend(q: Array, k: ArrayLike, v: ArrayLike, *, " HEED_LINEAR_SHARED
                  ", initial: tuple[ArrayLike, ArrayLike] | None = None, final: Literal[False] = False, "
                  "out: Array | None = None, " HEED_CONTEXT ") -> Array"),
          R"doc(Linear attention: out [B,H,T,E] of q [B,H,T,D] over k [B,G,S,D] and v [B,G,S,E]; S = T where causal.

S = decay S + phi(k) v^T, z = decay z + phi(k), out = scale phi(q)^T S / (scale phi(q)^T z + epsilon).
With rule="delta" R = decay S, S = R + phi(k) (beta (v - R^T phi(k)))^T.

feature      phi: "elu_plus_one", "relu", "identity", or a heed.FeatureFunction
decay        [G] or [H] of float, 0 to 1: the state's factor per token
rule         what a token writes: "sum" (v) or "delta" (the share beta of what the state lacks); delta: normalise=False
log_decay    [B,N,T] or [B,N,T,F]: a decay for every token, as its logarithm; N states, as many as k or q has heads
beta         [B,N,T] or [B,N,T,E], with rule="delta"
key_lengths  [B] of int
cu_seqlens   [n+1] of int: n sequences lie end to end; the states are then [n,N,F,E]
form         how it is computed; all forms agree to rounding
initial      (s [B,N,F,E], z [B,N,F]) to start from: what an earlier call left; z None without normaliser
final        True: also return the state behind the last token, a heed.LinearState

>>> x = numpy.ones((1, 1, 4, 2), dtype="float32")
>>> out, state = heed.linear_attend(x[:, :, :2], x[:, :, :2], x[:, :, :2], final=True)
>>> bool(numpy.allclose(heed.linear_attend(x[:, :, 2:], x[:, :, 2:], x[:, :, 2:], initial=state), x[:, :, 2:]))
True

Gated DeltaNet (Qwen3-Next); keys of length 1, and the state forgets half at every token:

>>> gated = {"feature": "identity", "normalise": False, "rule": "delta"}
>>> half = numpy.log(numpy.full((1, 1, 4), 0.5, "float32"))
>>> k = numpy.full((1, 1, 4, 2), 0.5 ** 0.5, "float32")
>>> heed.linear_attend(k, k, x, log_decay=half, beta=numpy.ones((1, 1, 4), "float32"), **gated).round(3)[0, 0, 3]
array([1., 1.], dtype=float32))doc");
    m.def("linear_attend", linear_attend_, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("keywords"),
          nb::sig("def linear_attend(q: Array, k: ArrayLike, v: ArrayLike, *, final: Literal[True], " HEED_LINEAR_SHARED
                  ", initial: tuple[ArrayLike, ArrayLike] | None = None, "
                  "out: Array | None = None, " HEED_CONTEXT ") -> tuple[Array, LinearState]"));
    m.def("linear_attend_step", linear_attend_step_, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("state"),
          nb::arg("keywords"),
          nb::sig("def linear_attend_step(q: Array, k: ArrayLike, v: ArrayLike, state: tuple[ArrayLike, ArrayLike], "
                  "*, " HEED_LINEAR_OPTIONS ", out: Array | None = None, " HEED_CONTEXT ") -> Array"),
          R"doc(One token of decoding: out [B,H,E] of q [B,H,D], k [B,G,D], v [B,G,E].

state = (s [B,N,F,E], z [B,N,F]), float32 or float64, is read and moved on in place. log_decay is [B,N] or [B,N,F]
here, beta [B,N] or [B,N,E].

>>> state = heed.LinearState(numpy.zeros((1, 1, 2, 3), "float32"), numpy.zeros((1, 1, 2), "float32"))
>>> q, v = numpy.ones((1, 1, 2), "float32"), numpy.ones((1, 1, 3), "float32")
>>> heed.linear_attend_step(q, q, v, state).round(3)
array([[[1., 1., 1.]]], dtype=float32))doc");
    m.def(
        "linear_attend_backward", linear_attend_backward_, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("dout"),
        nb::arg("keywords"),
        nb::sig(
            "def linear_attend_backward(q: Array, k: ArrayLike, v: ArrayLike, dout: ArrayLike, *, " HEED_LINEAR_SHARED
            ", initial: tuple[ArrayLike, ArrayLike] | None = None, "
            "dfinal: tuple[ArrayLike | None, ArrayLike | None] | None = None, dinitial: bool = False, ddecay: bool | "
            "Array = False, dlog_decay: bool | Array = False, dbeta: bool | Array = False, " HEED_CONTEXT
            ") -> LinearGradients"),
        R"doc(Gradients of sum(dout * out) + sum(dfinal * final), for the options and initial state of the forward call.

Returns a named tuple (dq, dk, dv, dinitial, ddecay, dlog_decay, dbeta); dinitial, a heed.LinearState, and what
follows it on request.

>>> x = numpy.ones((1, 1, 4, 2), dtype="float32")
>>> heed.linear_attend_backward(x, x, x, x).dv.shape
(1, 1, 4, 2))doc");
}

}  // namespace heed::python
