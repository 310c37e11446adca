#include <memory>

#include <fmt/format.h>
#include <heed/evaluate.h>
#include <CLI/CLI.hpp>

#include "commands/commands.h"
#include "commands/generation.h"
#include "print/text.h"

namespace heed::cli {
namespace {

struct ScoreArguments {
    std::string model, file, threads = "0";
    std::vector<std::string> text;
    std::int64_t window = 0, stride = 0;
    bool json = false, quiet = false;
};

constexpr auto score_examples = R"(Examples:
  heed score path/to/model --file book.txt                         perplexity and bits per byte
  heed score path/to/model --file book.txt --window 1024 --stride 512
  heed score path/to/model "The sky is blue."
)";

void score_command(const ScoreArguments& arguments) {
    const LoadedModel loaded(arguments.model, arguments.quiet);
    std::string text;
    for (const std::string& word : arguments.text) { text += (text.empty() ? "" : " ") + word; }
    if (arguments.text.empty()) { text = read_whole("score", arguments.file.empty() ? "-" : arguments.file); }
    const std::vector<std::int64_t> ids = loaded.tokenizer.encode(text, {.truncate_and_pad = false});
    Context context(static_cast<int>(parse_integer("--threads", arguments.threads, 0, 4096)));
    const TextScore result =
        score_text(context, loaded.model, ids, {.window = arguments.window, .stride = arguments.stride});
    const double bits = result.bits_per_byte(static_cast<std::int64_t>(text.size()));
    if (arguments.json) {
        fmt::print("{}\n", dump({{"tokens", result.tokens},
                                 {"bytes", text.size()},
                                 {"nll", result.negative_log_likelihood},
                                 {"perplexity", result.perplexity()},
                                 {"bits_per_byte", bits}}));
        return;
    }
    fmt::print("tokens predicted  {}\nbytes             {}\nperplexity        {:.4f}\nbits per byte     {:.4f}\n",
               result.tokens, text.size(), result.perplexity(), bits);
}

}  // namespace
}  // namespace heed::cli

void add_score(CLI::App& app) {
    constexpr std::int64_t most = std::int64_t{1} << 24;
    CLI::App* command = app.add_subcommand("score", "How well a model predicts a text: perplexity, bits per byte");
    const auto arguments = std::make_shared<heed::cli::ScoreArguments>();
    command->add_option("model", arguments->model, "A model's folder")->required()->type_name("");
    command->add_option("text", arguments->text, "The text; without it, --file or standard input")->type_name("");
    command->add_option("--file", arguments->file, "A file")->type_name("FILE");
    command->add_option("--window", arguments->window, "Tokens that the model sees at once")
        ->check(CLI::Range(std::int64_t{2}, most).description(""))
        ->type_name("N");
    command->add_option("--stride", arguments->stride, "Tokens that a window is ahead of the one before")
        ->check(CLI::Range(std::int64_t{1}, most).description(""))
        ->type_name("N");
    command->add_option("--threads", arguments->threads, "Threads; 0: one per core")->type_name("N");
    command->add_flag("--json", arguments->json, "Write JSON");
    command->add_flag("--quiet", arguments->quiet, "No progress on standard error");
    command->footer(heed::cli::score_examples);
    command->callback([arguments] { heed::cli::score_command(*arguments); });
}
