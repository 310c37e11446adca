/// heed built without CUDA: the symbols of src/cuda, each of which says so.

#include <heed/error.h>

#include "base/device_api.h"
#include "base/refuse.h"

#include <string>

namespace heed::detail {
namespace {

[[noreturn]] void no_cuda(const char* function, Device device) {
    refuse(std::string(function), "device", "cpu, as this heed is built without CUDA", to_string(device));
}

}  // namespace

int gpu_count() noexcept { return 0; }

std::unique_ptr<Queue> make_queue(const char* function, Device device, void* /*stream*/) { no_cuda(function, device); }

void* allocate_on(const char* function, Device device, std::size_t /*bytes*/) { no_cuda(function, device); }

void free_on(Device /*device*/, void* /*memory*/) noexcept {}

void clear_on(Device device, void* /*memory*/, std::size_t /*bytes*/) { no_cuda("Tensor", device); }

void* kept_on(Queue& /*queue*/, KeptMemory /*slot*/, std::size_t /*bytes*/) {
    return nullptr;  // there are no queues
}

void copy_on(const DeviceCopy& copy, Queue* /*queue*/) {
    no_cuda("copy", copy.to_device.kind == DeviceKind::cpu ? copy.from_device : copy.to_device);
}

}  // namespace heed::detail
