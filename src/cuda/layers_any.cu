/// The layers' operations on the device, of any type and stride: what a model needs beside attention, right first.
/// Every number is written by one thread from sums in a fixed order, so that no run differs from another.

#include "cuda/activated.cuh"
#include "cuda/layers_any.h"
#include "cuda/rows.cuh"

#include <heed/random.h>

namespace heed::cuda {
namespace {

// ---- norms ---------------------------------------------------------------------------------------------------------

template <class A>
struct Statistics {
    A mean, rstd;
};

/// Of row n of x (+ residual); one block.
template <class A>
__device__ Statistics<A> statistics_of(const NormProblem& p, std::int64_t n) {
    const auto columns = static_cast<A>(p.shape.columns);
    A mean = 0;
    if (p.centred) {
        for (std::int64_t c = threadIdx.x; c < p.shape.columns; c += row_threads) {
            mean += number<A>(p.x, n, c) + number<A>(p.residual, n, c);
        }
        mean = block_sum(mean) / columns;
    }
    A squares = 0;
    for (std::int64_t c = threadIdx.x; c < p.shape.columns; c += row_threads) {
        const A s = number<A>(p.x, n, c) + number<A>(p.residual, n, c) - mean;
        squares += s * s;
    }
    return {mean, 1 / sqrt(block_sum(squares) / columns + static_cast<A>(p.eps))};
}

template <class A>
__device__ inline A weight_at(const NormProblem& p, std::int64_t column) {
    return p.weight.present ? static_cast<A>(p.weight_offset) + number<A>(p.weight, 0, column) : A{1};
}

template <class A>
__global__ void __launch_bounds__(row_threads) norm_rows(const __grid_constant__ NormProblem p) {
    const std::int64_t n = blockIdx.x;
    const Statistics<A> of = statistics_of<A>(p, n);
    for (std::int64_t c = threadIdx.x; c < p.shape.columns; c += row_threads) {
        const A s = number<A>(p.x, n, c) + number<A>(p.residual, n, c);
        put_number<A>(p.sum, n, c, s);
        put_number<A>(p.out, n, c, weight_at<A>(p, c) * ((s - of.mean) * of.rstd) + number<A>(p.bias, 0, c));
    }
}

template <class A>
__global__ void __launch_bounds__(row_threads)
    norm_statistics(const __grid_constant__ NormProblem p, Statistics<A>* statistics) {
    const Statistics<A> of = statistics_of<A>(p, blockIdx.x);
    if (threadIdx.x == 0) { statistics[blockIdx.x] = of; }
}

/// Sums over many rows go in two steps, so that the GPU is full: those of so many rows, then those of the sums.
constexpr std::int64_t rows_of_part = 256;
constexpr int strips = row_threads / 32;

/// What the 8 warps of a block have for 32 columns, one behind the other; lane by lane, for the first warp.
template <class A>
__device__ A sum_of_strips(A x) {
    __shared__ A partial[strips][32];
    const int lane = static_cast<int>(threadIdx.x) % 32, strip = static_cast<int>(threadIdx.x) / 32;
    __syncthreads();
    partial[strip][lane] = x;
    __syncthreads();
    if (strip != 0) { return A{0}; }
    for (int other = 1; other < strips; ++other) { x += partial[other][lane]; }
    return x;
}

/// dweight and dbias of 256 rows and 32 columns a block: parts [part][dweight, dbias][columns].
template <class A>
__global__ void __launch_bounds__(row_threads)
    norm_parts_of_weights(const __grid_constant__ NormProblem p, const Statistics<A>* statistics, A* parts) {
    const std::int64_t c = static_cast<std::int64_t>(blockIdx.x) * 32 + threadIdx.x % 32;
    const std::int64_t begin = blockIdx.y * rows_of_part;
    const std::int64_t end = begin + rows_of_part < p.shape.rows ? begin + rows_of_part : p.shape.rows;
    A dweight = 0, dbias = 0;
    if (c < p.shape.columns) {
        for (std::int64_t n = begin + threadIdx.x / 32; n < end; n += strips) {
            const A dout = number<A>(p.dout, n, c);
            dweight += dout * ((number<A>(p.x, n, c) - statistics[n].mean) * statistics[n].rstd);
            dbias += dout;
        }
    }
    dweight = sum_of_strips(dweight);
    dbias = sum_of_strips(dbias);
    if (threadIdx.x >= 32 || c >= p.shape.columns) { return; }
    A* to = parts + 2 * blockIdx.y * p.shape.columns;
    to[c] = dweight;
    to[p.shape.columns + c] = dbias;
}

template <class A>
__global__ void __launch_bounds__(row_threads)
    norm_gradients_of_weights(const __grid_constant__ NormProblem p, const A* parts, std::int64_t count) {
    const std::int64_t c = static_cast<std::int64_t>(blockIdx.x) * row_threads + threadIdx.x;
    if (c >= p.shape.columns) { return; }
    A dweight = 0, dbias = 0;
    for (std::int64_t part = 0; part < count; ++part) {
        dweight += parts[2 * part * p.shape.columns + c];
        dbias += parts[(2 * part + 1) * p.shape.columns + c];
    }
    if (p.accumulate) {
        dweight += number<A>(p.dweight, 0, c);
        dbias += number<A>(p.dbias, 0, c);
    }
    put_number<A>(p.dweight, 0, c, dweight);
    put_number<A>(p.dbias, 0, c, dbias);
}

/// With y the normalised row and h = w dout: dx = rstd (h - mean(h) - y mean(h y)) + dsum, without mean(h) in RMS norm.
template <class A>
__global__ void __launch_bounds__(row_threads)
    norm_gradients_of_rows(const __grid_constant__ NormProblem p, const Statistics<A>* statistics) {
    const std::int64_t n = blockIdx.x;
    const Statistics<A> of = statistics[n];
    const auto columns = static_cast<A>(p.shape.columns);
    const auto y_at = [&](std::int64_t c) { return (number<A>(p.x, n, c) - of.mean) * of.rstd; };
    A mean = 0, along = 0;
    for (std::int64_t c = threadIdx.x; c < p.shape.columns; c += row_threads) {
        const A h = number<A>(p.dout, n, c) * weight_at<A>(p, c);
        mean += h;
        along += h * y_at(c);
    }
    mean = p.centred ? block_sum(mean) / columns : A{0};
    along = block_sum(along) / columns;
    for (std::int64_t c = threadIdx.x; c < p.shape.columns; c += row_threads) {
        const A h = number<A>(p.dout, n, c) * weight_at<A>(p, c);
        put_number<A>(p.dx, n, c, number<A>(p.dsum, n, c) + of.rstd * (h - mean - y_at(c) * along));
    }
}

// ---- one number at a time ------------------------------------------------------------------------------------------

template <class A>
__device__ A slope_of(Activation activation, A x) {
    switch (activation) {
        case Activation::relu: return x > 0 ? A{1} : x <= 0 ? A{0} : x;
        case Activation::gelu:
            return erfc(-x * static_cast<A>(root_half)) / 2 + x * exp(-x * x / 2) / static_cast<A>(root_two_pi);
        case Activation::gelu_tanh: {
            const A root = static_cast<A>(gelu_root), cubic = static_cast<A>(gelu_cubic);
            const A t = tanh(root * (x + cubic * x * x * x));
            return (1 + t) / 2 + x / 2 * (1 - t * t) * root * (1 + 3 * cubic * x * x);
        }
        case Activation::quick_gelu: {
            const A s = sigmoid(static_cast<A>(quick) * x);
            return s * (1 + static_cast<A>(quick) * x * (1 - s));
        }
        case Activation::silu: {
            const A s = sigmoid(x);
            return s * (1 + x * (1 - s));
        }
        case Activation::tanh: {
            const A t = tanh(x);
            return 1 - t * t;
        }
        case Activation::sigmoid: {
            const A s = sigmoid(x);
            return s * (1 - s);
        }
        default: return A{1};
    }
}

template <class A>
__global__ void __launch_bounds__(row_threads) activate_numbers(const __grid_constant__ ActivationProblem p) {
    for_numbers(p.shape, [&](std::int64_t n, std::int64_t c) {
        put_number<A>(p.out, n, c, activated(p.activation, number<A>(p.gate, n, c)) * number<A>(p.up, n, c, 1));
    });
}
template <class A>
__global__ void __launch_bounds__(row_threads) activation_gradients(const __grid_constant__ ActivationProblem p) {
    for_numbers(p.shape, [&](std::int64_t n, std::int64_t c) {
        const A gate = number<A>(p.gate, n, c), up = number<A>(p.up, n, c, 1), dout = number<A>(p.dout, n, c);
        put_number<A>(p.dgate, n, c, dout * (slope_of(p.activation, gate) * up));
        put_number<A>(p.dup, n, c, dout * activated(p.activation, gate));
    });
}
template <class A>
__global__ void __launch_bounds__(row_threads) combine_numbers(const __grid_constant__ ElementwiseProblem p) {
    const A alpha = static_cast<A>(p.alpha), beta = static_cast<A>(p.beta);
    for_numbers(p.shape, [&](std::int64_t n, std::int64_t c) {
        const A a = number<A>(p.a, n, c, 1), b = number<A>(p.b, n, c);
        put_number<A>(p.out, n, c, p.product ? a * b : p.b.present ? alpha * a + beta * b : alpha * a);
    });
}
/// The sum of 256 repeats of a row, 32 columns a block: parts [part][rows][columns].
template <class A>
__global__ void __launch_bounds__(row_threads) sum_parts(const __grid_constant__ SumProblem p, A* parts) {
    const std::int64_t tiles = (p.shape.columns + 31) / 32, row = blockIdx.x / tiles;
    const std::int64_t c = blockIdx.x % tiles * 32 + threadIdx.x % 32, begin = blockIdx.y * rows_of_part;
    const std::int64_t end = begin + rows_of_part < p.repeats ? begin + rows_of_part : p.repeats;
    A sum = 0;
    if (c < p.shape.columns) {
        for (std::int64_t r = begin + threadIdx.x / 32; r < end; r += strips) {
            sum += number<A>(p.x, row + r * p.shape.rows, c);
        }
    }
    sum = sum_of_strips(sum);
    if (threadIdx.x < 32 && c < p.shape.columns) {
        parts[(blockIdx.y * p.shape.rows + row) * p.shape.columns + c] = sum;
    }
}
/// The sum of the parts, or of the rows themselves where they are few (no parts).
template <class A>
__global__ void __launch_bounds__(row_threads)
    sum_of_rows(const __grid_constant__ SumProblem p, const A* parts, std::int64_t count) {
    for_numbers(p.shape, [&](std::int64_t n, std::int64_t c) {
        A sum = 0;
        for (std::int64_t r = 0; r < count; ++r) {
            sum += parts != nullptr ? parts[(r * p.shape.rows + n) * p.shape.columns + c]
                                    : number<A>(p.x, n + r * p.shape.rows, c);
        }
        const A before = p.accumulate ? number<A>(p.out, n, c) : A{0};
        put_number<A>(p.out, n, c, before + static_cast<A>(p.factor) * sum);
    });
}
template <class A>
__global__ void __launch_bounds__(row_threads) rows_of_table(const __grid_constant__ EmbeddingCall call) {
    for_numbers({call.rows, call.columns}, [&](std::int64_t n, std::int64_t c) {
        put_number<A>(call.out, n, c, number<A>(call.table, call.ids[n], c) * static_cast<A>(call.scale));
    });
}

template <class A>
__global__ void __launch_bounds__(row_threads) drop_numbers(const __grid_constant__ DropoutProblem p) {
    for_numbers(p.shape, [&](std::int64_t n, std::int64_t c) {
        const std::uint32_t word = dropout_word(p.seed, p.offset, static_cast<std::uint32_t>(n >> 32),
                                                static_cast<std::uint32_t>(n), static_cast<std::uint32_t>(c));
        const A kept = word >= p.threshold ? number<A>(p.x, n, c) * static_cast<A>(p.scale) : A{0};
        put_number<A>(p.out, n, c, kept + number<A>(p.residual, n, c));
    });
}

/// One thread a pair of a row, and one each for the columns behind the pairs.
template <class A>
__global__ void __launch_bounds__(row_threads) rotate_pairs(const __grid_constant__ RopeCall call) {
    const std::int64_t columns = call.size - call.pairs;
    for_numbers({call.batch * call.heads * call.length, columns}, [&](std::int64_t n, std::int64_t column) {
        const std::int64_t t = n % call.length, h = n / call.length % call.heads, b = n / call.length / call.heads;
        const std::int64_t from = b * call.x.stride[0] + h * call.x.stride[1] + t * call.x.stride[2];
        const std::int64_t to = b * call.out.stride[0] + h * call.out.stride[1] + t * call.out.stride[2];
        const auto read = [&](std::int64_t c) {
            return load_as<A>(call.x.dtype, call.x.data, from + c * call.x.stride[3]);
        };
        const auto write = [&](std::int64_t c, A value) {
            store_as<A>(call.out.dtype, call.out.data, to + c * call.out.stride[3], value);
        };
        if (column >= call.pairs) {
            write(column + call.pairs, read(column + call.pairs));
            return;
        }
        const std::int64_t position =
            call.positions != nullptr ? call.positions[b * call.positions_stride + t] : call.first + t;
        double sine = 0, cosine = 0;
        sincos(static_cast<double>(position) * call.frequencies[column], &sine, &cosine);
        const A s = static_cast<A>(call.factor * sine), k = static_cast<A>(call.factor * cosine);
        const std::int64_t first = call.interleaved ? 2 * column : column;
        const std::int64_t second = call.interleaved ? 2 * column + 1 : column + call.pairs;
        const A x = read(first), y = read(second);
        write(first, x * k - y * s);
        write(second, x * s + y * k);
    });
}

// ---- products ------------------------------------------------------------------------------------------------------

constexpr int product_tile = 64, product_depth = 16;

template <class A>
__device__ inline A element(const MatrixAddress& x, std::int64_t row, std::int64_t column, std::int64_t offset = 0) {
    return load_as<A>(x.dtype, x.data, offset + row * x.row_stride + column * x.column_stride);
}

/// Where entry n of some axes lies: offsets in elements.
__device__ inline MatmulOffsets place_of(const MatmulProblem::Axes& axes, std::int64_t n) {
    MatmulOffsets at;
    for (int axis = axes.count - 1; axis >= 0; --axis) {
        const std::int64_t index = n % axes.extent[axis];
        n /= axes.extent[axis];
        at.a += index * axes.a[axis];
        at.b += index * axes.b[axis];
        at.c += index * axes.c[axis];
    }
    return at;
}

/// A block has 64 x 64 numbers of the result, a thread 4 x 4 of them.
template <class A>
__global__ void __launch_bounds__(row_threads) multiply_matrices(const __grid_constant__ LinearProblem problem) {
    const MatmulProblem& p = problem.product;
    __shared__ A a[product_depth][product_tile + 4], b[product_depth][product_tile + 4];
    const std::int64_t column_tiles = (p.columns + product_tile - 1) / product_tile;
    const std::int64_t tiles = column_tiles * ((p.rows + product_tile - 1) / product_tile);
    const MatmulOffsets kept = place_of(p.outer, blockIdx.x / tiles);
    const std::int64_t first_row = blockIdx.x % tiles / column_tiles * product_tile;
    const std::int64_t first_column = blockIdx.x % tiles % column_tiles * product_tile;
    const int thread = static_cast<int>(threadIdx.x), in_rows = thread / 16 * 4, in_columns = thread % 16 * 4;
    A sum[4][4] = {};
    const std::int64_t steps = (p.depth + product_depth - 1) / product_depth;
    for (std::int64_t step = 0; step < steps * p.summed.elements; ++step) {
        const MatmulOffsets summed = place_of(p.summed, step / steps);
        const std::int64_t k = step % steps * product_depth;
        __syncthreads();
        for (int n = thread; n < product_tile * product_depth; n += row_threads) {
            // Neighbouring threads read along the axis on which neighbours lie.
            const bool deep = p.a.column_stride == 1;
            const int row = deep ? n / product_depth : n % product_tile,
                      d = deep ? n % product_depth : n / product_tile;
            const bool inside = first_row + row < p.rows && k + d < p.depth;
            a[d][row] = inside ? element<A>(p.a, first_row + row, k + d, kept.a + summed.a) : A{0};
        }
        for (int n = thread; n < product_tile * product_depth; n += row_threads) {
            const bool deep = p.b.row_stride == 1;
            const int column = deep ? n / product_depth : n % product_tile;
            const int d = deep ? n % product_depth : n / product_tile;
            const bool inside = first_column + column < p.columns && k + d < p.depth;
            b[d][column] = inside ? element<A>(p.b, k + d, first_column + column, kept.b + summed.b) : A{0};
        }
        __syncthreads();
#pragma unroll
        for (int d = 0; d < product_depth; ++d) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
#pragma unroll
                for (int j = 0; j < 4; ++j) { sum[i][j] += a[d][in_rows + i] * b[d][in_columns + j]; }
            }
        }
    }
    for (int i = 0; i < 4; ++i) {
        for (int j = 0; j < 4; ++j) {
            const std::int64_t row = first_row + in_rows + i, column = first_column + in_columns + j;
            if (row >= p.rows || column >= p.columns) { continue; }
            A x = static_cast<A>(p.alpha) * sum[i][j];
            if (p.beta != 0) { x += static_cast<A>(p.beta) * element<A>(p.c, row, column, kept.c); }
            if (problem.bias.data != nullptr) { x += element<A>(problem.bias, 0, column); }
            const auto put = [&](const MatrixAddress& to, A value) {
                store_as<A>(to.dtype, to.data, kept.c + row * to.row_stride + column * to.column_stride, value);
            };
            if (problem.before.data != nullptr) { put(problem.before, x); }
            put(p.c, activated(problem.activation, x));
        }
    }
}

}  // namespace

