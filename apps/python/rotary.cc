#include <heed/rotary.h>

#include <nanobind/stl/vector.h>

#include "array.h"
#include "context.h"
#include "keywords.h"
#include "module.h"
#include "signatures.h"

#define HEED_ROTATIONS                                                                              \
    "cosine: ArrayLike, sine: ArrayLike, *, pairing: Literal['halves', 'interleaved'] = 'halves', " \
    "positions: ArrayLike | None = None, out: Array | None = None, " HEED_CONTEXT

namespace heed::python {

namespace {

/// rotate and rotate_backward: the same arguments, one operation each.
nb::object turn(const char* f, nb::handle x, nb::handle cosine, nb::handle sine, const nb::kwargs& keywords,
                void (*operation)(Context&, const View&, const MutableView&, const Rotations&)) {
    nb::handle pairing, positions = Py_None, out, context;
    const Own own[] = {{"pairing", &pairing}, {"positions", &positions}, {"out", &out}, {"context", &context}};
    read_keywords(f, keywords, own);
    const Array rows(f, "x", x, Access::read, Where::anywhere);
    const Array cosines(f, "cosine", cosine, Access::read, Where::anywhere);
    const Array sines(f, "sine", sine, Access::read, Where::anywhere);
    const Array places(f, "positions", positions);
    Rotations by{.cosine = cosines, .sine = sines, .positions = places};
    if (pairing) {
        by.pairing = choose<Pairing>(f, "pairing", pairing,
                                     {{"halves", Pairing::halves}, {"interleaved", Pairing::interleaved}});
    }
    const Result result = make_result(f, "out", out, x, rows.dtype(), rows.shape());
    Context& team = choose_context(f, context, rows.device());
    without_gil([&] { operation(team, rows, result.view(), by); });
    return result.object;
}

nb::object rotate_(nb::handle x, nb::handle cosine, nb::handle sine, const nb::kwargs& keywords) {
    return turn("rotate", x, cosine, sine, keywords, heed::rotate);
}
nb::object rotate_backward_(nb::handle dout, nb::handle cosine, nb::handle sine, const nb::kwargs& keywords) {
    return turn("rotate_backward", dout, cosine, sine, keywords, heed::rotate_backward);
}

nb::object rotary_tables_(const std::vector<RopeTable>& tables, const std::vector<nb::object>& positions,
                          const nb::kwargs& keywords) {
    constexpr const char* f = "rotary_tables";
    nb::handle xpos, gamma, scale_base, centre, context;
    const Own own[] = {
        {"xpos", &xpos}, {"gamma", &gamma}, {"scale_base", &scale_base}, {"centre", &centre}, {"context", &context}};
    read_keywords(f, keywords, own);
    if (tables.size() != positions.size()) {
        refuse(f, "positions", std::to_string(tables.size()) + " arrays, one for each table",
               std::to_string(positions.size()));
    }
    std::optional<Xpos> grows;
    if (xpos && !xpos.is_none()) {
        grows = Xpos{};
        grows->keys = choose<bool>(f, "xpos", xpos, {{"queries", false}, {"keys", true}});
        if (gamma) { grows->gamma = to_double(f, "gamma", gamma); }
        if (scale_base) { grows->scale_base = to_double(f, "scale_base", scale_base); }
        if (centre) { grows->centre = to_double(f, "centre", centre); }
    }
    std::vector<Array> arrays;
    std::vector<RotaryAxis> axes;
    arrays.reserve(tables.size());
    std::int64_t pairs = 0;
    for (std::size_t n = 0; n < tables.size(); ++n) {
        arrays.emplace_back(f, "positions", positions[n]);
        axes.push_back({tables[n], arrays.back()});
        pairs += static_cast<std::int64_t>(tables[n].frequencies.size());
    }
    Shape shape = arrays.empty() ? Shape{0} : arrays.front().shape();
    for (const Array& each : arrays) {
        if (each.shape().rank() > shape.rank()) { shape = each.shape(); }
    }
    const Shape rows =
        shape.rank() == 2 ? Shape{shape[0], shape[1], pairs} : Shape{shape.rank() == 1 ? shape[0] : 0, pairs};
    const Result cosine = make_result(f, "cosine", {}, nb::none(), DType::f64, rows);
    const Result sine = make_result(f, "sine", {}, nb::none(), DType::f64, rows);
    Context& team = choose_context(f, context);
    without_gil([&] { rotary_tables(team, cosine.view(), sine.view(), axes, grows); });
    return nb::make_tuple(cosine.object, sine.object);
}

}  // namespace

void bind_rotary(nb::module_& m) {
    m.def(
        "rotate", rotate_, nb::arg("x"), nb::arg("cosine"), nb::arg("sine"), nb::arg("keywords"),
        nb::sig("def rotate(x: Array, " HEED_ROTATIONS ") -> Array"),
        R"doc(x [B,H,T,D], the first 2n numbers of every row rotated by given cosines and sines; ONNX's RotaryEmbedding.

cosine and sine are [B,T,n], [1,T,n] or [T,n]: a row for each token; or, with positions ([B,T], [1,T] or [T] of int),
tables [P,n]. Pairs are (i, i + n), or with pairing="interleaved" (2i, 2i + 1). out may be x itself.

>>> x = numpy.array([[1.0, 0.0], [1.0, 0.0]])[None, None]
>>> heed.rotate(x, numpy.array([[1.0], [0.0]]), numpy.array([[0.0], [1.0]]))[0, 0]
array([[1., 0.],
       [0., 1.]]))doc");
    m.def("rotate_backward", rotate_backward_, nb::arg("dout"), nb::arg("cosine"), nb::arg("sine"), nb::arg("keywords"),
          nb::sig("def rotate_backward(dout: Array, " HEED_ROTATIONS ") -> Array"),
          R"doc(dx [B,H,T,D] = gradient of sum(dout * rotate(x)): the rotation the other way.

>>> x, cosine, sine = numpy.ones((1, 1, 1, 2)), numpy.array([[0.6]]), numpy.array([[0.8]])
>>> bool(numpy.allclose(heed.rotate_backward(heed.rotate(x, cosine, sine), cosine, sine), x))
True)doc");
    m.def("rotary_tables", rotary_tables_, nb::arg("tables"), nb::arg("positions"), nb::arg("keywords"),
          nb::sig("def rotary_tables(tables: Sequence[RopeTable], positions: Sequence[ArrayLike], *, "
                  "xpos: Literal['queries', 'keys'] | None = None, gamma: float = 0.4, scale_base: float = 512.0, "
                  "centre: float = 0.0, " HEED_CONTEXT ") -> tuple[Any, Any]"),
          R"doc((cosine, sine), [T,n] or [B,T,n] of float64, for heed.rotate: axial RoPE and xPos.

tables and positions are one for each coordinate of a token; its pairs follow one another. positions are [T] or [B,T],
of any number type. xpos: sizes that make scores fall off with the distance, for the queries and the other way for keys.

>>> half = heed.rope_table(heed.Rope(4))
>>> rows, columns = numpy.divmod(numpy.arange(6), 3)
>>> cosine, sine = heed.rotary_tables([half, half], [rows, columns])
>>> cosine.shape
(6, 4))doc");
}

}  // namespace heed::python
