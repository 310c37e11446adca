#include "model/family.h"

namespace heed::family {
namespace {

/// usual_head: the size of a head in a file that does not give it; 0: the width shared out.
ModelConfig grouped_decoder(const ConfigReader& c, LayerConfig& layer, double usual_eps = 1e-6,
                            std::int64_t usual_head = 0) {
    ModelConfig m = gated_decoder(c, layer, usual_eps);
    AttentionConfig& attention = layer.attention;
    attention.kv_heads = c.integer_or({"num_key_value_heads"}, 1, attention.heads, attention.heads);
    if (attention.heads % attention.kv_heads != 0) {
        c.refuse("num_key_value_heads", "a divisor of the " + std::to_string(attention.heads) + " heads");
    }
    const bool given = c.has("head_dim") || usual_head > 0;
    attention.head_size = given ? c.integer_or({"head_dim"}, 1, most_width, usual_head)
                                : shared_out(c, "num_attention_heads", m.d_model, attention.heads);
    attention.value_size = attention.head_size;
    return m;
}

/// A window of `size` tokens, the query's own included; absent: `usual`, 0 for none.
Window window_of(const ConfigReader& c, std::int64_t usual) {
    if (c.mentions("sliding_window") && !c.has("sliding_window")) { return {}; }
    const std::int64_t size = c.integer_or({"sliding_window"}, 1, std::int64_t{1} << 40, usual);
    return size == 0 ? Window{} : Window{.left = size - 1, .right = -1};
}

/// The layers that the file's list, or `slides`, makes slide.
template <class Rule>
void slide_layers(const ConfigReader& c, StackConfig& stack, const Window& window, const Rule& slides) {
    const std::vector<std::string> types = c.texts("layer_types");
    for (std::size_t i = 0; i < stack.layers.size(); ++i) {
        bool slide = false;
        if (types.empty()) {
            slide = slides(static_cast<std::int64_t>(i));
        } else if (i < types.size()) {
            if (types[i] != "full_attention" && types[i] != "sliding_attention") {
                c.refuse("layer_types", "full_attention or sliding_attention");
            }
            slide = types[i] == "sliding_attention";
        }
        if (slide) { stack.layers[i].attention.window = window; }
    }
}

ModelConfig mistral_like(const ConfigReader& c, double eps, std::int64_t usual_window, LayerConfig layer) {
    ModelConfig m = grouped_decoder(c, layer, eps);
    // What the family's software takes where the file is silent.
    if (!c.mentions("num_key_value_heads") && layer.attention.heads % 8 == 0) { layer.attention.kv_heads = 8; }
    layer.attention.qkv_bias = layer.attention.output_bias = layer.feed_forward.bias = false;
    finish_decoder(c, m, layer);
    slide_layers(c, m.decoder, window_of(c, usual_window), [](std::int64_t) { return true; });
    rotate_layers(c, m.decoder);
    return m;
}

void qwen_windows(const ConfigReader& c, ModelConfig& m) {
    const bool slides = c.boolean_or("use_sliding_window", false);
    const std::int64_t from = c.integer_or({"max_window_layers"}, 0, shape_limit::layers, 28);
    slide_layers(c, m.decoder, slides ? window_of(c, 4096) : Window{},
                 [&](std::int64_t i) { return slides && i >= from; });
    rotate_layers(c, m.decoder);
}

}  // namespace

ModelConfig llama(const ConfigReader& c) {
    LayerConfig layer;
    ModelConfig m = grouped_decoder(c, layer);
    finish_decoder(c, m, layer);
    rotate_layers(c, m.decoder);
    return m;
}

ModelConfig mistral(const ConfigReader& c) { return mistral_like(c, 1e-6, 4096, {}); }

ModelConfig mixtral(const ConfigReader& c) {
    LayerConfig layer;
    ExpertConfig& experts = layer.feed_forward.experts;
    experts.routed = c.integer_or({"num_local_experts"}, 1, most_width, 8);
    experts.active = c.integer_or({"num_experts_per_tok"}, 1, experts.routed, 2);
    experts.size = c.integer({"intermediate_size"}, 1, most_width);
    return mistral_like(c, 1e-5, 0, layer);
}

ModelConfig qwen2(const ConfigReader& c) {
    LayerConfig layer;
    ModelConfig m = grouped_decoder(c, layer);
    layer.attention.qkv_bias = true;
    layer.attention.output_bias = layer.feed_forward.bias = false;
    finish_decoder(c, m, layer);
    qwen_windows(c, m);
    return m;
}

ModelConfig qwen3(const ConfigReader& c) {
    LayerConfig layer;
    ModelConfig m = grouped_decoder(c, layer, 1e-6, 128);
    layer.feed_forward.bias = false;
    layer.attention.qk_norm = QkNorm::head;
    finish_decoder(c, m, layer);
    qwen_windows(c, m);
    return m;
}

ModelConfig gemma2(const ConfigReader& c) {
    refuse_true(c, "use_bidirectional_attention");
    LayerConfig layer;
    ModelConfig m = grouped_decoder(c, layer, 1e-6, 256);
    layer.feed_forward.bias = false;
    layer.feed_forward.activation =
        activation_in(c, c.has("hidden_activation") ? "hidden_activation" : "hidden_act", "gelu_pytorch_tanh");
    layer.attention.scale = 1 / std::sqrt(c.number_or("query_pre_attn_scalar", 1e-9, largest_number, 256));
    const auto cap = [&](std::string_view key, double usual) {
        return c.mentions(key) && !c.has(key) ? 0 : c.number_or(key, 0, largest_number, usual);
    };
    layer.attention.softcap = cap("attn_logit_softcapping", 50);
    finish_decoder(c, m, layer);
    slide_layers(c, m.decoder, window_of(c, 4096), [](std::int64_t i) { return i % 2 == 0; });
    m.decoder.placement = Placement::sandwich;
    m.decoder.norm.weight_offset = 1;
    m.embedding_scale = std::sqrt(static_cast<double>(m.d_model));
    m.head->tied = c.boolean_or("tie_word_embeddings", true);
    m.head->softcap = cap("final_logit_softcapping", 30);
    rotate_layers(c, m.decoder);
    return m;
}

ModelConfig phi3(const ConfigReader& c) {
    LayerConfig layer;
    ModelConfig m = grouped_decoder(c, layer, 1e-5);
    layer.attention.qkv_bias = layer.attention.output_bias = layer.feed_forward.bias = false;
    finish_decoder(c, m, layer);
    slide_layers(c, m.decoder, window_of(c, 0), [](std::int64_t) { return true; });
    rotate_layers(c, m.decoder);
    m.dropout = probability(c, "resid_pdrop", 0);
    return m;
}

ModelConfig olmo2(const ConfigReader& c) {
    LayerConfig layer;
    ModelConfig m = grouped_decoder(c, layer, 1e-5);
    layer.feed_forward.bias = false;
    layer.attention.qk_norm = QkNorm::whole;
    finish_decoder(c, m, layer);
    m.decoder.placement = Placement::output;
    rotate_layers(c, m.decoder);
    return m;
}

ModelConfig gpt_oss(const ConfigReader& c) {
    LayerConfig layer;
    // The activation of its experts is built in; hidden_act says nothing.
    ModelConfig m = grouped_decoder(c.with_text("hidden_act", "silu"), layer, 1e-5, 64);
    layer.attention.qkv_bias = layer.attention.output_bias = c.boolean_or("attention_bias", true);
    layer.attention.sinks = true;
    ExpertConfig& experts = layer.feed_forward.experts;
    experts.routed = c.integer_or({"num_local_experts"}, 1, most_width, 128);
    experts.active = c.integer_or({"num_experts_per_tok", "experts_per_token"}, 1, experts.routed, 4);
    experts.size = layer.feed_forward.size;
    experts.score = ExpertConfig::Score::softmax_chosen;
    experts.router_bias = experts.bias = true;
    experts.limit = c.number_or("swiglu_limit", 1e-9, largest_number, 7);
    experts.alpha = c.number_or("swiglu_alpha", -largest_number, largest_number, 1.702);
    layer.feed_forward.bias = true;
    finish_decoder(c, m, layer);
    slide_layers(c, m.decoder, window_of(c, 128), [](std::int64_t i) { return i % 2 == 0; });
    rotate_layers(c, m.decoder);
    return m;
}

}  // namespace heed::family
