#include <filesystem>
#include <memory>

#include <fmt/format.h>
#include <heed/convert_model.h>
#include <heed/gguf.h>
#include <CLI/CLI.hpp>

#include "commands/commands.h"
#include "print/text.h"

namespace heed::cli {
namespace {

struct ConvertArguments {
    std::string from, out, dtype, max_shard;
    std::int64_t kv_heads = 0;
};

constexpr auto convert_examples = R"(Examples:
  heed convert model.gguf --out folder                     a GGUF (llama) as Hugging Face has it
  heed convert path/to/model --dtype bf16 --out smaller    the same weights in another type
  heed convert path/to/model --kv-heads 2 --out grouped    heads of keys and values averaged in groups (MHA to GQA)
  heed convert path/to/model --max-shard 2GB --out shards  in files of at most so many bytes, with an index
)";

/// "5GB", "500MB", "64KB" or bytes, in powers of ten as Hugging Face counts them.
std::uint64_t parse_bytes(const std::string& text) {
    constexpr std::uint64_t most = std::uint64_t{1} << 50U;
    const std::size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
    const std::string unit = text.substr(digits);
    const std::uint64_t factor = unit == "GB" ? 1000000000 : unit == "MB" ? 1000000 : unit == "KB" ? 1000 : 1;
    if (digits == 0 || digits > 15 || (factor == 1 && !unit.empty() && unit != "B")) {
        throw UsageError("--max-shard: expected a size such as 5GB, got " + text);
    }
    return std::min<std::uint64_t>(most / factor, std::stoull(text.substr(0, digits))) * factor;
}

void convert_folder(const ConvertArguments& arguments) {
    ConvertModelOptions options;
    if (!arguments.dtype.empty()) { options.dtype = parse_dtype("--dtype", arguments.dtype); }
    if (!arguments.max_shard.empty()) { options.max_shard_bytes = parse_bytes(arguments.max_shard); }
    options.kv_heads = arguments.kv_heads;
    if (!options.dtype && options.max_shard_bytes == 0 && options.kv_heads == 0) {
        throw UsageError("--dtype, --kv-heads or --max-shard: expected one of them for a folder, got none");
    }
    convert_model(arguments.from, arguments.out, options);
}

void convert_command(const ConvertArguments& arguments) {
    const std::filesystem::path from(arguments.from), out(arguments.out);
    if (std::filesystem::exists(from) && std::filesystem::exists(out) && std::filesystem::equivalent(from, out)) {
        throw UsageError("--out: expected another folder than the one that is read, got the same");
    }
    if (std::filesystem::is_directory(from)) {
        convert_folder(arguments);
    } else {
        if (!arguments.dtype.empty() || arguments.kv_heads > 0 || !arguments.max_shard.empty()) {
            throw UsageError("--dtype, --kv-heads, --max-shard: expected a folder to convert, got a file");
        }
        const GgufConversion made = convert_gguf(from, out);
        if (!made.no_tokenizer.empty()) {
            fmt::print(stderr, "heed convert: no tokenizer.json: {}\n", printable(made.no_tokenizer));
        }
    }
    fmt::print("{}: written\n", printable(arguments.out));
}

}  // namespace
}  // namespace heed::cli

void add_convert(CLI::App& app) {
    CLI::App* command = app.add_subcommand("convert", "A model in another format or type");
    const auto arguments = std::make_shared<heed::cli::ConvertArguments>();
    command->add_option("from", arguments->from, "A GGUF file, or a model's folder")->required()->type_name("");
    command->add_option("--out", arguments->out, "The folder to write")->required()->type_name("FOLDER");
    command->add_option("--dtype", arguments->dtype, "f32, f16 or bf16, for a folder")->type_name("TYPE");
    command
        ->add_option("--kv-heads", arguments->kv_heads,
                     "Heads of keys and values, each the mean of a group of old ones")
        ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20).description(""))
        ->type_name("N");
    command->add_option("--max-shard", arguments->max_shard, "Files of at most this size, such as 5GB")
        ->type_name("SIZE");
    command->footer(heed::cli::convert_examples);
    command->callback([arguments] { heed::cli::convert_command(*arguments); });
}
