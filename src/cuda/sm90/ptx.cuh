#pragma once
/// The instructions of Hopper that C++ has no words for, one function each.

#include <cuda.h>

#include <cstdint>

namespace heed::cuda::sm90 {

__device__ inline std::uint32_t shared_address(const void* pointer) {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

/// What lies in a block's dynamic shared memory, from a multiple of 1024 bytes on. A pointer made from a number would
/// hide from the compiler whose memory it is.
template <class Memory>
__device__ inline Memory& aligned_memory(char* memory) {
    return *reinterpret_cast<Memory*>(memory + (0U - shared_address(memory)) % 1024U);
}

// ---- barriers in shared memory -------------------------------------------------------------------------------------

using Barrier = std::uint64_t;

__device__ inline void barrier_init(Barrier& barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barrier)), "r"(arrivals));
}
/// After the inits, before anybody else looks.
__device__ inline void barrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ inline void barrier_arrive(Barrier& barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&barrier)) : "memory");
}
/// Arrives, and the phase ends only when so many bytes of copies have landed too.
__device__ inline void barrier_arrive_expect(Barrier& barrier, std::uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)), "r"(bytes)
                 : "memory");
}
/// Waits for the end of the phase of this parity.
__device__ inline void barrier_wait(Barrier& barrier, std::uint32_t parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra ready;\n"
        "bra again;\n"
        "ready:\n"
        "}\n" ::"r"(shared_address(&barrier)),
        "r"(parity)
        : "memory");
}

/// Barrier `number` of the block among `threads` threads.
__device__ inline void named_barrier(int number, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
__device__ inline void named_barrier_arrive(int number, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

/// Ordinary writes to shared memory, seen by tensor cores and copies from here on.
__device__ inline void async_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- tensor copies -------------------------------------------------------------------------------------------------

__device__ inline void prefetch(const CUtensorMap& map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(reinterpret_cast<std::uint64_t>(&map)) : "memory");
}
/// One box to shared memory; its bytes count at the barrier. What lies outside the tensor comes as 0.
__device__ inline void copy_box(void* to, const CUtensorMap& map, Barrier& barrier, int column, int row, int head,
                                int batch) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, "
        "%6}], "
        "[%2];" ::"r"(shared_address(to)),
        "l"(reinterpret_cast<std::uint64_t>(&map)), "r"(shared_address(&barrier)), "r"(column), "r"(row), "r"(head),
        "r"(batch)
        : "memory");
}

/// Contiguous bytes, a multiple of 16.
__device__ inline void copy_line(void* to, const void* from, int bytes, Barrier& barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(to)),
                 "l"(reinterpret_cast<std::uint64_t>(from)), "r"(bytes), "r"(shared_address(&barrier))
                 : "memory");
}

// ---- warpgroups ----------------------------------------------------------------------------------------------------

template <int count>
__device__ inline void more_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}
template <int count>
__device__ inline void fewer_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}

/// Registers that the next products read or write are as they should be.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
/// Ends a group of products.
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/// Returns when at most `groups` groups are still running.
template <int groups>
__device__ inline void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(groups) : "memory");
}

/// A tile in shared memory as the tensor cores read it, in rows of 128 bytes, swizzled: 8 rows are 1024 bytes, and
/// where the tile is wider than a row of 128 bytes the next part lies `part_bytes` behind.
__device__ inline std::uint64_t descriptor(const void* tile, std::uint32_t part_bytes = 16) {
    const auto field = [](std::uint64_t bytes) { return (bytes & 0x3FFFFU) >> 4; };
    return field(shared_address(tile)) | field(part_bytes) << 16 | field(1024) << 32 | std::uint64_t{1} << 62;
}
/// The same, computed anew wherever it stands: what is derived from it does not sit in registers through a loop.
__device__ inline std::uint64_t fresh_descriptor(const void* tile, std::uint32_t part_bytes = 16) {
    std::uint64_t result = descriptor(tile, part_bytes);
    asm volatile("" : "+l"(result));
    return result;
}
/// The descriptor of what lies so many bytes further on.
__device__ inline std::uint64_t advanced(std::uint64_t descriptor_of_tile, int bytes) {
    return descriptor_of_tile + static_cast<std::uint64_t>(bytes >> 4);
}

// ---- numbers -------------------------------------------------------------------------------------------------------

__device__ inline float exp2_fast(float x) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}

/// Four 8x8 matrices of 16-bit numbers from a warp's fragments to the rows whose addresses the lanes give.
__device__ inline void store_matrices(std::uint32_t row_address, std::uint32_t a, std::uint32_t b, std::uint32_t c,
                                      std::uint32_t d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row_address), "r"(a), "r"(b),
                 "r"(c), "r"(d)
                 : "memory");
}

}  // namespace heed::cuda::sm90
