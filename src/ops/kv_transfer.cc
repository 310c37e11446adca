#include "ops/kv_transfer.h"

#include "cpu/kv_transfer.h"
#include "cuda/kv_transfer.h"
#include "kernel/kernel.h"
#include "ops/host_copy.h"

namespace heed {

DType kv_type(CacheStorage storage) {
    return storage == CacheStorage::bf16 ? DType::bf16 : storage == CacheStorage::f16 ? DType::f16 : DType::f32;
}

// A cache's rows are stored in one way a device, and every step of decoding stores some: on the CPU there is nothing to
// choose from, and nobody is asked.

void write_kv_rows(Context& context, const KvWriteProblem& problem) {
    static const auto list = cuda::kv_write_kernels();
    if (problem.x.shape().elements() == 0) { return; }
    if (on_host(context)) { return cpu::write_kv_rows(detail::pool_of(context), problem); }
    run_forward(context, std::span<const Kernel<KvWriteProblem>>(list), {"cache_append"}, problem);
}

void gather_kv_rows(Context& context, const KvGatherProblem& problem) {
    static const auto list = cuda::kv_gather_kernels();
    if (problem.out.shape().elements() == 0) { return; }
    if (on_host(context)) { return cpu::gather_kv_rows(detail::pool_of(context), problem); }
    run_forward(context, std::span<const Kernel<KvGatherProblem>>(list), {"cached_attend"}, problem);
}

void write_kv_row(const KvRowLayout& layout, const float* x, char* row, float* scales) {
    cpu::write_kv_row(layout, x, row, scales);
}
void read_kv_row(const KvRowLayout& layout, const char* row, const float* scales, std::int64_t columns, float* x) {
    cpu::read_kv_row(layout, row, scales, columns, x);
}
void load_kv_row(const View& x, std::int64_t g, std::int64_t t, float* row) { cpu::load_kv_row(x, g, t, row); }
bool fits_scales(const float* x, std::int64_t columns) { return cpu::all_finite(x, columns); }

}  // namespace heed
