#include <heed/device.h>
#include <heed/error.h>

#include "base/device_api.h"
#include "base/refuse.h"

#include <charconv>

namespace heed {

std::string to_string(Device device) {
    const bool cpu = device.kind == DeviceKind::cpu;
    return cpu && device.index == 0 ? "cpu" : (cpu ? "cpu:" : "cuda:") + std::to_string(device.index);
}

Device device_named(std::string_view name) {
    if (name == "cpu") { return {}; }
    if (name == "cuda") { return {DeviceKind::cuda, 0}; }
    constexpr std::string_view prefix = "cuda:";
    std::int16_t index = -1;
    if (name.starts_with(prefix)) {
        const std::string_view number = name.substr(prefix.size());
        const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), index);
        if (error != std::errc() || end != number.data() + number.size()) { index = -1; }
    }
    if (index < 0) { refuse("device_named", "name", "cpu, cuda or cuda:N", std::string(name)); }
    return {DeviceKind::cuda, index};
}

std::vector<Device> devices() {
    std::vector<Device> all = {Device{}};
    for (int index = 0; index < detail::gpu_count(); ++index) {
        all.push_back({DeviceKind::cuda, static_cast<std::int16_t>(index)});
    }
    return all;
}

}  // namespace heed
