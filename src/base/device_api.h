#pragma once
/// What heed's base asks of a GPU. src/cuda/cuda.cc answers; where heed is built without CUDA, src/cuda/cuda_absent.cc
/// has the same symbols and says so. `function` is the public one that an Error names.

#include "base/place.h"

#include <cstddef>
#include <cstdint>
#include <memory>

namespace heed::detail {

/// GPUs that this build can use on this machine; 0 without a driver.
int gpu_count() noexcept;

/// Throws Error where there is no such device.
std::unique_ptr<Queue> make_queue(const char* function, Device device, void* stream);

/// Memory on the device, aligned to 256 bytes. Throws Error where there is no such device, DeviceError where it has no
/// memory left.
void* allocate_on(const char* function, Device device, std::size_t bytes);
void free_on(Device device, void* memory) noexcept;
/// Returns when it is done.
void clear_on(Device device, void* memory, std::size_t bytes);

/// Bytes from one place to another, at least one of which is on a GPU. Queued on the stream where a queue is given,
/// otherwise done on return.
struct DeviceCopy {
    void* to = nullptr;
    Device to_device{};
    const void* from = nullptr;
    Device from_device{};
    std::size_t bytes = 0;
};
void copy_on(const DeviceCopy& copy, Queue* queue);

/// Who keeps memory of a queue. Operations that call one another have places of their own.
enum class KeptMemory : std::uint8_t {
    keys,     ///< gathered from pages
    values,   ///< likewise
    weights,  ///< of a product, widened
    expanded_keys,
    expanded_values,
    dexpanded_keys,
    dexpanded_values,
    latents,
    absorbed,
    local,  ///< results inside a segment
    found,  ///< what a memory answers
    news,   ///< what it learns
    count
};

/// Memory on the device that stays with the queue until `slot` is asked for again: for what an operation hands from one
/// kernel to another, without asking the system each time. Contents are undefined. The pool's lock is held.
void* kept_on(Queue& queue, KeptMemory slot, std::size_t bytes);

}  // namespace heed::detail
