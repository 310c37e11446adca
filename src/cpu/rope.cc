#include "cpu/rope.h"

#include "cpu/instruction_sets.h"
#include "cpu/rope_call.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
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

}  // namespace

void rope(detail::Pool& pool, const RopeProblem& p) {
    RopeCall call;
    call.x = rows_of(p.x);
    call.out = rows_of(p.out);
    call.heads = p.x.extent(1);
    call.pairs = p.pairs();
    call.size = p.in_place ? 2 * call.pairs : p.x.extent(3);
    constexpr std::int64_t widest = 16;
    call.padded_pairs = (call.pairs + widest - 1) / widest * widest;
    std::vector<double> frequencies = p.frequencies;
    frequencies.resize(static_cast<std::size_t>(call.padded_pairs));
    call.frequencies = frequencies.data();
    for (const double f : p.frequencies) { call.largest_frequency = std::max(call.largest_frequency, std::abs(f)); }
    call.factor = p.factor;
    call.interleaved = p.pairing == Pairing::interleaved;
    call.heads_inside = std::abs(call.x.h) < std::abs(call.x.t);

    const std::int64_t tokens = p.x.extent(2);
    const std::int64_t blocks = (tokens + RopeCall::block - 1) / RopeCall::block;
    call.table_stride = call.interleaved ? 2 * call.padded_pairs : call.padded_pairs;
    // Cosines, sines, and one row in float32.
    const std::int64_t floats = 2 * RopeCall::block * call.table_stride + std::max(call.size, 2 * call.pairs);
    const std::size_t scratch = static_cast<std::size_t>(floats) * sizeof(float);
    for (int worker = 0; worker < pool.threads(); ++worker) { pool.scratch(worker).at_least(scratch); }
    const auto kernel = instruction_set().kernels->rope.block;
    // Waking the team costs a few microseconds, which is what one core needs for so many numbers.
    constexpr std::int64_t worth_sharing = std::int64_t{1} << 16;
    detail::parallel(
        pool, p.x.extent(0) * blocks, p.x.shape().elements() >= worth_sharing, [&](std::int64_t index, int worker) {
            const std::int64_t b = index / blocks;
            const std::int64_t begin = index % blocks * RopeCall::block;
            const std::int64_t count = std::min(RopeCall::block, tokens - begin);
            std::int64_t positions[RopeCall::block];
            for (std::int64_t r = 0; r < count; ++r) { positions[r] = p.position(b, begin + r); }
            kernel(call, b, begin, count, positions, static_cast<float*>(pool.scratch(worker).at_least(scratch)));
        });
}

}  // namespace heed::cpu
