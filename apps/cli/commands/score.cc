#include <memory>

#include <fmt/format.h>
#include <heed/evaluate.h>
#include <CLI/CLI.hpp>

#include "commands/commands.h"
#include "commands/device.h"
#include "commands/generation.h"
#include "print/text.h"

namespace heed::cli {
namespace {

struct ScoreArguments {
    std::string model, file, threads = "0", weights = "stored", device = "cpu";
    std::vector<std::string> text;
    std::int64_t window = 0, stride = 0;
    bool json = false, quiet = false;
};

constexpr auto score_examples = R"(Examples:
  heed score path/to/model --file book.txt                         perplexity and bits per byte
  heed score path/to/model --file book.txt --window 1024 --stride 512
  heed score path/to/model "The sky is blue."
  heed score path/to/model --file book.txt --weights int8          and how far int8 is from the weights as stored
)";

void print_score(const ScoreArguments& arguments, const ScoreComparison& result, std::size_t bytes) {
    const TextScore& score = result.score;
    const double bits = score.bits_per_byte(static_cast<std::int64_t>(bytes));
    const bool compared = arguments.weights != "stored";
    if (arguments.json) {
        nlohmann::ordered_json object = {{"tokens", score.tokens},
                                         {"bytes", bytes},
                                         {"nll", score.negative_log_likelihood},
                                         {"perplexity", score.perplexity()},
                                         {"bits_per_byte", bits}};
        if (compared) {
            object["weights"] = arguments.weights;
            object["stored_perplexity"] = result.original.perplexity();
            object["logit_error"] = result.logit_error;
            object["divergence"] = result.divergence;
            object["agreement"] = result.agreement;
        }
        fmt::print("{}\n", dump(object));
        return;
    }
    fmt::print("tokens predicted  {}\nbytes             {}\nperplexity        {:.4f}\nbits per byte     {:.4f}\n",
               score.tokens, bytes, score.perplexity(), bits);
    if (compared) {
        fmt::print(
            "\nagainst the weights as stored\n"
            "perplexity        {:.4f} ({:+.2f} % with {})\n"
            "logits            {:.4f} apart (root mean square)\n"
            "probabilities     {:.5f} nats a token apart (Kullback-Leibler)\n"
            "same best token   {:.2f} %\n",
            result.original.perplexity(), 100 * (score.perplexity() / result.original.perplexity() - 1),
            arguments.weights, result.logit_error, result.divergence, 100 * result.agreement);
    }
}

void score_command(const ScoreArguments& arguments) {
    const LoadedModel loaded(arguments.model, arguments.quiet, arguments.weights, arguments.device);
    std::string text;
    for (const std::string& word : arguments.text) { text += (text.empty() ? "" : " ") + word; }
    if (arguments.text.empty()) { text = read_whole("score", arguments.file.empty() ? "-" : arguments.file); }
    const std::vector<std::int64_t> ids = loaded.tokenizer.encode(text, {.truncate_and_pad = false});
    const std::unique_ptr<Context> where =
        context_on(arguments.device, static_cast<int>(parse_integer("--threads", arguments.threads, 0, 4096)));
    Context& context = *where;
    const ScoreOptions options{.window = arguments.window, .stride = arguments.stride};
    ScoreComparison result;
    const bool compared = loaded.model.weights() != WeightStorage::stored;
    if (compared) {
        result = compare_scores(context, loaded.model, Model::load(arguments.model, {.device = context.device()}), ids,
                                options);
    } else {
        result.score = score_text(context, loaded.model, ids, options);
    }
    print_score(arguments, result, text.size());
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
    heed::cli::add_weights_option(*command, arguments->weights);
    heed::cli::add_device_option(*command, arguments->device);
    command->add_option("--threads", arguments->threads, "Threads; 0: one per core")->type_name("N");
    command->add_flag("--json", arguments->json, "Write JSON");
    command->add_flag("--quiet", arguments->quiet, "No progress on standard error");
    command->footer(heed::cli::score_examples);
    command->callback([arguments] { heed::cli::score_command(*arguments); });
}
