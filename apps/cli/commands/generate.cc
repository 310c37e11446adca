#include <cstdio>
#include <memory>

#include <fmt/format.h>
#include <heed/search.h>
#include <CLI/CLI.hpp>

#include "commands/commands.h"
#include "commands/generation.h"
#include "print/text.h"

namespace heed::cli {
namespace {

struct GenerateArguments {
    GenerationArguments common;
    std::string prompt;  ///< one argument: a list of them would lose brackets at its ends
    std::string file;
    std::int64_t beams = 1;
    double length_penalty = 1;
    bool json = false;
};

constexpr auto generate_examples = R"(Examples:
  heed generate path/to/model "Once upon a time"                  the most probable text
  heed generate path/to/model "Once upon a time" --temperature 0.8 --top-p 0.95 --seed 7
  heed generate path/to/model --file prompt.txt --max-new-tokens 400 --stop "\n\n"
  heed generate path/to/model "Bees are" --beams 4
  heed generate path/to/model "A list:" --lookup 6                same tokens, fewer steps where text repeats
Without a prompt or --file, standard input is read.
)";

std::string prompt_of(const GenerateArguments& arguments) {
    if (arguments.prompt.empty()) { return read_whole("generate", arguments.file.empty() ? "-" : arguments.file); }
    return arguments.prompt;
}

Generated beam_text(Context& context, const LoadedModel& loaded, const GenerateArguments& arguments,
                    const std::vector<std::int64_t>& ids) {
    SearchOptions options;
    options.max_new_tokens = arguments.common.max_new_tokens;
    options.min_new_tokens = arguments.common.min_new_tokens;
    options.num_beams = arguments.beams;
    options.length_penalty = arguments.length_penalty;
    Decoding decoding(loaded.model, search_room(static_cast<std::int64_t>(ids.size()), options));
    std::vector<std::int64_t> whole = search(context, decoding, ids, options);
    Generated result;
    const std::size_t skip = loaded.model.config().kind == ModelKind::decoder ? ids.size() : 1;
    result.tokens.assign(whole.begin() + static_cast<std::ptrdiff_t>(skip), whole.end());
    result.text = loaded.tokenizer.decode(result.tokens);
    result.reason = FinishReason::length;
    if (!arguments.json) { fmt::print("{}", result.text); }
    return result;
}

Generated plain_text(Context& context, const LoadedModel& loaded, const GenerateArguments& arguments,
                     const std::vector<std::int64_t>& ids) {
    heed::Request request{.prompt = ids,
                          .max_new_tokens = arguments.common.max_new_tokens,
                          .min_new_tokens = arguments.common.min_new_tokens,
                          .sampling = arguments.common.sampling(),
                          .stop = arguments.common.stop};
    if (!arguments.json) {
        request.on_token = [](std::int64_t, const std::string& text) {
            std::fwrite(text.data(), 1, text.size(), stdout);
            std::fflush(stdout);
            return true;
        };
    }
    ServingOptions options;
    options.tokenizer = loaded.tokenizer;
    options.speculation = arguments.common.speculation();
    return generate(context, loaded.model, std::move(request), options);
}

void generate_command(const GenerateArguments& arguments) {
    const LoadedModel loaded(arguments.common.model, arguments.common.quiet, arguments.common.weights,
                             arguments.common.device);
    const std::vector<std::int64_t> ids = loaded.tokenizer.encode(prompt_of(arguments), {.truncate_and_pad = false});
    if (arguments.beams > 1 && (arguments.common.temperature > 0 || !arguments.common.stop.empty())) {
        throw UsageError("--beams: expected no --temperature and no --stop beside it, got one");
    }
    const std::unique_ptr<Context> where = arguments.common.context();
    Context& context = *where;
    const Generated result =
        arguments.beams > 1 ? beam_text(context, loaded, arguments, ids) : plain_text(context, loaded, arguments, ids);
    if (arguments.json) {
        fmt::print("{}\n", dump({{"prompt_tokens", ids.size()},
                                 {"tokens", result.tokens},
                                 {"text", result.text},
                                 {"first_token_seconds", result.first_token_seconds},
                                 {"seconds", result.seconds}}));
    } else {
        fmt::print("\n");
    }
    if (!arguments.common.quiet && arguments.beams == 1) { print_speed(result, ids.size()); }
}

}  // namespace
}  // namespace heed::cli

void add_generate(CLI::App& app) {
    CLI::App* command = app.add_subcommand("generate", "Continue a text with a model from a folder");
    const auto arguments = std::make_shared<heed::cli::GenerateArguments>();
    arguments->common.add_to(*command);
    command->add_option("prompt", arguments->prompt, "The text to continue")->type_name("TEXT");
    command->add_option("--file", arguments->file, "Continue this file")->type_name("FILE");
    command->add_option("--beams", arguments->beams, "Search with so many beams")
        ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 10).description(""))
        ->type_name("K");
    command->add_option("--length-penalty", arguments->length_penalty, "With --beams")->type_name("P");
    command->add_flag("--json", arguments->json, "Write JSON");
    command->footer(heed::cli::generate_examples);
    command->callback([arguments] { heed::cli::generate_command(*arguments); });
}
