/// What operations made of others need between their parts: sums over heads, partial results that become one, decays of
/// tokens, rotations by given tables. Every number is written by one thread from sums in a fixed order.

#include "cuda/composition_any.h"
#include "cuda/rows.cuh"

namespace heed::cuda {
namespace {

// ---- Numbers of tensors of four axes -------------------------------------------------------------------------------

struct Place4 {
    std::int64_t b, h, t, c;
};
__device__ inline std::int64_t offset_in(const Tensor4& x, const Place4& at) {
    return at.b * x.stride[0] + at.h * x.stride[1] + at.t * x.stride[2] + at.c * x.stride[3];
}
template <class A>
__device__ inline A at_place(const Tensor4& x, const Place4& at) {
    return load_as<A>(x.dtype, x.data, offset_in(x, at));
}

/// every(place) for all numbers.
template <class Every>
__device__ void for_places(const Extents4& extents, const Every& every) {
    const std::int64_t* e = extents.of;
    for_numbers({e[0] * e[1] * e[2], e[3]}, [&](std::int64_t row, std::int64_t column) {
        every(Place4{row / e[2] / e[1], row / e[2] % e[1], row % e[2], column});
    });
}

template <class A>
__global__ void __launch_bounds__(row_threads) sum_heads(const __grid_constant__ HeadSumCall call) {
    for_places(call.extents, [&](Place4 at) {
        const Place4 to = at;
        A sum = 0;
        for (std::int64_t n = 0; n < call.summed; ++n) {
            at.h = call.one_head ? 0 : to.h + n;
            const A x = at_place<A>(call.from, at);
            sum = n == 0 ? x : sum + x;
        }
        store_as<A>(call.to.dtype, call.to.data, offset_in(call.to, to), sum);
    });
}

template <class A>
__device__ inline A factor_of_head(const Tensor4& factors, std::int64_t head) {
    return factors.data == nullptr ? A{1} : load_as<A>(factors.dtype, factors.data, head * factors.stride[0]);
}
template <class A>
__global__ void __launch_bounds__(row_threads) sum_weighted(const __grid_constant__ WeightedSumCall call) {
    for_places(call.extents, [&](const Place4& at) {
        A sum = factor_of_head<A>(call.fa, at.h) * at_place<A>(call.a, at);
        if (call.b.data != nullptr) { sum += factor_of_head<A>(call.fb, at.h) * at_place<A>(call.b, at); }
        store_as<A>(call.out.dtype, call.out.data, offset_in(call.out, at), sum);
    });
}

/// A block a head, in double.
__global__ void __launch_bounds__(row_threads) dot_heads(const __grid_constant__ HeadDotCall call) {
    const std::int64_t* e = call.extents.of;
    const std::int64_t h = blockIdx.x, numbers = e[0] * e[2] * e[3];
    double sum = 0;
    for (std::int64_t n = threadIdx.x; n < numbers; n += row_threads) {
        const Place4 at{n / e[3] / e[2], h, n / e[3] % e[2], n % e[3]};
        double other = at_place<double>(call.a, at);
        if (call.b.data != nullptr) { other -= at_place<double>(call.b, at); }
        sum += at_place<double>(call.d, at) * other;
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) { call.sum[h] = sum; }
}

/// A block a row.
__device__ bool any_number(const Tensor4& x, std::int64_t b, std::int64_t s, std::int64_t size) {
    double found = 0;
    for (std::int64_t c = threadIdx.x; c < size; c += row_threads) {
        found = at_place<double>(x, {b, 0, s, c}) == 0 ? found : 1;  // NaN is one
    }
    return block_sum(found) != 0;
}
template <class A>
__global__ void __launch_bounds__(row_threads) see_latents(const __grid_constant__ SeenLatentsCall call) {
    for (std::int64_t n = blockIdx.x; n < call.batch * call.keys; n += gridDim.x) {
        const std::int64_t b = n / call.keys, s = n % call.keys;
        const bool keys = any_number(call.dkeys, b, s, call.key_size);
        const bool values = any_number(call.dvalues, b, s, call.value_size);
        for (std::int64_t e = threadIdx.x; e < call.latent_size; e += row_threads) {
            const Place4 at{b, s, e, 0};
            const A x = keys || values ? at_place<A>(call.latent, at) : A{0};
            store_as<A>(call.out.dtype, call.out.data, offset_in(call.out, at), x);
        }
    }
}

// ---- Merging -------------------------------------------------------------------------------------------------------

/// What a part counts in the whole, 0 where it saw nothing: as kernel/merge_rule.h has it.
__device__ double part_weight(double part, double whole) { return part == -INFINITY ? 0 : exp(part - whole); }

struct MergedRow {
    double largest, sum;  ///< of the parts' logarithms, and of exp(part - largest)