void launch_norm(void* stream, const NormProblem& p, bool wide) {
    in_type(wide, [&](auto type) {
        norm_rows<decltype(type)><<<static_cast<unsigned>(p.shape.rows), row_threads, 0, stream_of(stream)>>>(p);
    });
}

void launch_norm_backward(void* stream, const NormProblem& p, void* memory, bool wide) {
    in_type(wide, [&](auto type) {
        using A = decltype(type);
        auto* of = static_cast<Statistics<A>*>(memory);
        const auto rows = static_cast<unsigned>(p.shape.rows);
        if (rows > 0) { norm_statistics<A><<<rows, row_threads, 0, stream_of(stream)>>>(p, of); }
        if ((p.dweight.present || p.dbias.present) && p.shape.columns > 0) {
            auto* parts = reinterpret_cast<A*>(of + p.shape.rows);
            const std::int64_t count = parts_of_rows(p.shape.rows);
            if (count > 0) {
                const dim3 grid(static_cast<unsigned>((p.shape.columns + 31) / 32), static_cast<unsigned>(count));
                norm_parts_of_weights<A><<<grid, row_threads, 0, stream_of(stream)>>>(p, of, parts);
            }
            const auto blocks = static_cast<unsigned>((p.shape.columns + row_threads - 1) / row_threads);
            norm_gradients_of_weights<A><<<blocks, row_threads, 0, stream_of(stream)>>>(p, parts, count);
        }
        // dx may take the place of s or dout, so it comes last.
        if (p.dx.present && rows > 0) { norm_gradients_of_rows<A><<<rows, row_threads, 0, stream_of(stream)>>>(p, of); }
    });
}

