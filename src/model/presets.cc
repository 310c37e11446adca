#include <heed/error.h>
#include <heed/sizes.h>

#include "base/refuse.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

namespace heed {
namespace {

struct Width {
    std::int64_t layers, d_model, heads, d_ff;
};

/// Vaswani et al. 2017: post-norm, sinusoidal positions, one table for both languages and the output,
/// attention without biases. 37,000 tokens is the English-German vocabulary of the paper.
ModelShape transformer(Width w) {
    return {.kind = ModelKind::encoder_decoder,
            .layers = w.layers,
            .encoder_layers = w.layers,
            .d_model = w.d_model,
            .heads = w.heads,
            .kv_heads = w.heads,
            .head_size = w.d_model / w.heads,
            .value_size = w.d_model / w.heads,
            .d_ff = w.d_ff,
            .encoder_d_ff = w.d_ff,
            .vocab = 37000,
            .ffn_bias = true,
            .norm = NormKind::layer_norm,
            .final_norm = false,
            .tied = true};
}

/// Everything biased, learned positions: the common part of BERT and GPT.
ModelShape biased(Width w, std::int64_t vocab, std::int64_t positions) {
    return {.layers = w.layers,
            .d_model = w.d_model,
            .heads = w.heads,
            .kv_heads = w.heads,
            .head_size = w.d_model / w.heads,
            .value_size = w.d_model / w.heads,
            .d_ff = w.d_ff,
            .vocab = vocab,
            .positions = positions,
            .position_rows = positions,
            .qkv_bias = true,
            .output_bias = true,
            .ffn_bias = true,
            .norm = NormKind::layer_norm};
}

/// Counted as published: with the pooler, without a task's head.
ModelShape bert(Width w) {
    ModelShape model = biased(w, 30522, 512);
    model.kind = ModelKind::encoder;
    model.token_types = 2;
    model.embedding_norm = true;
    model.final_norm = false;
    model.head = false;
    model.pooler = true;
    return model;
}

ModelShape gpt(Width w, std::int64_t positions) {
    ModelShape model = biased(w, 50257, positions);
    model.tied = true;
    return model;
}

struct Decoder {
    std::int64_t layers, d_model, heads, kv_heads, head_size, d_ff, vocab, positions;
};

ModelShape llama(Decoder s) {
    return {.layers = s.layers,
            .d_model = s.d_model,
            .heads = s.heads,
            .kv_heads = s.kv_heads,
            .head_size = s.head_size,
            .value_size = s.head_size,
            .d_ff = s.d_ff,
            .gated = true,
            .vocab = s.vocab,
            .positions = s.positions};
}

ModelShape qwen2(Decoder s, bool tied = false) {
    ModelShape model = llama(s);
    model.qkv_bias = true;
    model.tied = tied;
    return model;
}

ModelShape qwen3(Decoder s, bool tied = false) {
    ModelShape model = llama(s);
    model.qk_norm = true;
    model.tied = tied;
    return model;
}

ModelShape deepseek(Decoder s, std::int64_t query_rank, Experts experts) {
    ModelShape model = llama(s);
    model.latent =
        LatentAttention{.query_rank = query_rank, .kv_rank = 512, .nope_size = 128, .rope_size = 64, .value_size = 128};
    model.experts = experts;
    return model;
}

struct Preset {
    std::string_view name;
    ModelShape (*make)();
};

// Published configurations. GPT-3's 1.3B and 13B are missing on purpose: in the published table their heads do not
// add up to their width. One model a line:
// clang-format off
constexpr auto presets = std::to_array<Preset>({
    {"transformer-base", [] { return transformer({6, 512, 8, 2048}); }},
    {"transformer-big", [] { return transformer({6, 1024, 16, 4096}); }},
    {"bert-base", [] { return bert({12, 768, 12, 3072}); }},
    {"bert-large", [] { return bert({24, 1024, 16, 4096}); }},
    {"gpt2", [] { return gpt({12, 768, 12, 3072}, 1024); }},
    {"gpt2-medium", [] { return gpt({24, 1024, 16, 4096}, 1024); }},
    {"gpt2-large", [] { return gpt({36, 1280, 20, 5120}, 1024); }},
    {"gpt2-xl", [] { return gpt({48, 1600, 25, 6400}, 1024); }},
    {"gpt3-125m", [] { return gpt({12, 768, 12, 3072}, 2048); }},
    {"gpt3-350m", [] { return gpt({24, 1024, 16, 4096}, 2048); }},
    {"gpt3-760m", [] { return gpt({24, 1536, 16, 6144}, 2048); }},
    {"gpt3-2.7b", [] { return gpt({32, 2560, 32, 10240}, 2048); }},
    {"gpt3-6.7b", [] { return gpt({32, 4096, 32, 16384}, 2048); }},
    {"gpt3-175b", [] { return gpt({96, 12288, 96, 49152}, 2048); }},
    {"llama-2-7b", [] { return llama({32, 4096, 32, 32, 128, 11008, 32000, 4096}); }},
    {"llama-2-13b", [] { return llama({40, 5120, 40, 40, 128, 13824, 32000, 4096}); }},
    {"llama-2-70b", [] { return llama({80, 8192, 64, 8, 128, 28672, 32000, 4096}); }},
    {"llama-3-8b", [] { return llama({32, 4096, 32, 8, 128, 14336, 128256, 8192}); }},
    {"llama-3-70b", [] { return llama({80, 8192, 64, 8, 128, 28672, 128256, 8192}); }},
    {"llama-3.1-405b", [] { return llama({126, 16384, 128, 8, 128, 53248, 128256, 131072}); }},
    {"mistral-7b", [] { return llama({32, 4096, 32, 8, 128, 14336, 32000, 32768}); }},
    {"qwen2.5-0.5b", [] { return qwen2({24, 896, 14, 2, 64, 4864, 151936, 32768}, true); }},
    {"qwen2.5-7b", [] { return qwen2({28, 3584, 28, 4, 128, 18944, 152064, 131072}); }},
    {"qwen2.5-72b", [] { return qwen2({80, 8192, 64, 8, 128, 29568, 152064, 131072}); }},
    {"qwen3-0.6b", [] { return qwen3({28, 1024, 16, 8, 128, 3072, 151936, 40960}, true); }},
    {"qwen3-8b", [] { return qwen3({36, 4096, 32, 8, 128, 12288, 151936, 40960}); }},
    {"deepseek-v2-lite", [] { return deepseek({27, 2048, 16, 16, 128, 10944, 102400, 163840}, 0,
        {.routed = 64, .active = 6, .shared = 2, .d_ff = 1408, .dense_layers = 1}); }},
    {"deepseek-v2", [] { return deepseek({60, 5120, 128, 128, 128, 12288, 102400, 163840}, 1536,
        {.routed = 160, .active = 6, .shared = 2, .d_ff = 1536, .dense_layers = 1}); }},
    {"deepseek-v3", [] { return deepseek({61, 7168, 128, 128, 128, 18432, 129280, 163840}, 1536,
        {.routed = 256, .active = 8, .shared = 1, .d_ff = 2048, .dense_layers = 3, .correction_bias = true}); }},
});
// clang-format on

/// Single-letter changes that turn one word into the other.
std::size_t edit_distance(std::string_view a, std::string_view b) {
    std::vector<std::size_t> row(b.size() + 1);
    std::iota(row.begin(), row.end(), std::size_t{0});
    for (std::size_t i = 0; i < a.size(); ++i) {
        std::size_t diagonal = row[0]++;
        for (std::size_t j = 0; j < b.size(); ++j) {
            const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
            diagonal = row[j + 1];
            row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
        }
    }
    return row.back();
}

std::string nearest_names(std::string_view name) {
    constexpr std::size_t shown = 3;
    std::vector<std::pair<std::size_t, std::string_view>> ranked;
    for (const Preset& preset : presets) { ranked.emplace_back(edit_distance(name, preset.name), preset.name); }
    std::ranges::stable_sort(ranked, {}, &std::pair<std::size_t, std::string_view>::first);
    std::string result;
    for (std::size_t i = 0; i < shown; ++i) {
        result += (i == 0 ? "" : i + 1 == shown ? " or " : ", ") + std::string(ranked[i].second);
    }
    return result;
}

}  // namespace

std::vector<std::string> model_presets() {
    std::vector<std::string> names;
    for (const Preset& preset : presets) { names.emplace_back(preset.name); }
    return names;
}

ModelShape model_preset(std::string_view name) {
    for (const Preset& preset : presets) {
        if (preset.name == name) {
            ModelShape model = preset.make();
            model.name = name;
            return model;
        }
    }
    constexpr std::size_t longest = 64;  // of a name worth repeating and comparing
    name = name.substr(0, longest);
    refuse("model_preset", "name", "a preset such as " + nearest_names(name), "'" + std::string(name) + "'");
}

}  // namespace heed
