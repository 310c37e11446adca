#pragma once
/// Buffers that producers and consumers hand to each other, and the counter from which blocks take tiles.

#include "cuda/sm90/ptx.cuh"

namespace heed::cuda::sm90 {

/// A place in a ring of buffers, counted over all tiles of the block.
template <int stages>
struct Ring {
    int stage = 0;
    std::uint32_t phase = 0;
    __device__ void advance() {
        if (++stage == stages) {
            stage = 0;
            phase ^= 1;
        }
    }
};

/// The last block leaves the counters as it found them.
__device__ inline void finish_counter(int* counter) {
    if (atomicAdd(counter + 1, 1) == static_cast<int>(gridDim.x) - 1) {
        counter[0] = 0;
        counter[1] = 0;
    }
}

}  // namespace heed::cuda::sm90
