#include "commands/commands.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include <fmt/format.h>
#include <heed/walkthrough.h>
#include <CLI/CLI.hpp>

#include "commands/options.h"
#include "print/example.h"
#include "print/matrix.h"
#include "print/text.h"
#include "print/walkthrough_words.h"

namespace heed::cli {
namespace {

using Json = nlohmann::ordered_json;

struct WalkthroughArguments {
    std::string file;
    std::string batch, tokens, d_model, heads, kv_heads;
    std::string entry = "0";
    std::string head;
    std::string threads = "0";
    std::string colour = "auto";
    std::string language = "en";
    bool json = false;
    Settings settings;

    const WalkthroughWords& words() const { return walkthrough_words(language); }
    bool is_random() const {
        return !batch.empty() || !tokens.empty() || !d_model.empty() || !heads.empty() || !kv_heads.empty();
    }
};

/// One calculation and what to call it; several where they are to be compared.
struct Run {
    std::string title;
    Walkthrough steps;
};

constexpr int table_indent = 4;

Example choose_example(const WalkthroughArguments& arguments) {
    if (!arguments.file.empty()) {
        if (arguments.is_random()) {
            throw UsageError("--file: expected no --batch, --tokens, --d-model, --heads or --kv-heads beside it");
        }
        return read_example(arguments.file);
    }
    Example example;
    if (arguments.is_random()) {
        const auto size = [](const char* option, const std::string& text, std::int64_t otherwise) {
            return text.empty() ? otherwise : parse_integer(option, text, 1, 1 << 20);
        };
        const std::int64_t heads = size("--heads", arguments.heads, 2);
        const std::uint64_t seed = arguments.settings.seed.value_or(0);
        example.title = arguments.words().random(seed);
        example.input = random_example(size("--batch", arguments.batch, 1), size("--tokens", arguments.tokens, 6),
                                       size("--d-model", arguments.d_model, heads * 4), heads,
                                       size("--kv-heads", arguments.kv_heads, heads), seed);
    } else {
        example.title = arguments.words().two_tokens();
        example.input = teaching_example();
    }
    example.tokens = token_labels(example.input.x.shape()[1]);
    return example;
}

std::vector<Run> compute(const WalkthroughArguments& arguments, const Example& example, AttentionOptions& options) {
    Context context(static_cast<int>(parse_integer("--threads", arguments.threads, 0, 4096)));
    const std::int64_t last = example.input.x.shape()[0] - 1;
    const std::int64_t entry = parse_integer("--entry", arguments.entry, 0, last);
    std::vector<Run> runs;
    const bool is_default = arguments.file.empty() && !arguments.is_random();
    if (is_default && !options.scale) {
        options.scale = 1;
        runs.push_back({arguments.words().without_scale(), walk_through(context, example.input, options, entry)});
        options.scale.reset();
        runs.push_back({arguments.words().with_scale(), walk_through(context, example.input, options, entry)});
    } else {
        runs.push_back({"", walk_through(context, example.input, options, entry)});
    }
    return runs;
}

Json numbers(const Tensor& values, int axis, std::int64_t& at) {
    Json list = Json::array();
    for (std::int64_t n = 0; n < values.shape()[axis]; ++n) {
        if (axis + 1 < values.shape().rank()) {
            list.push_back(numbers(values, axis + 1, at));
        } else {
            const double value = values.as<double>()[at++];
            list.push_back(std::isfinite(value) ? Json(value) : Json(nullptr));
        }
    }
    return list;
}

void print_json(const Example& example, const std::vector<Run>& runs, const AttentionOptions& options,
                const WalkthroughWords& words) {
    Json json;
    json["title"] = example.title;
    json["tokens"] = example.tokens;
    json["options"] = to_spec(options);
    for (const Run& run : runs) {
        Json item;
        item["title"] = run.title;
        item["batch_entry"] = run.steps.batch_entry;
        item["heads"] = run.steps.heads;
        item["kv_heads"] = run.steps.kv_heads;
        item["scale"] = run.steps.scale;
        for (const WalkthroughStep& step : run.steps.steps) {
            std::int64_t at = 0;
            Json operands = Json::array();
            for (const Shape& shape : step.operands) { operands.push_back(std::vector(shape.begin(), shape.end())); }
            item["steps"].push_back({{"name", step.name},
                                     {"title", words.step(run.steps, step, options)},
                                     {"formula", step.formula},
                                     {"operands", operands},
                                     {"shape", std::vector(step.shape.begin(), step.shape.end())},
                                     {"values", numbers(step.values, 0, at)}});
        }
        item["largest_difference"] = run.steps.largest_difference;
        json["runs"].push_back(item);
    }
    fmt::print("{}\n", dump(json));
}

class Printer {
public:
    Printer(const Example& example, const AttentionOptions& options, const WalkthroughArguments& arguments, bool colour)
        : example_(example),
          options_(options),
          words_(arguments.words()),
          colour_(colour),
          tokens_(example.input.x.shape()[1]) {
        if (!arguments.head.empty()) {
            only_head_ = parse_integer("--head", arguments.head, 0, example.input.heads - 1);
        }
    }

