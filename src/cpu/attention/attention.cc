#include "cpu/attention/attention.h"

#include "cpu/attention/call.h"
#include "cpu/instruction_sets.h"

#include <limits>

namespace heed::cpu {
namespace {

/// Packed batches may end before the tensors do: the rows behind the last sequence are 0, as for any row past its
/// length.
void clear_behind(const AttentionProblem& p, const MutableView& view, const View& cumulative) {
    if (!p.packed || !view) { return; }
    const std::int64_t begin = read_integer(cumulative.dtype(), cumulative.data(), p.batch * cumulative.stride(0));
    if (view.rank() == 4) {
        clear_rows_of_heads(rows_of(view), 0, view.extent(1), begin, view.extent(2), view.extent(3));
        return;
    }
    for (std::int64_t h = 0; h < view.extent(1); ++h) {
        for (std::int64_t t = begin; t < view.extent(2); ++t) {
            write_number(view.dtype(), view.data(), h * view.stride(1) + t * view.stride(2),
                         -std::numeric_limits<double>::infinity());
        }
    }
}

template <const Kernels& kernels>
void forward(detail::Place& place, const AttentionProblem& p) {
    clear_behind(p, p.out, p.options.cu_seqlens_q);
    clear_behind(p, p.lse, p.options.cu_seqlens_q);
    kernels.attention.forward(*place.pool, p);
}

template <const Kernels& kernels>
void backward(detail::Place& place, const AttentionProblem& p) {
    clear_behind(p, p.gradients.dq, p.options.cu_seqlens_q);
    clear_behind(p, p.gradients.dk, p.options.cu_seqlens_k);
    clear_behind(p, p.gradients.dv, p.options.cu_seqlens_k);
    kernels.attention.backward(*place.pool, p);
}

}  // namespace

std::vector<AttentionKernel> attention_kernels() {
    return rows_of_sets<AttentionKernel>("tiled", []<const Kernels & kernels>(AttentionKernel& row) {
        row.declines = declines;
        row.forward = forward<kernels>;
        row.backward = backward<kernels>;
        row.weights = kernels.attention.weights;
        row.reads_pages = true;
    });
}

}  // namespace heed::cpu
