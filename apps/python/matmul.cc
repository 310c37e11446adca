#include <heed/matmul.h>

#include <algorithm>

#include "array.h"
#include "context.h"
#include "keywords.h"
#include "module.h"
#include "signatures.h"

namespace heed::python {

namespace {

nb::object matmul_(nb::handle a, nb::handle b, const nb::kwargs& keywords) {
    constexpr const char* f = "matmul";
    nb::handle out, alpha, beta, context;
    const Own own[] = {{"out", &out}, {"alpha", &alpha}, {"beta", &beta}, {"context", &context}};
    read_keywords(f, keywords, own);
    MatmulOptions options;
    if (alpha) { options.alpha = to_double(f, "alpha", alpha); }
    if (beta) { options.beta = to_double(f, "beta", beta); }
    if (options.beta != 0 && (!out || out.is_none())) { refuse(f, "out", "an array where beta is not 0", "none"); }
    const Array left(f, "a", a, Access::read, Where::anywhere);
    const Array right(f, "b", b, Access::read, Where::anywhere);
    Shape shape = left.shape();
    if (left.rank() == right.rank() && left.rank() >= 2) {
        for (int axis = 0; axis < left.rank() - 2; ++axis) {
            shape[axis] = left.extent(axis) == 1 ? right.extent(axis) : left.extent(axis);
        }
        shape[left.rank() - 1] = right.extent(left.rank() - 1);
    }
    const Result result = make_result(f, "out", out, a, left.dtype(), shape);
    Context& team = choose_context(f, context, left.device());
    without_gil([&] { matmul(team, left, right, result.view(), options); });
    return result.object;
}

}  // namespace

void bind_matmul(nb::module_& m) {
    m.def("matmul", matmul_, nb::arg("a"), nb::arg("b"), nb::arg("keywords"),
          nb::sig("def matmul(a: Array, b: ArrayLike, *, alpha: float = 1.0, beta: float = 0.0, "
                  "out: Array | None = None, " HEED_CONTEXT ") -> Array"),
          R"doc(out [...,M,N] = alpha * a [...,M,K] b [...,K,N] + beta * out.

Leading axes of 1 are repeated; one that is 1 in a given out alone is summed over. Each element is added up in an order
that depends on K alone: neither threads nor the other rows and columns change a bit of it.

>>> heed.matmul(numpy.ones((2, 3), "float32"), numpy.ones((3, 1), "float32"))
array([[3.],
       [3.]], dtype=float32))doc");
}

}  // namespace heed::python