    void headline(const Walkthrough& w) const {
        const Shape& x = example_.input.x.shape();
        const Shape& q = w.find("query_heads")->shape;
        fmt::print("{}\n", strong(words_.heading(example_.title), colour_));
        const WalkthroughSizes sizes{x[0], x[1], x[2], w.heads, q[3], w.kv_heads};
        fmt::print("{}\n", words_.sizes(sizes, options_));
        if (x[0] > 1) { fmt::print("{}\n", words_.entry(w.batch_entry)); }
    }

    /// A part that begins where the steps told in common end.
    void section(const std::string& title) {
        if (shared_ == 0) { shared_ = number_; }
        number_ = shared_;
        fmt::print("\n{}\n", strong("== " + title + " ==", colour_));
    }

    void step(const Walkthrough& w, const WalkthroughStep& s) {
        if (s.name == "key_heads" || s.name == "value_heads") { return; }  // told with the queries
        fmt::print("\n{:>2}  {}\n", ++number_, strong(words_.step(w, s, options_), colour_));
        if (s.name == "query_heads") {
            for (const char* name : {"query_heads", "key_heads", "value_heads"}) { shape_line(*w.find(name)); }
            return;
        }
        shape_line(s);
        projection(s);
        if (s.name == "joined" && w.heads == 1) { return; }
        if (s.values.shape().rank() == 2) {
            fmt::print("{}", number_table(matrix(w, s, 0), table_indent, colour_));
            return;
        }
        heads(w, s);
    }

    void ending(const std::vector<Run>& runs) const {
        const Walkthrough& w = runs.front().steps;
        std::vector<std::string> shapes;
        for (const char* name : {"input", "query_heads", "scores", "weights", "mixed", "joined", "output"}) {
            const std::string shape = compact(w.find(name)->shape);
            if (shapes.empty() || shapes.back() != shape) { shapes.push_back(shape); }
        }
        fmt::print("\n{}{}\n", words_.shapes(), fmt::join(shapes, " -> "));
        double difference = 0;
        for (const Run& run : runs) { difference = std::max(difference, run.steps.largest_difference); }
        fmt::print("{}\n", words_.checked(difference));
    }

    void comparison(const std::vector<Run>& runs) const {
        if (runs.size() < 2) { return; }
        const auto first = [](const Run& run) { return run.steps.find("weights")->values.as<double>()[0]; };
        fmt::print("\n{}\n",
                   words_.scale_matters(runs[1].steps.scale, example_.tokens.front(), first(runs[0]), first(runs[1])));
    }

private:
    void shape_line(const WalkthroughStep& s) const {
        std::vector<std::string> operands;
        for (const Shape& shape : s.operands) { operands.push_back(compact(shape)); }
        const std::string from = fmt::format("{}", fmt::join(operands, " x "));
        fmt::print("    {:<26}{}{}{}\n", s.formula, from, from.empty() ? "" : " -> ", compact(s.shape));
    }

