#include "ops/cached_attention.h"

#include <heed/elementwise.h>

#include "ops/attention_kernels.h"
#include "ops/host_copy.h"
#include "ops/kv_rows.h"
#include "ops/kv_transfer.h"

#include <vector>

namespace heed {
namespace {

/// The type that kernels see where rows are widened into tensors.
DType gathered_type(DType query) { return query == DType::f64 ? DType::f64 : DType::f32; }

/// [1,G,S,columns] of all entries, end to end: rows [0, slots) of each.
Tensor gather(const AttentionProblem& p, const KvRows& rows, std::int64_t columns, DType dtype) {
    const KvPages& pages = *p.pages;
    Tensor all = Tensor::uninitialised(dtype, {1, p.kv_heads, p.keys, columns});
    // K and V of a latent cache are the same rows: the layout is that of the longer.
    KvRowLayout layout = kv_row_layout(rows.storage, columns);
    std::vector<float> buffer(static_cast<std::size_t>(columns));
    for (std::int64_t g = 0; g < p.kv_heads; ++g) {
        for (std::int64_t b = 0; b < p.batch; ++b) {
            const Sequence s = p.sequence(b);
            for (std::int64_t j = 0; j < s.keys; ++j) {
                const std::int32_t page = pages.tables[b][j / pages.page_size];
                const std::int64_t row = j % pages.page_size;
                const std::int64_t at = (g * p.keys + s.key_begin + j) * columns;
                float* target = dtype == DType::f32 ? all.as<float>() + at : buffer.data();
                read_kv_row(layout, row_of(rows, g, page, row), scales_of(rows, g, page, row), columns, target);
                if (dtype == DType::f64) { std::copy(buffer.begin(), buffer.end(), all.as<double>() + at); }
            }
        }
    }
    return all;
}

/// That of the rows where the queries have it too, so that kernels for it take the call.
DType gathered_on_device(const AttentionProblem& p) {
    const DType stored = kv_type(p.pages->k.storage);
    return p.q.dtype() == stored ? stored : gathered_type(p.q.dtype());
}

/// To `out` [1,G,S,columns].
void gather_on_device(Context& context, const AttentionProblem& p, const KvRows& from, const MutableView& out) {
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

void copy_rows(const View& from, const MutableView& to) {
    dispatch_float(from.dtype(), [&]<class From>() {
        dispatch_float(to.dtype(), [&]<class To>() {
            for (std::int64_t b = 0; b < from.extent(0); ++b) {
                for (std::int64_t h = 0; h < from.extent(1); ++h) {
                    for (std::int64_t t = 0; t < from.extent(2); ++t) {
                        const From* x = from.as<From>() + b * from.stride(0) + h * from.stride(1) + t * from.stride(2);
                        To* y = to.as<To>() + b * to.stride(0) + h * to.stride(1) + t * to.stride(2);
                        for (std::int64_t c = 0; c < from.extent(3); ++c) {
                            if constexpr (std::is_same_v<From, To>) {
                                y[c * to.stride(3)] = x[c * from.stride(3)];
                            } else if constexpr (std::is_same_v<To, double>) {
                                y[c * to.stride(3)] = static_cast<double>(x[c * from.stride(3)]);
                            } else {
                                y[c * to.stride(3)] = To(static_cast<float>(x[c * from.stride(3)]));
                            }
                        }
                    }
                }
            }
        });
    });
}

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
        const DType type = gathered_on_device(problem);
        StepMemory keys, values;
        const auto all = [&](StepMemory& memory, detail::KeptMemory slot, const KvRows& rows, std::int64_t columns) {
            const MutableView to = memory.view(context, slot, type, {1, problem.kv_heads, problem.keys, columns});
            gather_on_device(context, problem, rows, to);
            return View(to);
        };
        const View k = all(keys, detail::KeptMemory::keys, problem.pages->k, problem.head_size);
        const View v = all(values, detail::KeptMemory::values, problem.pages->v, problem.value_size);
        attend_mixed(context, problem.q, k, v, outputs, options);
        return;
    }
    const DType dtype = gathered_type(problem.q.dtype());
    const Tensor k = gather(problem, problem.pages->k, problem.head_size, dtype);
    const Tensor v = gather(problem, problem.pages->v, problem.value_size, dtype);
    attend_mixed(context, problem.q, k, v, outputs, options);
}

}  // namespace heed
