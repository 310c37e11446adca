#include <memory>

#include <fmt/format.h>
#include <heed/evaluate.h>
#include <heed/search.h>
#include <CLI/CLI.hpp>

#include "commands/commands.h"
#include "commands/device.h"
#include "commands/generation.h"
#include "print/text.h"

namespace heed::cli {
namespace {

struct TranslateArguments {
    std::string model, file = "-", reference, threads = "0", weights = "stored", device = "cpu";
    std::vector<std::string> text;
    std::int64_t beams = 4, max_new_tokens = 256;
    double length_penalty = 1;
    bool quiet = false;
};

constexpr auto translate_examples = R"(Examples:
  heed translate path/to/model "Guten Morgen"
  heed translate path/to/model --file source.txt > target.txt       line by line
  heed translate path/to/model --file source.txt --reference reference.txt   BLEU at the end
)";

void translate_command(const TranslateArguments& arguments) {
    const LoadedModel loaded(arguments.model, arguments.quiet, arguments.weights, arguments.device);
    if (loaded.model.config().kind != ModelKind::encoder_decoder) {
        throw UsageError("expected an encoder-decoder such as Marian, BART or T5, got " + loaded.model.config().family);
    }
    std::vector<std::string> sources = arguments.text;
    if (sources.empty()) { sources = lines_of(read_whole("translate", arguments.file)); }
    SearchOptions options;
    options.max_new_tokens = arguments.max_new_tokens;
    options.num_beams = arguments.beams;
    options.length_penalty = arguments.length_penalty;
    const std::unique_ptr<Context> where =
        context_on(arguments.device, static_cast<int>(parse_integer("--threads", arguments.threads, 0, 4096)));
    Context& context = *where;
    std::vector<std::string> targets;
    for (const std::string& source : sources) {
        const std::vector<std::int64_t> ids = loaded.tokenizer.encode(source, {.truncate_and_pad = false});
        std::string target;
        if (!ids.empty()) {
            Decoding decoding(loaded.model, search_room(static_cast<std::int64_t>(ids.size()), options));
            target = loaded.tokenizer.decode(search(context, decoding, ids, options));
        }
        fmt::print("{}\n", target);
        targets.push_back(std::move(target));
    }
    if (arguments.reference.empty()) { return; }
    const Bleu result = bleu(targets, lines_of(read_whole("translate", arguments.reference)));
    fmt::print(stderr, "BLEU {:.2f} ({:.1f}/{:.1f}/{:.1f}/{:.1f}, brevity {:.3f}, {} words for {})\n", result.score,
               result.precisions[0], result.precisions[1], result.precisions[2], result.precisions[3],
               result.brevity_penalty, result.hypothesis_words, result.reference_words);
}

}  // namespace
}  // namespace heed::cli

void add_translate(CLI::App& app) {
    CLI::App* command = app.add_subcommand("translate", "Translate lines with an encoder-decoder");
    const auto arguments = std::make_shared<heed::cli::TranslateArguments>();
    command->add_option("model", arguments->model, "A model's folder")->required()->type_name("");
    command->add_option("text", arguments->text, "What to translate; without it, --file or standard input")
        ->type_name("");
    command->add_option("--file", arguments->file, "Translate this file line by line")->type_name("FILE");
    command->add_option("--reference", arguments->reference, "Compare with this file: BLEU")->type_name("FILE");
    command->add_option("--beams", arguments->beams, "Beams")
        ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 10).description(""))
        ->type_name("K")
        ->capture_default_str();
    command->add_option("--length-penalty", arguments->length_penalty, "Of finished texts")->type_name("P");
    command->add_option("--max-new-tokens", arguments->max_new_tokens, "Of a line at most")
        ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20).description(""))
        ->type_name("N")
        ->capture_default_str();
    heed::cli::add_weights_option(*command, arguments->weights);
    heed::cli::add_device_option(*command, arguments->device);
    command->add_option("--threads", arguments->threads, "Threads; 0: one per core")->type_name("N");
    command->add_flag("--quiet", arguments->quiet, "No progress on standard error");
    command->footer(heed::cli::translate_examples);
    command->callback([arguments] { heed::cli::translate_command(*arguments); });
}
