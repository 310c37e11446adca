#include "commands/device.h"

#include <CLI/CLI.hpp>

namespace heed::cli {

void add_device_option(CLI::App& command, std::string& device) {
    command.add_option("--device", device, "Where the model runs: cpu, cuda, or cuda:N, the N-th GPU")
        ->type_name("DEVICE")
        ->capture_default_str();
}

std::unique_ptr<Context> context_on(const std::string& device, int threads) {
    const Device where = device_named(device);
    return where.kind == DeviceKind::cpu ? std::make_unique<Context>(threads) : std::make_unique<Context>(where);
}

std::string where_text(const Context& context) {
    if (context.device().kind != DeviceKind::cpu) { return to_string(context.device()); }
    return std::to_string(context.threads()) + " threads";
}

}  // namespace heed::cli
