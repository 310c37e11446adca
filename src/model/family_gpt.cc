#include "model/family.h"

namespace heed::family {

ModelConfig gpt2(const ConfigReader& c) {
    refuse_true(c, "add_cross_attention");
    ModelConfig m;
    decoder_of(m);
    m.d_model = c.integer({"n_embd", "hidden_size"}, 1, most_width);
    LayerConfig layer = biased_layer();
    const std::int64_t heads = c.integer({"n_head", "num_attention_heads"}, 1, most_width);
    same_heads(layer.attention, heads,
               shared_out(c, c.has("n_head") ? "n_head" : "num_attention_heads", m.d_model, heads));
    if (!c.boolean_or("scale_attn_weights", true)) { layer.attention.scale = 1; }
    layer.feed_forward.size = c.integer_or({"n_inner"}, 1, most_width, 4 * m.d_model);
    layer.feed_forward.activation = activation_in(c, "activation_function", "gelu_new");
    stack_of(m.decoder, layers_of(c, {"n_layer", "num_hidden_layers"}), layer);
    if (c.boolean_or("scale_attn_by_inverse_layer_idx", false)) {
        const double scale =
            layer.attention.scale.value_or(1 / std::sqrt(static_cast<double>(layer.attention.head_size)));
        for (std::size_t i = 0; i < m.decoder.layers.size(); ++i) {
            m.decoder.layers[i].attention.scale = scale / static_cast<double>(i + 1);
        }
    }
    m.decoder.norm = layer_norm_config(epsilon(c, "layer_norm_epsilon", 1e-5));
    m.vocab = c.integer({"vocab_size"}, 1, most_rows);
    m.max_positions = c.integer({"n_positions", "max_position_embeddings"}, 1, most_rows);
    m.decoder.positions = {.kind = PositionKind::learned, .rows = m.max_positions};
    m.head->tied = c.boolean_or("tie_word_embeddings", true);
    m.dropout = probability(c, "resid_pdrop", 0.1);
    m.attention_dropout = probability(c, "attn_pdrop", 0.1);
    return m;
}

ModelConfig bloom(const ConfigReader& c) {
    ModelConfig m;
    decoder_of(m);
    m.d_model = c.integer({"hidden_size", "n_embed"}, 1, most_width);
    LayerConfig layer = biased_layer();
    const std::int64_t heads = c.integer({"n_head", "num_attention_heads"}, 1, most_width);
    same_heads(layer.attention, heads,
               shared_out(c, c.has("n_head") ? "n_head" : "num_attention_heads", m.d_model, heads));
    layer.feed_forward.size = 4 * m.d_model;
    layer.feed_forward.activation = Activation::gelu_tanh;
    stack_of(m.decoder, layers_of(c, {"n_layer", "num_hidden_layers"}), layer);
    m.decoder.norm = layer_norm_config(epsilon(c, "layer_norm_epsilon", 1e-5));
    if (c.boolean_or("apply_residual_connection_post_layernorm", false)) { m.decoder.placement = Placement::normed; }
    m.decoder.embedding_norm = true;
    m.decoder.positions.kind = PositionKind::alibi;
    m.vocab = c.integer({"vocab_size"}, 1, most_rows);
    m.max_positions = c.integer_or({"seq_length"}, 1, most_rows, 0);
    m.head->tied = c.boolean_or("tie_word_embeddings", true);
    m.dropout = probability(c, "hidden_dropout", 0);
    m.attention_dropout = probability(c, "attention_dropout", 0);
    return m;
}

ModelConfig gpt_neox(const ConfigReader& c) {
    ModelConfig m;
    decoder_of(m);
    m.d_model = c.integer({"hidden_size"}, 1, most_width);
    LayerConfig layer = biased_layer();
    const std::int64_t heads = c.integer({"num_attention_heads"}, 1, most_width);
    same_heads(layer.attention, heads, shared_out(c, "num_attention_heads", m.d_model, heads));
    layer.attention.qkv_bias = layer.attention.output_bias = c.boolean_or("attention_bias", true);
    layer.feed_forward.size = c.integer({"intermediate_size"}, 1, most_width);
    layer.feed_forward.activation = activation_in(c, "hidden_act", "gelu");
    stack_of(m.decoder, layers_of(c, {"num_hidden_layers"}), layer);
    m.decoder.norm = layer_norm_config(epsilon(c, "layer_norm_eps", 1e-5));
    m.decoder.placement = c.boolean_or("use_parallel_residual", true) ? Placement::parallel : Placement::pre;
    m.vocab = c.integer({"vocab_size"}, 1, most_rows);
    m.max_positions = c.integer_or({"max_position_embeddings"}, 1, most_rows, 0);
    m.head->tied = c.boolean_or("tie_word_embeddings", false);
    m.dropout = probability(c, "hidden_dropout", 0);
    m.attention_dropout = probability(c, "attention_dropout", 0);
    rotate_layers(c, m.decoder);
    return m;
}

}  // namespace heed::family
