/// What a training step needs beside the layers: losses, gradients of tables, the update. Every number is written by
/// one thread from sums in a fixed order, so that no run differs from another.

#include "cuda/rows.cuh"
#include "cuda/training_any.h"

namespace heed::cuda {
namespace {

template <class A>
__global__ void __launch_bounds__(row_threads) clear_table(const __grid_constant__ EmbeddingBackwardCall call) {
    for_numbers({call.classes, call.columns},
                [&](std::int64_t n, std::int64_t c) { put_number<A>(call.dtable, n, c, A{0}); });
}

/// A block has one row of the table and 256 of its columns, and walks over the places in their order.
template <class A>
__global__ void __launch_bounds__(row_threads) add_to_table(const __grid_constant__ EmbeddingBackwardCall call) {
    const std::int64_t column = static_cast<std::int64_t>(blockIdx.y) * row_threads + threadIdx.x;
    if (column >= call.columns) { return; }
    const std::int64_t id = call.ids[blockIdx.x];
    A sum = 0;
    for (std::int64_t n = call.starts[blockIdx.x]; n < call.starts[blockIdx.x + 1]; ++n) {
        sum += number<A>(call.dout, call.places[n], column);
    }
    const A before = call.accumulate ? number<A>(call.dtable, id, column) : A{0};
    put_number<A>(call.dtable, id, column, before + static_cast<A>(call.scale) * sum);
}

/// One block a row, in three walks: the largest, the sum, the gradient.
template <class A>
__global__ void __launch_bounds__(row_threads) loss_of_rows(const __grid_constant__ CrossEntropyCall call) {
    const std::int64_t row = blockIdx.x, target = call.targets[row], columns = call.shape.columns;
    if (target == call.ignore) {
        for (std::int64_t c = threadIdx.x; c < columns; c += row_threads) { put_number<A>(call.dlogits, row, c, A{0}); }
        if (threadIdx.x == 0) { call.losses[row] = call.nlls[row] = 0; }
        return;
    }
    const A cap = static_cast<A>(call.softcap);
    const auto logit = [&](std::int64_t c) {
        const A z = number<A>(call.logits, row, c);
        return cap == 0 ? z : cap * tanh(z / cap);
    };
    A largest = -INFINITY;
    for (std::int64_t c = threadIdx.x; c < columns; c += row_threads) { largest = fmax(largest, logit(c)); }
    largest = block_largest(largest);
    const A at_target = logit(target) - largest;
    A sum = 0, others = 0;
    for (std::int64_t c = threadIdx.x; c < columns; c += row_threads) {
        const A z = logit(c) - largest;
        sum += exp(z);
        // Without smoothing nothing is multiplied by 0, which a logit of -infinity would not survive.
        if (call.base != 0) { others += z; }
    }
    const A log_sum = log(block_sum(sum));
    others = block_sum(others);
    if (threadIdx.x == 0) {
        const double inside = static_cast<double>(at_target), all = static_cast<double>(log_sum);
        const double base = call.base != 0 ? call.base * static_cast<double>(others) : 0;
        call.losses[row] = all - ((call.target - call.base) * inside + base);
        call.nlls[row] = all - inside;
    }
    if (!call.dlogits.present) { return; }
    const A gradient = static_cast<A>(call.gradient), base = static_cast<A>(call.base);
    for (std::int64_t c = threadIdx.x; c < columns; c += row_threads) {
        const A z = logit(c);
        const A inside = cap == 0 ? A{0} : z / cap;
        const A q = c == target ? static_cast<A>(call.target) : base;
        put_number<A>(call.dlogits, row, c, gradient * (exp(z - largest - log_sum) - q) * (1 - inside * inside));
    }
}

template <class A>
__global__ void __launch_bounds__(row_threads) update_numbers(const __grid_constant__ AdamProblem p) {
    const A scale = static_cast<A>(p.gradient_scale), decay = static_cast<A>(p.decay), keep = static_cast<A>(p.keep);
    const A beta1 = static_cast<A>(p.beta1), beta2 = static_cast<A>(p.beta2);
    const A rest1 = static_cast<A>(1 - p.beta1), rest2 = static_cast<A>(1 - p.beta2);
    const A rate = static_cast<A>(p.rate), root = static_cast<A>(p.root), eps = static_cast<A>(p.eps);
    for_numbers({1, p.count}, [&](std::int64_t, std::int64_t n) {
        const A before = load_as<A>(p.value.dtype, p.value.data, n);
        const A gradient = scale * load_as<A>(p.gradient.dtype, p.gradient.data, n) + decay * before;
        const A first = beta1 * load_as<A>(p.first.dtype, p.first.data, n) + rest1 * gradient;
        const A second = beta2 * load_as<A>(p.second.dtype, p.second.data, n) + rest2 * gradient * gradient;
        store_as<A>(p.first.dtype, p.first.data, n, first);
        store_as<A>(p.second.dtype, p.second.data, n, second);
        store_as<A>(p.value.dtype, p.value.data, n, keep * before - rate * first / (sqrt(second) * root + eps));
        if (p.rounded.data != nullptr) {
            // From the number as it was stored.
            store_as<A>(p.rounded.dtype, p.rounded.data, n, load_as<A>(p.value.dtype, p.value.data, n));
        }
    });
}

__global__ void __launch_bounds__(row_threads)
    squares_of_piece(DType dtype, const void* data, std::int64_t count, double* sums) {
    const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * NumberPieces::size;
    const std::int64_t end = begin + NumberPieces::size < count ? begin + NumberPieces::size : count;
    double sum = 0;
    for (std::int64_t n = begin + threadIdx.x; n < end; n += row_threads) {
        const double x = load_as<double>(dtype, data, n);
        sum += x * x;
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) { sums[blockIdx.x] = sum; }
}

}  // namespace

void launch_embedding_backward(void* stream, const EmbeddingBackwardCall& call, bool wide) {
    in_type(wide, [&](auto type) {
        using A = decltype(type);
        if (!call.accumulate) {
            clear_table<A><<<blocks_for(call.classes * call.columns), row_threads, 0, stream_of(stream)>>>(call);
        }
        if (call.listed == 0) { return; }
        const dim3 grid(static_cast<unsigned>(call.listed),
                        static_cast<unsigned>((call.columns + row_threads - 1) / row_threads));
        add_to_table<A><<<grid, row_threads, 0, stream_of(stream)>>>(call);
    });
}

void launch_cross_entropy(void* stream, const CrossEntropyCall& call, bool wide) {
    in_type(wide, [&](auto type) {
        loss_of_rows<decltype(type)>
            <<<static_cast<unsigned>(call.shape.rows), row_threads, 0, stream_of(stream)>>>(call);
    });
}

void launch_adam(void* stream, const AdamProblem& problem, bool wide) {
    in_type(wide, [&](auto type) {
        update_numbers<decltype(type)><<<blocks_for(problem.count), row_threads, 0, stream_of(stream)>>>(problem);
    });
}

void launch_squares(void* stream, const SquaresProblem::Tensor& tensor, double* sums) {
    const auto blocks = static_cast<unsigned>(NumberPieces::count(tensor.count));
    squares_of_piece<<<blocks, row_threads, 0, stream_of(stream)>>>(tensor.numbers.dtype, tensor.numbers.data,
                                                                    tensor.count, sums);
}

}  // namespace heed::cuda
