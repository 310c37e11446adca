#include <heed/positions.h>

#include <nanobind/stl/vector.h>

#include "array.h"
#include "context.h"
#include "keywords.h"
#include "module.h"
#include "rope_types.h"
#include "signatures.h"

#define HEED_ROPE_OPTIONS "positions: ArrayLike | None = None, first: int = 0, out: Array | None = None, " HEED_CONTEXT
#define HEED_BUCKETS "buckets: int = 32, max_distance: int = 128, bidirectional: bool = True"
#define HEED_RELATIVE                                                                      \
    HEED_BUCKETS                                                                           \
    ", query_positions: ArrayLike | None = None, key_positions: ArrayLike | None = None, " \
    "align: Literal['bottom_right', 'top_left'] = 'bottom_right'"

namespace heed::python {

namespace {

/// rope, rope_backward and rerotate: the same arguments, one operation each.
template <class Operation>
nb::object rotate(const char* f, nb::handle x, const nb::kwargs& keywords, Operation&& operation) {
    nb::handle positions = Py_None, first, out, context;
    const Own own[] = {{"positions", &positions}, {"first", &first}, {"out", &out}, {"context", &context}};
    read_keywords(f, keywords, own);
    const Array rows(f, "x", x, Access::read, Where::anywhere);
    const Array places(f, "positions", positions);
    RopeOptions options{.positions = places};
    if (first) { options.first = to_integer(f, "first", first); }
    const Result result = make_result(f, "out", out, x, rows.dtype(), rows.shape());
    Context& team = choose_context(f, context, rows.device());
    without_gil([&] { operation(team, rows.view(), result.view(), options); });
    return result.object;
}

nb::object rope_(nb::handle x, const RopeTable& table, const nb::kwargs& keywords) {
    return rotate("rope", x, keywords,
                  [&](Context& team, const View& in, const MutableView& out, const RopeOptions& o) {
                      rope(team, in, out, table, o);
                  });
}

nb::object rope_backward_(nb::handle dout, const RopeTable& table, const nb::kwargs& keywords) {
    return rotate("rope_backward", dout, keywords,
                  [&](Context& team, const View& in, const MutableView& out, const RopeOptions& o) {
                      rope_backward(team, in, out, table, o);
                  });
}

nb::object rerotate_(nb::handle x, const RopeTable& from, const RopeTable& to, const nb::kwargs& keywords) {
    return rotate("rerotate", x, keywords,
                  [&](Context& team, const View& in, const MutableView& out, const RopeOptions& o) {
                      rerotate(team, in, out, from, to, o);
                  });
}

nb::object sinusoids_(std::int64_t tokens, std::int64_t size, const nb::kwargs& keywords) {
    constexpr const char* f = "sinusoids";
    nb::handle layout, reach_base, base, positions = Py_None, first, out, context;
    const Own own[] = {{"layout", &layout},       {"reach_base", &reach_base}, {"base", &base},
                       {"positions", &positions}, {"first", &first},           {"out", &out},
                       {"context", &context}};
    read_keywords(f, keywords, own);
    const Array places(f, "positions", positions);
    SinusoidOptions options{.positions = places};
    if (layout) {
        options.layout =
            choose<Pairing>(f, "layout", layout, {{"interleaved", Pairing::interleaved}, {"halves", Pairing::halves}});
    }
    if (reach_base) { options.reach_base = to_bool(f, "reach_base", reach_base); }
    if (base) { options.base = to_double(f, "base", base); }
    if (first) { options.first = to_integer(f, "first", first); }
    const Result result = make_result(f, "out", out, positions, DType::f32, {tokens, size});
    Context& team = choose_context(f, context);
    without_gil([&] { sinusoids(team, result.view(), options); });
    return result.object;
}

nb::object learned_positions_(nb::handle table, nb::handle positions, const nb::kwargs& keywords) {
    constexpr const char* f = "learned_positions";
    nb::handle offset, add, out, context;
    const Own own[] = {{"offset", &offset}, {"add", &add}, {"out", &out}, {"context", &context}};
    read_keywords(f, keywords, own);
    LearnedOptions options;
    if (offset) { options.offset = to_integer(f, "offset", offset); }
    if (add) { options.add = to_bool(f, "add", add); }
    if (options.add && (!out || out.is_none())) { refuse(f, "out", "an array to add to", "none"); }
    const Array rows(f, "table", table);
    const Array places(f, "positions", positions);
    const bool batched = places.rank() == 2;
    const Result result = make_result(f, "out", out, table, rows.dtype(),
                                      {batched ? places.extent(0) : 1, places.extent(batched ? 1 : 0), rows.extent(1)});
    Context& team = choose_context(f, context);
    without_gil([&] { learned_positions(team, rows, places, result.view(), options); });
    return result.object;
}

nb::object learned_positions_backward_(nb::handle dout, nb::handle positions, std::int64_t rows,
                                       const nb::kwargs& keywords) {
    constexpr const char* f = "learned_positions_backward";
    nb::handle offset, context;
    const Own own[] = {{"offset", &offset}, {"context", &context}};
    read_keywords(f, keywords, own);
    LearnedOptions options;
    if (offset) { options.offset = to_integer(f, "offset", offset); }
    const Array upstream(f, "dout", dout);
    const Array places(f, "positions", positions);
    const Result result =
        make_result(f, "dtable", {}, dout, wide(upstream.dtype()), {rows, upstream.extent(upstream.rank() - 1)});
    Context& team = choose_context(f, context);
    without_gil([&] { learned_positions_backward(team, upstream, places, result.view(), options); });
    return result.object;
}

struct RelativeKeywords {
    nb::handle buckets, max_distance, bidirectional, query_positions = Py_None, key_positions = Py_None, align;
    nb::handle batch, out, context;
    Array queries, keys;
    RelativeBiasOptions options{};

