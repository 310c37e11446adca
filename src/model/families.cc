#include "model/families.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "model/shape.h"

namespace heed {
namespace {

constexpr std::int64_t most_rows = shape_limit::rows;
constexpr std::int64_t most_width = shape_limit::width;

constexpr double largest_number = 1e9;

// ---- What many families share --------------------------------------------------------------------------------------

std::int64_t layers_of(const ConfigReader& c, ConfigReader::Key key) { return c.integer(key, 1, shape_limit::layers); }

/// The size of a head that is the width shared out; the width must divide.
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

/// LayerNorm, biases everywhere, two feed-forward matrices: BERT, GPT-2, BLOOM, GPT-NeoX, BART, Marian.
LayerConfig biased_layer() {
    LayerConfig layer;
    layer.attention.qkv_bias = layer.attention.output_bias = layer.feed_forward.bias = true;
    return layer;
}

NormConfig layer_norm_config(double eps, bool bias = true) {
    return {.kind = NormKind::layer_norm, .eps = eps, .bias = bias};
}

void stack_of(StackConfig& stack, std::int64_t count, const LayerConfig& layer) {
    stack.layers.assign(static_cast<std::size_t>(count), layer);
}

void decoder_of(ModelConfig& m) {
    m.kind = ModelKind::decoder;
    m.decoder.causal = true;
}

/// Ids that generation needs; generation_config.json may say otherwise later.
void read_tokens(const ConfigReader& c, ModelConfig& m) {
    const auto one = [&](std::string_view key) -> std::optional<std::int64_t> {
        const auto found = c.integers(key, -1, most_rows);
        if (found.empty() || found[0] < 0) { return std::nullopt; }
        return found[0];
    };
    m.bos = one("bos_token_id");
    m.pad = one("pad_token_id");
    m.eos = c.integers("eos_token_id", -1, most_rows);
    std::erase_if(m.eos, [](std::int64_t id) { return id < 0; });
    m.decoder_start = one("decoder_start_token_id");
    m.forced_bos = one("forced_bos_token_id");
    m.forced_eos = one("forced_eos_token_id");
}

/// The row of the padding token learns nothing from lookups where the family's embedding says so.
void padding_row(ModelConfig& m) {
    if (m.pad && *m.pad < m.vocab) { m.padding_row = *m.pad; }
}

// ---- GPT-2, BLOOM, GPT-NeoX ----------------------------------------------------------------------------------------

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
    refuse_true(c, "apply_residual_connection_post_layernorm");
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
    m.decoder.embedding_norm = true;
    m.decoder.positions.kind = PositionKind::alibi;
    m.vocab = c.integer({"vocab_size"}, 1, most_rows);
    m.max_positions = c.integer_or({"seq_length"}, 1, most_rows, 0);
    m.head->tied = c.boolean_or("tie_word_embeddings", true);
    m.dropout = probability(c, "hidden_dropout", 0);
    m.attention_dropout = probability(c, "attention_dropout", 0);
    return m;
}

/// RoPE of each layer by its type, and the window of those that slide.
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

// ---- BERT, RoBERTa, ModernBERT -------------------------------------------------------------------------------------

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

// ---- Llama and what came from it -----------------------------------------------------------------------------------

ModelConfig gated_decoder(const ConfigReader& c, LayerConfig& layer, double usual_eps = 1e-6) {
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

void finish_decoder(const ConfigReader& c, ModelConfig& m, const LayerConfig& layer) {
    stack_of(m.decoder, layers_of(c, {"num_hidden_layers"}), layer);
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

ModelConfig llama(const ConfigReader& c) {
    LayerConfig layer;
    ModelConfig m = grouped_decoder(c, layer);
    finish_decoder(c, m, layer);
    rotate_layers(c, m.decoder);
    return m;
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

ModelConfig mistral(const ConfigReader& c) { return mistral_like(c, 1e-6, 4096, {}); }

ModelConfig mixtral(const ConfigReader& c) {
    LayerConfig layer;
    ExpertConfig& experts = layer.feed_forward.experts;
    experts.routed = c.integer_or({"num_local_experts"}, 1, most_width, 8);
    experts.active = c.integer_or({"num_experts_per_tok"}, 1, experts.routed, 2);
    experts.size = c.integer({"intermediate_size"}, 1, most_width);
    return mistral_like(c, 1e-5, 0, layer);
}

void qwen_windows(const ConfigReader& c, ModelConfig& m) {
    const bool slides = c.boolean_or("use_sliding_window", false);
    const std::int64_t from = c.integer_or({"max_window_layers"}, 0, shape_limit::layers, 28);
    slide_layers(c, m.decoder, slides ? window_of(c, 4096) : Window{},
                 [&](std::int64_t i) { return slides && i >= from; });
    rotate_layers(c, m.decoder);
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
    ModelConfig m = grouped_decoder(c, layer, 1e-5, 64);
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

// ---- DeepSeek ------------------------------------------------------------------------------------------------------

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
    const std::string method = c.text("topk_method").value_or(version.sigmoid ? "noaux_tc" : "greedy");
    if (method != "greedy" && method != "group_limited_greedy" && method != "noaux_tc") {
        c.refuse("topk_method", "greedy, group_limited_greedy or noaux_tc");
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
    layer.feed_forward.bias = false;
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
        if (static_cast<std::int64_t>(i) >= dense) { each.feed_forward.experts = experts; }
    }
    return m;
}

ModelConfig deepseek_v2(const ConfigReader& c) { return deepseek(c, {.usual_dense_layers = 0, .sigmoid = false}); }
ModelConfig deepseek_v3(const ConfigReader& c) { return deepseek(c, {.usual_dense_layers = 3, .sigmoid = true}); }

// ---- BART, Marian, T5 ----------------------------------------------------------------------------------------------

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
    if (!c.boolean_or("tie_word_embeddings", true)) { c.refuse("tie_word_embeddings", "true"); }
    m.head->bias = true;
    m.dropout = probability(c, "dropout", 0.1);
    m.attention_dropout = probability(c, "attention_dropout", 0);
    return m;
}

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
    if (!c.boolean_or("share_encoder_decoder_embeddings", true)) {
        c.refuse("share_encoder_decoder_embeddings", "true");
    }
    if (c.integer_or({"decoder_vocab_size"}, 1, most_rows, m.vocab) != m.vocab) {
        c.refuse("decoder_vocab_size", "the same as vocab_size, " + std::to_string(m.vocab));
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

template <ModelConfig (*Read)(const ConfigReader&), bool Padding>
ModelConfig complete(const ConfigReader& c) {
    ModelConfig m = Read(c);
    read_tokens(c, m);
    if (Padding) { padding_row(m); }
    return m;
}

constexpr auto known_families = std::to_array<Family>({
    {"bart", complete<bart, true>, "BartModel", "BartForConditionalGeneration"},
    {"bert", complete<bert, true>, "BertModel", "BertForMaskedLM"},
    {"bloom", complete<bloom, false>, "BloomModel", "BloomForCausalLM"},
    {"deepseek_v2", complete<deepseek_v2, true>, "DeepseekV2Model", "DeepseekV2ForCausalLM"},
    {"deepseek_v3", complete<deepseek_v3, true>, "DeepseekV3Model", "DeepseekV3ForCausalLM"},
    {"gemma2", complete<gemma2, true>, "Gemma2Model", "Gemma2ForCausalLM"},
    {"gpt2", complete<gpt2, false>, "GPT2Model", "GPT2LMHeadModel"},
    {"gpt_neox", complete<gpt_neox, false>, "GPTNeoXModel", "GPTNeoXForCausalLM"},
    {"gpt_oss", complete<gpt_oss, true>, "GptOssModel", "GptOssForCausalLM"},
    {"llama", complete<llama, true>, "LlamaModel", "LlamaForCausalLM"},
    {"marian", complete<marian, true>, "MarianModel", "MarianMTModel"},
    {"mistral", complete<mistral, true>, "MistralModel", "MistralForCausalLM"},
    {"mixtral", complete<mixtral, true>, "MixtralModel", "MixtralForCausalLM"},
    {"modernbert", complete<modernbert, true>, "ModernBertModel", "ModernBertForMaskedLM"},
    {"olmo2", complete<olmo2, true>, "Olmo2Model", "Olmo2ForCausalLM"},
    {"phi3", complete<phi3, true>, "Phi3Model", "Phi3ForCausalLM"},
    {"qwen2", complete<qwen2, true>, "Qwen2Model", "Qwen2ForCausalLM"},
    {"qwen3", complete<qwen3, true>, "Qwen3Model", "Qwen3ForCausalLM"},
    {"roberta", complete<roberta, true>, "RobertaModel", "RobertaForMaskedLM"},
    {"t5", complete<t5, false>, "T5Model", "T5ForConditionalGeneration"},
});

}  // namespace

std::span<const Family> all_families() { return known_families; }

}  // namespace heed
