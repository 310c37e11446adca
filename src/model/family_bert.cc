#include "model/family.h"

namespace heed::family {

ModelConfig bert(const ConfigReader& c) {
    refuse_true(c, "add_cross_attention");
    refuse_true(c, "is_decoder");
    if (c.text("position_embedding_type").value_or("absolute") != "absolute") {
        c.refuse("position_embedding_type", "absolute");
    }
    ModelConfig m;
    m.kind = ModelKind::encoder;
    m.d_model = c.integer({"hidden_size"}, 1, most_width);
    LayerConfig layer = biased_layer();
    const std::int64_t heads = c.integer({"num_attention_heads"}, 1, most_width);
    same_heads(layer.attention, heads, shared_out(c, "num_attention_heads", m.d_model, heads));
    layer.feed_forward.size = c.integer({"intermediate_size"}, 1, most_width);
    layer.feed_forward.activation = activation_in(c, "hidden_act", "gelu");
    stack_of(m.encoder, layers_of(c, {"num_hidden_layers"}), layer);
    m.encoder.norm = layer_norm_config(epsilon(c, "layer_norm_eps", 1e-12));
    m.encoder.placement = Placement::post;
    m.encoder.embedding_norm = true;
    m.encoder.final_norm = false;
    m.vocab = c.integer({"vocab_size"}, 1, most_rows);
    m.max_positions = c.integer({"max_position_embeddings"}, 1, most_rows);
    m.encoder.positions = {.kind = PositionKind::learned, .rows = m.max_positions};
    m.token_types = c.integer_or({"type_vocab_size"}, 1, most_width, 2);
    m.head->tied = c.boolean_or("tie_word_embeddings", true);
    m.head->bias = m.head->transform = true;
    m.head->transform_activation = layer.feed_forward.activation;
    m.dropout = probability(c, "hidden_dropout_prob", 0.1);
    m.attention_dropout = probability(c, "attention_probs_dropout_prob", 0.1);
    return m;
}

ModelConfig roberta(const ConfigReader& c) {
    ModelConfig m = bert(c);
    m.head->transform_activation = Activation::gelu;
    const std::int64_t pad = c.integer_or({"pad_token_id"}, 0, most_rows, 1);
    m.encoder.positions.skip_padding = pad;
    m.max_positions -= pad + 1;
    if (m.max_positions < 1) { c.refuse("max_position_embeddings", "more than pad_token_id + 1"); }
    return m;
}

ModelConfig modernbert(const ConfigReader& c) {
    ModelConfig m;
    m.kind = ModelKind::encoder;
    m.d_model = c.integer({"hidden_size"}, 1, most_width);
    LayerConfig layer;
    const std::int64_t heads = c.integer({"num_attention_heads"}, 1, most_width);
    same_heads(layer.attention, heads, shared_out(c, "num_attention_heads", m.d_model, heads));
    layer.attention.qkv_bias = layer.attention.output_bias = c.boolean_or("attention_bias", false);
    layer.feed_forward.size = c.integer({"intermediate_size"}, 1, most_width);
    layer.feed_forward.gated = true;
    layer.feed_forward.bias = c.boolean_or("mlp_bias", false);
    layer.feed_forward.activation = activation_in(c, "hidden_activation", "gelu");
    stack_of(m.encoder, layers_of(c, {"num_hidden_layers"}), layer);
    m.encoder.layers[0].attention.norm = false;
    const std::int64_t reach = c.integer_or({"local_attention"}, 1, most_rows, 128) / 2;
    const std::int64_t every = c.integer_or({"global_attn_every_n_layers"}, 1, most_width, 3);
    const std::vector<std::string> types = c.texts("layer_types");
    for (std::size_t i = 0; i < m.encoder.layers.size(); ++i) {
        const bool slides = types.empty() ? static_cast<std::int64_t>(i) % every != 0
                                          : i < types.size() && types[i] == "sliding_attention";
        if (slides) { m.encoder.layers[i].attention.window = {.left = reach, .right = reach}; }
    }
    m.encoder.norm = layer_norm_config(epsilon(c, "norm_eps", 1e-5), c.boolean_or("norm_bias", false));
    m.encoder.embedding_norm = true;
    m.vocab = c.integer({"vocab_size"}, 1, most_rows);
    m.max_positions = c.integer_or({"max_position_embeddings"}, 1, most_rows, 0);
    m.head->tied = c.boolean_or("tie_word_embeddings", true);
    m.head->bias = c.boolean_or("decoder_bias", true);
    m.head->transform = true;
    m.head->transform_bias = c.boolean_or("classifier_bias", false);
    m.head->transform_activation = activation_in(c, "classifier_activation", "gelu");
    rotate_layers(c, m.encoder);
    m.dropout = probability(c, "mlp_dropout", 0);
    m.attention_dropout = probability(c, "attention_dropout", 0);
    return m;
}

}  // namespace heed::family
