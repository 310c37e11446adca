#include "ops/kv_transfer.h"

#include "cuda/kv_transfer.h"
#include "kernel/kernel.h"

namespace heed {

DType kv_type(CacheStorage storage) {
    return storage == CacheStorage::bf16 ? DType::bf16 : storage == CacheStorage::f16 ? DType::f16 : DType::f32;
}

void write_kv_rows(Context& context, const KvWriteProblem& problem) {
    static const auto list = cuda::kv_write_kernels();
    if (problem.x.shape().elements() == 0) { return; }
    run_forward(context, std::span<const Kernel<KvWriteProblem>>(list), {"cache_append"}, problem);
}

void gather_kv_rows(Context& context, const KvGatherProblem& problem) {
    static const auto list = cuda::kv_gather_kernels();
    if (problem.out.shape().elements() == 0) { return; }
    run_forward(context, std::span<const Kernel<KvGatherProblem>>(list), {"cached_attend"}, problem);
}

}  // namespace heed
