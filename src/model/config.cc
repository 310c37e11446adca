#include <heed/model_config.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/refuse.h"
#include "model/config_json.h"
#include "model/config_reader.h"
#include "model/families.h"
#include "model/shape.h"

namespace heed {
namespace {

constexpr std::string_view bert_pretraining = "BertForPreTraining";

std::string known_types() {
    std::string result = "one of";
    for (const Family& family : all_families()) {
        result += (&family == all_families().data() ? " " : ", ") + std::string(family.model_type);
    }
    return result;
}

const Family& family_of(const ConfigReader& c, const std::optional<std::string>& architecture) {
    const auto families = all_families();
    if (const auto type = c.text("model_type")) {
        const auto found = std::ranges::find(families, std::string_view(*type), &Family::model_type);
        if (found == families.end()) { c.refuse("model_type", known_types()); }
        return *found;
    }
    const auto found = std::ranges::find_if(
        families, [&](const Family& family) { return architecture == family.base || architecture == family.full; });
    if (found == families.end()) { c.refuse("model_type", known_types()); }
    return *found;
}

/// Whether a file says which head it has, and what to assume where it does not: the whole language model, and of
/// BERT's kind, for counting, the published number: pooler, no head.
enum class Purpose : std::uint8_t { compute, count };

/// Returns the classes of a classifier on the pooled token, which heed counts and does not compute.
std::int64_t set_head(const ConfigReader& c, const Family& family, Purpose purpose, ModelConfig& m) {
    const std::optional<std::string> architecture = c.first_text("architectures");
    const bool pools = family.model_type == "bert" || family.model_type == "roberta";
    const std::string_view absent = pools && purpose == Purpose::count ? family.base : family.full;
    const std::string_view name = architecture ? std::string_view(*architecture) : absent;
    if (name == family.base) {
        m.head.reset();
        m.pooler = pools;
    } else if (family.model_type == "bert" && name == bert_pretraining) {
        m.pooler = true;
        return 2;  // whether the second sentence follows the first
    } else if (name != family.full) {
        c.refuse("architectures", std::string(family.full) + " or " + std::string(family.base));
    }
    return 0;
}

ModelConfig family_config(const ConfigReader& reader, Purpose purpose, std::int64_t& classes) {
    const Family& family = family_of(reader, reader.first_text("architectures"));
    // A file without a type means that of its architecture, for all who read it.
    const ConfigReader c = reader.has("model_type") ? reader : reader.with_text("model_type", family.model_type);
    ModelConfig model = family.read(c);
    model.family = family.model_type;
    classes = set_head(c, family, purpose, model);
    return model;
}

// ---- Checks --------------------------------------------------------------------------------------------------------

class ConfigChecker {
public:
    explicit ConfigChecker(std::string path) : path_(std::move(path)) {}
    void range(std::string_view field, std::int64_t value, std::int64_t low, std::int64_t high) const {
        if (value < low || value > high) {
            refuse(field, std::to_string(low) + " to " + std::to_string(high), std::to_string(value));
        }
    }
    void real(std::string_view field, double value, double low, double high) const {
        if (!(value >= low && value <= high)) {
            refuse(field, "a number from " + std::to_string(low) + " to " + std::to_string(high),
                   std::to_string(value));
        }
    }
    [[noreturn]] void refuse(std::string_view field, const std::string& expected, const std::string& got) const {
        heed::refuse("checked", path_ + std::string(field), expected, got);
    }

private:
    std::string path_;
};

void complete_attention(const ConfigChecker& check, const StackConfig& stack, std::int64_t d_model,
                        AttentionConfig& a) {
    using shape_limit::width;
    check.range("attention.heads", a.heads, 1, width);
    if (a.latent) {
        if (a.core != AttentionCore::softmax) { check.refuse("attention.core", "softmax for MLA", "another"); }
        if (a.qk_norm != QkNorm::none) { check.refuse("attention.qk_norm", "none for MLA", "another"); }
        check.range("attention.latent.query_rank", a.latent->query_rank, 0, width);
        check.range("attention.latent.kv_rank", a.latent->kv_rank, 1, width);
        check.range("attention.latent.nope_size", a.latent->nope_size, 1, width);
        check.range("attention.latent.rope_size", a.latent->rope_size, 0, width);
        check.range("attention.latent.value_size", a.latent->value_size, 1, width);
        a.kv_heads = a.heads;
        a.head_size = a.latent->nope_size + a.latent->rope_size;
        a.value_size = a.latent->value_size;
    } else {
        if (a.kv_heads == 0) { a.kv_heads = a.heads; }
        check.range("attention.kv_heads", a.kv_heads, 1, a.heads);
        if (a.heads % a.kv_heads != 0) {
            check.refuse("attention.kv_heads", "a divisor of the " + std::to_string(a.heads) + " heads",
                         std::to_string(a.kv_heads));
        }
        if (a.head_size == 0) {
            if (d_model % a.heads != 0) {
                check.refuse("attention.heads", "a divisor of d_model " + std::to_string(d_model),
                             std::to_string(a.heads));
            }
            a.head_size = d_model / a.heads;
        }
        if (a.value_size == 0) { a.value_size = a.head_size; }
        check.range("attention.head_size", a.head_size, 1, width);
        check.range("attention.value_size", a.value_size, 1, width);
    }
    check.real("attention.softcap", a.softcap, 0, 1e9);
    check.range("attention.window.left", a.window.left, -1, std::int64_t{1} << 40);
    check.range("attention.window.right", a.window.right, -1, std::int64_t{1} << 40);
    check.range("attention.segment", a.segment, 1, std::int64_t{1} << 30);
    if (!stack.causal && (a.core == AttentionCore::infini || a.has_gates())) {
        check.refuse("attention.core", "softmax or linear in a stack that sees both ways", "another");
    }
    check.range("attention.value_heads", a.value_heads, 0, width);
    if (a.values() != a.kv_heads && a.values() % a.heads != 0) {
        check.refuse("attention.value_heads",
                     std::to_string(a.kv_heads) + " or a multiple of the " + std::to_string(a.heads) + " heads",
                     std::to_string(a.value_heads));
    }
    if (stack.positions.kind == PositionKind::rope) {
        if (!a.rope) { a.rope = Rope{}; }
        const std::int64_t whole = a.latent ? a.latent->rope_size : a.head_size;
        if (a.rope->size == 0) { a.rope->size = whole; }
        check.range("attention.rope.size", a.rope->size, 2, whole);
        static_cast<void>(rope_table(*a.rope));
    } else {
        a.rope.reset();
    }
}

void complete_feed_forward(const ConfigChecker& check, std::int64_t d_model, FeedForwardConfig& f) {
    using shape_limit::width;
    if (f.size == 0) { f.size = f.gated ? (8 * d_model / 3 + 31) / 32 * 32 : 4 * d_model; }
    check.range("feed_forward.size", f.size, 1, width);
    ExpertConfig& e = f.experts;
    check.range("feed_forward.experts.routed", e.routed, 0, width);
    if (e.routed == 0) { return; }
    if (!f.gated) { check.refuse("feed_forward.gated", "true with experts", "false"); }
    check.range("feed_forward.experts.active", e.active, 1, e.routed);
    check.range("feed_forward.experts.shared", e.shared, 0, width);
    if (e.size == 0) { e.size = f.size; }
    check.range("feed_forward.experts.size", e.size, 1, width);
    check.range("feed_forward.experts.groups", e.groups, 1, e.routed);
    if (e.routed % e.groups != 0) {
        check.refuse("feed_forward.experts.groups", "a divisor of the experts", std::to_string(e.groups));
    }
    check.range("feed_forward.experts.top_groups", e.top_groups, 1, e.groups);
    check.range("feed_forward.experts.group_best", e.group_best, 1, e.routed / e.groups);
    if (e.top_groups * (e.routed / e.groups) < e.active) {
        check.refuse("feed_forward.experts.top_groups", "groups with as many experts as are active",
                     std::to_string(e.top_groups));
    }
}

void complete_stack(const std::string& name, const ModelConfig& m, StackConfig& stack) {
    const ConfigChecker check(name + ".");
    // The deepest public models have some 130; what claims more is refused before anything is made of it.
    constexpr std::int64_t most_layers = 512;
    check.range("layers", static_cast<std::int64_t>(stack.layers.size()), 1, most_layers);
    check.real("norm.eps", stack.norm.eps, 0, 1);
    if (stack.cross && stack.placement == Placement::parallel) {
        check.refuse("placement", "one other than parallel with cross-attention", "parallel");
    }
    PositionConfig& positions = stack.positions;
    if (positions.kind == PositionKind::learned) {
        check.range("positions.rows", positions.rows, 1, shape_limit::rows);
        check.range("positions.offset", positions.offset, 0, positions.rows);
        check.range("positions.skip_padding", positions.skip_padding, -1, positions.rows - 2);
    }
    if (positions.kind == PositionKind::relative) {
        positions.buckets.bidirectional = !stack.causal;
        // Half of the buckets of a direction are for one distance each; the others lie beyond those.
        const std::int64_t exact = positions.buckets.count / (stack.causal ? 2 : 4);
        check.range("positions.buckets.count", positions.buckets.count, stack.causal ? 2 : 4, shape_limit::width);
        if (!stack.causal && positions.buckets.count % 2 != 0) {
            check.refuse("positions.buckets.count", "an even number in a stack that sees both ways",
                         std::to_string(positions.buckets.count));
        }
        check.range("positions.buckets.max_distance", positions.buckets.max_distance, exact + 1, shape_limit::rows);
    }
    for (std::size_t i = 0; i < stack.layers.size(); ++i) {
        const ConfigChecker layer(name + ".layers[" + std::to_string(i) + "].");
        complete_attention(layer, stack, m.d_model, stack.layers[i].attention);
        complete_feed_forward(layer, m.d_model, stack.layers[i].feed_forward);
        const AttentionConfig& a = stack.layers[i].attention;
        const bool biased = positions.kind == PositionKind::relative || positions.kind == PositionKind::alibi;
        if (biased && a.core != AttentionCore::softmax) {
            layer.refuse("attention.core", "softmax with positions that are a bias on scores", "another");
        }
        if (positions.kind == PositionKind::relative && a.heads != stack.layers[0].attention.heads) {
            layer.refuse("attention.heads", "as many in every layer with relative positions", std::to_string(a.heads));
        }
    }
}

}  // namespace

ModelConfig checked(ModelConfig m) {
    const ConfigChecker check("");
    check.range("vocab", m.vocab, 1, shape_limit::rows);
    check.range("d_model", m.d_model, 1, shape_limit::width);
    check.range("max_positions", m.max_positions, 0, shape_limit::rows);
    check.range("source_vocab", m.source_vocab, 0, shape_limit::rows);
    if (m.source_vocab > 0 && m.kind != ModelKind::encoder_decoder) {
        check.refuse("source_vocab", "0 without encoder and decoder", std::to_string(m.source_vocab));
    }
    check.range("token_types", m.token_types, 0, shape_limit::width);
    check.range("padding_row", m.padding_row, -1, m.vocab - 1);
    check.real("dropout", m.dropout, 0, 0.999);
    check.real("attention_dropout", m.attention_dropout, 0, 0.999);
    if (m.kind != ModelKind::decoder) { complete_stack("encoder", m, m.encoder); }
    if (m.kind != ModelKind::encoder) { complete_stack("decoder", m, m.decoder); }
    if (m.kind == ModelKind::decoder && !m.encoder.layers.empty()) { check.refuse("encoder", "none", "layers"); }
    if (m.kind == ModelKind::encoder && !m.decoder.layers.empty()) { check.refuse("decoder", "none", "layers"); }
    if (m.kind == ModelKind::encoder_decoder && !m.decoder.cross) {
        check.refuse("decoder.cross", "true in an encoder-decoder", "false");
    }
    if (m.kind != ModelKind::encoder_decoder && (m.decoder.cross || m.encoder.cross)) {
        check.refuse("cross", "false without an encoder", "true");
    }
    return m;
}

ModelConfig read_model_config(std::string_view json) {
    const ConfigReader reader("read_model_config", json);
    const std::string type = reader.text("model_type").value_or(reader.has("architectures") ? "" : "heed");
    if (type == "heed") { return checked(config_from_json(json)); }
    if (reader.has("quantization_config")) {
        reader.refuse("quantization_config", "none: heed loads weights that are not quantised");
    }
    std::int64_t classes = 0;
    return checked(family_config(reader, Purpose::compute, classes));
}

std::vector<std::string> model_families() {
    std::vector<std::string> result;
    for (const Family& family : all_families()) { result.emplace_back(family.model_type); }
    return result;
}

ModelShape model_from_config(std::string_view json) {
    const ConfigReader reader("model_from_config", json);
    std::int64_t classes = 0;
    const ModelConfig config = family_config(reader, Purpose::count, classes);
    ModelShape model = shape_of(config);
    model.classes = classes;
    check_shape("model_from_config", model);
    return model;
}

namespace {

/// Dense layers in front of those with experts.
std::int64_t dense_layers(const StackConfig& stack) {
    const auto first = std::ranges::find_if(
        stack.layers, [](const LayerConfig& layer) { return layer.feed_forward.experts.routed > 0; });
    return first - stack.layers.begin();
}

Experts experts_of(const StackConfig& stack, std::int64_t dense) {
    const ExpertConfig& e = stack.layers[static_cast<std::size_t>(dense)].feed_forward.experts;
    return {.routed = e.routed,
            .active = e.active,
            .shared = e.shared,
            .d_ff = e.size,
            .dense_layers = dense,
            .correction_bias = e.correction_bias};
}

}  // namespace

std::int64_t ModelConfig::recompute_beyond() const {
    if (family != "phi3" || decoder.layers.empty() || !decoder.layers.front().attention.rope) { return 0; }
    const auto* scaling = std::get_if<rope_scaling::LongRope>(&decoder.layers.front().attention.rope->scaling);
    return scaling != nullptr ? scaling->trained : 0;
}

ModelShape shape_of(const ModelConfig& c) {
    const StackConfig& stack = c.last();
    if (stack.layers.empty()) { refuse("shape_of", "layers", "1 or more", "0"); }
    for (const LayerConfig& each : stack.layers) {
        // Parameters that a ModelShape has no field for would not be counted.
        const bool countable = each.attention.norm && !each.attention.sinks && !each.feed_forward.experts.bias &&
                               !each.feed_forward.experts.router_bias && each.attention.qk_norm != QkNorm::whole &&
                               each.attention.core != AttentionCore::infini && !each.attention.has_gates() &&
                               (stack.norm.kind == NormKind::rms_norm || stack.norm.bias);
        if (!countable) {
            refuse("shape_of", "family", "a model that ModelShape can describe",
                   c.family + " with norms, sinks, gates or biases of its own");
        }
    }
    if (c.source_vocab > 0) {
        refuse("shape_of", "source_vocab", "0, one table for source and target", std::to_string(c.source_vocab));
    }
    const LayerConfig& layer = stack.layers.front();
    ModelShape m;
    m.name = c.family;
    m.kind = c.kind;
    m.layers = static_cast<std::int64_t>(stack.layers.size());
    m.d_model = c.d_model;
    m.heads = layer.attention.heads;
    m.kv_heads = layer.attention.kv_heads;
    m.head_size = layer.attention.latent ? layer.attention.latent->nope_size : layer.attention.head_size;
    m.value_size = layer.attention.value_size;
    m.latent = layer.attention.latent;
    m.d_ff = layer.feed_forward.size;
    if (c.kind == ModelKind::encoder_decoder) {
        m.encoder_layers = static_cast<std::int64_t>(c.encoder.layers.size());
        m.encoder_d_ff = c.encoder.layers.front().feed_forward.size;
    }
    m.gated = layer.feed_forward.gated;
    if (const std::int64_t dense = dense_layers(stack); dense < m.layers) { m.experts = experts_of(stack, dense); }
    // Experts beyond the layers there are: what a file says of them still counts for nothing.
    m.vocab = c.vocab;
    m.positions = c.max_positions;
    m.position_rows = stack.positions.kind == PositionKind::learned ? stack.positions.rows : 0;
    m.relative_buckets = stack.positions.kind == PositionKind::relative ? stack.positions.buckets.count : 0;
    m.token_types = c.token_types;
    m.qkv_bias = layer.attention.qkv_bias;
    m.output_bias = layer.attention.output_bias;
    m.ffn_bias = layer.feed_forward.bias;
    m.norm = stack.norm.kind;
    m.norms_per_sublayer = stack.placement == Placement::sandwich ? 2 : 1;
    m.embedding_norm = stack.embedding_norm;
    m.final_norm = stack.final_norm;
    m.qk_norm = layer.attention.qk_norm != QkNorm::none;
    m.head = c.head.has_value();
    m.tied = c.head && c.head->tied;
    m.head_bias = c.head && c.head->bias;
    m.head_transform = c.head && c.head->transform;
    m.pooler = c.pooler;
    return m;
}

ModelConfig transformer_2017(std::int64_t vocab) {
    ModelConfig m;
    m.kind = ModelKind::encoder_decoder;
    m.vocab = vocab;
    m.d_model = 512;
    m.embedding_scale = std::sqrt(512.0);
    LayerConfig layer;
    layer.attention.heads = 8;
    layer.feed_forward = {.size = 2048, .bias = true, .activation = Activation::relu};
    for (StackConfig* stack : {&m.encoder, &m.decoder}) {
        stack->layers.assign(6, layer);
        stack->placement = Placement::post;
        stack->norm = {.kind = NormKind::layer_norm, .eps = 1e-6, .bias = true};
        stack->final_norm = false;
        stack->positions.kind = PositionKind::sinusoidal;
    }
    m.decoder.causal = m.decoder.cross = true;
    m.dropout = 0.1;
    m.attention_dropout = 0.1;
    return checked(m);
}

}  // namespace heed
