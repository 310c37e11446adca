#include <heed/gguf.h>
#include <heed/safetensors.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/refuse.h"
#include "io/file.h"
#include "model/gguf_tokenizer.h"

namespace heed {
namespace {

[[noreturn]] void refuse_gguf(const std::string& expected, const std::string& got) {
    refuse("convert_gguf", "file", expected, got);
}

/// A value of the architecture's, such as llama.block_count.
template <class T>
std::optional<T> value_of(const GgufFile& file, const std::string& key) {
    const auto found = file.metadata().find(key);
    if (found == file.metadata().end()) { return std::nullopt; }
    const auto* value = std::get_if<T>(&found->second);
    if (value == nullptr) { refuse_gguf("another type of value for " + key, "this one"); }
    return *value;
}

std::int64_t count_of(const GgufFile& file, const std::string& key,
                      std::optional<std::int64_t> otherwise = std::nullopt) {
    constexpr std::int64_t most = 1 << 24;
    const auto value = value_of<std::int64_t>(file, key);
    const std::int64_t count = value ? *value : otherwise.value_or(0);
    if (count < 1 || count > most) { refuse_gguf(key + " of 1 to 2^24", value ? std::to_string(count) : "none"); }
    return count;
}

struct LlamaSizes {
    std::int64_t layers, width, inner, heads, kv_heads, head_size;
};

/// llama.cpp stores the rows of queries and keys with the two numbers of a rotary pair side by side; Hugging Face's
/// have the halves of a head apart.
Tensor with_halves_apart(const Tensor& rows, std::int64_t heads) {
    const std::int64_t size = rows.shape()[0] / heads, columns = rows.shape()[1];
    const std::size_t row = static_cast<std::size_t>(columns) * size_of(rows.dtype());
    Tensor result = Tensor::uninitialised(rows.dtype(), rows.shape());
    const auto* from = static_cast<const std::byte*>(rows.data());
    auto* to = static_cast<std::byte*>(result.data());
    for (std::int64_t h = 0; h < heads; ++h) {
        for (std::int64_t n = 0; n < size; ++n) {
            const std::int64_t source = h * size + n, target = h * size + (n % 2) * (size / 2) + n / 2;
            std::memcpy(to + static_cast<std::size_t>(target) * row, from + static_cast<std::size_t>(source) * row,
                        row);
        }
    }
    return result;
}

struct Renamed {
    std::string name;
    std::int64_t heads = 0;  // rows to put in order; 0: none
};

/// An architecture of llama.cpp's that heed converts: what it is called elsewhere, and what it has beyond llama's.
struct Architecture {
    const char *name, *model_class;
    bool pairs = false;       // rows of rotary pairs side by side
    bool biases = false;      // of queries, keys and values
    bool head_norms = false;  // of queries and keys
};

const Architecture& architecture_of(const GgufFile& file) {
    static constexpr Architecture known[] = {{.name = "llama", .model_class = "LlamaForCausalLM", .pairs = true},
                                             {.name = "qwen2", .model_class = "Qwen2ForCausalLM", .biases = true},
                                             {.name = "qwen3", .model_class = "Qwen3ForCausalLM", .head_norms = true}};
    const auto given = value_of<std::string>(file, "general.architecture").value_or("none");
    for (const Architecture& one : known) {
        if (given == one.name) { return one; }
    }
    refuse_gguf("the architecture llama, qwen2 or qwen3", in_quotes(given));
}

/// blk.3.attn_q.weight is model.layers.3.self_attn.q_proj.weight.
Renamed name_elsewhere(const std::string& name, const Architecture& architecture, const LlamaSizes& sizes) {
    if (name == "token_embd.weight") { return {"model.embed_tokens.weight"}; }
    if (name == "output_norm.weight") { return {"model.norm.weight"}; }
    if (name == "output.weight") { return {"lm_head.weight"}; }
    static const std::map<std::string, std::string> parts = {
        {"attn_norm.weight", "input_layernorm.weight"},    {"attn_q.weight", "self_attn.q_proj.weight"},
        {"attn_k.weight", "self_attn.k_proj.weight"},      {"attn_v.weight", "self_attn.v_proj.weight"},
        {"attn_output.weight", "self_attn.o_proj.weight"}, {"ffn_norm.weight", "post_attention_layernorm.weight"},
        {"ffn_gate.weight", "mlp.gate_proj.weight"},       {"ffn_up.weight", "mlp.up_proj.weight"},
        {"ffn_down.weight", "mlp.down_proj.weight"}};
    static const std::map<std::string, std::string> biases = {{"attn_q.bias", "self_attn.q_proj.bias"},
                                                              {"attn_k.bias", "self_attn.k_proj.bias"},
                                                              {"attn_v.bias", "self_attn.v_proj.bias"}};
    static const std::map<std::string, std::string> head_norms = {{"attn_q_norm.weight", "self_attn.q_norm.weight"},
                                                                  {"attn_k_norm.weight", "self_attn.k_norm.weight"}};
    const std::size_t dot = name.find('.', 4);
    const std::string part = name.rfind("blk.", 0) == 0 && dot != std::string::npos ? name.substr(dot + 1) : "";
    std::string renamed;
    const auto look_in = [&](const std::map<std::string, std::string>& names, bool has) {
        if (const auto found = names.find(part); has && found != names.end()) { renamed = found->second; }
    };
    look_in(parts, true);
    look_in(biases, architecture.biases);
    look_in(head_norms, architecture.head_norms);
    if (renamed.empty()) {
        refuse_gguf(std::string("tensors of ") + architecture.name + " without experts or rope tables",
                    in_quotes(name));
    }
    std::int64_t heads = 0;
    if (architecture.pairs && part == "attn_q.weight") { heads = sizes.heads; }
    if (architecture.pairs && part == "attn_k.weight") { heads = sizes.kv_heads; }
    return {"model.layers." + name.substr(4, dot - 4) + "." + renamed, heads};
}

/// What every frequency is divided by (Llama 3.1), of half a head.
constexpr const char* rope_factors = "rope_freqs.weight";

nlohmann::ordered_json scaling_of_rope(const GgufFile& file, const std::string& architecture, std::int64_t head_size) {
    const auto key = [&](const char* name) { return architecture + ".rope.scaling." + name; };
    const auto type = value_of<std::string>(file, key("type")).value_or("none");
    if (type != "none" && type != "linear" && type != "yarn") {
        refuse_gguf("scaling of RoPE of the type none, linear or yarn", in_quotes(type));
    }
    if (file.contains(rope_factors)) {
        const Tensor stored = file.tensor(rope_factors);
        if (type != "none" || stored.dtype() != DType::f32 || stored.elements() != head_size / 2) {
            refuse_gguf("rope_freqs.weight of half a head in f32 and no other scaling of RoPE",
                        to_string(stored.shape()) + ", " + type);
        }
        const std::vector<double> factors(stored.as<float>(), stored.as<float>() + stored.elements());
        for (const double factor : factors) {
            if (!(factor > 0) || !std::isfinite(factor)) {
                refuse_gguf("numbers above 0 in rope_freqs.weight", std::to_string(factor));
            }
        }
        return {{"rope_type", "longrope"},
                {"short_factor", factors},
                {"long_factor", factors},
                {"attention_factor", 1.0},
                {"original_max_position_embeddings", count_of(file, architecture + ".context_length", 2048)}};
    }
    if (type == "none") { return nullptr; }
    const auto factor = value_of<double>(file, key("factor"));
    if (!factor || !(*factor >= 1)) { refuse_gguf(key("factor") + " of 1 or more", factor ? "less" : "none"); }
    nlohmann::ordered_json scaling = {{"rope_type", type}, {"factor", *factor}};
    if (type == "yarn") {
        scaling["original_max_position_embeddings"] = count_of(file, key("original_context_length"));
    }
    return scaling;
}

void write_text(const std::filesystem::path& path, const std::string& text) {
    AtomicFile out("convert_gguf", path);
    out.write(std::as_bytes(std::span(text)));
    out.commit();
}

}  // namespace

GgufConversion convert_gguf(const std::filesystem::path& gguf, const std::filesystem::path& folder) {
    const GgufFile file = GgufFile::open(gguf);
    const Architecture& architecture = architecture_of(file);
    const auto key = [&](const char* name) { return std::string(architecture.name) + "." + name; };
    const std::int64_t window = value_of<std::int64_t>(file, key("attention.sliding_window")).value_or(0);
    if (window != 0) { refuse_gguf("no sliding window", std::to_string(window)); }
    LlamaSizes sizes{.layers = count_of(file, key("block_count")),
                     .width = count_of(file, key("embedding_length")),
                     .inner = count_of(file, key("feed_forward_length")),
                     .heads = count_of(file, key("attention.head_count")),
                     .kv_heads = 0,
                     .head_size = 0};
    sizes.kv_heads = count_of(file, key("attention.head_count_kv"), sizes.heads);
    sizes.head_size = count_of(file, key("attention.key_length"), sizes.width / sizes.heads);
    if (count_of(file, key("rope.dimension_count"), sizes.head_size) != sizes.head_size) {
        refuse_gguf("RoPE on whole heads", "on a part of them");
    }

    std::vector<Tensor> tensors;
    std::vector<std::string> names;
    for (const std::string& name : file.names()) {
        if (name == rope_factors) { continue; }
        const Renamed renamed = name_elsewhere(name, architecture, sizes);
        Tensor tensor = file.tensor(name);
        const bool ordered =
            renamed.heads == 0 || (tensor.shape().rank() == 2 && tensor.shape()[0] % (2 * renamed.heads) == 0);
        if (!ordered) { refuse_gguf("rows of whole heads in " + in_quotes(name), "others"); }
        tensors.push_back(renamed.heads > 0 ? with_halves_apart(tensor, renamed.heads) : std::move(tensor));
        names.push_back(renamed.name);
    }
    std::vector<NamedView> views;
    for (std::size_t n = 0; n < names.size(); ++n) { views.push_back({names[n], tensors[n]}); }

    nlohmann::ordered_json config = {
        {"model_type", architecture.name},
        {"architectures", {architecture.model_class}},
        {"vocab_size", file.entry("token_embd.weight").shape[0]},
        {"hidden_size", sizes.width},
        {"intermediate_size", sizes.inner},
        {"num_hidden_layers", sizes.layers},
        {"num_attention_heads", sizes.heads},
        {"num_key_value_heads", sizes.kv_heads},
        {"head_dim", sizes.head_size},
        {"hidden_act", "silu"},
        {"rms_norm_eps", value_of<double>(file, key("attention.layer_norm_rms_epsilon")).value_or(1e-5)},
        {"rope_theta", value_of<double>(file, key("rope.freq_base")).value_or(10000)},
        {"max_position_embeddings", count_of(file, key("context_length"), 2048)},
        {"tie_word_embeddings", !file.contains("output.weight")}};
    for (const auto& [name, source] :
         {std::pair{"bos_token_id", "tokenizer.ggml.bos_token_id"}, {"eos_token_id", "tokenizer.ggml.eos_token_id"}}) {
        if (const auto id = value_of<std::int64_t>(file, source)) { config[name] = *id; }
    }
    const nlohmann::ordered_json scaling = scaling_of_rope(file, architecture.name, sizes.head_size);
    if (!scaling.is_null()) { config["rope_scaling"] = scaling; }
    const GgufTokenizer tokenizer = gguf_tokenizer(file);
    std::filesystem::create_directories(folder);
    write_safetensors(folder / "model.safetensors", views);
    if (!tokenizer.json.empty()) { write_text(folder / "tokenizer.json", tokenizer.json); }
    if (const auto chat = value_of<std::string>(file, "tokenizer.chat_template")) {
        write_text(folder / "chat_template.jinja", *chat);
    }
    write_text(folder / "config.json", config.dump(2) + "\n");
    return {.no_tokenizer = tokenizer.why_none};
}

}  // namespace heed
