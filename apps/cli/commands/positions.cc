#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <numeric>

#include <fmt/format.h>
#include <heed/error.h>
#include <heed/positions.h>
#include <CLI/CLI.hpp>

#include "commands/commands.h"
#include "print/positions_report.h"
#include "print/text.h"

namespace heed::cli {
namespace {

struct PositionsArguments {
    std::vector<std::string> scalings;
    std::string size, theta, trained, length, factor, config, layers, svg;
    bool json = false;
};

constexpr std::array all_scalings = {"none", "linear", "ntk", "dynamic", "yarn", "llama3"};
constexpr std::int64_t most_tokens = std::int64_t{1} << 40;

RopeScaling scaling_of(const std::string& name, double factor, std::int64_t trained) {
    if (name == "none") { return rope_scaling::None{}; }
    if (name == "linear") { return rope_scaling::Linear{factor}; }
    if (name == "ntk") { return rope_scaling::Ntk{factor}; }
    if (name == "dynamic") { return rope_scaling::DynamicNtk{.factor = factor, .trained = trained}; }
    if (name == "yarn") { return rope_scaling::Yarn{.factor = factor, .trained = trained}; }
    if (name == "llama3") { return rope_scaling::Llama3{.factor = factor, .trained = trained}; }
    throw UsageError(fmt::format("--scaling: expected {}, got '{}'", fmt::join(all_scalings, ", "), name));
}

/// Where a scaling says what length came before it.
std::int64_t trained_of(const RopeScaling& scaling) {
    return std::visit(
        [](const auto& s) -> std::int64_t {
            if constexpr (requires { s.trained; }) {
                return s.trained;
            } else {
                return 0;
            }
        },
        scaling);
}

std::string read_config(std::filesystem::path& path) {
    std::error_code ignored;
    if (std::filesystem::is_directory(path, ignored)) { path /= "config.json"; }
    constexpr std::size_t limit = std::size_t{16} << 20U;
    std::ifstream file(path, std::ios::binary);
    std::string text(limit + 1, '\0');
    // Reading a folder opens and then fails; both end here.
    if (!file || (!file.read(text.data(), static_cast<std::streamsize>(text.size())) && !file.eof())) {
        throw FileError(fmt::format("--config: cannot read {}", path.string()));
    }
    text.resize(static_cast<std::size_t>(file.gcount()));
    return text;  // one byte too long is refused by the parser, with the limit
}

/// The layers asked for, or the first kind.
const LayerRope& choose_layers(const RopeConfig& config, const std::string& asked) {
    std::string names;
    for (const LayerRope& kind : config.kinds) {
        if (asked.empty() || kind.layer_type == asked) { return kind; }
        names += (names.empty() ? "" : " or ") + (kind.layer_type.empty() ? "nothing (one kind)" : kind.layer_type);
    }
    throw UsageError(fmt::format("--layers: expected {}, got '{}'", names, asked));
}

RopeReport make_report(const PositionsArguments& a) {
    RopeReport report;
    std::optional<LayerRope> own;
    std::int64_t made_for = 0;
    if (!a.config.empty()) {
        std::filesystem::path path = a.config;
        const std::string text = read_config(path);
        RopeConfig config;
        try {
            config = rope_from_config(text);
        } catch (const Error& error) { throw Error(fmt::format("{} (in {})", error.what(), path.string())); }
        own = choose_layers(config, a.layers);
        made_for = config.max_positions;
        report.plain = own->rope;
        const std::filesystem::path folder = std::filesystem::absolute(path).lexically_normal().parent_path();
        report.source = printable(path.filename() == "config.json" ? folder.filename().string() : path.stem().string());
        if (!own->layer_type.empty()) { report.source += ", " + printable(own->layer_type); }
    } else {
        if (!a.layers.empty()) { throw UsageError("--layers: expected together with --config, got it alone"); }
        report.source = "RoPE";
        report.plain.size = 128;
    }
    if (!a.size.empty()) { report.plain.size = parse_integer("--size", a.size, 2, std::int64_t{1} << 20); }
    if (!a.theta.empty()) { report.plain.theta = parse_real("--theta", a.theta); }
    report.plain.scaling = rope_scaling::None{};
    report.before = rope_table(report.plain).frequencies;

    report.trained = own ? trained_of(own->rope.scaling) : 4096;
    if (own && report.trained == 0) {
        const auto* linear = std::get_if<rope_scaling::Linear>(&own->rope.scaling);
        const double factor = linear != nullptr ? std::max(linear->factor, 1.0) : 1;
        report.trained = static_cast<std::int64_t>(static_cast<double>(made_for > 0 ? made_for : 4096) / factor);
    }
    if (!a.trained.empty()) { report.trained = parse_integer("--trained", a.trained, 1, most_tokens); }
    report.trained = std::max<std::int64_t>(report.trained, 1);
    report.length = made_for > report.trained ? made_for : 4 * report.trained;
    if (!a.length.empty()) { report.length = parse_integer("--length", a.length, 2, most_tokens); }
    report.length = std::max<std::int64_t>(report.length, 2);
    const double stretch = std::max(1.0, static_cast<double>(report.length) / static_cast<double>(report.trained));
    const double factor = a.factor.empty() ? stretch : parse_real("--factor", a.factor);

    if (own && a.size.empty()) {
        Rope rope = own->rope;
        rope.theta = report.plain.theta;
        report.add("config: " + std::string(name_of(rope.scaling)), rope);
    }
    std::vector<std::string> names = a.scalings;
    if (names.empty()) { names.assign(all_scalings.begin(), all_scalings.end()); }
    for (const std::string& name : names) {
        Rope rope = report.plain;
        rope.scaling = scaling_of(name, factor, report.trained);
        report.add(name, rope);
    }
    return report;
}

void write_file(const std::string& path, const std::string& text) {
    std::ofstream file(path, std::ios::binary);
    file << text;
    file.close();
    if (!file) { throw FileError("--svg: cannot write " + path); }
}

void positions_command(const PositionsArguments& arguments) {
    const RopeReport report = make_report(arguments);
    if (!arguments.svg.empty()) { write_file(arguments.svg, to_svg(report)); }
    if (arguments.json) {
        fmt::print("{}\n", to_json(report));
    } else {
        fmt::print("{}", to_text(report));
    }
}

}  // namespace
}  // namespace heed::cli

