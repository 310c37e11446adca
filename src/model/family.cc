#include "model/family.h"

namespace heed::family {

std::int64_t layers_of(const ConfigReader& c, ConfigReader::Key key) { return c.integer(key, 1, shape_limit::layers); }

std::int64_t shared_out(const ConfigReader& c, std::string_view heads_key, std::int64_t d_model, std::int64_t heads) {
    if (d_model % heads != 0) { c.refuse(heads_key, "a divisor of the width " + std::to_string(d_model)); }
    return d_model / heads;
}

void same_heads(AttentionConfig& attention, std::int64_t heads, std::int64_t head_size) {
    attention.heads = attention.kv_heads = heads;
    attention.head_size = attention.value_size = head_size;
}

Activation activation_in(const ConfigReader& c, std::string_view key, const std::string& absent) {
    const std::string name = c.text(key).value_or(absent);
    try {
        return activation_of(name);
    } catch (const Error&) { c.refuse(key, "an activation that heed knows"); }
}

void refuse_true(const ConfigReader& c, std::string_view key) {
    if (c.boolean_or(key, false)) { c.refuse(key, "false"); }
}

double probability(const ConfigReader& c, std::string_view key, double absent) {
    return c.number_or(key, 0, 0.999, absent);
}

double epsilon(const ConfigReader& c, std::string_view key, double absent) { return c.number_or(key, 0, 1, absent); }

LayerConfig biased_layer() {
    LayerConfig layer;
    layer.attention.qkv_bias = layer.attention.output_bias = layer.feed_forward.bias = true;
    return layer;
}

NormConfig layer_norm_config(double eps, bool bias) { return {.kind = NormKind::layer_norm, .eps = eps, .bias = bias}; }

void stack_of(StackConfig& stack, std::int64_t count, const LayerConfig& layer) {
    stack.layers.assign(static_cast<std::size_t>(count), layer);
}

void decoder_of(ModelConfig& m) {
    m.kind = ModelKind::decoder;
    m.decoder.causal = true;
}

void rotate_layers(const ConfigReader& c, StackConfig& stack) {
    stack.positions.kind = PositionKind::rope;
    const RopeConfig config = rope_from_config(c.source());
    const std::vector<std::string> types = c.texts("layer_types");
    if (!types.empty() && types.size() != stack.layers.size()) {
        c.refuse("layer_types", "one entry for each of " + std::to_string(stack.layers.size()) + " layers");
    }
    for (std::size_t i = 0; i < stack.layers.size(); ++i) {
        AttentionConfig& attention = stack.layers[i].attention;
        const bool slides = attention.window.left >= 0;
        const std::string type = !types.empty() ? types[i] : slides ? "sliding_attention" : "full_attention";
        const LayerRope* chosen = &config.kinds[0];
        for (const LayerRope& kind : config.kinds) {
            if (kind.layer_type == type) { chosen = &kind; }
        }
        if (!chosen->layer_type.empty() && chosen->layer_type != type) {
            c.refuse("rope_parameters", "settings for layers of type " + type);
        }
        attention.rope = chosen->rope;
    }
}

ModelConfig gated_decoder(const ConfigReader& c, LayerConfig& layer, double usual_eps) {
    ModelConfig m;
    decoder_of(m);
    m.d_model = c.integer({"hidden_size"}, 1, most_width);
    layer.attention.heads = c.integer({"num_attention_heads"}, 1, most_width);
    layer.attention.qkv_bias = layer.attention.output_bias = c.boolean_or("attention_bias", false);
    layer.feed_forward.size = c.integer({"intermediate_size"}, 1, most_width);
    layer.feed_forward.gated = true;
    layer.feed_forward.bias = c.boolean_or("mlp_bias", false);
    layer.feed_forward.activation = activation_in(c, "hidden_act", "silu");
    m.decoder.norm = {.kind = NormKind::rms_norm, .eps = epsilon(c, "rms_norm_eps", usual_eps)};
    m.vocab = c.integer({"vocab_size"}, 1, most_rows);
    m.max_positions = c.integer_or({"max_position_embeddings"}, 1, most_rows, 0);
    m.head->tied = c.boolean_or("tie_word_embeddings", false);
    m.attention_dropout = probability(c, "attention_dropout", 0);
    return m;
}

void finish_decoder(const ConfigReader& c, ModelConfig& m, const LayerConfig& layer) {
    stack_of(m.decoder, layers_of(c, {"num_hidden_layers"}), layer);
}

}  // namespace heed::family