    void read(const char* f, const nb::kwargs& keywords) {
        const Own own[] = {{"buckets", &buckets},
                           {"max_distance", &max_distance},
                           {"bidirectional", &bidirectional},
                           {"query_positions", &query_positions},
                           {"key_positions", &key_positions},
                           {"align", &align},
                           {"batch", &batch},
                           {"out", &out},
                           {"context", &context}};
        read_keywords(f, keywords, own);
        if (buckets) { options.buckets.count = to_integer(f, "buckets", buckets); }
        if (max_distance) { options.buckets.max_distance = to_integer(f, "max_distance", max_distance); }
        if (bidirectional) { options.buckets.bidirectional = to_bool(f, "bidirectional", bidirectional); }
        if (align) {
            options.align = choose<Align>(f, "align", align,
                                          {{"bottom_right", Align::bottom_right}, {"top_left", Align::top_left}});
        }
        queries = Array(f, "query_positions", query_positions);
        keys = Array(f, "key_positions", key_positions);
        options.query_positions = queries;
        options.key_positions = keys;
    }
};

nb::object relative_bias_(nb::handle table, std::int64_t queries, std::int64_t keys, const nb::kwargs& keywords) {
    constexpr const char* f = "relative_bias";
    RelativeKeywords own;
    own.read(f, keywords);
    const Array rows(f, "table", table);
    const std::int64_t batch = own.batch ? to_integer(f, "batch", own.batch) : 1;
    const Result result = make_result(f, "out", own.out, table, rows.dtype(), {batch, rows.extent(1), queries, keys});
    Context& team = choose_context(f, own.context);
    without_gil([&] { relative_bias(team, rows, result.view(), own.options); });
    return result.object;
}

nb::object relative_bias_backward_(nb::handle dbias, const nb::kwargs& keywords) {
    constexpr const char* f = "relative_bias_backward";
    RelativeKeywords own;
    own.read(f, keywords);
    const Array upstream(f, "dbias", dbias);
    const Result result =
        make_result(f, "out", own.out, dbias, wide(upstream.dtype()), {own.options.buckets.count, upstream.extent(1)});
    Context& team = choose_context(f, own.context);
    without_gil([&] { relative_bias_backward(team, upstream, result.view(), own.options); });
    return result.object;
}

std::int64_t relative_bucket_(std::int64_t distance, std::int64_t buckets, std::int64_t max_distance,
                              bool bidirectional) {
    return relative_bucket(distance, {buckets, max_distance, bidirectional});
}

}  // namespace

void bind_positions(nb::module_& m) {
    bind_rope_types(m);
    m.def("rope", rope_, nb::arg("x"), nb::arg("table"), nb::arg("keywords"),
          nb::sig("def rope(x: Array, table: RopeTable, *, " HEED_ROPE_OPTIONS ") -> Array"),
          R"doc(x [B,H,T,D], the first numbers of every row rotated by position: first, first + 1, ..., or `positions`.

positions are int, [B,T], [1,T] or [T], of any sign. out may be x itself.

>>> x = numpy.array([[1.0, 0.0], [1.0, 0.0]])[None, None]
>>> heed.rope(x, heed.rope_table(heed.Rope(2)))[0, 0].round(4)
array([[1.    , 0.    ],
       [0.5403, 0.8415]]))doc");
    m.def("rope_backward", rope_backward_, nb::arg("dout"), nb::arg("table"), nb::arg("keywords"),
          nb::sig("def rope_backward(dout: Array, table: RopeTable, *, " HEED_ROPE_OPTIONS ") -> Array"),
          R"doc(dx [B,H,T,D] = gradient of sum(dout * rope(x)): the inverse rotation.

>>> x, table = numpy.ones((1, 1, 3, 4)), heed.rope_table(heed.Rope(4))
>>> bool(numpy.allclose(heed.rope_backward(heed.rope(x, table), table), x))
True)doc");
    m.def("rerotate", rerotate_, nb::arg("x"), nb::arg("from_table"), nb::arg("to_table"), nb::arg("keywords"),
          nb::sig("def rerotate(x: Array, from_table: RopeTable, to_table: RopeTable, *, " HEED_ROPE_OPTIONS
                  ") -> Array"),
          R"doc(Rows [B,H,T,D] that from_table rotated, as if to_table had rotated them.

>>> x, a, b = numpy.ones((1, 1, 3, 4)), heed.rope_table(heed.Rope(4)), heed.rope_table(heed.Rope(4, theta=100.0))
>>> bool(numpy.allclose(heed.rerotate(heed.rope(x, a), a, b), heed.rope(x, b)))
True)doc");
    m.def("sinusoids", sinusoids_, nb::arg("tokens"), nb::arg("size"), nb::arg("keywords"),
          nb::sig("def sinusoids(tokens: int, size: int, *, layout: Literal['interleaved', 'halves'] = 'interleaved', "
                  "reach_base: bool = False, base: float = 10000.0, " HEED_ROPE_OPTIONS ") -> Any"),
          R"doc([tokens, size] of float32: sine and cosine of position * frequency.

>>> heed.sinusoids(2, 4).round(4)
array([[0.    , 1.    , 0.    , 1.    ],
       [0.8415, 0.5403, 0.01  , 1.    ]], dtype=float32))doc");
    m.def("learned_positions", learned_positions_, nb::arg("table"), nb::arg("positions"), nb::arg("keywords"),
          nb::sig("def learned_positions(table: Array, positions: ArrayLike, *, offset: int = 0, add: bool = False, "
                  "out: Array | None = None, " HEED_CONTEXT ") -> Array"),
          R"doc(out [B,T,d] = table [P,d] at positions [B,T] or [T]; position p reads row p + offset.

>>> heed.learned_positions(numpy.array([[1.0], [2.0], [3.0]]), [2, 0])
array([[[3.],
        [1.]]]))doc");
    m.def("learned_positions_backward", learned_positions_backward_, nb::arg("dout"), nb::arg("positions"),
          nb::arg("rows"), nb::arg("keywords"),
          nb::sig("def learned_positions_backward(dout: Array, positions: ArrayLike, rows: int, *, offset: int = "
                  "0, " HEED_CONTEXT ") -> Array"),
          R"doc(dtable [rows,d]: row r is the sum of dout [B,T,d] where r was read.

>>> heed.learned_positions_backward(numpy.ones((1, 2, 1)), [2, 2], rows=3)
array([[0.],
       [0.],
       [2.]]))doc");
    m.def("relative_bucket", relative_bucket_, nb::arg("distance"), nb::kw_only(), nb::arg("buckets") = 32,
          nb::arg("max_distance") = 128, nb::arg("bidirectional") = true,
          R"doc(T5's bucket of a key at distance p_j - p_i.

>>> heed.relative_bucket(-3)
3)doc");
    m.def("relative_bias", relative_bias_, nb::arg("table"), nb::arg("queries"), nb::arg("keys"), nb::arg("keywords"),
          nb::sig("def relative_bias(table: Array, queries: int, keys: int, *, batch: int = 1, " HEED_RELATIVE
                  ", out: Array | None = None, " HEED_CONTEXT ") -> Array"),
          R"doc(T5's bias [batch,H,T,S] = table [buckets,H] at the bucket of each distance: what attend takes as bias.

>>> heed.relative_bias(numpy.zeros((32, 2)), 3, 3).shape
(1, 2, 3, 3))doc");
    m.def("relative_bias_backward", relative_bias_backward_, nb::arg("dbias"), nb::arg("keywords"),
          nb::sig("def relative_bias_backward(dbias: Array, *, " HEED_RELATIVE
                  ", out: Array | None = None, " HEED_CONTEXT ") -> Array"),
          R"doc(dtable [buckets,H] from dbias [B,H,T,S].

>>> heed.relative_bias_backward(numpy.ones((1, 2, 3, 3)))[0]
array([3., 3.]))doc");
    m.def("alibi_slopes", &alibi_slopes, nb::arg("heads"), nb::arg("max_bias") = 8.0,
          R"doc(ALiBi's slopes for any number of heads, for attend's alibi_slopes.

>>> heed.alibi_slopes(4)
[0.25, 0.0625, 0.015625, 0.00390625])doc");
}

}  // namespace heed::python
