#include <heed/device.h>

#include "base/device_api.h"

namespace heed {

std::string to_string(Device device) {
    const bool cpu = device.kind == DeviceKind::cpu;
    return cpu && device.index == 0 ? "cpu" : (cpu ? "cpu:" : "cuda:") + std::to_string(device.index);
}

std::vector<Device> devices() {
    std::vector<Device> all = {Device{}};
    for (int index = 0; index < detail::gpu_count(); ++index) {
        all.push_back({DeviceKind::cuda, static_cast<std::int16_t>(index)});
    }
    return all;
}

}  // namespace heed
