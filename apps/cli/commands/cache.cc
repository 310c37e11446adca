#include <fstream>
#include <memory>

#include <fmt/format.h>
#include <heed/error.h>
#include <heed/sizes.h>
#include <CLI/CLI.hpp>

#include "commands/commands.h"
#include "commands/model_argument.h"
#include "print/cache_report.h"
#include "print/text.h"

namespace heed::cli {
namespace {

struct CacheArguments {
    std::string name, config, memory, svg;
    std::string storage = "bf16";
    std::int64_t length = 0;
    std::int64_t batch = 1;
    std::int64_t groups = 0;
    std::int64_t page_size = 16;
    std::int64_t segment = 2048;
    bool json = false;
};

CacheStorage storage_of(const std::string& name) {
    for (const CacheStorage storage :
         {CacheStorage::f32, CacheStorage::bf16, CacheStorage::f16, CacheStorage::i8, CacheStorage::i4}) {
        if (name == name_of(storage)) { return storage; }
    }
    throw UsageError(fmt::format("--storage: expected f32, bf16, f16, i8 or i4, got '{}'", name));
}

void run(const CacheArguments& a) {
    if (a.name.empty() == a.config.empty()) {
        throw UsageError(
            fmt::format("expected the name of a preset (heed size --list shows them) or --config FILE, got {}",
                        a.name.empty() ? "neither" : "both"));
    }
    const ModelShape model = a.config.empty() ? model_preset(a.name) : load_model_config("cache", a.config);
    CacheReport report = make_cache_report(model, a.groups, a.page_size, a.segment);
    constexpr std::int64_t usual_length = 8192;
    const std::int64_t made_for = model.positions > 0 ? std::min(model.positions, usual_length) : usual_length;
    report.length = a.length > 0 ? a.length : made_for;
    report.batch = a.batch;
    report.drawn = storage_of(a.storage);
    if (!a.memory.empty()) {
        const double gigabytes = parse_real("--memory", a.memory);
        if (!(gigabytes > 0) || gigabytes > 1e9) {
            throw UsageError(fmt::format("--memory: expected a number of GB above 0, got '{}'", a.memory));
        }
        report.memory = gigabytes * 1e9;
    }
    if (!a.svg.empty()) {
        const std::string picture = to_svg(report);
        std::ofstream file(a.svg, std::ios::binary);
        file << picture;
        file.close();
        if (!file) { throw FileError("--svg: cannot write " + a.svg); }
    }
    fmt::print("{}{}", a.json ? to_json(report) : to_text(report), a.json ? "\n" : "");
}

}  // namespace
}  // namespace heed::cli

void add_cache(CLI::App& app) {
    constexpr std::int64_t longest = std::int64_t{1} << 40;
    const CLI::Validator count = CLI::Range(std::int64_t{1}, longest).description("");
    CLI::App* command = app.add_subcommand("cache", "What a model's key/value cache costs, and how many fit");
    const auto arguments = std::make_shared<heed::cli::CacheArguments>();
    command->add_option("name", arguments->name, "A preset of heed size")->type_name("");
    command->add_option("--config", arguments->config, "A Hugging Face config.json, or its folder")->type_name("FILE");
    command
        ->add_option("--length", arguments->length,
                     "Tokens of a sequence (default: what the model was made for, at most 8192)")
        ->check(count)
        ->type_name("N");
    command->add_option("--batch", arguments->batch, "Sequences at once")
        ->check(count)
        ->type_name("N")
        ->capture_default_str();
    command->add_option("--memory", arguments->memory, "GB (10^9 bytes) for caches: how many sequences fit?")
        ->type_name("GB");
    command->add_option("--storage", arguments->storage, "Of the chart: f32, bf16, f16, i8 or i4")
        ->type_name("TYPE")
        ->capture_default_str();
    command->add_option("--page-size", arguments->page_size, "Tokens of a page")
        ->check(count)
        ->type_name("N")
        ->capture_default_str();
    command
        ->add_option("--groups", arguments->groups,
                     "Key/value heads of the GQA row (default: the model's own, else at most 8)")
        ->check(count)
        ->type_name("N");
    command->add_option("--segment", arguments->segment, "Tokens of Infini-attention's segment")
        ->check(count)
        ->type_name("N")
        ->capture_default_str();
    command->add_option("--svg", arguments->svg, "Also draw bytes against length into this file")->type_name("FILE");
    command->add_flag("--json", arguments->json, "Write JSON");
    command->footer(
        "Examples:\n"
        "  heed cache llama-3-8b                                  by kind of attention and storage\n"
        "  heed cache llama-3-70b --length 32768 --memory 80      how many sequences fit in 80 GB\n"
        "  heed cache deepseek-v3 --length 131072 --svg cache.svg bytes against length, drawn\n"
        "  heed cache --config path/to/config.json --json         for programs");
    command->callback([arguments] { heed::cli::run(*arguments); });
}
