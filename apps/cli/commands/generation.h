#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <heed/serving.h>

namespace CLI {
class App;
}

namespace heed::cli {

/// What the commands that write text have in common.
struct GenerationArguments {
    std::string model, draft, threads = "0", seed = "0", weights = "stored", device = "cpu";
    std::vector<std::string> stop;
    std::int64_t max_new_tokens = 128, min_new_tokens = 0, top_k = 50, lookup = 0;
    double temperature = 0, top_p = 1, min_p = 0, repetition_penalty = 1;
    bool quiet = false;

    /// The options of sampling and stopping; `folder` is the argument that names the model.
    void add_to(CLI::App& command);
    SamplingOptions sampling() const;
    Speculation speculation() const;
    int thread_count() const;
    std::unique_ptr<Context> context() const;
};

/// --weights, for commands that run a model.
void add_weights_option(CLI::App& command, std::string& weights);

/// A model and its tokenizer, loaded with a line on standard error that says how long that took.
struct LoadedModel {
    LoadedModel(const std::string& folder, bool quiet, const std::string& weights = "stored",
                const std::string& device = "cpu");
    Model model;
    Tokenizer tokenizer;
};

/// "prompt 12 tokens, 34 new; first token after 0.02 s, 56.7 tokens/s" on standard error.
void print_speed(const Generated& result, std::size_t prompt);

/// A file's bytes; "-": standard input.
std::string read_whole(const std::string& command, const std::string& name);
std::vector<std::string> lines_of(const std::string& text);

}  // namespace heed::cli
