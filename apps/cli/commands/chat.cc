#include <cstdio>
#include <iostream>
#include <memory>

#include <fmt/format.h>
#include <heed/chat.h>
#include <CLI/CLI.hpp>

#include "commands/commands.h"
#include "commands/generation.h"
#include "print/text.h"

namespace heed::cli {
namespace {

struct ChatArguments {
    GenerationArguments common;
    std::string system;
};

constexpr auto chat_examples = R"(Examples:
  heed chat path/to/model                                  a line, an answer; an empty line or the end of input ends it
  heed chat path/to/model --system "Answer in one word." --temperature 0.7 --seed 3
  echo "Why is the sky blue?" | heed chat path/to/model --quiet
The model's folder has a chat template, in tokenizer_config.json or chat_template.jinja.
)";

/// The template writes special tokens itself, so none are added around its text.
std::string answer(Context& context, const LoadedModel& loaded, const ChatArguments& arguments,
                   const std::string& text) {
    const std::vector<std::int64_t> ids =
        loaded.tokenizer.encode(text, {.add_special_tokens = false, .truncate_and_pad = false});
    heed::Request request{.prompt = ids,
                          .max_new_tokens = arguments.common.max_new_tokens,
                          .min_new_tokens = arguments.common.min_new_tokens,
                          .sampling = arguments.common.sampling(),
                          .stop = arguments.common.stop};
    request.on_token = [](std::int64_t, const std::string& piece) {
        std::fwrite(piece.data(), 1, piece.size(), stdout);
        std::fflush(stdout);
        return true;
    };
    ServingOptions options;
    options.tokenizer = loaded.tokenizer;
    options.speculation = arguments.common.speculation();
    const Generated result = generate(context, loaded.model, std::move(request), options);
    fmt::print("\n");
    if (!arguments.common.quiet) { print_speed(result, ids.size()); }
    return result.text;
}

void chat_command(const ChatArguments& arguments) {
    const ChatTemplate chat = ChatTemplate::from_folder(arguments.common.model);
    const LoadedModel loaded(arguments.common.model, arguments.common.quiet, arguments.common.weights,
                             arguments.common.device);
    const std::unique_ptr<Context> where = arguments.common.context();
    Context& context = *where;
    std::vector<ChatMessage> messages;
    if (!arguments.system.empty()) { messages.push_back({"system", arguments.system}); }
    std::string line;
    while (std::getline(std::cin, line) && !line.empty()) {
        messages.push_back({"user", line});
        std::string said = answer(context, loaded, arguments, chat.render(messages));
        messages.push_back({"assistant", std::move(said)});
    }
}

}  // namespace
}  // namespace heed::cli

void add_chat(CLI::App& app) {
    CLI::App* command = app.add_subcommand("chat", "Talk to a model, line by line");
    const auto arguments = std::make_shared<heed::cli::ChatArguments>();
    arguments->common.add_to(*command);
    command->add_option("--system", arguments->system, "What the model is told first")->type_name("TEXT");
    command->footer(heed::cli::chat_examples);
    command->callback([arguments] { heed::cli::chat_command(*arguments); });
}
