#include <heed/infini_attention.h>

#include <cstring>

#include "array.h"
#include "context.h"
#include "infini_keywords.h"
#include "module.h"
#include "signatures.h"

namespace heed::python {

namespace {

nb::object infini_attend_(nb::handle q, nb::handle k, nb::handle v, nb::handle gates, InfiniMemory& memory,
                          const nb::kwargs& keywords) {
    InfiniKeywords own("infini_attend");
    const char* f = own.function;
    nb::handle out;
    own.read(keywords, {{"out", &out}});
    const Array queries(f, "q", q, Access::read, Where::anywhere);
    const Array keys(f, "k", k, Access::read, Where::anywhere);
    const Array values(f, "v", v, Access::read, Where::anywhere);
    const Array gate(f, "gates", gates, Access::read, Where::anywhere);
    const Result result = make_result(f, "out", out, q, queries.dtype(),
                                      {queries.extent(0), queries.extent(1), queries.extent(2), values.extent(3)});
    Context& team = choose_context(f, own.context, queries.device());
    without_gil([&] {
        const Guard alone({&memory});
        infini_attend(team, queries, keys, values, gate, result.view(), memory, own.options);
    });
    return result.object;
}

nb::object infini_attend_backward_(nb::handle q, nb::handle k, nb::handle v, nb::handle gates, nb::handle dout,
                                   const InfiniMemory& before, const nb::kwargs& keywords) {
    InfiniKeywords own("infini_attend_backward");
    const char* f = own.function;
    nb::handle unroll, dgates = Py_True, dsinks, dalibi_slopes, dm, dz, after_dm = Py_None, after_dz = Py_None;
    own.read(keywords, {{"unroll", &unroll},
                        {"dgates", &dgates},
                        {"dsinks", &dsinks},
                        {"dalibi_slopes", &dalibi_slopes},
                        {"dm", &dm},
                        {"dz", &dz},
                        {"after_dm", &after_dm},
                        {"after_dz", &after_dz}});
    if (unroll) { own.options.unroll = to_integer(f, "unroll", unroll); }
    const Array queries(f, "q", q, Access::read, Where::anywhere);
    const Array keys(f, "k", k, Access::read, Where::anywhere);
    const Array values(f, "v", v, Access::read, Where::anywhere);
    const Array gate(f, "gates", gates, Access::read, Where::anywhere);
    const Array upstream(f, "dout", dout, Access::read, Where::anywhere);
    const Array upstream_m(f, "after_dm", after_dm, Access::read, Where::anywhere);
    const Array upstream_z(f, "after_dz", after_dz, Access::read, Where::anywhere);
    const DType type = wide(queries.dtype());
    const std::int64_t batch = keys.extent(0), heads = keys.extent(1), d = keys.extent(3), e = values.extent(3);
    const Result rq = make_result(f, "dq", {}, q, queries.dtype(), queries.shape());
    const Result rk = make_result(f, "dk", {}, q, keys.dtype(), keys.shape());
    const Result rv = make_result(f, "dv", {}, q, values.dtype(), values.shape());
    const auto asked = [&](const char* name, nb::handle request, const View& option) {
        return make_requested(f, name, request, q, type, option.shape());
    };
    const auto beside = [&](const char* name, const Array& given) {
        return make_requested(f, name, given ? Py_True : Py_False, q, given.dtype(), given.shape());
    };
    const Result rmq = beside("dmemory_q", own.queries);
    const Result rmk = beside("dmemory_k", own.keys);
    const Result rgates = asked("dgates", dgates, gate);
    const Result rsinks = asked("dsinks", dsinks, own.options.local.sinks);
    const Result rslopes = asked("dalibi_slopes", dalibi_slopes, own.options.local.alibi_slopes);
    const Result rm = make_requested(f, "dm", dm, q, type, {batch, heads, d, e});
    const Result rz = make_requested(f, "dz", dz, q, type, {batch, heads, d});
    const InfiniGradients gradients{rq.view(),     rk.view(),     rv.view(),      rmq.view(), rmk.view(),
                                    rgates.view(), rsinks.view(), rslopes.view(), rm.view(),  rz.view()};
    Context& team = choose_context(f, own.context, queries.device());
    without_gil([&] {
        const Guard alone({&before});
        infini_attend_backward(
            team,
            {.q = queries, .k = keys, .v = values, .gates = gate, .dout = upstream, .after = {upstream_m, upstream_z}},
            gradients, before, own.options);
    });
    return result_type("InfiniGradients")(rq.object, rk.object, rv.object, rmq.object, rmk.object, rgates.object,
                                          rsinks.object, rslopes.object, rm.object, rz.object);
}

Tensor to_tensor(const char* argument, nb::handle object) {
    const Array array("InfiniMemory", argument, object);
    return array ? Tensor::copy_of(array) : Tensor();
}

InfiniMemory clone(const InfiniMemory& self) {
    InfiniMemory copy;
    without_gil([&] {
        const Guard alone({&self});
        copy = self.clone();
    });
    return copy;
}

nb::tuple get_state(const InfiniMemory& self) {
    const InfiniMemory now = clone(self);
    return nb::make_tuple(to_array(now.m), to_array(now.z), now.segments, now.pending, to_array(now.k),
                          to_array(now.memory_k), to_array(now.v));
}

/// One part of it, as another thread may be moving it on.
template <Tensor InfiniMemory::*Part>
nb::object part(const InfiniMemory& self) {
    Tensor copy;
    without_gil([&] {
        const Guard alone({&self});
        if (self.*Part) { copy = (self.*Part).clone(); }
    });
    return to_array(copy);
}

}  // namespace

void bind_infini_attention(nb::module_& m) {
    nb::class_<InfiniMemory>(m, "InfiniMemory",
                             R"doc(What Infini-attention carries from call to call: a memory of fixed size.

Starts empty; the first call gives it its sizes. m, z, k, memory_k and v are copies, as NumPy arrays. It can be pickled
and copied. InfiniMemory(m, z) starts from a memory M [B,G,D,E], z [B,G,D] of whole segments, `segments` of them: 1 unless said, as
0 would mean that it is empty.

>>> heed.InfiniMemory().segments
0)doc")
        .def(
            "__init__",
            [](InfiniMemory* self, nb::handle state, nb::handle z, nb::handle count) {
                const std::int64_t unless_said = state.is_none() ? 0 : 1;
                const std::int64_t segments =
                    count.is_none() ? unless_said : to_integer("InfiniMemory", "segments", count);
                if (segments < 0) { refuse("InfiniMemory", "segments", "at least 0", std::to_string(segments)); }
                new (self) InfiniMemory{};
                self->m = to_tensor("m", state);
                self->z = to_tensor("z", z);
                self->segments = segments;
            },
            nb::arg("m") = nb::none(), nb::arg("z") = nb::none(), nb::arg("segments") = nb::none(),
            nb::sig("def __init__(self, m: ArrayLike | None = None, z: ArrayLike | None = None, "
                    "segments: int | None = None) -> None"))
        .def_prop_ro("m", part<&InfiniMemory::m>, nb::sig("def m(self) -> Any"),
                     "M [B,G,D,E], a copy; None while empty.")
        .def_prop_ro("z", part<&InfiniMemory::z>, nb::sig("def z(self) -> Any"), "z [B,G,D], a copy; None while empty.")
        .def_prop_ro("k", part<&InfiniMemory::k>, nb::sig("def k(self) -> Any"),
                     "Keys of the pending tokens [B,G,N,D], in the first rows.")
        .def_prop_ro("memory_k", part<&InfiniMemory::memory_k>, nb::sig("def memory_k(self) -> Any"),
                     "Likewise, where memory_k is given.")
        .def_prop_ro("v", part<&InfiniMemory::v>, nb::sig("def v(self) -> Any"),
                     "Values of the pending tokens [B,G,N,E].")
        .def_ro("segments", &InfiniMemory::segments, "Folded into M and z.")
        .def_ro("pending", &InfiniMemory::pending, "Tokens of the segment that is not complete.")
        .def_prop_ro("bytes", &InfiniMemory::bytes, "Memory it takes, whatever the length so far.")
        .def("clone", clone, "A copy.")
        .def("__copy__", clone)
        .def(
            "__deepcopy__", [](const InfiniMemory& self, nb::handle) { return clone(self); }, nb::arg("memo"),
            nb::sig("def __deepcopy__(self, memo: Any) -> InfiniMemory"))
        .def("__getstate__", get_state, nb::sig("def __getstate__(self) -> tuple[Any, ...]"))
        .def(
            "__setstate__",
            [](InfiniMemory& self, const nb::tuple& state) {
                new (&self) InfiniMemory{
                    to_tensor("m", nb::object(state[0])),         to_tensor("z", nb::object(state[1])),
                    nb::cast<std::int64_t>(nb::object(state[2])), nb::cast<std::int64_t>(nb::object(state[3])),
                    to_tensor("k", nb::object(state[4])),         to_tensor("memory_k", nb::object(state[5])),
                    to_tensor("v", nb::object(state[6]))};
            },
            nb::sig("def __setstate__(self, state: tuple[Any, ...]) -> None"));
    m.def("infini_attend", infini_attend_, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("gates"),
          nb::arg("memory"), nb::arg("keywords"),
          nb::sig("def infini_attend(q: Array, k: ArrayLike, v: ArrayLike, gates: ArrayLike, memory: InfiniMemory, "
                  "*, " HEED_INFINI_OPTIONS ", out: Array | None = None, " HEED_CONTEXT ") -> Array"),
          R"doc(Infini-attention: out [B,H,T,E] of the T tokens that follow what `memory` has seen, and moves it on.

q [B,H,T,D], k [B,G,T,D], v [B,G,T,E], gates [H] (before the sigmoid). Causal attention inside segments; a compressive
memory of all segments before. Any split of a sequence into calls gives the same result. scale, softcap, sinks,
alibi_slopes, window[0] and kernel are those of the attention inside a segment.

segment        tokens of a segment, the same for all calls on one memory
update         "linear", or "delta": store only what the memory does not say already
first_segment  "local_only", or "gated": the gate applies while the memory is empty too
memory_q, memory_k   queries and keys of the memory, those without position embedding; q and k unless given

>>> x, memory = numpy.ones((1, 1, 6, 2), dtype="float32"), heed.InfiniMemory()
>>> out = heed.infini_attend(x, x, x, numpy.zeros(1, "float32"), memory, segment=2)
>>> memory.segments
3)doc");
    m.def(
        "infini_attend_backward", infini_attend_backward_, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("gates"),
        nb::arg("dout"), nb::arg("before"), nb::arg("keywords"),
        nb::sig("def infini_attend_backward(q: Array, k: ArrayLike, v: ArrayLike, gates: ArrayLike, dout: ArrayLike, "
                "before: InfiniMemory, *, " HEED_INFINI_OPTIONS
                ", unroll: int = 0, dgates: bool | Array = True, dsinks: bool | Array = False, "
                "dalibi_slopes: bool | Array = False, dm: bool | Array = False, dz: bool | Array = False, "
                "after_dm: ArrayLike | None = None, after_dz: ArrayLike | None = None, " HEED_CONTEXT
                ") -> InfiniGradients"),
        R"doc(Gradients of sum(dout * out), and of sum(after_dm * m) + sum(after_dz * z) of the memory behind the call.

`before` is the memory that the forward call was given (a clone of it), without pending tokens. unroll: segments in a
row through whose memory gradients pass; 0: all. dm, dz: of the memory before the call.

>>> x = numpy.ones((1, 1, 4, 2), dtype="float32")
>>> heed.infini_attend_backward(x, x, x, numpy.zeros(1, "float32"), x, heed.InfiniMemory(), segment=2).dgates.shape
(1,))doc");
}

}  // namespace heed::python
