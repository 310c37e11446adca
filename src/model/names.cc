#include "model/names.h"

#include "base/refuse.h"

#include <array>

namespace heed {
namespace {

ModelNames llama_names() {
    ModelNames n;
    n.base = "model.";
    n.embedding = "model.embed_tokens";
    n.head = "lm_head";
    StackNames& s = n.decoder;
    s.layer = "model.layers.{}.";
    s.self = {.q = "self_attn.q_proj",
              .k = "self_attn.k_proj",
              .v = "self_attn.v_proj",
              .out = "self_attn.o_proj",
              .q_norm = "self_attn.q_norm",
              .k_norm = "self_attn.k_norm"};
    s.attention_norm = "input_layernorm";
    s.feed_forward_norm = "post_attention_layernorm";
    s.gate = "mlp.gate_proj";
    s.up = "mlp.up_proj";
    s.down = "mlp.down_proj";
    s.final_norm = "model.norm";
    n.ignored = {"rotary_emb.inv_freq"};
    return n;
}

ModelNames deepseek_names() {
    ModelNames n = llama_names();
    AttentionNames& a = n.decoder.self;
    a.q_down = "self_attn.q_a_proj";
    a.q_down_norm = "self_attn.q_a_layernorm";
    a.q_up = "self_attn.q_b_proj";
    a.kv_down = "self_attn.kv_a_proj_with_mqa";
    a.kv_down_norm = "self_attn.kv_a_layernorm";
    a.kv_up = "self_attn.kv_b_proj";
    StackNames& s = n.decoder;
    s.router = "mlp.gate";
    s.correction = "mlp.gate.e_score_correction_bias";
    s.expert_gate = "mlp.experts.{}.gate_proj";
    s.expert_up = "mlp.experts.{}.up_proj";
    s.expert_down = "mlp.experts.{}.down_proj";
    s.shared_gate = "mlp.shared_experts.gate_proj";
    s.shared_up = "mlp.shared_experts.up_proj";
    s.shared_down = "mlp.shared_experts.down_proj";
    return n;
}

ModelNames mixtral_names() {
    ModelNames n = llama_names();
    StackNames& s = n.decoder;
    s.router = "block_sparse_moe.gate";
    s.expert_gate = "block_sparse_moe.experts.{}.w1";
    s.expert_up = "block_sparse_moe.experts.{}.w3";
    s.expert_down = "block_sparse_moe.experts.{}.w2";
    return n;
}

ModelNames gpt_oss_names() {
    ModelNames n = llama_names();
    StackNames& s = n.decoder;
    s.self.sinks = "self_attn.sinks";
    s.router = "mlp.router";
    s.expert_gate = "mlp.experts.gate_up_proj";
    s.expert_down = "mlp.experts.down_proj";
    n.experts = ExpertFiles::interleaved;
    return n;
}

ModelNames gemma2_names() {
    ModelNames n = llama_names();
    StackNames& s = n.decoder;
    s.attention_out_norm = "post_attention_layernorm";
    s.feed_forward_norm = "pre_feedforward_layernorm";
    s.feed_forward_out_norm = "post_feedforward_layernorm";
    return n;
}

ModelNames olmo2_names() {
    ModelNames n = llama_names();
    StackNames& s = n.decoder;
    s.attention_norm = s.feed_forward_norm = "";
    s.attention_out_norm = "post_attention_layernorm";
    s.feed_forward_out_norm = "post_feedforward_layernorm";
    return n;
}

ModelNames phi3_names() {
    ModelNames n = llama_names();
    n.decoder.self.qkv = "self_attn.qkv_proj";
    n.decoder.gate_up = "mlp.gate_up_proj";
    return n;
}

ModelNames gpt2_names() {
    ModelNames n;
    n.base = "transformer.";
    n.embedding = "transformer.wte";
    n.head = "lm_head";
    n.transposed = true;
    StackNames& s = n.decoder;
    s.layer = "transformer.h.{}.";
    s.self = {.out = "attn.c_proj", .qkv = "attn.c_attn"};
    s.attention_norm = "ln_1";
    s.feed_forward_norm = "ln_2";
    s.up = "mlp.c_fc";
    s.down = "mlp.c_proj";
    s.final_norm = "transformer.ln_f";
    s.positions = "transformer.wpe";
    n.ignored = {".attn.bias", ".attn.masked_bias"};
    return n;
}

ModelNames bloom_names() {
    ModelNames n;
    n.base = "transformer.";
    n.embedding = "transformer.word_embeddings";
    n.head = "lm_head";
    StackNames& s = n.decoder;
    s.layer = "transformer.h.{}.";
    s.self = {.out = "self_attention.dense", .qkv = "self_attention.query_key_value", .rows = FusedRows::per_head};
    s.attention_norm = "input_layernorm";
    s.feed_forward_norm = "post_attention_layernorm";
    s.up = "mlp.dense_h_to_4h";
    s.down = "mlp.dense_4h_to_h";
    s.embedding_norm = "transformer.word_embeddings_layernorm";
    s.final_norm = "transformer.ln_f";
    return n;
}

ModelNames gpt_neox_names() {
    ModelNames n;
    n.base = "gpt_neox.";
    n.embedding = "gpt_neox.embed_in";
    n.head = "embed_out";
    StackNames& s = n.decoder;
    s.layer = "gpt_neox.layers.{}.";
    s.self = {.out = "attention.dense", .qkv = "attention.query_key_value", .rows = FusedRows::per_head};
    s.attention_norm = "input_layernorm";
    s.feed_forward_norm = "post_attention_layernorm";
    s.up = "mlp.dense_h_to_4h";
    s.down = "mlp.dense_4h_to_h";
    s.final_norm = "gpt_neox.final_layer_norm";
    n.ignored = {"rotary_emb.inv_freq", ".attention.bias", ".attention.masked_bias"};
    return n;
}

ModelNames bert_names(const std::string& base) {
    ModelNames n;
    n.base = base;
    n.embedding = base + "embeddings.word_embeddings";
    n.token_types = base + "embeddings.token_type_embeddings";
    StackNames& s = n.encoder;
    s.positions = base + "embeddings.position_embeddings";
    s.embedding_norm = base + "embeddings.LayerNorm";
    s.layer = base + "encoder.layer.{}.";
    s.self = {.q = "attention.self.query",
              .k = "attention.self.key",
              .v = "attention.self.value",
              .out = "attention.output.dense"};
    s.attention_norm = "attention.output.LayerNorm";
    s.up = "intermediate.dense";
    s.down = "output.dense";
    s.feed_forward_norm = "output.LayerNorm";
    n.pooler = base + "pooler.dense";
    n.head = "cls.predictions.decoder";
    n.head_bias = "cls.predictions.bias";
    n.head_transform = "cls.predictions.transform.dense";
    n.head_transform_norm = "cls.predictions.transform.LayerNorm";
    n.untied_head_bias = "cls.predictions.decoder.bias";
    n.ignored = {"embeddings.position_ids", "embeddings.token_type_ids",   "cls.predictions.decoder.bias",
                 "cls.predictions.bias",    "cls.seq_relationship.weight", "cls.seq_relationship.bias"};
    return n;
}

ModelNames roberta_names() {
    ModelNames n = bert_names("roberta.");
    n.head = "lm_head.decoder";
    n.head_bias = "lm_head.bias";
    n.head_transform = "lm_head.dense";
    n.head_transform_norm = "lm_head.layer_norm";
    n.untied_head_bias = "lm_head.decoder.bias";
    n.ignored = {"embeddings.position_ids", "embeddings.token_type_ids", "lm_head.decoder.bias", "lm_head.bias"};
    return n;
}

ModelNames modernbert_names() {
    ModelNames n;
    n.base = "model.";
    n.embedding = "model.embeddings.tok_embeddings";
    n.head = "decoder";
    n.head_bias = "decoder.bias";
    n.head_transform = "head.dense";
    n.head_transform_norm = "head.norm";
    StackNames& s = n.encoder;
    s.embedding_norm = "model.embeddings.norm";
    s.layer = "model.layers.{}.";
    s.self = {.out = "attn.Wo", .qkv = "attn.Wqkv"};
    s.attention_norm = "attn_norm";
    s.feed_forward_norm = "mlp_norm";
    s.gate_up = "mlp.Wi";
    s.down = "mlp.Wo";
    s.final_norm = "model.final_norm";
    n.ignored = {"rotary_emb.inv_freq"};
    return n;
}

StackNames translator_stack(const std::string& stack) {
    StackNames s;
    s.layer = "model." + stack + ".layers.{}.";
    s.self = {.q = "self_attn.q_proj", .k = "self_attn.k_proj", .v = "self_attn.v_proj", .out = "self_attn.out_proj"};
    s.cross = {.q = "encoder_attn.q_proj",
               .k = "encoder_attn.k_proj",
               .v = "encoder_attn.v_proj",
               .out = "encoder_attn.out_proj"};
    s.attention_norm = "self_attn_layer_norm";
    s.cross_norm = "encoder_attn_layer_norm";
    s.feed_forward_norm = "final_layer_norm";
    s.up = "fc1";
    s.down = "fc2";
    s.embedding_norm = "model." + stack + ".layernorm_embedding";
    s.positions = "model." + stack + ".embed_positions";
    return s;
}

ModelNames bart_names(const ModelConfig& config) {
    ModelNames n;
    n.base = "model.";
    n.embedding = "model.shared";
    n.encoder = translator_stack("encoder");
    n.decoder = translator_stack("decoder");
    n.head = "lm_head";
    n.head_bias = "final_logits_bias";
    n.head_bias_is_row = n.head_bias_optional = true;
    n.ignored = {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight"};
    if (config.source_vocab > 0) {  // whatever else the file has of a shared table is not used
        n.embedding = "model.decoder.embed_tokens";
        n.source_embedding = "model.encoder.embed_tokens";
        n.ignored = {"shared.weight"};
    }
    return n;
}

ModelNames marian_names(const ModelConfig& config) {
    ModelNames n = bart_names(config);
    // Sinusoids, which some files store.
    n.ignored.insert(n.ignored.end(), {"encoder.embed_positions.weight", "decoder.embed_positions.weight"});
    return n;
}

StackNames t5_stack(const std::string& stack, int feed_forward) {
    StackNames s;
    const std::string last = "layer." + std::to_string(feed_forward) + ".";
    s.layer = stack + ".block.{}.";
    const auto attention = [](const std::string& name) {
        return AttentionNames{.q = name + ".q", .k = name + ".k", .v = name + ".v", .out = name + ".o"};
    };
    s.self = attention("layer.0.SelfAttention");
    s.self.relative = "layer.0.SelfAttention.relative_attention_bias";
    s.cross = attention("layer.1.EncDecAttention");
    s.attention_norm = "layer.0.layer_norm";
    s.cross_norm = "layer.1.layer_norm";
    s.feed_forward_norm = last + "layer_norm";
    s.down = last + "DenseReluDense.wo";
    s.up = last + "DenseReluDense.wi";
    s.final_norm = stack + ".final_layer_norm";
    return s;
}

ModelNames t5_names(const ModelConfig& config) {
    ModelNames n;
    n.embedding = "shared";
    n.head = "lm_head";
    n.encoder = t5_stack("encoder", 1);
    n.decoder = t5_stack("decoder", 2);
    if (config.encoder.layers.front().feed_forward.gated) {
        for (StackNames* s : {&n.encoder, &n.decoder}) {
            s->gate = s->up + "_0";
            s->up = s->up + "_1";
        }
    }
    n.ignored = {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight",
                 "EncDecAttention.relative_attention_bias.weight"};
    return n;
}

StackNames heed_stack(const std::string& stack) {
    StackNames s;
    s.layer = stack + ".layers.{}.";
    const auto attention = [](const std::string& name) {
        return AttentionNames{.q = name + ".q",
                              .k = name + ".k",
                              .v = name + ".v",
                              .out = name + ".out",
                              .q_norm = name + ".q_norm",
                              .k_norm = name + ".k_norm",
                              .q_down = name + ".q_down",
                              .q_down_norm = name + ".q_down_norm",
                              .q_up = name + ".q_up",
                              .kv_down = name + ".kv_down",
                              .kv_down_norm = name + ".kv_down_norm",
                              .kv_up = name + ".kv_up",
                              .sinks = name + ".sinks",
                              .gates = name + ".gates",
                              .decay = name + ".decay",
                              .decay_rate = name + ".decay_rate",
                              .beta = name + ".beta",
                              .output_gate = name + ".output_gate",
                              .output_norm = name + ".output_norm"};
    };
    s.self = attention("attention");
    s.self.relative = "attention.relative_bias";
    s.cross = attention("cross");
    s.attention_norm = "attention_norm";
    s.attention_out_norm = "attention_out_norm";
    s.cross_norm = "cross_norm";
    s.cross_out_norm = "cross_out_norm";
    s.feed_forward_norm = "feed_forward_norm";
    s.feed_forward_out_norm = "feed_forward_out_norm";
    s.gate = "feed_forward.gate";
    s.up = "feed_forward.up";
    s.down = "feed_forward.down";
    s.router = "feed_forward.router";
    s.correction = "feed_forward.correction";
    s.expert_gate = "feed_forward.experts.{}.gate";
    s.expert_up = "feed_forward.experts.{}.up";
    s.expert_down = "feed_forward.experts.{}.down";
    s.shared_gate = "feed_forward.shared.gate";
    s.shared_up = "feed_forward.shared.up";
    s.shared_down = "feed_forward.shared.down";
    s.embedding_norm = stack + ".embedding_norm";
    s.final_norm = stack + ".final_norm";
    s.positions = stack + ".positions";
    return s;
}

ModelNames heed_names() {
    ModelNames n;
    n.embedding = "embedding";
    n.source_embedding = "source_embedding";
    n.token_types = "token_types";
    n.encoder = heed_stack("encoder");
    n.decoder = heed_stack("decoder");
    n.head = "head";
    n.head_bias = "head.bias";
    n.head_transform = "head_transform";
    n.head_transform_norm = "head_transform_norm";
    n.pooler = "pooler";
    return n;
}

}  // namespace

ModelNames names_of(const ModelConfig& config) {
    const std::string& f = config.family;
    if (f == "bart") { return bart_names(config); }
    if (f == "bert") { return bert_names("bert."); }
    if (f == "bloom") { return bloom_names(); }
    if (f == "deepseek_v2" || f == "deepseek_v3") { return deepseek_names(); }
    if (f == "gemma2") { return gemma2_names(); }
    if (f == "gpt2") { return gpt2_names(); }
    if (f == "gpt_neox") { return gpt_neox_names(); }
    if (f == "gpt_oss") { return gpt_oss_names(); }
    if (f == "llama" || f == "mistral" || f == "qwen2" || f == "qwen3") { return llama_names(); }
    if (f == "marian") { return marian_names(config); }
    if (f == "mixtral") { return mixtral_names(); }
    if (f == "modernbert") { return modernbert_names(); }
    if (f == "olmo2") { return olmo2_names(); }
    if (f == "phi3") { return phi3_names(); }
    if (f == "roberta") { return roberta_names(); }
    if (f == "t5") { return t5_names(config); }
    if (f == "heed") { return heed_names(); }
    refuse("names_of", "family", "one that heed knows", f);
}

}  // namespace heed
