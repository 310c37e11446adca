#pragma once
#include <memory>
#include <string>

#include <heed/context.h>

namespace CLI {
class App;
}

namespace heed::cli {

/// --device, for commands that run a model.
void add_device_option(CLI::App& command, std::string& device);

/// On the CPU with so many threads, or on a GPU.
std::unique_ptr<Context> context_on(const std::string& device, int threads);

/// "4 threads", "cuda:0"
std::string where_text(const Context& context);

}  // namespace heed::cli