    /// The projection of a small example, which the reader needs to follow the numbers.
    void projection(const WalkthroughStep& s) const {
        const auto& in = example_.input;
        const Tensor* w = s.name == "queries"  ? &in.wq
                          : s.name == "keys"   ? &in.wk
                          : s.name == "values" ? &in.wv
                          : s.name == "output" ? &in.wo
                                               : nullptr;
        if (w == nullptr) { return; }
        const std::string name = s.formula.substr(s.formula.size() - 2);
        if (!*w) {
            fmt::print("    {}\n", words_.identity(name));
        } else if (w->shape()[0] <= whole_table && w->shape()[1] <= whole_table) {
            fmt::print("    {}\n{}", name,
                       number_table({.numbers = w->as<double>(),
                                     .rows = w->shape()[0],
                                     .columns = w->shape()[1],
                                     .row_labels = {},
                                     .column_labels = {}},
                                    table_indent, colour_));
            fmt::print("    {}\n", s.formula.substr(0, 1));
        }
    }

    Matrix matrix(const Walkthrough& w, const WalkthroughStep& s, std::int64_t head) const {
        const Shape& shape = s.values.shape();
        const int last = shape.rank() - 1;
        Matrix m{.numbers = s.values.as<double>(),
                 .rows = shape[last - 1],
                 .columns = shape[last],
                 .row_labels = example_.tokens,
                 .column_labels = {}};
        m.numbers += head * m.rows * m.columns;
        const bool hidden_shown = s.name == "mask" || s.name == "weights" || s.name == "dropout";
        m.is_heat = s.name == "weights" || s.name == "dropout";
        if (s.shape.rank() == 4 && s.name != "mixed") { m.column_labels = example_.tokens; }
        if (hidden_shown) { m.visible = w.visible.as<std::uint8_t>() + head * tokens_ * tokens_; }
        if (s.name == "dropout") { m.kept = w.kept.as<std::uint8_t>() + head * tokens_ * tokens_; }
        return m;
    }

    void heads(const Walkthrough& w, const WalkthroughStep& s) const {
        const bool is_large = tokens_ > whole_table;
        const std::int64_t most = is_large ? 1 : 4;
        for (std::int64_t h = 0; h < w.heads; ++h) {
            if (only_head_ >= 0 ? h != only_head_ : h >= most) { continue; }
            if (w.heads > 1) { fmt::print("    {}\n", words_.head(h)); }
            const Matrix m = matrix(w, s, h);
            fmt::print("{}", number_table(m, table_indent, colour_));
            if (m.is_heat && is_large) {
                fmt::print("    {}\n{}{}", words_.whole_map(), heat_map(m, table_indent, colour_),
                           heat_legend(table_indent, colour_));
            }
        }
        signs(w, s);
        if (only_head_ < 0 && w.heads > most) { fmt::print("    {}\n", words_.more_heads(w.heads - most)); }
    }

    /// What stands in place of numbers.
    void signs(const Walkthrough& w, const WalkthroughStep& s) const {
        if (s.name != "weights" && s.name != "dropout") { return; }
        const auto any_zero = [](const Tensor& flags) {
            const auto* begin = flags.as<std::uint8_t>();
            return std::find(begin, begin + flags.elements(), 0) != begin + flags.elements();
        };
        if (any_zero(w.visible)) { fmt::print("    .  {}\n", words_.hidden()); }
        if (s.name == "dropout" && any_zero(w.kept)) { fmt::print("    x  {}\n", words_.dropped()); }
    }

