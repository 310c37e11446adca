/// heed's part of bench/generation. `make FOLDER NAME` writes a Llama-shaped model of random weights; `run FOLDER
/// WEIGHTS THREADS` loads one and then, for every line on standard input, measures once and prints a line of JSON.

#include <heed/heed.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>

#include "limits.h"

namespace heed::bench {
namespace {

double seconds_since(std::chrono::steady_clock::time_point begin) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

struct LlamaShape {
    int hidden, layers, heads, kv_heads, ffn;
};

std::string llama_config(const LlamaShape& s) {
    const auto number = [](const char* name, int value) {
        return std::string(", \"") + name + "\": " + std::to_string(value);
    };
    return R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-05,
 "rope_theta": 10000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2,
 "attention_bias": false, "mlp_bias": false, "max_position_embeddings": 2048, "vocab_size": 32000)" +
           number("hidden_size", s.hidden) + number("num_hidden_layers", s.layers) +
           number("num_attention_heads", s.heads) + number("num_key_value_heads", s.kv_heads) +
           number("head_dim", s.hidden / s.heads) + number("intermediate_size", s.ffn) + "}\n";
}

/// A word for every id: other software asks for a tokenizer of the model's size.
void write_tokenizer(const std::filesystem::path& folder) {
    std::ofstream file(folder / "tokenizer.json");
    file << R"({"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
"pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null, "decoder": null,
"model": {"type": "WordLevel", "unk_token": "<unk>", "vocab": {"<unk>": 0, "<s>": 1, "</s>": 2)";
    for (int n = 3; n < 32000; ++n) { file << ", \"t" << n << "\": " << n; }
    file << "}}}\n";
    std::ofstream(folder / "tokenizer_config.json")
        << R"({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"})";
}

int make(const std::filesystem::path& folder, const std::string& name) {
    const LlamaShape shape = name == "A" ? LlamaShape{768, 12, 12, 4, 2048} : LlamaShape{2048, 16, 32, 8, 8192};
    const std::string text = llama_config(shape);
    const Model model = Model::random(read_model_config(text), {.seed = 1, .dtype = DType::bf16});
    std::filesystem::create_directories(folder);
    std::vector<NamedView> tensors;
    for (const Parameter& parameter : model.parameters().list()) {
        tensors.push_back({parameter.name, parameter.value});
    }
    write_safetensors(folder / "model.safetensors", tensors, {{"format", "pt"}});
    write_tokenizer(folder);
    std::ofstream(folder / "config.json") << text;
    return 0;
}

/// Bytes as large as the weights, in huge pages, read from front to back: what decoding cannot be faster than.
class ReadOnce {
public:
    explicit ReadOnce(std::size_t bytes)
        : memory_(Tensor::uninitialised(DType::u8, {static_cast<std::int64_t>(bytes)})) {
        prefer_huge_pages(memory_.view());
        std::fill_n(memory_.as<std::uint8_t>(), bytes, std::uint8_t{1});
    }
    /// Of a few ways to read, the fastest; seconds.
    double seconds(int threads) const {
        const std::span<const std::byte> all(static_cast<const std::byte*>(memory_.data()), memory_.bytes());
        double best = 1e9;
        for (const ReadLoop loop : {ReadLoop{1, false}, ReadLoop{2, true}, ReadLoop{4, false}}) {
            best = std::min(best, read_seconds(std::span(&all, 1), threads, 2, loop) / 2);
        }
        return best;
    }

private:
    Tensor memory_;
};

class Contestant {
public:
    Contestant(const std::filesystem::path& folder, const std::string& weights, int threads)
        : context_(threads),
          model_(Model::load(folder, {.weights = weight_storage(weights)})),
          reading_(model_.weight_bytes()),
          threads_(threads) {}

    void measure(int steps) {
        const double reading = reading_.seconds(threads_);
        const double prefill = prefill_seconds();
        const double decode = decode_seconds(steps);
        const double again = reading_.seconds(threads_);
        std::printf("{\"decode\": %.4f, \"prefill\": %.3f, \"read\": %.4f, \"bytes\": %zu}\n", steps / decode,
                    prompt / prefill, 1 / std::min(reading, again), model_.weight_bytes());
        std::fflush(stdout);
    }

private:
    static constexpr int prompt = 512;

    std::vector<std::int64_t> tokens(int count) const {
        std::vector<std::int64_t> ids;
        for (int n = 0; n < count; ++n) { ids.push_back(3 + (n * 7919) % 31000); }
        return ids;
    }
    double prefill_seconds() {
        Decoding decoding(model_, {.tokens = prompt + 16, .sequences = 1});
        CachedSequence sequence = decoding.create();
        const auto begin = std::chrono::steady_clock::now();
        decoding.step(context_, {.sequences = {&sequence}, .tokens = tokens(prompt), .counts = {prompt}});
        return seconds_since(begin);
    }
    double decode_seconds(int steps) {
        Decoding decoding(model_, {.tokens = 1024, .sequences = 1});
        CachedSequence sequence = decoding.create();
        decoding.step(context_, {.sequences = {&sequence}, .tokens = tokens(16), .counts = {16}});
        std::int64_t next = 5;
        const auto one = [&] {
            const Tensor logits = decoding.step(context_, {.sequences = {&sequence}, .tokens = {next}});
            const std::span row(logits.as<float>(), static_cast<std::size_t>(logits.elements()));
            next = sample_token(row, {}, {}, {});
        };
        for (int n = 0; n < 2; ++n) { one(); }
        const auto begin = std::chrono::steady_clock::now();
        for (int n = 0; n < steps; ++n) { one(); }
        return seconds_since(begin);
    }

    Context context_;
    Model model_;
    ReadOnce reading_;
    int threads_;
};

int run(const std::filesystem::path& folder, const std::string& weights, int threads) {
    Contestant contestant(folder, weights, threads);
    std::printf("ready\n");
    std::fflush(stdout);
    for (std::string line; std::getline(std::cin, line);) { contestant.measure(std::stoi(line)); }
    return 0;
}

}  // namespace
}  // namespace heed::bench

int main(int count, char** arguments) {
    const std::vector<std::string> words(arguments + 1, arguments + count);
    try {
        if (words.size() == 3 && words[0] == "make") { return heed::bench::make(words[1], words[2]); }
        if (words.size() == 4 && words[0] == "run") {
            return heed::bench::run(words[1], words[2], std::stoi(words[3]));
        }
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
    std::fprintf(stderr, "usage: heed_bench_generation make FOLDER A|B, or run FOLDER WEIGHTS THREADS\n");
    return 2;
}
