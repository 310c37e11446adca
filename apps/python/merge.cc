#include <heed/merge.h>

#include "array.h"
#include "context.h"
#include "keywords.h"
#include "module.h"
#include "signatures.h"

namespace heed::python {

namespace {

/// Parts as the caller lists them: (out, lse) pairs.
struct Parts {
    Arrays arrays;
    std::vector<PartialResult> views;
    nb::object first;

    Parts(const char* f, const nb::sequence& list) {
        const std::size_t count = nb::len(list);
        arrays.reserve(2 * count);
        for (std::size_t n = 0; n < count; ++n) {
            const nb::object item = list[n];
            if (PySequence_Check(item.ptr()) == 0 || nb::len(item) != 2) {
                refuse(f, "parts", "pairs (out, lse)", nb::cast<std::string>(nb::repr(item)));
            }
            if (n == 0) { first = item[0]; }
            const View out = arrays.emplace_back(f, "parts: out", nb::object(item[0]), Access::read, Where::anywhere);
            const View lse = arrays.emplace_back(f, "parts: lse", nb::object(item[1]), Access::read, Where::anywhere);
            views.push_back({out, lse});
        }
        if (views.empty()) { refuse(f, "parts", "at least one", "none"); }
    }
    const View& out() const { return views.front().out; }
    const View& lse() const { return views.front().lse; }
};

nb::object merge_(const nb::sequence& parts, const nb::kwargs& keywords) {
    constexpr const char* f = "merge";
    nb::handle out, lse = Py_True, context;
    const Own own[] = {{"out", &out}, {"lse", &lse}, {"context", &context}};
    read_keywords(f, keywords, own);
    const Parts given(f, parts);
    const Result result = make_result(f, "out", out, given.first, given.out().dtype(), given.out().shape());
    const Result sums = make_requested(f, "lse", lse, given.first, given.lse().dtype(), given.lse().shape());
    Context& team = choose_context(f, context, given.out().device());
    without_gil([&] { merge(team, given.views, result.view(), sums.view()); });
    return nb::make_tuple(result.object, sums.object);
}

nb::list merge_backward_(const nb::sequence& parts, nb::handle dout, const nb::kwargs& keywords) {
    constexpr const char* f = "merge_backward";
    nb::handle dlse = Py_None, context;
    const Own own[] = {{"dlse", &dlse}, {"context", &context}};
    read_keywords(f, keywords, own);
    const Parts given(f, parts);
    const Array upstream(f, "dout", dout, Access::read, Where::anywhere);
    const Array upstream_lse(f, "dlse", dlse, Access::read, Where::anywhere);
    std::vector<Result> results;
    std::vector<PartialGradient> gradients;
    nb::list list;
    for (const PartialResult& part : given.views) {
        results.push_back(make_result(f, "dout", {}, given.first, part.out.dtype(), part.out.shape()));
        const MutableView d_out = results.back().view();
        const nb::object out_object = results.back().object;
        results.push_back(make_result(f, "dlse", {}, given.first, part.lse.dtype(), part.lse.shape()));
        gradients.push_back({d_out, results.back().view()});
        list.append(nb::make_tuple(out_object, results.back().object));
    }
    Context& team = choose_context(f, context, given.out().device());
    without_gil([&] { merge_backward(team, given.views, upstream, gradients, upstream_lse); });
    return list;
}

}  // namespace

void bind_merge(nb::module_& m) {
    m.def("merge", merge_, nb::arg("parts"), nb::arg("keywords"),
          nb::sig("def merge(parts: Sequence[tuple[ArrayLike, ArrayLike]], *, out: ArrayLike | None = None, "
                  "lse: bool | ArrayLike = True, " HEED_CONTEXT ") -> tuple[Any, Any]"),
          R"doc(Joins partial results of attention over disjoint sets of keys: (out, lse) of all parts together.

parts are pairs of out [...,E] and lse [...] that attend gave. out may be exactly a part's out, and lse likewise.

>>> q, k = numpy.ones((1, 1, 2, 4), "float32"), numpy.ones((1, 1, 6, 4), "float32")
>>> parts = [heed.attend(q, k[:, :, n:n + 3], k[:, :, n:n + 3], lse=True) for n in (0, 3)]
>>> bool(numpy.allclose(heed.merge(parts)[0], heed.attend(q, k, k)))
True)doc");
    m.def("merge_backward", merge_backward_, nb::arg("parts"), nb::arg("dout"), nb::arg("keywords"),
          nb::sig("def merge_backward(parts: Sequence[tuple[ArrayLike, ArrayLike]], dout: ArrayLike, *, "
                  "dlse: ArrayLike | None = None, " HEED_CONTEXT ") -> list[tuple[Any, Any]]"),
          R"doc(Gradients (dout, dlse) for each part of what merge was given, from dout [...,E] and dlse [...].

>>> part = (numpy.ones((1, 1, 2, 4), "float32"), numpy.zeros((1, 1, 2), "float32"))
>>> heed.merge_backward([part, part], numpy.ones((1, 1, 2, 4), "float32"))[0][0][0, 0, 0]
array([0.5, 0.5, 0.5, 0.5], dtype=float32))doc");
}

}  // namespace heed::python
