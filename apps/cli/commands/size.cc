#include <fmt/format.h>
#include <heed/error.h>
#include <heed/sizes.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "commands/commands.h"
#include "commands/model_argument.h"
#include "print/numbers.h"
#include "print/size_report.h"

namespace {

struct SizeArguments {
    std::vector<std::string> names;
    std::vector<std::string> configs;
    std::int64_t context = 0;
    std::int64_t batch = 1;
    std::int64_t groups = 0;
    std::string dtype = "bf16";
    bool list = false;
    bool json = false;
};

struct NumberType {
    const char* name;
    std::int64_t bytes;
};
constexpr NumberType number_types[] = {{"f64", 8}, {"f32", 4}, {"bf16", 2}, {"f16", 2}, {"fp8", 1}, {"i8", 1}};

constexpr auto examples = R"(Examples:
  heed size llama-3-8b
  heed size llama-2-7b --context 8192 --batch 4 --dtype bf16
  heed size llama-2-70b llama-3-70b deepseek-v3       side by side
  heed size --config path/to/config.json              a Hugging Face model (the file or its folder)
  heed size transformer-base --context 20 --batch 32  one attention layer in numbers, among others
  heed size gpt2 --json                               for programs
  heed size --list                                    the presets
)";

/// As long as every model was made for, but not more than 8192.
std::int64_t usual_context(const std::vector<heed::ModelShape>& models) {
    std::int64_t context = 8192;
    for (const heed::ModelShape& model : models) {
        if (model.positions > 0) { context = std::min(context, model.positions); }
    }
    return context;
}

void print_list() {
    for (const std::string& name : heed::model_presets()) {
        const heed::ModelShape model = heed::model_preset(name);
        fmt::print("{:<18}{:>8}  {}\n", name, numbers::short_count(heed::parameters(model).total),
                   size_report::description(model));
    }
}

void run(const SizeArguments& arguments) {
    if (arguments.list) {
        print_list();
        return;
    }
    std::vector<heed::ModelShape> models;
    for (const std::string& name : arguments.names) { models.push_back(heed::model_preset(name)); }
    for (const std::string& path : arguments.configs) { models.push_back(load_model_config("size", path)); }
    if (models.empty()) {
        throw CLI::ValidationError("size", "expected the name of a preset (--list shows them) or --config FILE");
    }
    const auto* type =
        std::ranges::find_if(number_types, [&](const NumberType& t) { return arguments.dtype == t.name; });
    const size_report::Setting setting{.context = arguments.context > 0 ? arguments.context : usual_context(models),
                                       .batch = arguments.batch,
                                       .groups = arguments.groups,
                                       .dtype = type->name,
                                       .bytes = type->bytes};
    if (arguments.json) {
        fmt::print("{}\n", size_report::to_json(models, setting));
    } else {
        fmt::print("{}", size_report::to_text(models, setting));
    }
}

}  // namespace

void add_size(CLI::App& app) {
    constexpr std::int64_t longest = std::int64_t{1} << 40;
    // The range itself would drown the help; the error message gives it.
    const CLI::Validator count = CLI::Range(std::int64_t{1}, longest).description("");
    std::vector<std::string> types;
    for (const NumberType& type : number_types) { types.emplace_back(type.name); }

    CLI::App* command = app.add_subcommand("size", "Parameters, operations and cache bytes of a model");
    const auto arguments = std::make_shared<SizeArguments>();
    command->add_option("name", arguments->names, "Presets; several are shown side by side")->type_name("");
    command->add_option("--config", arguments->configs, "A Hugging Face config.json, or its folder; may be repeated")
        ->allow_extra_args(false)
        ->type_name("FILE");
    command
        ->add_option("--context", arguments->context,
                     "Tokens of a sequence (default: what every model shown was made for, at most 8192)")
        ->check(count)
        ->type_name("N");
    command->add_option("--batch", arguments->batch, "Sequences at once")
        ->check(count)
        ->type_name("N")
        ->capture_default_str();
    command->add_option("--dtype", arguments->dtype, "Type of a stored number")
        ->check(CLI::IsMember(types))
        ->type_name("TYPE")
        ->capture_default_str();
    command
        ->add_option("--groups", arguments->groups,
                     "Key/value heads of the GQA column (default: the model's own, else at most 8)")
        ->check(count)
        ->type_name("N");
    command->add_flag("--json", arguments->json, "Write JSON");
    command->add_flag("--list", arguments->list, "List the presets");
    command->footer(examples);
    command->callback([arguments] { run(*arguments); });
}
