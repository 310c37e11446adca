#include "cpu/linear_attention/linear_attention.h"

#include "cpu/instruction_sets.h"

namespace heed::cpu {
namespace {

/// The kernels compute in float32.
const char* declines_linear(const LinearAttentionProblem& p) {
    if (p.options.form == LinearForm::quadratic) { return "the quadratic form is for the reference"; }
    if (p.gated()) { return "a decay per token and the delta rule are for the reference"; }
    const auto wide = [](const View& view) { return view && view.dtype() == DType::f64; };
    return wide(p.q) || wide(p.k) || wide(p.v) ? "float64 is for the reference" : nullptr;
}

/// Kernels write what each entry adds to ddecay; the sum over the batch is taken here, in order.
template <const Kernels& kernels>
void linear_backward_of(detail::Place& place, const LinearAttentionProblem& p) {
    const MutableView& ddecay = p.gradients.ddecay;
    if (!ddecay) {
        kernels.linear_attention.backward(*place.pool, p);
        return;
    }
    std::vector<double> parts(static_cast<std::size_t>(p.batch * p.states));
    LinearAttentionProblem with_parts = p;
    with_parts.ddecay_parts = parts.data();
    kernels.linear_attention.backward(*place.pool, with_parts);
    for (std::int64_t n = 0; n < p.states; ++n) {
        double sum = 0;
        for (std::int64_t b = 0; b < p.batch; ++b) { sum += parts[static_cast<std::size_t>(b * p.states + n)]; }
        write_number(ddecay.dtype(), ddecay.data(), n * ddecay.stride(0), sum);
    }
}

}  // namespace

std::vector<Kernel<LinearAttentionProblem>> linear_attention_kernels() {
    using Row = Kernel<LinearAttentionProblem>;
    return rows_of_sets<Row>("chunks of tokens", []<const Kernels & kernels>(Row& row) {
        row.declines = declines_linear;
        row.forward = [](detail::Place& place, const LinearAttentionProblem& p) {
            kernels.linear_attention.forward(*place.pool, p);
        };
        row.backward = linear_backward_of<kernels>;
    });
}

}  // namespace heed::cpu
