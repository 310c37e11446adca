#include "cuda/layers.h"

#include "base/dispatch.h"
#include "cuda/any_rows.h"
#include "cuda/layers_any.h"
#include "cuda/queue.h"
#include "cuda/training.h"

#include <cstring>
#include <utility>

namespace heed::cuda {
namespace {

void norm_backward(detail::Place& place, const NormProblem& problem) {
    CudaQueue& queue = queue_of(place);
    const OnDevice on(queue.device());
    Scratch scratch(queue);
    const bool wide = problem.wide();
    const std::int64_t numbers = 2 * (problem.shape.rows + parts_of_rows(problem.shape.rows) * problem.shape.columns);
    const std::size_t bytes = static_cast<std::size_t>(numbers) * (wide ? sizeof(double) : sizeof(float));
    launch_norm_backward(queue.stream(), problem, scratch.bytes(bytes > 0 ? bytes : 1), wide);
    check_launch(any_name);
}

void sum_leading(detail::Place& place, const SumProblem& p) {
    CudaQueue& queue = queue_of(place);
    const OnDevice on(queue.device());
    Scratch scratch(queue);
    const bool wide = p.wide();
    // Many rows to a sum are shared among blocks, as far as a grid goes.
    const std::int64_t parts = parts_of_rows(p.repeats);
    const bool many = p.repeats >= 64 && parts < 65536 && p.shape.rows * (p.shape.columns / 32 + 1) <= most_blocks;
    const std::size_t bytes =
        static_cast<std::size_t>(parts * p.shape.rows * p.shape.columns) * (wide ? sizeof(double) : sizeof(float));
    launch_sum_leading(queue.stream(), p, many ? scratch.bytes(bytes) : nullptr, wide);
    check_launch(any_name);
}

const char* too_many_rows(const NormProblem& p) {
    return parts_of_rows(p.shape.rows) > 65535 ? "too many rows" : nullptr;
}

void embedding(detail::Place& place, const EmbeddingProblem& problem) {
    CudaQueue& queue = queue_of(place);
    const OnDevice on(queue.device());
    Scratch scratch(queue);
    const std::size_t bytes = problem.ids.size_bytes();
    void* ids = scratch.bytes(bytes);
    queue.upload(ids, problem.ids.data(), bytes);
    EmbeddingCall call;
    call.ids = static_cast<const std::int64_t*>(ids);
    call.rows = static_cast<std::int64_t>(problem.ids.size());
    call.columns = problem.columns;
    call.scale = problem.scale;
    call.table = problem.table;
    call.out = problem.out;
    launch_embedding(queue.stream(), call, problem.wide());
    check_launch(any_name);
}

Tensor4 tensor_of(const View& view) {
    Tensor4 result;
    result.data = const_cast<void*>(view.data());  // what is only read is not written
    result.dtype = view.dtype();
    for (int axis = 0; axis < 4; ++axis) { result.stride[axis] = view.stride(axis); }
    return result;
}

/// Frequencies, and behind them positions where there are any, as the bytes that go to the device.
std::vector<unsigned char> uploaded(const RopeProblem& p) {
    const std::size_t table = p.frequencies.size_bytes();
    std::vector<unsigned char> bytes(table);
    std::memcpy(bytes.data(), p.frequencies.data(), table);
    if (!p.positions) { return bytes; }
    for (std::int64_t b = 0; b < p.positions.extent(0); ++b) {
        for (std::int64_t t = 0; t < p.positions.extent(1); ++t) {
            const std::int64_t position = p.position(b, t);
            const auto* from = reinterpret_cast<const unsigned char*>(&position);
            bytes.insert(bytes.end(), from, from + sizeof(position));
        }
    }
    return bytes;
}

void rope(detail::Place& place, const RopeProblem& p) {
    CudaQueue& queue = queue_of(place);
    const OnDevice on(queue.device());
    Scratch scratch(queue);
    const std::vector<unsigned char> bytes = uploaded(p);
    void* memory = scratch.bytes(bytes.size());
    queue.upload(memory, bytes.data(), bytes.size());
    RopeCall call;
    call.x = tensor_of(p.x);
    call.out = tensor_of(p.out);
    call.batch = p.x.extent(0);
    call.heads = p.x.extent(1);
    call.length = p.x.extent(2);
    call.size = p.x.extent(3);
    call.pairs = p.pairs();
    call.first = p.first;
    call.frequencies = static_cast<const double*>(memory);
    if (p.positions) {
        call.positions = reinterpret_cast<const std::int64_t*>(call.frequencies + p.frequencies.size());
        call.positions_stride = p.positions.extent(0) == 1 ? 0 : call.length;
    }
    call.factor = p.factor;
    call.interleaved = p.pairing == Pairing::interleaved;
    launch_rope(queue.stream(), call, p.x.dtype() == DType::f64);
    check_launch(any_name);
}

}  // namespace

std::vector<Kernel<NormProblem>> norm_kernels() {
    auto row = any_row<NormProblem>(run_one<NormProblem, launch_norm>, norm_backward);
    row.declines = too_many_rows;
    return {row};
}
std::vector<Kernel<ActivationProblem>> activation_kernels() {
    return {any_row<ActivationProblem>(run_one<ActivationProblem, launch_activation>,
                                       run_one<ActivationProblem, launch_activation_backward>)};
}
std::vector<Kernel<ElementwiseProblem>> elementwise_kernels() {
    return {any_row<ElementwiseProblem>(run_one<ElementwiseProblem, launch_elementwise>)};
}
std::vector<Kernel<SumProblem>> sum_leading_kernels() { return {any_row<SumProblem>(sum_leading)}; }
std::vector<Kernel<EmbeddingProblem>> embedding_kernels() {
    return {any_row<EmbeddingProblem>(embedding, embedding_backward)};
}
std::vector<Kernel<DropoutProblem>> dropout_kernels() {
    return {any_row<DropoutProblem>(run_one<DropoutProblem, launch_dropout>)};
}
std::vector<Kernel<RopeProblem>> rope_kernels() { return {any_row<RopeProblem>(rope)}; }

}  // namespace heed::cuda
