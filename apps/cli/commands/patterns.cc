#include "commands/commands.h"

#include <fstream>
#include <memory>

#include <fmt/format.h>
#include <heed/error.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "print/numbers.h"
#include "print/pattern_picture.h"
#include "print/text.h"

namespace heed::cli {
namespace {

constexpr std::int64_t longest = std::int64_t{1} << 24;

struct PatternsArguments {
    std::string expression;
    bool causal = false;
    std::vector<std::string> any_of;  ///< from flags, as the expression would say it
    std::string size = "256";
    std::int64_t block = 32;
    std::int64_t head = 0;
    std::string svg;
    bool json = false;
    bool ascii = false;
};

/// `causal & (the other flags, any of them)`, and the expression.
Pattern pattern_of(const PatternsArguments& arguments) {
    Pattern pattern = arguments.expression.empty() ? Pattern() : patterns::parse(arguments.expression);
    if (!arguments.any_of.empty()) {
        Pattern any = patterns::parse(arguments.any_of[0]);
        for (std::size_t n = 1; n < arguments.any_of.size(); ++n) { any = any | patterns::parse(arguments.any_of[n]); }
        pattern = any & pattern;
    }
    return arguments.causal ? patterns::causal() & pattern : pattern;
}

PatternPicture picture_of(const PatternsArguments& arguments) {
    const std::vector<std::int64_t> size = parse_integers("--size", arguments.size, 1, longest);
    if (size.size() > 2) { throw UsageError("--size: expected T or T,S, got '" + arguments.size + "'"); }
    const std::int64_t queries = size[0];
    const std::int64_t keys = size.back();
    const std::int64_t most = std::max(queries, keys);
    if (arguments.block < 1 || (most + arguments.block - 1) / arguments.block > most_blocks) {
        throw UsageError(fmt::format("--block: expected at least {} (at most {} blocks along a side of {}), got {}",
                                     std::max<std::int64_t>(1, (most + most_blocks - 1) / most_blocks), most_blocks,
                                     most, arguments.block));
    }
    if (arguments.head < 0) { throw UsageError(fmt::format("--head: expected 0 or more, got {}", arguments.head)); }
    return {pattern_of(arguments), queries, keys, arguments.block, arguments.head};
}

double ratio(std::int64_t a, std::int64_t b) { return b == 0 ? 0 : static_cast<double>(a) / static_cast<double>(b); }

void print_json(const PatternPicture& p) {
    nlohmann::ordered_json json;
    json["pattern"] = p.pattern.describe();
    json["queries"] = p.queries;
    json["keys"] = p.keys;
    json["block"] = p.block;
    json["head"] = p.head;
    json["blocks"] = {{"total", p.blocks()},
                      {"visited", p.visited()},
                      {"full", p.full},
                      {"partial", p.partial},
                      {"causal", p.causal_blocks}};
    json["pairs"] = {{"total", p.queries * p.keys}, {"visible", p.pairs}};
    json["cost"] = {{"of_dense", p.share()}, {"of_causal", ratio(p.visited(), p.causal_blocks)}};
    json["rows"] = nlohmann::ordered_json::array();
    for (std::int64_t row = 0; row < p.query_blocks; ++row) {
        std::string line;
        for (std::int64_t column = 0; column < p.key_blocks; ++column) {
            const Cover cover = p.cover(row, column);
            line += cover == Cover::all ? '#' : cover == Cover::some ? 'o' : '.';
        }
        json["rows"].push_back(line);
    }
    fmt::print("{}\n", json.dump(2));
}

void print_text(const PatternPicture& p, bool ascii) {
    using numbers::grouped;
    fmt::print("{}\n", p.pattern.describe());
    fmt::print("{} queries x {} keys, blocks of {}, head {}\n\n", grouped(p.queries), grouped(p.keys), p.block, p.head);
    fmt::print("{}\n", draw_text(p, 64, ascii));
    fmt::print("{} every pair   {} some pairs: computed, then masked   {} none: skipped\n\n", ascii ? "##" : "██",
               ascii ? "oo" : "▒▒", ascii ? "." : "·");
    fmt::print("visited blocks   {} of {} ({:.1f} %): {} full, {} partial\n", grouped(p.visited()), grouped(p.blocks()),
               100 * p.share(), grouped(p.full), grouped(p.partial));
    fmt::print("visible pairs    {} of {} ({:.1f} %); of the computed ones {:.1f} %\n", grouped(p.pairs),
               grouped(p.queries * p.keys), 100 * ratio(p.pairs, p.queries * p.keys),
               100 * ratio(p.pairs, p.visited() * p.block * p.block));
    fmt::print("cost             {:.3f} of dense, {:.3f} of causal\n", p.share(), ratio(p.visited(), p.causal_blocks));
}

void patterns_command(const PatternsArguments& arguments) {
    const PatternPicture picture = picture_of(arguments);
    if (!arguments.svg.empty()) {
        std::ofstream file(arguments.svg, std::ios::binary);
        file << draw_svg(picture);
        file.close();
        if (!file) { throw FileError("--svg: cannot write " + arguments.svg); }
    }
    arguments.json ? print_json(picture) : print_text(picture, arguments.ascii);
}

}  // namespace
}  // namespace heed::cli

