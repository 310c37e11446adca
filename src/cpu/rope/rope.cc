#include "cpu/rope/rope.h"

#include "cpu/instruction_sets.h"
#include "cpu/rope/call.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace heed::cpu {
namespace {

template <class AnyView>
RopeCall::Rows rows_of(const AnyView& view) {
    RopeCall::Rows rows;
    rows.data = static_cast<char*>(const_cast<void*>(static_cast<const void*>(view.data())));
    rows.dtype = view.dtype();
    rows.b = view.stride(0);
    rows.h = view.stride(1);
    rows.t = view.stride(2);
    rows.column = view.stride(3);
    return rows;
}

/// Where each head has its own run of memory, runs should be long: at their ends nothing has been fetched ahead. But
/// the table has to stay in the second-level cache while all heads go by, and every thread wants some blocks.
std::int64_t block_of(const RopeCall& call, std::int64_t batch, std::int64_t tokens, int threads) {
    constexpr std::int64_t least = 64;
    if (call.heads_inside) { return least; }
    constexpr std::int64_t table_bytes = 256 << 10;
    std::int64_t block = RopeCall::most_block;
    const auto blocks = [&] { return batch * ((tokens + block - 1) / block); };
    while (block > least && (8 * block * call.padded_pairs > table_bytes || blocks() < 4 * threads)) { block /= 2; }
    return block;
}

constexpr std::int64_t rope_vector = 16;  ///< floats of a vector

/// Room to move the table within a page, cosines, sines (read up to half a vector beyond their end), two rows of
/// double, and one row in float32.
std::size_t rope_scratch_bytes(const RopeCall& call) {
    const std::int64_t floats =
        (2 * call.block + 4) * call.padded_pairs + std::max(call.size, 2 * call.pairs) + rope_vector;
    return static_cast<std::size_t>(RopeCall::page) + static_cast<std::size_t>(floats) * sizeof(float);
}

void rope(detail::Pool& pool, const RopeProblem& p, const RopeFunctions& functions) {
    RopeCall call;
    call.x = rows_of(p.x);
    call.out = rows_of(p.out);
    call.heads = p.x.extent(1);
    call.pairs = p.pairs();
    call.size = p.in_place ? 2 * call.pairs : p.x.extent(3);
    call.padded_pairs = (call.pairs + rope_vector - 1) / rope_vector * rope_vector;
    const auto padded = static_cast<std::size_t>(call.padded_pairs);
    auto* frequencies = static_cast<double*>(pool.shared().at_least(padded * sizeof(double)));
    std::fill(std::ranges::copy(p.frequencies, frequencies).out, frequencies + padded, 0.0);
    call.frequencies = frequencies;
    for (const double f : p.frequencies) { call.largest_frequency = std::max(call.largest_frequency, std::abs(f)); }
    call.factor = p.factor;
    call.interleaved = p.pairing == Pairing::interleaved;
    call.heads_inside = std::abs(call.x.h) < std::abs(call.x.t);

    const std::int64_t tokens = p.x.extent(2);
    call.block = block_of(call, p.x.extent(0), tokens, pool.threads());
    const std::int64_t blocks = (tokens + call.block - 1) / call.block;
    const std::size_t scratch = rope_scratch_bytes(call);
    for (int worker = 0; worker < pool.threads(); ++worker) { pool.scratch(worker).at_least(scratch); }
    // Waking the team costs a few microseconds, which is what one core needs for so many numbers.
    constexpr std::int64_t worth_sharing = std::int64_t{1} << 16;
    detail::parallel(pool, p.x.extent(0) * blocks, p.x.shape().elements() >= worth_sharing,
                     [&](std::int64_t index, int worker) {
                         const std::int64_t b = index / blocks;
                         const std::int64_t begin = index % blocks * call.block;
                         const std::int64_t count = std::min(call.block, tokens - begin);
                         std::int64_t positions[RopeCall::most_block];
                         for (std::int64_t r = 0; r < count; ++r) { positions[r] = p.position(b, begin + r); }
                         functions.block(call, b, begin, count, positions,
                                         static_cast<float*>(pool.scratch(worker).at_least(scratch)));
                     });
}

}  // namespace

std::vector<Kernel<RopeProblem>> rope_kernels() {
    using Row = Kernel<RopeProblem>;
    return rows_of_sets<Row>("blocks of tokens that share a table", []<const Kernels & kernels>(Row& row) {
        row.declines = [](const RopeProblem& p) {
            return p.x.dtype() == DType::f64 ? "float64 is for the reference" : nullptr;
        };
        row.forward = [](detail::Place& place, const RopeProblem& p) { rope(*place.pool, p, kernels.rope); };
    });
}

}  // namespace heed::cpu