    __device__ bool any() const { return largest != -INFINITY; }
    __device__ double lse() const { return any() ? largest + log(sum) : largest; }
    __device__ double weight(double lse_of_part) const { return part_weight(lse_of_part, largest) / sum; }
};
__device__ double lse_of(const PartOnDevice& part, std::int64_t row) { return number<double>(part.lse, row, 0); }
__device__ bool saw_keys(const PartOnDevice& part, std::int64_t row) { return lse_of(part, row) != -INFINITY; }

__device__ MergedRow merged_row(const MergeCall& call, std::int64_t row) {
    MergedRow result{-INFINITY, 0};
    for (std::int64_t n = 0; n < call.count; ++n) {
        const double lse = lse_of(call.parts[n], row);
        // NaN where any is.
        if (result.largest == result.largest && !(lse <= result.largest)) { result.largest = lse; }
    }
    for (std::int64_t n = 0; result.any() && n < call.count; ++n) {
        result.sum += part_weight(lse_of(call.parts[n], row), result.largest);
    }
    return result;
}

/// row(number, lane) for all rows, a warp each.
template <class Row>
__device__ void for_rows_of_warps(std::int64_t rows, const Row& row) {
    constexpr std::int64_t warps = row_threads / 32;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    for (std::int64_t n = blockIdx.x * warps + threadIdx.x / 32; n < rows; n += gridDim.x * warps) { row(n, lane); }
}
unsigned blocks_of_warps(std::int64_t rows) { return blocks_for(rows * 32); }

template <class A>
__global__ void __launch_bounds__(row_threads) merge_rows(const __grid_constant__ MergeCall call) {
    for_rows_of_warps(call.rows, [&](std::int64_t row, int lane) {
        const MergedRow merged = merged_row(call, row);
        // The result may take the place of a part: everything is read before anything is written.
        const double lse = merged.lse();
        for (std::int64_t e = lane; e < call.size; e += 32) {
            A sum = static_cast<A>(-0.0);  // from 0 a lone part's -0 would become 0
            for (std::int64_t n = 0; n < call.count; ++n) {
                const PartOnDevice& part = call.parts[n];
                if (!saw_keys(part, row)) { continue; }
                sum += static_cast<A>(merged.weight(lse_of(part, row))) * number<A>(part.out, row, e);
            }
            put_number<A>(call.out, row, e, merged.any() ? sum : A{0});
        }
        __syncwarp();
        if (lane == 0) { put_number<double>(call.lse, row, 0, lse); }
    });
}

/// dout . out of a part.
template <class A>
__device__ double along(const MergeCall& call, const PartOnDevice& part, std::int64_t row, int lane) {
    double sum = 0;
    for (std::int64_t e = lane; e < call.size; e += 32) {
        sum += static_cast<double>(number<A>(call.dout, row, e) * number<A>(part.out, row, e));
    }
    for (int apart = 16; apart > 0; apart /= 2) { sum += __shfl_xor_sync(~0U, sum, apart); }
    return sum;
}

template <class A>
__global__ void __launch_bounds__(row_threads) merge_rows_back(const __grid_constant__ MergeCall call) {
    for_rows_of_warps(call.rows, [&](std::int64_t row, int lane) {
        const MergedRow merged = merged_row(call, row);
        const double dlse = number<double>(call.dlse, row, 0);
        double mean = 0;  // dout . out of the whole
        for (std::int64_t n = 0; n < call.count; ++n) {
            const PartOnDevice& part = call.parts[n];
            if (saw_keys(part, row)) { mean += merged.weight(lse_of(part, row)) * along<A>(call, part, row, lane); }
        }
        for (std::int64_t n = 0; n < call.count; ++n) {
            const PartOnDevice& part = call.parts[n];
            const bool seen = saw_keys(part, row);
            const double weight = seen ? merged.weight(lse_of(part, row)) : 0;
            for (std::int64_t e = lane; e < call.size; e += 32) {
                put_number<A>(part.dout, row, e, seen ? static_cast<A>(weight) * number<A>(call.dout, row, e) : A{0});
            }
            const double difference = seen ? along<A>(call, part, row, lane) - mean : 0;
            if (lane == 0) { put_number<double>(part.dlse, row, 0, seen ? weight * (dlse + difference) : 0); }
        }
    });
}

// ---- Decays of tokens ----------------------------------------------------------------------------------------------

/// log(1 + exp(x)), without overflow; and its derivative.
template <class A>
__device__ A softplus(A x) {
    return fmax(x, A{0}) + log1p(exp(-fabs(x)));
}
template <class A>
__device__ A logistic(A x) {
    const A e = exp(-fabs(x));
    return (x >= 0 ? A{1} : e) / (1 + e);
}
template <class A>
__device__ A speed_of(const LogDecayProblem& p, std::int64_t column) {
    return -exp(number<A>(p.rate, 0, column / (p.shape.columns / p.states)));
}

template <class A>
__global__ void __launch_bounds__(row_threads) decays(const __grid_constant__ LogDecayProblem p) {
    for_numbers(p.shape, [&](std::int64_t row, std::int64_t c) {
        put_number<A>(p.out, row, c, speed_of<A>(p, c) * softplus(number<A>(p.x, row, c)));
    });
}
template <class A>
__global__ void __launch_bounds__(row_threads) decays_back(const __grid_constant__ LogDecayProblem p) {
    for_numbers(p.shape, [&](std::int64_t row, std::int64_t c) {
        const A dx = number<A>(p.dout, row, c) * speed_of<A>(p, c) * logistic(number<A>(p.x, row, c));
        put_number<A>(p.dx, row, c, dx);
    });
}
/// A block a state; sums in double.
__global__ void __launch_bounds__(row_threads) rates_back(const __grid_constant__ LogDecayProblem p) {
    const std::int64_t each = p.shape.columns / p.states, state = blockIdx.x;
    double sum = 0;
    for (std::int64_t n = threadIdx.x; n < p.shape.rows * each; n += row_threads) {
        const std::int64_t row = n / each, c = state * each + n % each;
        // d out / d rate is out itself.
        sum += number<double>(p.dout, row, c) * softplus(number<double>(p.x, row, c));
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) { put_number<double>(p.drate, 0, state, speed_of<double>(p, state * each) * sum); }
}

// ---- Experts with a limit ------------------------------------------------------------------------------------------

template <class A>
struct Clamped {
    A gate, up, share;  ///< g, the clamped up, sigmoid(alpha g)