    const Example& example_;
    const AttentionOptions& options_;
    const WalkthroughWords& words_;
    bool colour_;
    std::int64_t tokens_;
    std::int64_t only_head_ = -1;
    int number_ = 0;
    int shared_ = 0;
};

void print_text(const Example& example, const std::vector<Run>& runs, const AttentionOptions& options,
                const WalkthroughArguments& arguments, bool colour) {
    Printer printer(example, options, arguments, colour);
    printer.headline(runs.front().steps);
    for (std::size_t n = 0; n < runs.size(); ++n) {
        const Walkthrough& w = runs[n].steps;
        bool is_shared = runs.size() > 1;  // up to the scores the calculations are the same: told once
        for (const WalkthroughStep& step : w.steps) {
            if (step.name == "scaled" && is_shared) {
                printer.section(runs[n].title);
                is_shared = false;
            }
            if (!is_shared || n == 0) { printer.step(w, step); }
        }
    }
    printer.comparison(runs);
    printer.ending(runs);
}

void walkthrough_command(const WalkthroughArguments& arguments) {
    const bool colour = wants_colour(arguments.colour);
    (void)arguments.words();  // complains before anything is computed
    Example example = choose_example(arguments);
    example.settings.override_with(arguments.settings);
    AttentionOptions options;
    example.settings.apply(options);
    if (example.mask) { options.allow = example.mask; }
    if (example.bias) { options.bias = example.bias; }
    Tensor slopes;
    if (example.settings.alibi.value_or(false)) { options.alibi_slopes = slopes = default_slopes(example.input.heads); }
    const std::vector<Run> runs = compute(arguments, example, options);
    if (arguments.json) {
        print_json(example, runs, options, arguments.words());
    } else {
        print_text(example, runs, options, arguments, colour);
    }
}

}  // namespace
}  // namespace heed::cli

void add_walkthrough(CLI::App& app) {
    CLI::App* command = app.add_subcommand("walkthrough", "The whole calculation of a small example, step by step");
    const auto arguments = std::make_shared<heed::cli::WalkthroughArguments>();
    const auto text = [&](const char* name, std::string& target, const char* type, const char* help) {
        return command->add_option(name, target, help)->type_name(type);
    };
    text("--file", arguments->file, "JSON", "An example of your own; docs/cli.md has the keys");
    text("--batch", arguments->batch, "N", "Sequences (1)")->group("Random example");
    text("--tokens", arguments->tokens, "N", "Tokens in each (6)")->group("Random example");
    text("--d-model", arguments->d_model, "N", "Size of a token (4 for each head)")->group("Random example");
    text("--heads", arguments->heads, "N", "Heads (2)")->group("Random example");
    text("--kv-heads", arguments->kv_heads, "N", "Heads of keys and values (as many)")->group("Random example");
    text("--entry", arguments->entry, "N", "Sequence whose numbers are shown (0)");
    text("--head", arguments->head, "N", "Show this head only");
    text("--threads", arguments->threads, "N", "Number of threads; 0: one per core");
    text("--color", arguments->colour, "WHEN", "auto (default: on a terminal, unless NO_COLOR is set), always, never");
    text("--lang", arguments->language, "LANGUAGE", "en (default) or zh: the text between the numbers");
    command->add_flag("--json", arguments->json, "Print JSON: every step with its numbers");
    heed::cli::add_settings(*command, arguments->settings);
    command->footer(
        "Without options: x1 = [1,0,1,0], x2 = [0,1,0,1], identity projections, without and with the scale.\n\n"
        "Examples:\n"
        "  heed walkthrough\n"
        "  heed walkthrough --causal --dropout 0.3 --seed 7 --tokens 6\n"
        "  heed walkthrough --lang zh\n"
        "  heed walkthrough --batch 32 --tokens 20 --d-model 512 --heads 8\n"
        "  heed walkthrough --file example.json --json");
    command->callback([arguments] { heed::cli::walkthrough_command(*arguments); });
}
