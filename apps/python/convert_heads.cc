#include <heed/convert_heads.h>

#include "array.h"
#include "context.h"
#include "keywords.h"
#include "module.h"

namespace heed::python {

namespace {

nb::object pool_heads_(nb::handle weight, std::int64_t heads, std::int64_t kv_heads, nb::handle out) {
    constexpr const char* f = "pool_heads";
    const Array given(f, "weight", weight);
    Shape shape = given.shape();
    if (shape.rank() > 0 && heads > 0) { shape[0] = shape[0] / heads * kv_heads; }
    const Result result = make_result(f, "out", out, weight, given.dtype(), shape);
    without_gil([&] { pool_heads(given, heads, kv_heads, result.view()); });
    return result.object;
}

}  // namespace

void bind_convert_heads(nb::module_& m) {
    m.def("pool_heads", pool_heads_, nb::arg("weight"), nb::arg("heads"), nb::arg("kv_heads"), nb::kw_only(),
          nb::arg("out") = nb::none(),
          nb::sig("def pool_heads(weight: Array, heads: int, kv_heads: int, *, out: Array | None = None) -> Array"),
          R"doc([G*d, ...] = the mean over each group of heads of weight [H*d, ...]: from multi-head to grouped-query.

>>> heed.pool_heads(numpy.array([1.0, 3.0, 5.0, 7.0]), heads=4, kv_heads=2)
array([2., 6.]))doc");
}

}  // namespace heed::python