void launch_activation(void* stream, const ActivationProblem& p, bool wide) {
    in_type(wide, [&](auto type) {
        activate_numbers<decltype(type)>
            <<<blocks_for(p.shape.rows * p.shape.columns), row_threads, 0, stream_of(stream)>>>(p);
    });
}
void launch_activation_backward(void* stream, const ActivationProblem& p, bool wide) {
    in_type(wide, [&](auto type) {
        activation_gradients<decltype(type)>
            <<<blocks_for(p.shape.rows * p.shape.columns), row_threads, 0, stream_of(stream)>>>(p);
    });
}
void launch_elementwise(void* stream, const ElementwiseProblem& p, bool wide) {
    in_type(wide, [&](auto type) {
        combine_numbers<decltype(type)>
            <<<blocks_for(p.shape.rows * p.shape.columns), row_threads, 0, stream_of(stream)>>>(p);
    });
}
std::int64_t parts_of_rows(std::int64_t rows) { return (rows + rows_of_part - 1) / rows_of_part; }

void launch_sum_leading(void* stream, const SumProblem& p, void* memory, bool wide) {
    in_type(wide, [&](auto type) {
        using A = decltype(type);
        auto* parts = static_cast<A*>(memory);
        if (parts != nullptr) {
            const dim3 grid(static_cast<unsigned>(p.shape.rows * ((p.shape.columns + 31) / 32)),
                            static_cast<unsigned>(parts_of_rows(p.repeats)));
            sum_parts<A><<<grid, row_threads, 0, stream_of(stream)>>>(p, parts);
        }
        const std::int64_t count = parts != nullptr ? parts_of_rows(p.repeats) : p.repeats;
        sum_of_rows<A>
            <<<blocks_for(p.shape.rows * p.shape.columns), row_threads, 0, stream_of(stream)>>>(p, parts, count);
    });
}
void launch_embedding(void* stream, const EmbeddingCall& call, bool wide) {
    in_type(wide, [&](auto type) {
        rows_of_table<decltype(type)>
            <<<blocks_for(call.rows * call.columns), row_threads, 0, stream_of(stream)>>>(call);
    });
}
void launch_rope(void* stream, const RopeCall& call, bool wide) {
    in_type(wide, [&](auto type) {
        const std::int64_t numbers = call.batch * call.heads * call.length * (call.size - call.pairs);
        rotate_pairs<decltype(type)><<<blocks_for(numbers), row_threads, 0, stream_of(stream)>>>(call);
    });
}
void launch_dropout(void* stream, const DropoutProblem& p, bool wide) {
    in_type(wide, [&](auto type) {
        drop_numbers<decltype(type)>
            <<<blocks_for(p.shape.rows * p.shape.columns), row_threads, 0, stream_of(stream)>>>(p);
    });
}
void launch_linear(void* stream, const LinearProblem& problem, bool wide) {
    const MatmulProblem& p = problem.product;
    const std::int64_t blocks = p.outer.elements * ((p.rows + product_tile - 1) / product_tile) *
                                ((p.columns + product_tile - 1) / product_tile);
    in_type(wide, [&](auto type) {
        multiply_matrices<decltype(type)>
            <<<static_cast<unsigned>(blocks), row_threads, 0, stream_of(stream)>>>(problem);
    });
}

}  // namespace heed::cuda
