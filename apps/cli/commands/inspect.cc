#include <algorithm>
#include <filesystem>
#include <memory>

#include <fmt/format.h>
#include <heed/model.h>
#include <heed/safetensors.h>
#include <CLI/CLI.hpp>

#include "commands/commands.h"
#include "commands/inspect_prompt.h"
#include "print/text.h"

namespace heed::cli {
namespace {

struct InspectArguments {
    std::string path;
    bool tensors = false, config = false, json = false;
};

constexpr auto inspect_examples = R"(Examples:
  heed inspect path/to/model              what the model is and what it weighs
  heed inspect path/to/model --tensors    every tensor: name, shape, type, bytes
  heed inspect path/to/model --config     its configuration in heed's own form
  heed inspect weights.safetensors        tensors of any such file
  heed inspect path/to/run --prompt "a3b5|a" --out heads.svg    what every head looks at
)";

std::string bytes_in_words(double bytes) {
    const char* units[] = {"B", "KB", "MB", "GB", "TB"};
    std::size_t unit = 0;
    while (bytes >= 1000 && unit + 1 < std::size(units)) {
        bytes /= 1000;
        ++unit;
    }
    return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.2f} {}", bytes, units[unit]);
}

struct TensorRow {
    std::string name, shape, type;
    std::size_t bytes = 0;
};

void print_rows(const std::vector<TensorRow>& rows, bool json) {
    if (json) {
        nlohmann::ordered_json list = nlohmann::ordered_json::array();
        for (const TensorRow& row : rows) {
            list.push_back({{"name", row.name}, {"shape", row.shape}, {"dtype", row.type}, {"bytes", row.bytes}});
        }
        fmt::print("{}\n", dump(list));
        return;
    }
    std::size_t width = 4, total = 0;
    for (const TensorRow& row : rows) {
        width = std::max(width, width_of(row.name));
        total += row.bytes;
    }
    for (const TensorRow& row : rows) {
        fmt::print("{:<{}}  {:<5} {:>10}  {}\n", printable(row.name), width, row.type,
                   bytes_in_words(static_cast<double>(row.bytes)), row.shape);
    }
    fmt::print("{} tensors, {}\n", rows.size(), bytes_in_words(static_cast<double>(total)));
}

/// heed's name, or the format's for what heed has no type of.
std::string type_of(const SafetensorsFile::Entry& entry) {
    const bool has_bits_of_its_own = entry.file_type.starts_with("F8_") || entry.file_type.starts_with("F6_") ||
                                     entry.file_type == "F4" || entry.file_type == "C64";
    return std::string(has_bits_of_its_own ? entry.file_type : name_of(entry.dtype));
}

std::vector<TensorRow> rows_of(const SafetensorsFile& file) {
    std::vector<TensorRow> rows;
    for (const std::string& name : file.names()) {
        const SafetensorsFile::Entry& entry = file.entry(name);
        rows.push_back({name, compact(entry.shape), type_of(entry), static_cast<std::size_t>(entry.end - entry.begin)});
    }
    return rows;
}

std::vector<TensorRow> rows_of(const Model& model) {
    std::vector<TensorRow> rows;
    for (const Parameter& parameter : model.parameters().list()) {
        const View view = parameter.value;
        rows.push_back({parameter.name, compact(view.shape()), std::string(name_of(view.dtype())),
                        static_cast<std::size_t>(view.shape().elements()) * size_of(view.dtype())});
    }
    return rows;
}

void inspect_command(const InspectArguments& arguments) {
    if (!std::filesystem::is_directory(arguments.path)) {
        return print_rows(rows_of(SafetensorsFile::open(arguments.path)), arguments.json);
    }
    const Model model = Model::load(arguments.path);
    const ModelConfig& config = model.config();
    if (arguments.config) {
        fmt::print("{}\n", write_model_config(config));
        return;
    }
    const std::vector<TensorRow> rows = rows_of(model);
    if (arguments.tensors) { return print_rows(rows, arguments.json); }
    std::size_t bytes = 0;
    for (const TensorRow& row : rows) { bytes += row.bytes; }
    const StackConfig& stack = config.last();
    const AttentionConfig& attention = stack.layers.front().attention;
    const char* kinds[] = {"encoder", "decoder", "encoder-decoder"};
    const char* kind = config.kind == ModelKind::encoder   ? kinds[0]
                       : config.kind == ModelKind::decoder ? kinds[1]
                                                           : kinds[2];
    fmt::print(
        "family       {}\nkind         {}\nlayers       {}\nwidth        {}\nheads        {} of {}, {} for keys and "
        "values\n"
        "vocabulary   {}\npositions    {}\nparameters   {}\nweights      {} in {} tensors\n",
        printable(config.family), kind, config.encoder.layers.size() + config.decoder.layers.size(), config.d_model,
        attention.heads, attention.head_size, attention.kv_heads, config.vocab,
        config.max_positions > 0 ? std::to_string(config.max_positions) : "no limit", model.parameters().elements(),
        bytes_in_words(static_cast<double>(bytes)), rows.size());
    if (!model.unused_tensors().empty()) {
        fmt::print("not used     {} tensors, {} among them\n", model.unused_tensors().size(),
                   printable(model.unused_tensors().front()));
    }
}

}  // namespace
}  // namespace heed::cli

void add_inspect(CLI::App& app) {
    CLI::App* command = app.add_subcommand("inspect", "What a model or a safetensors file holds");
    const auto arguments = std::make_shared<heed::cli::InspectArguments>();
    command->add_option("path", arguments->path, "A model's folder, or a safetensors file")->required()->type_name("");
    command->add_flag("--tensors", arguments->tensors, "List every tensor");
    command->add_flag("--config", arguments->config, "Print the configuration in heed's own form");
    command->add_flag("--json", arguments->json, "Tensors as JSON");
    const auto prompt = std::make_shared<heed::cli::PromptArguments>();
    const CLI::Option* given =
        command->add_option("--prompt", prompt->prompt, "Draw what every head looks at while it reads this text")
            ->type_name("TEXT");
    command->add_option("--out", prompt->out, "With --prompt: all heads in one SVG")->type_name("FILE");
    command->add_option("--layer", prompt->layer, "With --prompt: this layer alone, from 1")->type_name("N");
    command->add_option("--head", prompt->head, "With --prompt: this head alone, from 1")->type_name("N");
    command->add_option("--color", prompt->colour, "With --prompt: auto, always or never")->type_name("WHEN");
    command->add_option("--threads", prompt->threads, "Threads (default: every core)")->type_name("N");
    command->footer(heed::cli::inspect_examples);
    command->callback([arguments, prompt, given] {
        if (given->count() == 0) { return heed::cli::inspect_command(*arguments); }
        prompt->path = arguments->path;
        heed::cli::inspect_prompt(*prompt);
    });
}