void add_patterns(CLI::App& app) {
    CLI::App* command = app.add_subcommand("patterns", "Draw a mask pattern, and what it costs against dense");
    const auto arguments = std::make_shared<heed::cli::PatternsArguments>();
    command->add_option("expression", arguments->expression, "Such as \"causal & (window(255, 0) | global(0))\"")
        ->type_name("PATTERN");
    command->add_option("--size", arguments->size, "T queries and as many keys, or T,S (256)")->type_name("SIZES");
    command->add_option("--block", arguments->block, "Queries and keys of a block (32)")->type_name("N");
    command->add_option("--head", arguments->head, "Which head, where heads differ (0)")->type_name("N");
    command->add_option("--svg", arguments->svg, "Write a picture to this file")->type_name("FILE");
    command->add_flag("--json", arguments->json, "Print JSON");
    command->add_flag("--ascii", arguments->ascii, "Draw with . o #");
    command->add_flag("--causal", arguments->causal, "No later keys, whatever else is seen")->group("Pattern");
    struct Flag {
        const char* flag;
        const char* name;
        const char* type;
        const char* help;
    };
    constexpr Flag flags[] = {
        {"--window", "window", "L,R", "L keys to the left and R to the right; -1: all"},
        {"--global", "global", "N,...", "Positions that see and are seen by all"},
        {"--prefix", "prefix", "N", "The first N keys"},
        {"--strided", "strided", "STRIDE", "Every STRIDE-th key"},
        {"--fixed", "fixed", "STRIDE,C", "The own block of STRIDE, and the last C columns of each"},
        {"--dilated", "dilated", "L,R,STEP", "L and R keys to each side, STEP apart"},
        {"--random", "random_blocks", "SIZE,N,COUNT,SEED", "COUNT of N blocks of SIZE"}};
    for (const Flag& flag : flags) {
        const auto add = [arguments, name = std::string(flag.name)](const std::string& value) {
            arguments->any_of.push_back(name + "(" + value + ")");
        };
        command->add_option_function<std::string>(flag.flag, add, flag.help)->type_name(flag.type)->group("Pattern");
    }
    command->footer(
        "Flags but --causal are joined by `or`; --causal and PATTERN hold as well.\n"
        "Examples:\n"
        "  heed patterns --causal --window 63,0 --global 0,1\n"
        "  heed patterns \"causal & (window(255, 0) | strided(128))\" --size 4096 --block 64 --svg pattern.svg\n"
        "  heed patterns \"per_head(causal, window(16, 16))\" --head 1 --json");
    command->callback([arguments] { heed::cli::patterns_command(*arguments); });
}
