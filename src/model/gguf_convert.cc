#include <heed/gguf.h>
#include <heed/safetensors.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "io/file.h"

namespace heed {
namespace {

[[noreturn]] void refuse_gguf(const std::string& expected, const std::string& got) {
    throw Error("[convert_gguf] file: expected " + expected + ", got " + got);
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

/// blk.3.attn_q.weight is model.layers.3.self_attn.q_proj.weight.
Renamed name_in_llama(const std::string& name, const LlamaSizes& sizes) {
    if (name == "token_embd.weight") { return {"model.embed_tokens.weight"}; }
    if (name == "output_norm.weight") { return {"model.norm.weight"}; }
    if (name == "output.weight") { return {"lm_head.weight"}; }
    static const std::map<std::string, std::string> parts = {
        {"attn_norm.weight", "input_layernorm.weight"},    {"attn_q.weight", "self_attn.q_proj.weight"},
        {"attn_k.weight", "self_attn.k_proj.weight"},      {"attn_v.weight", "self_attn.v_proj.weight"},
        {"attn_output.weight", "self_attn.o_proj.weight"}, {"ffn_norm.weight", "post_attention_layernorm.weight"},
        {"ffn_gate.weight", "mlp.gate_proj.weight"},       {"ffn_up.weight", "mlp.up_proj.weight"},
        {"ffn_down.weight", "mlp.down_proj.weight"}};
    const std::size_t dot = name.find('.', 4);
    const auto found =
        name.rfind("blk.", 0) == 0 && dot != std::string::npos ? parts.find(name.substr(dot + 1)) : parts.end();
    if (found == parts.end()) {
        refuse_gguf("tensors of a llama without biases, experts or rope tables", in_quotes(name));
    }
    const std::int64_t heads = found->first == "attn_q.weight"   ? sizes.heads
                               : found->first == "attn_k.weight" ? sizes.kv_heads
                                                                 : 0;
    return {"model.layers." + name.substr(4, dot - 4) + "." + found->second, heads};
}

}  // namespace

void convert_gguf(const std::filesystem::path& gguf, const std::filesystem::path& folder) {
    const GgufFile file = GgufFile::open(gguf);
    const auto architecture = value_of<std::string>(file, "general.architecture").value_or("none");
    if (architecture != "llama") { refuse_gguf("the architecture llama", in_quotes(architecture)); }
    const auto scaling = value_of<std::string>(file, "llama.rope.scaling.type").value_or("none");
    if (scaling != "none") { refuse_gguf("no scaling of RoPE", in_quotes(scaling)); }
    LlamaSizes sizes{.layers = count_of(file, "llama.block_count"),
                     .width = count_of(file, "llama.embedding_length"),
                     .inner = count_of(file, "llama.feed_forward_length"),
                     .heads = count_of(file, "llama.attention.head_count"),
                     .kv_heads = 0,
                     .head_size = 0};
    sizes.kv_heads = count_of(file, "llama.attention.head_count_kv", sizes.heads);
    sizes.head_size = count_of(file, "llama.attention.key_length", sizes.width / sizes.heads);
    if (count_of(file, "llama.rope.dimension_count", sizes.head_size) != sizes.head_size) {
        refuse_gguf("RoPE on whole heads", "on a part of them");
    }

    std::vector<Tensor> tensors;
    std::vector<std::string> names;
    for (const std::string& name : file.names()) {
        const Renamed renamed = name_in_llama(name, sizes);
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
        {"model_type", "llama"},
        {"architectures", {"LlamaForCausalLM"}},
        {"vocab_size", file.entry("token_embd.weight").shape[0]},
        {"hidden_size", sizes.width},
        {"intermediate_size", sizes.inner},
        {"num_hidden_layers", sizes.layers},
        {"num_attention_heads", sizes.heads},
        {"num_key_value_heads", sizes.kv_heads},
        {"head_dim", sizes.head_size},
        {"hidden_act", "silu"},
        {"rms_norm_eps", value_of<double>(file, "llama.attention.layer_norm_rms_epsilon").value_or(1e-5)},
        {"rope_theta", value_of<double>(file, "llama.rope.freq_base").value_or(10000)},
        {"max_position_embeddings", count_of(file, "llama.context_length", 2048)},
        {"tie_word_embeddings", !file.contains("output.weight")}};
    for (const auto& [key, source] :
         {std::pair{"bos_token_id", "tokenizer.ggml.bos_token_id"}, {"eos_token_id", "tokenizer.ggml.eos_token_id"}}) {
        if (const auto id = value_of<std::int64_t>(file, source)) { config[key] = *id; }
    }
    std::filesystem::create_directories(folder);
    write_safetensors(folder / "model.safetensors", views);
    const std::string text = config.dump(2) + "\n";
    AtomicFile out("convert_gguf", folder / "config.json");
    out.write(std::as_bytes(std::span(text)));
    out.commit();
}

}  // namespace heed
