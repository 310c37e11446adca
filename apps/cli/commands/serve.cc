#include <cstdint>
#include <cstdio>
#include <memory>
#include <random>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "commands/commands.h"
#include "commands/generation.h"
#include "print/text.h"
#include "web/serve.h"

namespace heed::cli {
namespace {

struct ServeArguments {
    web::ServeOptions options;
    bool token = false;
    std::int64_t look_mebibytes = 2048;
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
    arguments.options.look.bytes = static_cast<std::size_t>(arguments.look_mebibytes) << 20U;
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
    CLI::App* command =
        app.add_subcommand("serve", "A page in the browser that shows attention at work, and a model for programs");
    const auto arguments = std::make_shared<heed::cli::ServeArguments>();
    heed::web::ServerOptions& server = arguments->options.server;
    heed::web::EngineOptions& engine = arguments->options.engine;
    server.port = 8080;
    command
        ->add_option("MODEL", engine.folder,
                     "Folder of a model (config.json, model.safetensors, tokenizer.json) or of a training run")
        ->type_name("FOLDER");
    command->add_option("COMPARE", arguments->options.compare, "Folder of a second one, to look at beside the first")
        ->type_name("FOLDER");
    command->add_option("--host", server.host, "Address to listen on (default 127.0.0.1: this machine alone)")
        ->type_name("ADDRESS");
    command->add_option("--port", server.port, "Port (default 8080; 0: any that is free)")->type_name("NUMBER");
    command->add_flag("--token", arguments->token, "Ask for a token on this machine, too (always asked for beyond it)");
    heed::cli::add_weights_option(*command, engine.weights);
    command->add_option("--tokens", engine.tokens, "Room in the caches for all texts together (default 8192 tokens)")
        ->type_name("NUMBER")
        ->check(CLI::Range(std::int64_t{16}, std::int64_t{1} << 32));
    command->add_option("--sequences", engine.sequences, "Texts that are continued at once (default 32)")
        ->type_name("NUMBER")
        ->check(CLI::Range(1, 1024));
    command->add_option("--queue", engine.queue, "Texts that may wait for that (default 64; more are answered 429)")
        ->type_name("NUMBER")
        ->check(CLI::Range(0, 1024));
    command
        ->add_option("--look-memory", arguments->look_mebibytes,
                     "Queries and keys kept of texts that are looked at (default 2048 MiB)")
        ->type_name("MIB")
        ->check(CLI::Range(1, 1 << 20));
    command->footer(
        "Examples:\n"
        "  heed serve                     open the printed address in a browser\n"
        "  heed serve models/gpt2         with a model: /v1/completions and the rest of OpenAI's interface\n"
        "  heed serve runs/mha runs/mla   two of what heed compare trained, side by side\n"
        "  heed serve --port 0            on any port that is free\n"
        "  heed serve --host 0.0.0.0      for the whole network, with a token in the printed address\n"
        "Nothing is downloaded and nothing leaves this machine: the page is inside the program.");
    command->callback([arguments] { heed::cli::serve_command(*arguments); });
}
