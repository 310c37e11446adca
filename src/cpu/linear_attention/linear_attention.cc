#include "cpu/linear_attention/linear_attention.h"

#include "cpu/instruction_sets.h"
#include "cpu/linear_attention/gated_call.h"

namespace heed::cpu {
namespace {

/// The kernels compute in float32.
const char* declines_linear(const LinearAttentionProblem& p) {
    if (p.options.form == LinearForm::quadratic) { return "the quadratic form is for the reference"; }
    if (p.gated()) {
        if (p.options.normalise) { return "a normaliser beside a decay per token is for the reference"; }
        if (p.options.beta && p.options.beta.rank() == 4) { return "a beta for each column is for the reference"; }
        if (p.gradients.ddecay) { return "the gradient of a constant decay with the delta rule is for the reference"; }
    }
    const auto wide = [](const View& view) { return view && view.dtype() == DType::f64; };
    return wide(p.q) || wide(p.k) || wide(p.v) ? "float64 is for the reference" : nullptr;
}

/// The kernels for gates that belong to the others of an instruction set.
const GatedKernels& gated_of(const Kernels& kernels) {
#if defined(HEED_HAS_AVX512BF16)
    if (&kernels == &avx512bf16_kernels || &kernels == &amx_kernels) { return avx512_gated; }
#endif
#if defined(HEED_HAS_AVX512)
    if (&kernels == &avx512_kernels) { return avx512_gated; }
#endif
#if defined(HEED_HAS_AVX2)
    if (&kernels == &avx2_kernels) { return avx2_gated; }
#endif
#if defined(HEED_HAS_NEON)
    if (&kernels == &neon_kernels) { return neon_gated; }
#endif
    static_cast<void>(kernels);
    return portable_gated;
}

/// Kernels write what each entry adds to ddecay; the sum over the batch is taken here, in order.
template <const Kernels& kernels>
void linear_backward_of(detail::Place& place, const LinearAttentionProblem& p) {
    if (p.gated()) { return gated_of(kernels).backward(*place.pool, p); }
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
            p.gated() ? gated_of(kernels).forward(*place.pool, p) : kernels.linear_attention.forward(*place.pool, p);
        };
        row.backward = linear_backward_of<kernels>;
    });
}

}  // namespace heed::cpu
