#include "model/family.h"

namespace heed::family {
namespace {

/// BART and Marian: both stacks of one width, one table for everything, a bias on the logits.
ModelConfig translator(const ConfigReader& c) {
    if (c.boolean_or("normalize_before", false)) { c.refuse("normalize_before", "false"); }
    ModelConfig m;
    m.kind = ModelKind::encoder_decoder;
    m.d_model = c.integer({"d_model", "hidden_size"}, 1, most_width);
    LayerConfig layer = biased_layer();
    layer.feed_forward.activation = activation_in(c, "activation_function", "gelu");
    const auto stack = [&](StackConfig& out, std::string_view heads_key, std::string_view ffn_key,
                           std::string_view layers_key) {
        const std::int64_t heads = c.integer({heads_key}, 1, most_width);
        same_heads(layer.attention, heads, shared_out(c, heads_key, m.d_model, heads));
        layer.feed_forward.size = c.integer({ffn_key}, 1, most_width);
        stack_of(out, layers_of(c, {layers_key}), layer);
        out.norm = layer_norm_config(1e-5);
        out.placement = Placement::post;
        out.final_norm = false;
    };
    stack(m.decoder, "decoder_attention_heads", "decoder_ffn_dim", "decoder_layers");
    stack(m.encoder, "encoder_attention_heads", "encoder_ffn_dim", "encoder_layers");
    m.decoder.causal = m.decoder.cross = true;
    m.vocab = c.integer({"vocab_size"}, 1, most_rows);
    m.max_positions = c.integer({"max_position_embeddings"}, 1, most_rows - 2);
    if (c.boolean_or("scale_embedding", false)) { m.embedding_scale = std::sqrt(static_cast<double>(m.d_model)); }
    m.head->tied = c.boolean_or("tie_word_embeddings", true);
    // Then nothing is tied: each stack has its table.
    if (!m.head->tied) { m.source_vocab = m.vocab; }
    m.head->bias = true;
    m.dropout = probability(c, "dropout", 0.1);
    m.attention_dropout = probability(c, "attention_dropout", 0);
    return m;
}

}  // namespace

ModelConfig bart(const ConfigReader& c) {
    if (!c.boolean_or("normalize_embedding", true)) { c.refuse("normalize_embedding", "true"); }
    ModelConfig m = translator(c);
    for (StackConfig* stack : {&m.encoder, &m.decoder}) {
        // The first two rows stand for padding and are never used.
        stack->positions = {.kind = PositionKind::learned, .rows = m.max_positions + 2, .offset = 2};
        stack->embedding_norm = true;
    }
    return m;
}

ModelConfig marian(const ConfigReader& c) {
    if (c.boolean_or("normalize_embedding", false)) { c.refuse("normalize_embedding", "false"); }
    if (!c.boolean_or("static_position_embeddings", true)) { c.refuse("static_position_embeddings", "true"); }
    ModelConfig m = translator(c);
    for (StackConfig* stack : {&m.encoder, &m.decoder}) {
        stack->positions = {.kind = PositionKind::sinusoidal, .layout = Pairing::halves};
    }
    const bool shared = c.boolean_or("share_encoder_decoder_embeddings", true);
    const std::int64_t target = c.integer_or({"decoder_vocab_size"}, 1, most_rows, m.vocab);
    if (shared && target != m.vocab) {
        c.refuse("decoder_vocab_size", "the same as vocab_size, " + std::to_string(m.vocab));
    }
    if (!shared) {
        m.source_vocab = m.vocab;
        m.vocab = target;
    }
    return m;
}

ModelConfig t5(const ConfigReader& c) {
    ModelConfig m;
    m.kind = ModelKind::encoder_decoder;
    m.d_model = c.integer({"d_model", "hidden_size"}, 1, most_width);
    LayerConfig layer;
    same_heads(layer.attention, c.integer({"num_heads", "num_attention_heads"}, 1, most_width),
               c.integer({"d_kv", "head_dim"}, 1, most_width));
    layer.attention.scale = 1;
    layer.feed_forward.size = c.integer({"d_ff"}, 1, most_width);
    std::string activation = c.text("feed_forward_proj").value_or("relu");
    layer.feed_forward.gated = activation.starts_with("gated-");
    if (layer.feed_forward.gated) { activation = activation.substr(6); }
    // "gated-gelu" of these files is the tanh form.
    if (layer.feed_forward.gated && activation == "gelu") { activation = "gelu_new"; }
    try {
        layer.feed_forward.activation = activation_of(activation);
    } catch (const Error&) { c.refuse("feed_forward_proj", "an activation that heed knows"); }
    const std::int64_t encoder_layers = layers_of(c, {"num_layers", "num_hidden_layers"});
    stack_of(m.encoder, encoder_layers, layer);
    stack_of(m.decoder, c.integer_or({"num_decoder_layers"}, 1, shape_limit::layers, encoder_layers), layer);
    m.decoder.causal = m.decoder.cross = true;
    for (StackConfig* stack : {&m.encoder, &m.decoder}) {
        stack->norm = {.kind = NormKind::rms_norm, .eps = epsilon(c, "layer_norm_epsilon", 1e-6)};
        stack->positions.kind = PositionKind::relative;
        stack->positions.buckets.count = c.integer_or({"relative_attention_num_buckets"}, 2, most_width, 32);
        stack->positions.buckets.max_distance = c.integer_or({"relative_attention_max_distance"}, 1, most_rows, 128);
    }
    m.vocab = c.integer({"vocab_size"}, 1, most_rows);
    m.head->tied = c.boolean_or("tie_word_embeddings", true);
    if (c.boolean_or("scale_decoder_outputs", m.head->tied)) {
        m.head->scale = 1 / std::sqrt(static_cast<double>(m.d_model));
    }
    m.dropout = probability(c, "dropout_rate", 0.1);
    m.attention_dropout = m.dropout;
    return m;
}

}  // namespace heed::family