    __device__ Clamped(const ClampedGateProblem& p, A x, A y) {
        const A limit = static_cast<A>(p.limit);
        gate = limit < x ? limit : x;  // NaN stays
        up = y < -limit ? -limit : limit < y ? limit : y;
        share = 1 / (1 + exp(-static_cast<A>(p.alpha) * gate));
    }
};
template <class A>
__global__ void __launch_bounds__(row_threads) clamp_gates(const __grid_constant__ ClampedGateProblem p) {
    for_numbers(p.shape, [&](std::int64_t row, std::int64_t c) {
        const Clamped<A> z(p, number<A>(p.gate, row, c), number<A>(p.up, row, c));
        put_number<A>(p.out, row, c, (z.up + 1) * z.gate * z.share);
    });
}
template <class A>
__global__ void __launch_bounds__(row_threads) clamp_gates_back(const __grid_constant__ ClampedGateProblem p) {
    const A limit = static_cast<A>(p.limit), alpha = static_cast<A>(p.alpha);
    for_numbers(p.shape, [&](std::int64_t row, std::int64_t c) {
        const A x = number<A>(p.gate, row, c), y = number<A>(p.up, row, c), dout = number<A>(p.dout, row, c);
        const Clamped<A> z(p, x, y);
        const A slope = z.share + alpha * z.gate * z.share * (1 - z.share);
        put_number<A>(p.dgate, row, c, x <= limit ? (z.up + 1) * slope * dout : A{0});
        put_number<A>(p.dup, row, c, fabs(y) <= limit ? z.gate * z.share * dout : A{0});
    });
}

// ---- Rotations -----------------------------------------------------------------------------------------------------

/// A thread has a pair, or a number that is left as it is.
template <class A>
__global__ void __launch_bounds__(row_threads) rotate_pairs(const __grid_constant__ RotateCall call) {
    const std::int64_t* e = call.extents.of;
    const Extents4 work{{e[0], e[1], e[2], e[3] - call.pairs}};
    for_places(work, [&](Place4 at) {
        const std::int64_t pair = at.c;
        if (pair >= call.pairs) {
            at.c = pair + call.pairs;
            store_as<A>(call.out.dtype, call.out.data, offset_in(call.out, at), at_place<A>(call.x, at));
            return;
        }
        const std::int64_t row = call.positions.data == nullptr
                                     ? at.t
                                     : load_integer(call.positions.dtype, call.positions.data,
                                                    at.b * call.positions.stride[0] + at.t * call.positions.stride[1]);
        const Place4 of_table{at.b, row, pair, 0};
        const A c = at_place<A>(call.cosine, of_table), s = at_place<A>(call.sine, of_table);
        const A sine = call.back ? -s : s;
        Place4 first = at, second = at;
        first.c = call.interleaved ? 2 * pair : pair;
        second.c = call.interleaved ? 2 * pair + 1 : pair + call.pairs;
        const A x = at_place<A>(call.x, first), y = at_place<A>(call.x, second);
        store_as<A>(call.out.dtype, call.out.data, offset_in(call.out, first), x * c - y * sine);
        store_as<A>(call.out.dtype, call.out.data, offset_in(call.out, second), x * sine + y * c);
    });
}

}  // namespace

void launch_head_sum(void* stream, const HeadSumCall& call, bool wide) {
    in_type(wide, [&](auto type) {
        sum_heads<decltype(type)><<<blocks_for(call.extents.numbers()), row_threads, 0, stream_of(stream)>>>(call);
    });
}

void launch_weighted_sum(void* stream, const WeightedSumCall& call, bool wide) {
    in_type(wide, [&](auto type) {
        sum_weighted<decltype(type)><<<blocks_for(call.extents.numbers()), row_threads, 0, stream_of(stream)>>>(call);
    });
}

void launch_head_dot(void* stream, const HeadDotCall& call) {
    dot_heads<<<static_cast<unsigned>(call.extents.of[1]), row_threads, 0, stream_of(stream)>>>(call);
}

void launch_seen_latents(void* stream, const SeenLatentsCall& call, bool wide) {
    in_type(wide, [&](auto type) {
        see_latents<decltype(type)>
            <<<blocks_for(call.batch * call.keys * row_threads), row_threads, 0, stream_of(stream)>>>(call);
    });
}

void launch_merge(void* stream, const MergeCall& call, bool wide) {
    in_type(wide, [&](auto type) {
        merge_rows<decltype(type)><<<blocks_of_warps(call.rows), row_threads, 0, stream_of(stream)>>>(call);
    });
}
void launch_merge_backward(void* stream, const MergeCall& call, bool wide) {
    in_type(wide, [&](auto type) {
        merge_rows_back<decltype(type)><<<blocks_of_warps(call.rows), row_threads, 0, stream_of(stream)>>>(call);
    });
}

void launch_log_decay(void* stream, const LogDecayProblem& problem, bool wide) {
    in_type(wide, [&](auto type) {
        decays<decltype(type)>
            <<<blocks_for(problem.shape.rows * problem.shape.columns), row_threads, 0, stream_of(stream)>>>(problem);
    });
}
void launch_log_decay_backward(void* stream, const LogDecayProblem& problem, bool wide) {
    // The sums come first: dx may lie where x or dout does.
    if (problem.drate.present) {
        rates_back<<<static_cast<unsigned>(problem.states), row_threads, 0, stream_of(stream)>>>(problem);
    }
    if (!problem.dx.present) { return; }
    in_type(wide, [&](auto type) {
        decays_back<decltype(type)>
            <<<blocks_for(problem.shape.rows * problem.shape.columns), row_threads, 0, stream_of(stream)>>>(problem);
    });
}

void launch_clamped_gate(void* stream, const ClampedGateProblem& problem, bool wide) {
    in_type(wide, [&](auto type) {
        clamp_gates<decltype(type)>
            <<<blocks_for(problem.shape.rows * problem.shape.columns), row_threads, 0, stream_of(stream)>>>(problem);
    });
}
void launch_clamped_gate_backward(void* stream, const ClampedGateProblem& problem, bool wide) {
    in_type(wide, [&](auto type) {
        clamp_gates_back<decltype(type)>
            <<<blocks_for(problem.shape.rows * problem.shape.columns), row_threads, 0, stream_of(stream)>>>(problem);
    });
}

void launch_rotate(void* stream, const RotateCall& call, bool wide) {
    in_type(wide, [&](auto type) {
        rotate_pairs<decltype(type)><<<blocks_for(call.extents.numbers()), row_threads, 0, stream_of(stream)>>>(call);
    });
}

}  // namespace heed::cuda
