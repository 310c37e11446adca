/// Linear attention on the device: a block walks along one state a token at a time; where nothing is masked, every
/// element of the state and every row has threads of its own.

#include "cuda/linear_attention_any.h"
#include "cuda/linear_attention_steps.h"
#include "cuda/rows.cuh"

#include <algorithm>

namespace heed::cuda {
namespace {

/// The threads of a block (cuda/linear_attention_steps.h).
struct Block {
    __device__ std::int64_t thread() const { return threadIdx.x; }
    __device__ std::int64_t threads() const { return blockDim.x; }
    __device__ std::int64_t lane() const { return threadIdx.x % 32; }
    __device__ std::int64_t lanes() const { return 32; }
    __device__ std::int64_t warp() const { return threadIdx.x / 32; }
    __device__ std::int64_t warps() const { return blockDim.x / 32; }
    __device__ void meet() const { __syncthreads(); }
    template <class A>
    __device__ A sum_of_lanes(A x) const {
        for (int apart = 16; apart > 0; apart /= 2) { x += __shfl_xor_sync(~0U, x, apart); }
        return x;
    }
    template <class A>
    __device__ static A load(DType dtype, const void* data, std::int64_t at) {
        return load_as<A>(dtype, data, at);
    }
    template <class A>
    __device__ static void store(DType dtype, void* data, std::int64_t at, A value) {
        store_as<A>(dtype, data, at, value);
    }
    __device__ static std::int64_t integer(DType dtype, const void* data, std::int64_t at) {
        return load_integer(dtype, data, at);
    }
};

constexpr std::int64_t most_shared_bytes = 40960;
constexpr int walking_threads = 512, row_of_queries_threads = 128;

/// Rows of a block where they do not fit its shared memory: behind all else.
std::int64_t rows_of_block(const LinearAttentionCall& c) { return LinearRows<double>::count(c.head_size, c.columns()); }
template <class A>
bool shared_rows(const LinearAttentionCall& c) {
    return rows_of_block(c) * static_cast<std::int64_t>(sizeof(A)) <= most_shared_bytes;
}
template <class A>
__device__ LinearRows<A> rows_for_block(const LinearAttentionCall& c, A* apart) {
    extern __shared__ double shared[];
    A* const memory = apart == nullptr ? reinterpret_cast<A*>(shared)
                                       : apart + blockIdx.x * LinearRows<A>::count(c.head_size, c.columns());
    return LinearRows<A>(memory, c.head_size, c.columns());
}

template <class A>
__global__ void __launch_bounds__(walking_threads)
    walk_states(const __grid_constant__ LinearAttentionCall c, A* memory, A* apart) {
    const std::int64_t n = blockIdx.x;
    linear_recurrence<A>(c, Block{}, n / c.states, n % c.states, memory + n * c.state_size(),
                         rows_for_block<A>(c, apart));
}

/// A block a key/value head: its states one after the other, as they add to the same dk and dv.
template <class A>
__global__ void __launch_bounds__(walking_threads)
    walk_states_back(const __grid_constant__ LinearAttentionCall c, A* memory, double* ddecay, A* apart) {
    const std::int64_t b = blockIdx.x / c.kv_heads, g = blockIdx.x % c.kv_heads;
    A* const mine = memory + blockIdx.x * LinearBackwardMemory(c).total();
    const LinearRows<A> rows = rows_for_block<A>(c, apart);
    for (std::int64_t n = g * c.sharers(); n < (g + 1) * c.sharers(); ++n) {
        linear_recurrence_backward<A>(c, Block{}, b, n, mine, ddecay == nullptr ? nullptr : ddecay + b * c.states + n,
                                      rows);
    }
}

/// The states' shares in the order of the batch.
__global__ void sum_decays(const __grid_constant__ LinearAttentionCall c, const double* parts) {
    for (std::int64_t n = threadIdx.x; n < c.states; n += blockDim.x) {
        double sum = 0;
        for (std::int64_t b = 0; b < c.batch; ++b) { sum += parts[b * c.states + n]; }
        put_number_at<double, Block>(c.ddecay, n, 0, 0, 0, sum);
    }
}

template <class Every>
__device__ void for_elements_of_states(const LinearAttentionCall& c, const Every& every) {
    for_numbers({c.batch * c.states, c.state_size()}, [&](std::int64_t n, std::int64_t element) {
        every(state_place(c, n / c.states, n % c.states), element, n * c.state_size() + element);
    });
}
template <class A>
__global__ void __launch_bounds__(row_threads) find_states(const __grid_constant__ LinearAttentionCall c, A* states) {
    for_elements_of_states(c, [&](const StatePlace& at, std::int64_t element, std::int64_t place) {
        states[place] = whole_state_number<A, Block>(c, at, element);
    });
}
template <class A>
__global__ void __launch_bounds__(row_threads)
    find_dstates(const __grid_constant__ LinearAttentionCall c, const A* grads, A* dstates) {
    for_elements_of_states(c, [&](const StatePlace& at, std::int64_t element, std::int64_t place) {
        dstates[place] = whole_dstate_number<A, Block>(c, at, element, grads);
    });
}

/// each(b, h, t, state's number) for the queries of this block, one after the other.
template <class Each>
__device__ void for_queries(const LinearAttentionCall& c, const Each& each) {
    for (std::int64_t n = blockIdx.x; n < c.batch * c.heads * c.queries; n += gridDim.x) {
        const std::int64_t t = n % c.queries, h = n / c.queries % c.heads, b = n / c.queries / c.heads;
        each(b, h, t, b * c.states + h / c.readers());
        __syncthreads();
    }
}
template <class A>
__global__ void __launch_bounds__(row_of_queries_threads)
    answer_queries(const __grid_constant__ LinearAttentionCall c, const A* states, A* apart) {
    const LinearRows<A> rows = rows_for_block<A>(c, apart);
    for_queries(c, [&](std::int64_t b, std::int64_t h, std::int64_t t, std::int64_t state) {
        answer(c, Block{}, b, h, t, states + state * c.state_size(), rows);
    });
}
template <class A>
__global__ void __launch_bounds__(row_of_queries_threads)
    queries_back(const __grid_constant__ LinearAttentionCall c, const A* states, A* grads, A* apart) {
    const LinearRows<A> rows = rows_for_block<A>(c, apart);
    for_queries(c, [&](std::int64_t b, std::int64_t h, std::int64_t t, std::int64_t state) {
        A* const grad = grads + ((b * c.heads + h) * c.queries + t) * c.columns();
        whole_query_backward<A>(c, Block{}, b, h, t, states + state * c.state_size(), grad, rows);
    });
}
template <class A>
__global__ void __launch_bounds__(row_of_queries_threads)
    keys_back(const __grid_constant__ LinearAttentionCall c, const A* dstates, A* apart) {
    const LinearRows<A> rows = rows_for_block<A>(c, apart);
    for (std::int64_t n = blockIdx.x; n < c.batch * c.kv_heads * c.keys; n += gridDim.x) {
        whole_key_backward<A>(c, Block{}, n / c.keys / c.kv_heads, n / c.keys % c.kv_heads, n % c.keys, dstates, rows);
        __syncthreads();
    }
}

/// Blocks that take rows in turn: few enough for rows of theirs in memory.
unsigned blocks_of_rows(std::int64_t rows) { return static_cast<unsigned>(std::min<std::int64_t>(rows, 4096)); }

std::int64_t all_states(const LinearAttentionCall& c) { return c.batch * c.states * c.state_size(); }
std::int64_t all_grads(const LinearAttentionCall& c) { return c.batch * c.heads * c.queries * c.columns(); }

/// The largest grid of either pass.
std::int64_t most_blocks_of(const LinearAttentionCall& c) {
    if (c.causal) { return c.batch * c.states; }
    return std::min<std::int64_t>(4096, std::max(c.batch * c.heads * c.queries, c.batch * c.kv_heads * c.keys));
}
std::int64_t apart_numbers(const LinearAttentionCall& c) {
    return shared_rows<double>(c) ? 0 : most_blocks_of(c) * rows_of_block(c);
}

/// What kernels that keep rows are launched with.
template <class A>
struct RowMemory {
    A* apart;  ///< null: shared memory
    std::size_t shared;
};
template <class A>
RowMemory<A> row_memory(const LinearAttentionCall& c, A* behind) {
    if (!shared_rows<double>(c)) { return {behind, 0}; }
    return {nullptr, static_cast<std::size_t>(rows_of_block(c)) * sizeof(A)};
}

template <class A>
void forward(cudaStream_t stream, const LinearAttentionCall& c, A* memory) {
    const RowMemory<A> rows = row_memory(c, memory + all_states(c));
    if (c.causal) {
        walk_states<A><<<static_cast<unsigned>(c.batch * c.states), walking_threads, rows.shared, stream>>>(c, memory,
                                                                                                            rows.apart);
        return;
    }
    find_states<A><<<blocks_for(all_states(c)), row_threads, 0, stream>>>(c, memory);
    const std::int64_t queries = c.batch * c.heads * c.queries;
    if (queries == 0) { return; }
    answer_queries<A><<<blocks_of_rows(queries), row_of_queries_threads, rows.shared, stream>>>(c, memory, rows.apart);
}

template <class A>
void backward(cudaStream_t stream, const LinearAttentionCall& c, A* memory, double* ddecay) {
    if (c.causal) {
        const std::int64_t blocks = c.batch * c.kv_heads;
        const RowMemory<A> rows = row_memory(c, memory + blocks * LinearBackwardMemory(c).total());
        walk_states_back<A>
            <<<static_cast<unsigned>(blocks), walking_threads, rows.shared, stream>>>(c, memory, ddecay, rows.apart);
        if (ddecay != nullptr) { sum_decays<<<1, row_threads, 0, stream>>>(c, ddecay); }
        return;
    }
    A* const states = memory;
    A* const dstates = states + all_states(c);
    A* const grads = dstates + all_states(c);
    const RowMemory<A> rows = row_memory(c, grads + all_grads(c));
    const std::int64_t queries = c.batch * c.heads * c.queries, keys = c.batch * c.kv_heads * c.keys;
    if (queries > 0) {
        find_states<A><<<blocks_for(all_states(c)), row_threads, 0, stream>>>(c, states);
        queries_back<A>
            <<<blocks_of_rows(queries), row_of_queries_threads, rows.shared, stream>>>(c, states, grads, rows.apart);
    }
    find_dstates<A><<<blocks_for(all_states(c)), row_threads, 0, stream>>>(c, grads, dstates);
    if (keys > 0) {
        keys_back<A><<<blocks_of_rows(keys), row_of_queries_threads, rows.shared, stream>>>(c, dstates, rows.apart);
    }
}

}  // namespace

std::int64_t linear_forward_numbers(const LinearAttentionCall& c) { return all_states(c) + apart_numbers(c); }

std::int64_t linear_backward_numbers(const LinearAttentionCall& c) {
    const std::int64_t numbers =
        c.causal ? c.batch * c.kv_heads * LinearBackwardMemory(c).total() : 2 * all_states(c) + all_grads(c);
    return numbers + apart_numbers(c);
}

void launch_linear_attention(void* stream, const LinearAttentionCall& call, void* memory, bool wide) {
    if (all_states(call) == 0) { return; }
    in_type(wide, [&](auto type) {
        using A = decltype(type);
        forward<A>(stream_of(stream), call, static_cast<A*>(memory));
    });
}

void launch_linear_attention_backward(void* stream, const LinearAttentionCall& call, void* memory, double* ddecay,
                                      bool wide) {
    if (all_states(call) == 0) { return; }
    in_type(wide, [&](auto type) {
        using A = decltype(type);
        backward<A>(stream_of(stream), call, static_cast<A*>(memory), ddecay);
    });
}

}  // namespace heed::cuda
