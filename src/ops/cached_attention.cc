#include "ops/cached_attention.h"

#include <heed/elementwise.h>

#include "ops/attention_kernels.h"
#include "ops/host_copy.h"
#include "ops/kv_transfer.h"
#include "reference/copy_rows.h"

#include <vector>

namespace heed {
namespace {

/// The type that kernels see where rows are widened into tensors.
DType gathered_type(DType query) { return query == DType::f64 ? DType::f64 : DType::f32; }

/// On a GPU that of the rows where the queries have it too, so that kernels for it take the call.
DType gathered_on_device(const AttentionProblem& p) {
    const DType stored = kv_type(p.pages->k.storage);
    return p.q.dtype() == stored ? stored : gathered_type(p.q.dtype());
}

/// To `out` [1,G,S,columns]: the keys of all entries, end to end.
void gather(Context& context, const AttentionProblem& p, const KvRows& from, const MutableView& out) {
    const KvPages& pages = *p.pages;
    std::vector<std::int32_t> rows;
    rows.reserve(static_cast<std::size_t>(p.keys));
    for (std::int64_t b = 0; b < p.batch; ++b) {
        const Sequence s = p.sequence(b);
        for (std::int64_t j = 0; j < s.keys; ++j) {
            const std::int64_t page = pages.tables[b][j / pages.page_size];
            rows.push_back(static_cast<std::int32_t>(page * pages.page_size + j % pages.page_size));
        }
    }
    gather_kv_rows(context, {.from = from, .rows = rows, .out = out});
}

/// The first kernel of the device that reads the pages of this problem where they lie; null where rows must be
/// gathered.
const AttentionKernel* page_reader(const detail::Place& place, const Asking& asking, const AttentionProblem& problem) {
    const std::string_view forced = detail::forced(place, asking).name;
    for (const AttentionKernel& row : attention_kernel_list()) {
        const bool asked_for = forced.empty() || detail::carries(row.name, forced);
        if (row.reads_pages && asked_for &&
            detail::declined(row, problem.q.device().kind, Pass::forward, problem) == nullptr) {
            return &row;
        }
    }
    return nullptr;
}

}  // namespace

void copy_rows(const View& from, const MutableView& to) { reference::copy_rows(from, to); }

void attend_mixed(Context& context, const View& q, const View& k, const View& v, const AttentionOutputs& outputs,
                  const AttentionOptions& options) {
    const MutableView& out = outputs.out;
    Tensor wide_q, wide_out;
    const auto convert_rows = [&](const View& from, const MutableView& to) {
        on_host(context) ? copy_rows(from, to) : convert(context, from, to);
    };
    if (q.dtype() != k.dtype()) {
        wide_q = Tensor::uninitialised(k.dtype(), q.shape(), context.device());
        convert_rows(q, wide_q);
    }
    if (out.dtype() != k.dtype() && out.dtype() != DType::f32) {
        wide_out = Tensor::uninitialised(k.dtype(), out.shape(), context.device());
    }
    attend(context, wide_q ? View(wide_q) : q, k, v,
           {.out = wide_out ? MutableView(wide_out) : out, .lse = outputs.lse}, options);
    if (wide_out) { convert_rows(wide_out, out); }
}

void attend_pages(Context& context, const AttentionKernel& kernel, const AttentionProblem& problem) {
    detail::Place& place = detail::place_of(context);
    const Asking asking{"cached_attend", problem.options.kernel};
    if (only_explains(place, attention_kernel_list(), asking, problem)) { return; }
    if (kernel.reads_pages) {
        const auto lock = place.pool->lock();
        kernel.forward(place, problem);
        return;
    }
    AttentionOptions options = problem.options;
    options.scale = problem.scale;
    const AttentionOutputs outputs{.out = problem.out, .lse = problem.lse};
    if (!on_host(context)) {
        if (const AttentionKernel* reader = page_reader(place, asking, problem)) {
            const auto lock = place.pool->lock();
            reader->forward(place, problem);
            return;
        }
    }
    const DType type = on_host(context) ? gathered_type(problem.q.dtype()) : gathered_on_device(problem);
    StepMemory keys, values;
    const auto all = [&](StepMemory& memory, detail::KeptMemory slot, const KvRows& rows, std::int64_t columns) {
        const MutableView to = memory.view(context, slot, type, {1, problem.kv_heads, problem.keys, columns});
        gather(context, problem, rows, to);
        return View(to);
    };
    const View k = all(keys, detail::KeptMemory::keys, problem.pages->k, problem.head_size);
    const View v = all(values, detail::KeptMemory::values, problem.pages->v, problem.value_size);
    attend_mixed(context, problem.q, k, v, outputs, options);
}

}  // namespace heed
