#include <memory>

#include <fmt/format.h>
#include <heed/evaluate.h>
#include <heed/safetensors.h>
#include <CLI/CLI.hpp>

#include "commands/commands.h"
#include "commands/device.h"
#include "commands/generation.h"
#include "print/text.h"

namespace heed::cli {
namespace {

struct EmbedArguments {
    std::string model, file = "-", out, pooling = "mean", threads = "0", weights = "stored", device = "cpu";
    std::vector<std::string> text;
    bool raw = false, quiet = false, similarity = false;
};

constexpr auto embed_examples = R"(Examples:
  heed embed path/to/model "A sentence." "Another one." --similarity    how alike, -1 to 1
  heed embed path/to/model --file lines.txt --out vectors.safetensors   a tensor `embeddings` [lines, size]
  heed embed path/to/model "A sentence."                                numbers, one line a text
)";

void print_similarity(const Tensor& vectors) {
    const std::int64_t rows = vectors.shape()[0], size = vectors.shape()[1];
    for (std::int64_t a = 0; a < rows; ++a) {
        for (std::int64_t b = 0; b < rows; ++b) {
            double sum = 0;
            for (std::int64_t n = 0; n < size; ++n) {
                sum += static_cast<double>(vectors.as<float>()[a * size + n]) *
                       static_cast<double>(vectors.as<float>()[b * size + n]);
            }
            fmt::print("{}{:7.4f}", b > 0 ? " " : "", sum);
        }
        fmt::print("\n");
    }
}

void embed_command(const EmbedArguments& arguments) {
    const LoadedModel loaded(arguments.model, arguments.quiet, arguments.weights, arguments.device);
    std::vector<std::string> texts = arguments.text;
    if (texts.empty()) { texts = lines_of(read_whole("embed", arguments.file)); }
    EmbedOptions options;
    options.pooling = arguments.pooling == "mean"  ? EmbedPooling::mean
                      : arguments.pooling == "cls" ? EmbedPooling::cls
                                                   : EmbedPooling::last;
    options.normalise = !arguments.raw;
    const std::unique_ptr<Context> where =
        context_on(arguments.device, static_cast<int>(parse_integer("--threads", arguments.threads, 0, 4096)));
    Context& context = *where;
    const Tensor vectors = embed_texts(context, loaded.model, loaded.tokenizer, texts, options);
    if (!arguments.out.empty()) {
        write_safetensors(arguments.out, {{"embeddings", vectors}});
        fmt::print("{}: embeddings {}\n", printable(arguments.out), compact(vectors.shape()));
        return;
    }
    if (arguments.similarity) { return print_similarity(vectors); }
    for (std::int64_t row = 0; row < vectors.shape()[0]; ++row) {
        for (std::int64_t n = 0; n < vectors.shape()[1]; ++n) {
            fmt::print("{}{:.7g}", n > 0 ? " " : "", vectors.as<float>()[row * vectors.shape()[1] + n]);
        }
        fmt::print("\n");
    }
}

}  // namespace
}  // namespace heed::cli

void add_embed(CLI::App& app) {
    CLI::App* command = app.add_subcommand("embed", "Texts as vectors");
    const auto arguments = std::make_shared<heed::cli::EmbedArguments>();
    command->add_option("model", arguments->model, "A model's folder")->required()->type_name("");
    command->add_option("text", arguments->text, "Texts; without them, the lines of --file or standard input")
        ->type_name("");
    command->add_option("--file", arguments->file, "A text a line")->type_name("FILE");
    command->add_option("--out", arguments->out, "Write a safetensors file")->type_name("FILE");
    command->add_option("--pooling", arguments->pooling, "mean, cls or last")
        ->check(CLI::IsMember({"mean", "cls", "last"}))
        ->type_name("KIND")
        ->capture_default_str();
    command->add_flag("--raw", arguments->raw, "Vectors as they are, not of length 1");
    command->add_flag("--similarity", arguments->similarity, "Print how alike the texts are instead of vectors");
    heed::cli::add_weights_option(*command, arguments->weights);
    heed::cli::add_device_option(*command, arguments->device);
    command->add_option("--threads", arguments->threads, "Threads; 0: one per core")->type_name("N");
    command->add_flag("--quiet", arguments->quiet, "No progress on standard error");
    command->footer(heed::cli::embed_examples);
    command->callback([arguments] { heed::cli::embed_command(*arguments); });
}
