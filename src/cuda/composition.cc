#include "cuda/composition.h"

#include "cuda/any_rows.h"
#include "cuda/composition_any.h"
#include "cuda/small_lists.h"

#include <initializer_list>

namespace heed::cuda {
namespace {

bool any_double(std::initializer_list<View> views) {
    for (const View& view : views) {
        if (view && view.dtype() == DType::f64) { return true; }
    }
    return false;
}

Tensor4 four_axes(const View& view) {
    Tensor4 result;
    if (!view) { return result; }
    result.data = const_cast<void*>(view.data());  // what is only read is not written
    result.dtype = view.dtype();
    for (int axis = 0; axis < view.rank(); ++axis) { result.stride[axis] = view.stride(axis); }
    return result;
}

Extents4 extents_of(const View& view) {
    Extents4 extents;
    for (int axis = 0; axis < view.rank(); ++axis) { extents.of[axis] = view.extent(axis); }
    return extents;
}

// ---- Sums over heads -----------------------------------------------------------------------------------------------

void head_sum(detail::Place& place, const HeadSumProblem& p) {
    CudaQueue& queue = queue_of(place);
    const OnDevice on(queue.device());
    HeadSumCall call;
    call.extents = extents_of(p.to);
    call.from = four_axes(p.from);
    call.to = four_axes(p.to);
    call.summed = p.summed();
    call.one_head = p.from.extent(1) == 1;
    launch_head_sum(queue.stream(), call, any_double({p.from, p.to}));
    check_launch(any_name);
}

void weighted_sum(detail::Place& place, const WeightedSumProblem& p) {
    if (p.out.shape().elements() == 0) { return; }
    CudaQueue& queue = queue_of(place);
    const OnDevice on(queue.device());
    Scratch scratch(queue);
    WeightedSumCall call;
    call.extents = extents_of(p.out);
    call.out = four_axes(p.out);
    call.a = four_axes(p.a);
    call.b = four_axes(p.b);
    SmallLists lists;
    lists.numbers(p.fa, call.fa);
    lists.numbers(p.fb, call.fb);
    if (lists.bytes() > 0) { lists.queue(queue, scratch.bytes(lists.bytes())); }
    launch_weighted_sum(queue.stream(), call, any_double({p.out, p.a, p.b}));
    check_launch(any_name);
}

void head_dot(detail::Place& place, const HeadDotProblem& p) {
    CudaQueue& queue = queue_of(place);
    const OnDevice on(queue.device());
    Scratch scratch(queue);
    HeadDotCall call;
    call.extents = extents_of(p.d);
    call.d = four_axes(p.d);
    call.a = four_axes(p.a);
    call.b = four_axes(p.b);
    std::vector<double> sums(p.sum.size());
    const std::size_t bytes = sums.size() * sizeof(double);
    call.sum = static_cast<double*>(scratch.bytes(bytes));
    launch_head_dot(queue.stream(), call);
    check_launch(any_name);
    queue.download(sums.data(), call.sum, bytes);
    for (std::size_t h = 0; h < sums.size(); ++h) { p.sum[h] += sums[h]; }
}

void seen_latents(detail::Place& place, const SeenLatentsProblem& p) {
    CudaQueue& queue = queue_of(place);
    const OnDevice on(queue.device());
    SeenLatentsCall call;
    call.batch = p.latent.extent(0);
    call.keys = p.latent.extent(1);
    call.latent_size = p.latent.extent(2);
    call.key_size = p.dkeys.extent(3);
    call.value_size = p.dvalues.extent(3);
    call.latent = four_axes(p.latent);
    call.out = four_axes(p.out);
    call.dkeys = four_axes(p.dkeys);
    call.dvalues = four_axes(p.dvalues);
    launch_seen_latents(queue.stream(), call, p.latent.dtype() == DType::f64);
    check_launch(any_name);
}

// ---- Merging -------------------------------------------------------------------------------------------------------

/// The first `row_axes` axes as rows; the axis behind them, where there is one, as columns.
TensorRows rows_on_device(const View& view, int row_axes) {
    TensorRows rows;
    if (!view) { return rows; }
    rows.dtype = view.dtype();
    rows.data = static_cast<char*>(const_cast<void*>(view.data()));  // what is only read is not written
    rows.present = true;
    rows.stride = row_axes < view.rank() ? view.stride(row_axes) : 0;
    rows.axes = row_axes;
    for (int axis = 0; axis < row_axes; ++axis) {
        rows.extent[axis] = view.extent(axis);
        rows.step[axis] = view.stride(axis);
    }
    return rows;
}

/// A merge with its parts on the device.
class MergeWork {
public:
    MergeWork(CudaQueue& queue, const MergeProblem& p) : scratch_(queue) {
        const int row_axes = p.parts[0].lse.rank();
        std::vector<PartOnDevice> parts;
        for (std::size_t n = 0; n < p.parts.size(); ++n) {
            PartOnDevice part;
            part.out = rows_on_device(p.parts[n].out, row_axes);
            part.lse = rows_on_device(p.parts[n].lse, row_axes);
            wide = wide || any_double({p.parts[n].out});
            if (!p.gradients.empty()) {
                part.dout = rows_on_device(p.gradients[n].dout, row_axes);
                part.dlse = rows_on_device(p.gradients[n].dlse, row_axes);
                wide = wide || any_double({p.gradients[n].dout});
            }
            parts.push_back(part);
        }
        wide = wide || any_double({p.out, p.dout});
        const std::size_t bytes = parts.size() * sizeof(PartOnDevice);
        void* const memory = scratch_.bytes(bytes);
        queue.upload(memory, parts.data(), bytes);
        call.rows = p.rows;
        call.size = p.size;
        call.count = static_cast<std::int64_t>(parts.size());
        call.parts = static_cast<const PartOnDevice*>(memory);
        call.out = rows_on_device(p.out, row_axes);
        call.lse = rows_on_device(p.lse, row_axes);
        call.dout = rows_on_device(p.dout, row_axes);
        call.dlse = rows_on_device(p.dlse, row_axes);
    }