void add_positions(CLI::App& app) {
    CLI::App* command =
        app.add_subcommand("positions", "Rotary positions: frequencies, decay, and what each scaling does");
    const auto arguments = std::make_shared<heed::cli::PositionsArguments>();
    command->add_option("--config", arguments->config, "A Hugging Face config.json, or its folder")->type_name("FILE");
    command
        ->add_option("--layers", arguments->layers, "Of a config with several kinds: full_attention, sliding_attention")
        ->type_name("KIND");
    command->add_option("--size", arguments->size, "Numbers of a head that rotate (128)")->type_name("N");
    command->add_option("--theta", arguments->theta, "Base of the frequencies (10000)")->type_name("X");
    command->add_option("--trained", arguments->trained, "Tokens of the longest sequence in training (4096)")
        ->type_name("N");
    command->add_option("--length", arguments->length, "Tokens to read up to (4 times --trained)")->type_name("N");
    command->add_option("--factor", arguments->factor, "Factor of every scaling (--length over --trained)")
        ->type_name("X");
    command
        ->add_option("--scaling", arguments->scalings,
                     "none, linear, ntk, dynamic, yarn, llama3; several (default: all)")
        ->type_name("NAME")
        ->delimiter(',');
    command->add_option("--svg", arguments->svg, "Also draw it into this file")->type_name("FILE");
    command->add_flag("--json", arguments->json, "Print JSON, every pair of it");
    command->footer(
        "Examples:\n"
        "  heed positions                                      4 times the trained length, every scaling\n"
        "  heed positions --theta 500000 --trained 8192 --length 131072 --scaling none,llama3,yarn\n"
        "  heed positions --config path/to/config.json --svg rope.svg");
    command->callback([arguments] { heed::cli::positions_command(*arguments); });
}
