#include <cstdint>
#include <cstdio>
#include <memory>
#include <random>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "commands/commands.h"
#include "print/text.h"
#include "web/serve.h"

namespace heed::cli {
namespace {

struct ServeArguments {
    web::ServeOptions options;
    bool token = false;
};

/// 128 bits that nobody guesses, from the system's own source.
std::string make_token() {
    std::random_device source;
    std::string text;
    for (int n = 0; n < 4; ++n) { text += fmt::format("{:08x}", static_cast<std::uint32_t>(source())); }
    return text;
}

void serve_command(ServeArguments arguments) {
    web::ServerOptions& server = arguments.options.server;
    const bool here = server.host.starts_with("127.") || server.host == "::1";
    if ((arguments.token || !here) && server.token.empty()) { server.token = make_token(); }
    web::serve(arguments.options, [](const std::string& address) {
        fmt::print("heed serves on {}\nPress Ctrl-C to stop.\n", address);
        std::fflush(stdout);
    });
    fmt::print("stopped\n");
}

}  // namespace
}  // namespace heed::cli

void add_serve(CLI::App& app) {
    CLI::App* command = app.add_subcommand("serve", "A page in the browser that shows attention at work");
    const auto arguments = std::make_shared<heed::cli::ServeArguments>();
    heed::web::ServerOptions& server = arguments->options.server;
    server.port = 8080;
    command->add_option("--host", server.host, "Address to listen on (default 127.0.0.1: this machine alone)")
        ->type_name("ADDRESS");
    command->add_option("--port", server.port, "Port (default 8080; 0: any that is free)")->type_name("NUMBER");
    command->add_flag("--token", arguments->token, "Ask for a token on this machine, too (always asked for beyond it)");
    command->footer(
        "Examples:\n"
        "  heed serve                     open the printed address in a browser\n"
        "  heed serve --port 0            on any port that is free\n"
        "  heed serve --host 0.0.0.0      for the whole network, with a token in the printed address\n"
        "Nothing is downloaded and nothing leaves this machine: the page is inside the program.");
    command->callback([arguments] { heed::cli::serve_command(*arguments); });
}
