#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <heed/dtype.h>

namespace heed {

enum class DeviceKind : std::uint8_t { cpu, cuda };

/// Where memory lies and where a call runs: the CPU, or one of the GPUs. A plain value.
struct Device {
    DeviceKind kind = DeviceKind::cpu;
    std::int16_t index = 0;  ///< of the GPU, as CUDA counts them; 0 for the CPU

    bool operator==(const Device&) const = default;
};

/// "cpu", "cuda:0"
HEED_API std::string to_string(Device device);

/// The device of a name: "cpu", "cuda" (the first GPU), "cuda:1". Error where it is none of these; whether the machine
/// has it is for the context to say.
HEED_API Device device_named(std::string_view name);

/// What this build can use on this machine, the CPU first. Never throws: where no driver or no GPU is found, and where
/// heed was built without CUDA, the CPU is all there is.
HEED_API std::vector<Device> devices();

}  // namespace heed