    MergeCall call;
    bool wide = false;

private:
    Scratch scratch_;
};

template <void (*launch)(void*, const MergeCall&, bool)>
void run_merge(detail::Place& place, const MergeProblem& p) {
    CudaQueue& queue = queue_of(place);
    const OnDevice on(queue.device());
    const MergeWork work(queue, p);
    launch(queue.stream(), work.call, work.wide);
    check_launch(any_name);
}

// ---- Decays of tokens ----------------------------------------------------------------------------------------------

bool wide_decay(const LogDecayProblem& p) { return any_wide_rows(p.rate, p.x, p.out, p.dout, p.dx, p.drate); }
template <void (*launch)(void*, const LogDecayProblem&, bool)>
void run_log_decay(detail::Place& place, const LogDecayProblem& p) {
    CudaQueue& queue = queue_of(place);
    const OnDevice on(queue.device());
    launch(queue.stream(), p, wide_decay(p));
    check_launch(any_name);
}

// ---- Rotations -----------------------------------------------------------------------------------------------------

/// Tables of one entry serve all.
Tensor4 table_of(const View& view) {
    Tensor4 result = four_axes(view);
    if (view.extent(0) == 1) { result.stride[0] = 0; }
    return result;
}

void rotate(detail::Place& place, const RotateProblem& p) {
    if (p.x.shape().elements() == 0) { return; }
    CudaQueue& queue = queue_of(place);
    const OnDevice on(queue.device());
    Scratch scratch(queue);
    RotateCall call;
    call.extents = extents_of(p.x);
    call.x = four_axes(p.x);
    call.out = four_axes(p.out);
    call.cosine = table_of(p.cosine);
    call.sine = table_of(p.sine);
    call.pairs = p.pairs();
    call.interleaved = p.pairing == Pairing::interleaved;
    call.back = p.back;
    std::vector<std::int64_t> positions;
    for (std::int64_t b = 0; p.positions && b < p.positions.extent(0); ++b) {
        for (std::int64_t t = 0; t < p.positions.extent(1); ++t) {
            positions.push_back(read_integer(p.positions.dtype(), p.positions.data(),
                                             b * p.positions.stride(0) + t * p.positions.stride(1)));
        }
    }
    if (!positions.empty()) {
        const std::size_t bytes = positions.size() * sizeof(std::int64_t);
        call.positions.data = scratch.bytes(bytes);
        call.positions.dtype = DType::i64;
        call.positions.stride[0] = p.positions.extent(0) == 1 ? 0 : p.positions.extent(1);
        call.positions.stride[1] = 1;
        queue.upload(call.positions.data, positions.data(), bytes);
    }
    launch_rotate(queue.stream(), call, any_double({p.x, p.out}));
    check_launch(any_name);
}

}  // namespace

std::vector<Kernel<HeadSumProblem>> head_sum_kernels() { return {any_row<HeadSumProblem>(head_sum)}; }
std::vector<Kernel<WeightedSumProblem>> weighted_sum_kernels() { return {any_row<WeightedSumProblem>(weighted_sum)}; }
std::vector<Kernel<HeadDotProblem>> head_dot_kernels() { return {any_row<HeadDotProblem>(head_dot)}; }

std::vector<Kernel<SeenLatentsProblem>> seen_latents_kernels() { return {any_row<SeenLatentsProblem>(seen_latents)}; }

std::vector<Kernel<MergeProblem>> merge_kernels() {
    return {any_row<MergeProblem>(run_merge<launch_merge>, run_merge<launch_merge_backward>)};
}
std::vector<Kernel<LogDecayProblem>> log_decay_kernels() {
    return {any_row<LogDecayProblem>(run_log_decay<launch_log_decay>, run_log_decay<launch_log_decay_backward>)};
}
std::vector<Kernel<RotateProblem>> rotate_kernels() { return {any_row<RotateProblem>(rotate)}; }

std::vector<Kernel<ClampedGateProblem>> clamped_gate_kernels() {
    return {any_row<ClampedGateProblem>(run_one<ClampedGateProblem, launch_clamped_gate>,
                                        run_one<ClampedGateProblem, launch_clamped_gate_backward>)};
}

}  // namespace heed::cuda
