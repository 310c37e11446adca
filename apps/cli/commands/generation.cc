#include "commands/generation.h"

#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "commands/device.h"
#include "print/text.h"

namespace heed::cli {

namespace {

double seconds_from(std::chrono::steady_clock::time_point begin) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

Model load_with_progress(const std::string& folder, bool quiet, const std::string& weights, const std::string& device) {
    const auto begin = std::chrono::steady_clock::now();
    // On a terminal alone: whoever reads a log wants one line.
    if (!quiet && isatty(STDERR_FILENO) != 0) { fmt::print(stderr, "loading {} ...\n", printable(folder)); }
    Model model = Model::load(folder, {.weights = weight_storage(weights), .device = device_named(device)});
    if (!quiet) {
        fmt::print(stderr, "{} with {:.1f}M parameters", printable(model.config().family),
                   static_cast<double>(model.parameters().elements()) / 1e6);
        if (model.weights() != WeightStorage::stored) {
            fmt::print(stderr, ", linear layers in {} ({:.1f} MB)", weights,
                       static_cast<double>(model.weight_bytes()) / 1e6);
        }
        fmt::print(stderr, " in {:.2f} s\n", seconds_from(begin));
    }
    return model;
}

}  // namespace

void add_weights_option(CLI::App& command, std::string& weights) {
    command
        .add_option("--weights", weights,
                    "How linear layers hold their weights: stored (as in the files), f32, bf16, int8, int4")
        ->check(CLI::IsMember({"stored", "f32", "bf16", "int8", "int4"}).description(""))
        ->type_name("FORM")
        ->capture_default_str();
}

void GenerationArguments::add_to(CLI::App& command) {
    constexpr std::int64_t most = 1 << 24;
    command.add_option("model", model, "A model's folder: config.json, model.safetensors, tokenizer.json")
        ->required()
        ->type_name("");
    command.add_option("--max-new-tokens", max_new_tokens, "Stop after so many")
        ->check(CLI::Range(std::int64_t{1}, most).description(""))
        ->type_name("N")
        ->capture_default_str();
    command.add_option("--min-new-tokens", min_new_tokens, "Do not end before so many")->type_name("N");
    command.add_option("--temperature", temperature, "0: the most probable token; 1: as the model says")
        ->type_name("T")
        ->capture_default_str();
    command.add_option("--top-k", top_k, "Draw from the so many most probable tokens; 0: all")
        ->type_name("K")
        ->capture_default_str();
    command.add_option("--top-p", top_p, "Draw from the fewest tokens that reach this probability")->type_name("P");
    command.add_option("--min-p", min_p, "Draw from tokens at least so probable relative to the best")->type_name("P");
    command.add_option("--repetition-penalty", repetition_penalty, "Above 1: tokens seen before become less probable")
        ->type_name("R");
    command.add_option("--seed", seed, "Of the random numbers")->type_name("N")->capture_default_str();
    command.add_option("--stop", stop, "Stop before this text; may be repeated")
        ->allow_extra_args(false)
        ->type_name("TEXT");
    command
        .add_option("--lookup", lookup, "Guess so many tokens ahead from the text itself; changes speed, not tokens")
        ->type_name("N");
    command.add_option("--draft", draft, "A smaller model that guesses ahead; changes speed, not tokens")
        ->type_name("FOLDER");
    add_weights_option(command, weights);
    add_device_option(command, device);
    command.add_option("--threads", threads, "Threads; 0: one per core")->type_name("N");
    command.add_flag("--quiet", quiet, "No progress and figures on standard error");
}

SamplingOptions GenerationArguments::sampling() const {
    constexpr std::uint64_t most = ~std::uint64_t{0};
    return {.do_sample = temperature > 0,
            .temperature = temperature,
            .top_k = top_k,
            .top_p = top_p,
            .min_p = min_p,
            .repetition_penalty = repetition_penalty,
            .seed = parse_unsigned("--seed", seed, most)};
}

Speculation GenerationArguments::speculation() const {
    constexpr std::int64_t usual = 5;
    Speculation result{.tokens = lookup};
    if (!draft.empty()) {
        result.draft = load_with_progress(draft, quiet, "stored", device);
        if (lookup == 0) { result.tokens = usual; }
    }
    return result;
}

int GenerationArguments::thread_count() const {
    constexpr std::int64_t most = 4096;
    return static_cast<int>(parse_integer("--threads", threads, 0, most));
}

std::unique_ptr<Context> GenerationArguments::context() const { return context_on(device, thread_count()); }

LoadedModel::LoadedModel(const std::string& folder, bool quiet, const std::string& weights, const std::string& device)
    : model(load_with_progress(folder, quiet, weights, device)), tokenizer(std::filesystem::path(folder)) {}

void print_speed(const Generated& result, std::size_t prompt) {
    const double after_first = result.seconds - result.first_token_seconds;
    const auto more = static_cast<double>(result.tokens.size()) - 1;
    fmt::print(stderr, "prompt {} tokens, {} new; first token after {:.3f} s", prompt, result.tokens.size(),
               result.first_token_seconds);
    if (more > 0 && after_first > 0) { fmt::print(stderr, ", then {:.1f} tokens/s", more / after_first); }
    fmt::print(stderr, "\n");
}

std::string read_whole(const std::string& command, const std::string& name) {
    if (name == "-") { return {std::istreambuf_iterator<char>(std::cin), {}}; }
    std::ifstream file(name, std::ios::binary);
    if (!file) { throw FileError("[" + command + "] " + name + ": cannot open"); }
    std::string text(std::istreambuf_iterator<char>(file), {});
    if (file.bad()) { throw FileError("[" + command + "] " + name + ": cannot read"); }
    return text;
}

std::vector<std::string> lines_of(const std::string& text) {
    std::vector<std::string> lines;
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t end = std::min(text.find('\n', at), text.size());
        std::string line = text.substr(at, end - at);
        if (!line.empty() && line.back() == '\r') { line.pop_back(); }
        lines.push_back(std::move(line));
        at = end + 1;
    }
    return lines;
}

}  // namespace heed::cli
