#include "cuda/kv_transfer.h"

#include "cuda/any_rows.h"
#include "cuda/kv_transfer_any.h"
#include "kernel/kv_rows.h"

namespace heed::cuda {
namespace {

DType type_of(KvStorage storage) {
    return storage == KvStorage::bf16 ? DType::bf16 : storage == KvStorage::f16 ? DType::f16 : DType::f32;
}

template <class AnyView>
KvTransferCall call_of(const AnyView& tensor, const KvRows& rows) {
    KvTransferCall call;
    call.tensor.data = const_cast<void*>(static_cast<const void*>(tensor.data()));  // what is only read is not written
    call.tensor.dtype = tensor.dtype();
    for (int axis = 0; axis < 4; ++axis) { call.tensor.stride[axis] = tensor.stride(axis); }
    call.heads = tensor.extent(1);
    call.tokens = tensor.extent(2);
    call.columns = tensor.extent(3);
    call.stored = type_of(rows.storage);
    call.data = const_cast<char*>(rows.data);
    call.head_bytes = rows.head_bytes;
    call.row_bytes = rows.row_bytes;
    call.bits = rows.storage == KvStorage::i8 ? 8 : rows.storage == KvStorage::i4 ? 4 : 0;
    call.group = rows.storage == KvStorage::i4 ? i4_group : call.columns;
    call.scales = const_cast<float*>(rows.scales);  // what a problem is to write to, it may write to
    call.head_scales = rows.head_scales;
    call.row_scales = rows.row_scales;
    return call;
}

void run(detail::Place& place, KvTransferCall call, std::span<const std::int32_t> rows,
         void (*launch)(void*, const KvTransferCall&, bool)) {
    CudaQueue& queue = queue_of(place);
    const OnDevice on(queue.device());
    Scratch scratch(queue);
    auto* list = static_cast<std::int32_t*>(scratch.bytes(rows.size_bytes()));
    queue.upload(list, rows.data(), rows.size_bytes());
    call.rows = list;
    launch(queue.stream(), call, call.tensor.dtype == DType::f64);
    check_launch(any_name);
}

void write(detail::Place& place, const KvWriteProblem& p) { run(place, call_of(p.x, p.to), p.rows, launch_kv_write); }
void gather(detail::Place& place, const KvGatherProblem& p) {
    run(place, call_of(p.out, p.from), p.rows, launch_kv_gather);
}

}  // namespace

std::vector<Kernel<KvWriteProblem>> kv_write_kernels() { return {any_row<KvWriteProblem>(write)}; }
std::vector<Kernel<KvGatherProblem>> kv_gather_kernels() { return {any_row<KvGatherProblem>(gather)}; }

}  // namespace heed::cuda
