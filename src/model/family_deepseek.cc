#include "model/family.h"

#include <cmath>

namespace heed::family {
namespace {

/// YaRN's factor on the scores, which this family keeps beside that on cos and sin.
double deepseek_scale(const AttentionConfig& attention) {
    const auto& latent = *attention.latent;
    double mscale = 1;
    if (const auto* yarn = std::get_if<rope_scaling::Yarn>(&attention.rope->scaling)) {
        if (yarn->mscale_all_dim != 0 && yarn->factor > 1) {
            mscale = 0.1 * yarn->mscale_all_dim * std::log(yarn->factor) + 1;
        }
    }
    return mscale * mscale / std::sqrt(static_cast<double>(latent.nope_size + latent.rope_size));
}

/// What the two versions do differently.
struct DeepseekVersion {
    std::int64_t usual_dense_layers;
    bool sigmoid;
};

void deepseek_experts(const ConfigReader& c, const DeepseekVersion& version, ExpertConfig& experts) {
    experts.routed = c.integer({"n_routed_experts"}, 1, most_width);
    experts.active = c.integer({"num_experts_per_tok"}, 1, experts.routed);
    experts.shared = c.integer_or({"n_shared_experts"}, 0, most_width, 0);
    experts.size = c.integer({"moe_intermediate_size"}, 1, most_width);
    experts.scale = c.number_or("routed_scaling_factor", -largest_number, largest_number, version.sigmoid ? 2.5 : 1);
    experts.correction_bias = version.sigmoid;
    experts.score = version.sigmoid ? ExpertConfig::Score::sigmoid : ExpertConfig::Score::softmax;
    experts.normalise = version.sigmoid && c.boolean_or("norm_topk_prob", true);
    // The third version has one way to choose, whatever its files call it.
    const std::string method = version.sigmoid ? "noaux_tc" : c.text("topk_method").value_or("greedy");
    if (!version.sigmoid && method != "greedy" && method != "group_limited_greedy") {
        c.refuse("topk_method", "greedy or group_limited_greedy");
    }
    const std::string scoring = version.sigmoid ? "sigmoid" : "softmax";
    if (c.text("scoring_func").value_or(scoring) != scoring) { c.refuse("scoring_func", scoring); }
    if (method == "greedy") { return; }
    experts.groups = c.integer_or({"n_group"}, 1, experts.routed, version.sigmoid ? 8 : 1);
    if (experts.routed % experts.groups != 0) {
        c.refuse("n_group", "a divisor of the " + std::to_string(experts.routed) + " experts");
    }
    experts.top_groups = c.integer_or({"topk_group"}, 1, experts.groups, std::min<std::int64_t>(experts.groups, 4));
    const std::int64_t each = experts.routed / experts.groups;
    experts.group_best = version.sigmoid ? std::min<std::int64_t>(2, each) : 1;
    if (experts.top_groups * each < experts.active) {
        c.refuse("topk_group", "groups with " + std::to_string(experts.active) + " experts together");
    }
}

ModelConfig deepseek(const ConfigReader& c, const DeepseekVersion& version) {
    LayerConfig layer;
    ModelConfig m = gated_decoder(c, layer);
    AttentionConfig& attention = layer.attention;
    LatentAttention latent;
    latent.query_rank = c.integer_or({"q_lora_rank"}, 1, most_width, 0);
    latent.kv_rank = c.integer({"kv_lora_rank"}, 1, most_width);
    latent.nope_size = c.integer({"qk_nope_head_dim"}, 1, most_width);
    latent.rope_size = c.integer({"qk_rope_head_dim"}, 1, most_width);
    latent.value_size = c.integer({"v_head_dim"}, 1, most_width);
    attention.latent = latent;
    attention.kv_heads = attention.heads;
    attention.head_size = latent.nope_size + latent.rope_size;
    attention.value_size = latent.value_size;
    layer.feed_forward.bias = !version.sigmoid && c.boolean_or("mlp_bias", false);
    finish_decoder(c, m, layer);
    rotate_layers(c, m.decoder);
    if (c.integer_or({"moe_layer_freq"}, 1, shape_limit::layers, 1) != 1) { c.refuse("moe_layer_freq", "1"); }
    ExpertConfig experts;
    if (c.has("n_routed_experts")) { deepseek_experts(c, version, experts); }
    const std::int64_t dense =
        c.integer_or({"first_k_dense_replace"}, 0, shape_limit::layers, version.usual_dense_layers);
    for (std::size_t i = 0; i < m.decoder.layers.size(); ++i) {
        LayerConfig& each = m.decoder.layers[i];
        each.attention.scale = deepseek_scale(each.attention);
        if (static_cast<std::int64_t>(i) < dense || experts.routed == 0) { continue; }
        if (layer.feed_forward.bias) { c.refuse("mlp_bias", "false in a model with experts"); }
        each.feed_forward.experts = experts;
    }
    return m;
}

}  // namespace

ModelConfig deepseek_v2(const ConfigReader& c) { return deepseek(c, {.usual_dense_layers = 0, .sigmoid = false}); }
ModelConfig deepseek_v3(const ConfigReader& c) { return deepseek(c, {.usual_dense_layers = 3, .sigmoid = true}); }

}  // namespace heed::family
