#include "cuda/linear_attention.h"

#include "cuda/any_rows.h"
#include "cuda/linear_attention_any.h"
#include "cuda/small_lists.h"

namespace heed::cuda {
namespace {

bool wide_linear(const LinearAttentionProblem& p) {
    for (const View* view : {&p.q, &p.k, &p.v, &p.dout}) {
        if (*view && view->dtype() == DType::f64) { return true; }
    }
    return p.out && p.out.dtype() == DType::f64;
}

const char* linear_attention_declines(const LinearAttentionProblem& p) {
    if (p.options.feature == FeatureMap::function) { return "a feature function runs on the CPU"; }
    return p.batch * p.states > most_blocks ? "too large" : nullptr;
}

/// The call with its lists, and memory for a pass.
class LinearWork {
public:
    LinearWork(CudaQueue& queue, const LinearAttentionProblem& p)
        : call(linear_call_of(p)), wide(wide_linear(p)), scratch_(queue), queue_(queue) {
        lists_.numbers(p.options.decay, call.decay);
        lists_.integers(p.options.key_lengths, call.key_lengths);
    }
    /// So many numbers of the type that is computed in, and doubles behind them.
    void take(std::int64_t numbers, std::int64_t doubles) {
        const std::size_t size = wide ? sizeof(double) : sizeof(float);
        const std::size_t numbers_bytes = (static_cast<std::size_t>(numbers) * size + 255) / 256 * 256;
        auto* bytes = static_cast<unsigned char*>(
            scratch_.bytes(lists_.bytes() + numbers_bytes + static_cast<std::size_t>(doubles) * sizeof(double)));
        lists_.queue(queue_, bytes);
        memory = bytes + lists_.bytes();
        behind = reinterpret_cast<double*>(bytes + lists_.bytes() + numbers_bytes);
    }

    LinearAttentionCall call;
    bool wide;
    void* memory = nullptr;
    double* behind = nullptr;

private:
    Scratch scratch_;
    CudaQueue& queue_;
    SmallLists lists_;
};

void linear_attention(detail::Place& place, const LinearAttentionProblem& p) {
    CudaQueue& queue = queue_of(place);
    const OnDevice on(queue.device());
    LinearWork work(queue, p);
    work.take(linear_forward_numbers(work.call), 0);
    launch_linear_attention(queue.stream(), work.call, work.memory, work.wide);
    check_launch(any_name);
}

void linear_attention_backward(detail::Place& place, const LinearAttentionProblem& p) {
    CudaQueue& queue = queue_of(place);
    const OnDevice on(queue.device());
    LinearWork work(queue, p);
    const bool learned = static_cast<bool>(p.gradients.ddecay);
    work.take(linear_backward_numbers(work.call), learned ? p.batch * p.states : 0);
    launch_linear_attention_backward(queue.stream(), work.call, work.memory, learned ? work.behind : nullptr,
                                     work.wide);
    check_launch(any_name);
}

}  // namespace

std::vector<Kernel<LinearAttentionProblem>> linear_attention_kernels() {
    auto row = any_row<LinearAttentionProblem>(linear_attention, linear_attention_backward);
    row.declines = linear_attention_declines;
    return {row};
}

}  // namespace heed::cuda
