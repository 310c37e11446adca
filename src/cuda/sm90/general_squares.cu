/// What is true of squares of queries and keys, so that the kernels with every option leave out what nobody sees and
/// look at single pairs only where a square is mixed.

#include "cuda/sm90/general.cuh"

namespace heed::cuda::sm90 {
namespace {

constexpr int square_threads = 256;

__global__ void __launch_bounds__(square_threads)
    look_at_squares(const __grid_constant__ AttentionCall c, const __grid_constant__ Squares squares) {
    std::int64_t n = blockIdx.x;
    const int key_square = static_cast<int>(n % squares.key_squares);
    n /= squares.key_squares;
    const int query_square = static_cast<int>(n % squares.query_squares);
    n /= squares.query_squares;
    const int head = static_cast<int>(n % squares.heads);
    Entry s = entry_of(c, n / squares.heads);
    if (squares.entries == 1 && !c.packed) {  // for all entries: as if none were shorter
        s.queries = c.queries;
        s.keys = c.keys;
    }
    const auto* allow = static_cast<const std::uint8_t*>(c.allow.data);
    bool seen = false, hidden = false;
    for (int pair = static_cast<int>(threadIdx.x); pair < Squares::side * Squares::side; pair += square_threads) {
        const int i = query_square * Squares::side + pair / Squares::side;
        const int j = key_square * Squares::side + pair % Squares::side;
        if (i >= s.queries || j >= s.keys) { continue; }
        bool allowed = allow == nullptr || allow[pair_offset(c.allow, s.number, head, i, j)] != 0;
        allowed = allowed && pair_allowed(c, s, head, i, j);
        seen = seen || allowed;
        hidden = hidden || !allowed;
    }
    const int any_seen = __syncthreads_or(seen ? 1 : 0), any_hidden = __syncthreads_or(hidden ? 1 : 0);
    if (threadIdx.x == 0) {
        squares.flags[blockIdx.x] = static_cast<unsigned char>((any_seen != 0 ? Squares::some_seen : 0) |
                                                               (any_hidden != 0 ? Squares::some_hidden : 0));
    }
}

}  // namespace

Squares squares_of(const AttentionCall& c) {
    Squares squares;
    const bool positions = c.query_positions.data != nullptr || c.key_positions.data != nullptr ||
                           c.query_positions.stride[1] != 0 || c.key_positions.stride[1] != 0;
    if (c.allow.data == nullptr && c.pattern_words == 0 && !positions) { return squares; }
    squares.query_squares = (c.queries + Squares::side - 1) / Squares::side;
    squares.key_squares = (c.keys + Squares::side - 1) / Squares::side;
    const bool by_entry = c.packed || c.allow.stride[0] != 0 || c.query_positions.stride[0] != 0 ||
                          c.key_positions.stride[0] != 0 || c.pattern_by_entry;
    squares.entries = by_entry ? c.entries : 1;
    squares.heads = c.allow.stride[1] != 0 || c.pattern_by_head ? c.heads : 1;
    return squares;
}

void launch_squares(void* stream, const AttentionCall& call, const Squares& squares) {
    if (squares.flags == nullptr || squares.bytes() == 0) { return; }
    look_at_squares<<<static_cast<unsigned>(squares.bytes()), square_threads, 0, static_cast<cudaStream_t>(stream)>>>(
        call, squares);
}

}  // namespace heed::cuda::sm90
