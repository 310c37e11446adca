#include <heed/sizes.h>

#include <algorithm>
#include <array>

#include "model/config_reader.h"
#include "model/shape.h"

namespace heed {
namespace {

using shape_limit::rows;
using shape_limit::width;

std::int64_t layers(const ConfigReader& c, ConfigReader::Key key) { return c.integer(key, 1, shape_limit::layers); }

/// The size of a head that is the width shared out; the width must divide.
std::int64_t shared_out(const ConfigReader& c, std::string_view heads_key, std::int64_t d_model, std::int64_t heads) {
    if (d_model % heads != 0) { c.refuse(heads_key, "a divisor of the width " + std::to_string(d_model)); }
    return d_model / heads;
}

void same_heads(ModelShape& m, std::int64_t heads, std::int64_t head_size) {
    m.heads = m.kv_heads = heads;
    m.head_size = m.value_size = head_size;
}

/// LayerNorm, biases everywhere, two feed-forward matrices: BERT, GPT-2, BLOOM, GPT-NeoX, BART, Marian.
void all_biased(ModelShape& m) {
    m.norm = NormKind::layer_norm;
    m.qkv_bias = m.output_bias = m.ffn_bias = true;
}

void refuse_cross_attention(const ConfigReader& c) {
    if (c.boolean_or("add_cross_attention", false)) { c.refuse("add_cross_attention", "false"); }
}

ModelShape gpt2(const ConfigReader& c) {
    refuse_cross_attention(c);
    ModelShape m;
    all_biased(m);
    m.layers = layers(c, {"n_layer", "num_hidden_layers"});
    m.d_model = c.integer({"n_embd", "hidden_size"}, 1, width);
    const std::int64_t heads = c.integer({"n_head", "num_attention_heads"}, 1, width);
    same_heads(m, heads, shared_out(c, c.has("n_head") ? "n_head" : "num_attention_heads", m.d_model, heads));
    m.d_ff = c.integer_or({"n_inner"}, 1, width, 4 * m.d_model);
    m.vocab = c.integer({"vocab_size"}, 1, rows);
    m.positions = m.position_rows = c.integer({"n_positions", "max_position_embeddings"}, 1, rows);
    m.tied = c.boolean_or("tie_word_embeddings", true);
    return m;
}

ModelShape bert(const ConfigReader& c) {
    refuse_cross_attention(c);
    ModelShape m;
    all_biased(m);
    m.kind = ModelKind::encoder;
    m.layers = layers(c, {"num_hidden_layers"});
    m.d_model = c.integer({"hidden_size"}, 1, width);
    const std::int64_t heads = c.integer({"num_attention_heads"}, 1, width);
    same_heads(m, heads, shared_out(c, "num_attention_heads", m.d_model, heads));
    m.d_ff = c.integer({"intermediate_size"}, 1, width);
    m.vocab = c.integer({"vocab_size"}, 1, rows);
    m.positions = m.position_rows = c.integer({"max_position_embeddings"}, 1, rows);
    m.token_types = c.integer_or({"type_vocab_size"}, 1, width, 2);
    m.embedding_norm = true;
    m.final_norm = false;
    m.tied = c.boolean_or("tie_word_embeddings", true);
    m.head_bias = m.head_transform = true;
    return m;
}

ModelShape bloom(const ConfigReader& c) {
    ModelShape m;
    all_biased(m);
    m.layers = layers(c, {"n_layer", "num_hidden_layers"});
    m.d_model = c.integer({"hidden_size", "n_embed"}, 1, width);
    const std::int64_t heads = c.integer({"n_head", "num_attention_heads"}, 1, width);
    same_heads(m, heads, shared_out(c, c.has("n_head") ? "n_head" : "num_attention_heads", m.d_model, heads));
    m.d_ff = 4 * m.d_model;
    m.vocab = c.integer({"vocab_size"}, 1, rows);
    m.positions = c.integer_or({"seq_length"}, 1, rows, 0);
    m.embedding_norm = true;
    m.tied = c.boolean_or("tie_word_embeddings", true);
    return m;
}

ModelShape gpt_neox(const ConfigReader& c) {
    ModelShape m;
    all_biased(m);
    m.layers = layers(c, {"num_hidden_layers"});
    m.d_model = c.integer({"hidden_size"}, 1, width);
    const std::int64_t heads = c.integer({"num_attention_heads"}, 1, width);
    same_heads(m, heads, shared_out(c, "num_attention_heads", m.d_model, heads));
    m.d_ff = c.integer({"intermediate_size"}, 1, width);
    m.vocab = c.integer({"vocab_size"}, 1, rows);
    m.positions = c.integer_or({"max_position_embeddings"}, 1, rows, 0);
    m.qkv_bias = m.output_bias = c.boolean_or("attention_bias", true);
    m.tied = c.boolean_or("tie_word_embeddings", false);
    return m;
}

/// What Llama and all that came from it share.
ModelShape gated_decoder(const ConfigReader& c) {
    ModelShape m;
    m.layers = layers(c, {"num_hidden_layers"});
    m.d_model = c.integer({"hidden_size"}, 1, width);
    m.heads = c.integer({"num_attention_heads"}, 1, width);
    m.d_ff = c.integer({"intermediate_size"}, 1, width);
    m.gated = true;
    m.vocab = c.integer({"vocab_size"}, 1, rows);
    m.positions = c.integer_or({"max_position_embeddings"}, 1, rows, 0);
    m.qkv_bias = m.output_bias = c.boolean_or("attention_bias", false);
    m.ffn_bias = c.boolean_or("mlp_bias", false);
    m.tied = c.boolean_or("tie_word_embeddings", false);
    return m;
}

/// usual_head: the size of a head in a file that does not give it; 0: the width shared out.
ModelShape grouped_decoder(const ConfigReader& c, std::int64_t usual_head = 0) {
    ModelShape m = gated_decoder(c);
    m.kv_heads = c.integer_or({"num_key_value_heads"}, 1, m.heads, m.heads);
    if (m.heads % m.kv_heads != 0) {
        c.refuse("num_key_value_heads", "a divisor of the " + std::to_string(m.heads) + " heads");
    }
    const bool given = c.has("head_dim") || usual_head > 0;
    m.head_size = given ? c.integer_or({"head_dim"}, 1, width, usual_head)
                        : shared_out(c, "num_attention_heads", m.d_model, m.heads);
    m.value_size = m.head_size;
    return m;
}

ModelShape llama(const ConfigReader& c) { return grouped_decoder(c); }

ModelShape mistral(const ConfigReader& c) {
    ModelShape m = grouped_decoder(c);
    if (!c.mentions("num_key_value_heads")) { m.kv_heads = 8; }  // what the family's software takes
    m.qkv_bias = m.output_bias = m.ffn_bias = false;
    return m;
}

ModelShape qwen2(const ConfigReader& c) {
    ModelShape m = grouped_decoder(c);
    m.qkv_bias = true;
    m.output_bias = m.ffn_bias = false;
    return m;
}

ModelShape qwen3(const ConfigReader& c) {
    ModelShape m = grouped_decoder(c, 128);
    m.ffn_bias = false;
    m.qk_norm = true;
    return m;
}

ModelShape gemma2(const ConfigReader& c) {
    ModelShape m = grouped_decoder(c);
    m.ffn_bias = false;
    m.norms_per_sublayer = 2;
    m.tied = c.boolean_or("tie_word_embeddings", true);
    return m;
}

ModelShape deepseek(const ConfigReader& c, std::int64_t usual_dense_layers, bool correction_bias) {
    ModelShape m = gated_decoder(c);
    LatentAttention latent;
    latent.query_rank = c.integer_or({"q_lora_rank"}, 1, width, 0);
    latent.kv_rank = c.integer({"kv_lora_rank"}, 1, width);
    latent.nope_size = c.integer({"qk_nope_head_dim"}, 1, width);
    latent.rope_size = c.integer({"qk_rope_head_dim"}, 1, width);
    latent.value_size = c.integer({"v_head_dim"}, 1, width);
    m.latent = latent;
    same_heads(m, m.heads, latent.nope_size);
    m.value_size = latent.value_size;
    m.ffn_bias = false;
    if (c.integer_or({"moe_layer_freq"}, 1, shape_limit::layers, 1) != 1) { c.refuse("moe_layer_freq", "1"); }
    if (c.has("n_routed_experts")) {
        Experts experts;
        experts.routed = c.integer({"n_routed_experts"}, 1, width);
        experts.active = c.integer({"num_experts_per_tok"}, 1, experts.routed);
        experts.shared = c.integer_or({"n_shared_experts"}, 0, width, 0);
        experts.d_ff = c.integer({"moe_intermediate_size"}, 1, width);
        experts.dense_layers = c.integer_or({"first_k_dense_replace"}, 0, shape_limit::layers, usual_dense_layers);
        experts.correction_bias = correction_bias;
        m.experts = experts;
    }
    return m;
}

ModelShape deepseek_v2(const ConfigReader& c) { return deepseek(c, 0, false); }
ModelShape deepseek_v3(const ConfigReader& c) { return deepseek(c, 3, true); }

/// BART and Marian: both stacks of one width, one table for everything, a bias on the logits.
ModelShape translator(const ConfigReader& c) {
    ModelShape m;
    all_biased(m);
    m.kind = ModelKind::encoder_decoder;
    m.layers = layers(c, {"decoder_layers"});
    m.encoder_layers = layers(c, {"encoder_layers"});
    m.d_model = c.integer({"d_model", "hidden_size"}, 1, width);
    const std::int64_t heads = c.integer({"decoder_attention_heads"}, 1, width);
    same_heads(m, heads, shared_out(c, "decoder_attention_heads", m.d_model, heads));
    // Another number of encoder heads shares out the same width: no size depends on it, but it must divide.
    shared_out(c, "encoder_attention_heads", m.d_model, c.integer({"encoder_attention_heads"}, 1, width));
    m.d_ff = c.integer({"decoder_ffn_dim"}, 1, width);
    m.encoder_d_ff = c.integer({"encoder_ffn_dim"}, 1, width);
    m.vocab = c.integer({"vocab_size"}, 1, rows);
    m.positions = c.integer({"max_position_embeddings"}, 1, rows - 2);
    m.final_norm = false;
    if (!c.boolean_or("tie_word_embeddings", true)) { c.refuse("tie_word_embeddings", "true"); }
    m.tied = true;
    m.head_bias = true;
    return m;
}

ModelShape bart(const ConfigReader& c) {
    ModelShape m = translator(c);
    m.position_rows = m.positions + 2;  // the first two rows stand for padding and are never used
    m.embedding_norm = true;
    return m;
}

ModelShape marian(const ConfigReader& c) {
    ModelShape m = translator(c);  // positions are sinusoids, not parameters
    if (!c.boolean_or("share_encoder_decoder_embeddings", true)) {
        c.refuse("share_encoder_decoder_embeddings", "true");
    }
    if (c.integer_or({"decoder_vocab_size"}, 1, rows, m.vocab) != m.vocab) {
        c.refuse("decoder_vocab_size", "the same as vocab_size, " + std::to_string(m.vocab));
    }
    return m;
}

ModelShape t5(const ConfigReader& c) {
    ModelShape m;
    m.kind = ModelKind::encoder_decoder;
    m.encoder_layers = layers(c, {"num_layers", "num_hidden_layers"});
    m.layers = c.integer_or({"num_decoder_layers"}, 1, shape_limit::layers, m.encoder_layers);
    m.d_model = c.integer({"d_model", "hidden_size"}, 1, width);
    same_heads(m, c.integer({"num_heads", "num_attention_heads"}, 1, width), c.integer({"d_kv", "head_dim"}, 1, width));
    m.d_ff = m.encoder_d_ff = c.integer({"d_ff"}, 1, width);
    const std::string activation = c.text("feed_forward_proj").value_or("relu");
    m.gated = activation.starts_with("gated-");
    m.vocab = c.integer({"vocab_size"}, 1, rows);
    m.relative_buckets = c.integer_or({"relative_attention_num_buckets"}, 1, width, 32);
    m.tied = c.boolean_or("tie_word_embeddings", true);
    return m;
}

struct Family {
    std::string_view model_type;
    ModelShape (*read)(const ConfigReader&);
    std::string_view base;  // architecture without a head
    std::string_view full;  // architecture with a language head
};

constexpr auto families = std::to_array<Family>({
    {"bart", bart, "BartModel", "BartForConditionalGeneration"},
    {"bert", bert, "BertModel", "BertForMaskedLM"},
    {"bloom", bloom, "BloomModel", "BloomForCausalLM"},
    {"deepseek_v2", deepseek_v2, "DeepseekV2Model", "DeepseekV2ForCausalLM"},
    {"deepseek_v3", deepseek_v3, "DeepseekV3Model", "DeepseekV3ForCausalLM"},
    {"gemma2", gemma2, "Gemma2Model", "Gemma2ForCausalLM"},
    {"gpt2", gpt2, "GPT2Model", "GPT2LMHeadModel"},
    {"gpt_neox", gpt_neox, "GPTNeoXModel", "GPTNeoXForCausalLM"},
    {"llama", llama, "LlamaModel", "LlamaForCausalLM"},
    {"marian", marian, "MarianModel", "MarianMTModel"},
    {"mistral", mistral, "MistralModel", "MistralForCausalLM"},
    {"qwen2", qwen2, "Qwen2Model", "Qwen2ForCausalLM"},
    {"qwen3", qwen3, "Qwen3Model", "Qwen3ForCausalLM"},
    {"t5", t5, "T5Model", "T5ForConditionalGeneration"},
});
constexpr std::string_view bert_pretraining = "BertForPreTraining";

std::string known_types() {
    std::string result = "one of";
    for (const Family& family : families) {
        result += (&family == families.begin() ? " " : ", ") + std::string(family.model_type);
    }
    return result;
}

const Family& family_of(const ConfigReader& c, const std::optional<std::string>& architecture) {
    if (const auto type = c.text("model_type")) {
        const auto* found = std::ranges::find(families, std::string_view(*type), &Family::model_type);
        if (found == families.end()) { c.refuse("model_type", known_types()); }
        return *found;
    }
    const auto* found = std::ranges::find_if(
        families, [&](const Family& family) { return architecture == family.base || architecture == family.full; });
    if (found == families.end()) { c.refuse("model_type", known_types()); }
    return *found;
}

/// Which head the parameters include. A file without `architectures` means the whole language model, and for BERT
/// the published count: pooler, no head.
void set_head(const ConfigReader& c, const Family& family, const std::optional<std::string>& architecture,
              ModelShape& m) {
    const bool is_bert = family.model_type == "bert";
    const std::string_view name = architecture ? std::string_view(*architecture) : is_bert ? family.base : family.full;
    if (name == family.base) {
        m.head = m.head_bias = m.head_transform = false;
        m.pooler = is_bert;
    } else if (is_bert && name == bert_pretraining) {
        m.pooler = true;
        m.classes = 2;  // whether the second sentence follows the first
    } else if (name != family.full) {
        c.refuse("architectures", std::string(family.full) + " or " + std::string(family.base));
    }
}

}  // namespace

ModelShape model_from_config(std::string_view json) {
    const ConfigReader config(json);
    const std::optional<std::string> architecture = config.first_text("architectures");
    const Family& family = family_of(config, architecture);
    ModelShape model = family.read(config);
    model.name = family.model_type;
    set_head(config, family, architecture, model);
    check_shape("model_from_config", model);
    return model;
}

}  // namespace heed
