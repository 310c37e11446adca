#include "model/config_json.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <type_traits>
#include <utility>

#include "base/refuse.h"
#include "model/config_text.h"
#include "model/shape.h"

namespace heed {
namespace {

using nlohmann::json;

// ---- Words for the enumerations ------------------------------------------------------------------------------------

template <class Enum>
using Words = std::vector<std::pair<std::string_view, Enum>>;

const Words<ModelKind>& words(ModelKind) {
    static const Words<ModelKind> list = {{"encoder", ModelKind::encoder},
                                          {"decoder", ModelKind::decoder},
                                          {"encoder_decoder", ModelKind::encoder_decoder}};
    return list;
}
const Words<NormKind>& words(NormKind) {
    static const Words<NormKind> list = {{"layer_norm", NormKind::layer_norm}, {"rms_norm", NormKind::rms_norm}};
    return list;
}
const Words<Placement>& words(Placement) {
    static const Words<Placement> list = {{"pre", Placement::pre},           {"post", Placement::post},
                                          {"sandwich", Placement::sandwich}, {"output", Placement::output},
                                          {"normed", Placement::normed},     {"parallel", Placement::parallel}};
    return list;
}
const Words<PositionKind>& words(PositionKind) {
    static const Words<PositionKind> list = {{"none", PositionKind::none},   {"learned", PositionKind::learned},
                                             {"rope", PositionKind::rope},   {"sinusoidal", PositionKind::sinusoidal},
                                             {"alibi", PositionKind::alibi}, {"relative", PositionKind::relative}};
    return list;
}
const Words<Pairing>& words(Pairing) {
    static const Words<Pairing> list = {{"interleaved", Pairing::interleaved}, {"halves", Pairing::halves}};
    return list;
}
const Words<AttentionCore>& words(AttentionCore) {
    static const Words<AttentionCore> list = {
        {"softmax", AttentionCore::softmax}, {"linear", AttentionCore::linear},
        {"infini", AttentionCore::infini},   {"gated", AttentionCore::gated},
        {"delta", AttentionCore::delta},     {"gated_delta", AttentionCore::gated_delta}};
    return list;
}
const Words<QkNorm>& words(QkNorm) {
    static const Words<QkNorm> list = {{"none", QkNorm::none}, {"head", QkNorm::head}, {"whole", QkNorm::whole}};
    return list;
}
const Words<FeatureMap>& words(FeatureMap) {
    static const Words<FeatureMap> list = {
        {"elu_plus_one", FeatureMap::elu_plus_one}, {"relu", FeatureMap::relu}, {"identity", FeatureMap::identity}};
    return list;
}
const Words<MemoryUpdate>& words(MemoryUpdate) {
    static const Words<MemoryUpdate> list = {{"linear", MemoryUpdate::linear}, {"delta", MemoryUpdate::delta}};
    return list;
}
const Words<ExpertConfig::Score>& words(ExpertConfig::Score) {
    static const Words<ExpertConfig::Score> list = {{"softmax", ExpertConfig::Score::softmax},
                                                    {"sigmoid", ExpertConfig::Score::sigmoid},
                                                    {"softmax_chosen", ExpertConfig::Score::softmax_chosen}};
    return list;
}
const Words<Activation>& words(Activation) {
    static const Words<Activation> list = [] {
        Words<Activation> result;
        for (const Activation a : {Activation::none, Activation::relu, Activation::gelu, Activation::gelu_tanh,
                                   Activation::quick_gelu, Activation::silu, Activation::tanh, Activation::sigmoid}) {
            result.emplace_back(name_of(a), a);
        }
        return result;
    }();
    return list;
}

// ---- The fields, once for reading and writing ----------------------------------------------------------------------

template <class V>
void fields(V& v, NormConfig& n) {
    v("kind", n.kind);
    v("eps", n.eps);
    v("bias", n.bias);
    v("weight_offset", n.weight_offset);
}
template <class V>
void fields(V& v, Window& w) {
    v("left", w.left);
    v("right", w.right);
}
template <class V>
void fields(V& v, RelativeBuckets& b) {
    v("count", b.count);
    v("max_distance", b.max_distance);
}
template <class V>
void fields(V& v, PositionConfig& p) {
    v("kind", p.kind);
    v("rows", p.rows);
    v("offset", p.offset);
    v("skip_padding", p.skip_padding);
    v("layout", p.layout);
    v("buckets", p.buckets);
}
template <class V>
void fields(V& v, LatentAttention& l) {
    v("query_rank", l.query_rank);
    v("kv_rank", l.kv_rank);
    v("nope_size", l.nope_size);
    v("rope_size", l.rope_size);
    v("value_size", l.value_size);
}
template <class V>
void fields(V&, rope_scaling::None&) {}
template <class V>
void fields(V& v, rope_scaling::Linear& s) {
    v("factor", s.factor);
}
template <class V>
void fields(V& v, rope_scaling::Ntk& s) {
    v("factor", s.factor);
}
template <class V>
void fields(V& v, rope_scaling::DynamicNtk& s) {
    v("factor", s.factor);
    v("trained", s.trained);
}
template <class V>
void fields(V& v, rope_scaling::Yarn& s) {
    v("factor", s.factor);
    v("trained", s.trained);
    v("beta_fast", s.beta_fast);
    v("beta_slow", s.beta_slow);
    v("truncate", s.truncate);
    v("attention_factor", s.attention_factor);
    v("mscale", s.mscale);
    v("mscale_all_dim", s.mscale_all_dim);
}
template <class V>
void fields(V& v, rope_scaling::Llama3& s) {
    v("factor", s.factor);
    v("trained", s.trained);
    v("low_freq_factor", s.low_freq_factor);
    v("high_freq_factor", s.high_freq_factor);
}
template <class V>
void fields(V& v, rope_scaling::LongRope& s) {
    v("factor", s.factor);
    v("trained", s.trained);
    v("short_factors", s.short_factors);
    v("long_factors", s.long_factors);
    v("attention_factor", s.attention_factor);
}
template <class V>
void fields(V& v, rope_scaling::Proportional& s) {
    v("share", s.share);
    v("factor", s.factor);
}
template <class V>
void fields(V& v, Rope& r) {
    v("size", r.size);
    v("theta", r.theta);
    v("pairing", r.pairing);
    v("scaling", r.scaling);
}
template <class V>
void fields(V& v, AttentionConfig& a) {
    v("core", a.core);
    v("heads", a.heads);
    v("kv_heads", a.kv_heads);
    v("head_size", a.head_size);
    v("value_size", a.value_size);
    v("latent", a.latent);
    v("qkv_bias", a.qkv_bias);
    v("output_bias", a.output_bias);
    v("scale", a.scale);
    v("softcap", a.softcap);
    v("window", a.window);
    v("sinks", a.sinks);
    v("qk_norm", a.qk_norm);
    v("rope", a.rope);
    v("norm", a.norm);
    v("feature", a.feature);
    v("decay", a.decay);
    v("normalise", a.normalise);
    v("value_heads", a.value_heads);
    v("decay_rows", a.decay_rows);
    v("output_gate", a.output_gate);
    v("segment", a.segment);
    v("update", a.update);
}
template <class V>
void fields(V& v, ExpertConfig& e) {
    v("routed", e.routed);
    v("active", e.active);
    v("shared", e.shared);
    v("size", e.size);
    v("score", e.score);
    v("normalise", e.normalise);
    v("scale", e.scale);
    v("groups", e.groups);
    v("top_groups", e.top_groups);
    v("group_best", e.group_best);
    v("router_bias", e.router_bias);
    v("correction_bias", e.correction_bias);
    v("bias", e.bias);
    v("limit", e.limit);
    v("alpha", e.alpha);
}
template <class V>
void fields(V& v, FeedForwardConfig& f) {
    v("size", f.size);
    v("gated", f.gated);
    v("bias", f.bias);
    v("activation", f.activation);
    v("experts", f.experts);
}
template <class V>
void fields(V& v, LayerConfig& l) {
    v("attention", l.attention);
    v("feed_forward", l.feed_forward);
}
template <class V>
void fields(V& v, StackConfig& s) {
    v.layers(s.layers);
    v("cross", s.cross);
    v("causal", s.causal);
    v("placement", s.placement);
    v("norm", s.norm);
    v("embedding_norm", s.embedding_norm);
    v("final_norm", s.final_norm);
    v("positions", s.positions);
}
template <class V>
void fields(V& v, HeadConfig& h) {
    v("tied", h.tied);
    v("bias", h.bias);
    v("transform", h.transform);
    v("transform_bias", h.transform_bias);
    v("transform_activation", h.transform_activation);
    v("scale", h.scale);
    v("softcap", h.softcap);
}
template <class V>
void fields(V& v, ModelConfig& m) {
    v("kind", m.kind);
    v("vocab", m.vocab);
    v("source_vocab", m.source_vocab);
    v("d_model", m.d_model);
    v("max_positions", m.max_positions);
    v("embedding_scale", m.embedding_scale);
    v("token_types", m.token_types);
    v("padding_row", m.padding_row);
    v("encoder", m.encoder);
    v("decoder", m.decoder);
    v("head", m.head);
    v("pooler", m.pooler);
    v("dropout", m.dropout);
    v("attention_dropout", m.attention_dropout);
    v("eos", m.eos);
    v("bos", m.bos);
    v("pad", m.pad);
    v("decoder_start", m.decoder_start);
    v("forced_bos", m.forced_bos);
    v("forced_eos", m.forced_eos);
}

constexpr std::array scaling_names = {"none", "linear", "ntk", "dynamic", "yarn", "llama3", "longrope", "proportional"};

template <std::size_t N = 0>
RopeScaling scaling_by_index(std::size_t index) {
    if constexpr (N < std::variant_size_v<RopeScaling>) {
        if (index == N) { return std::variant_alternative_t<N, RopeScaling>{}; }
        return scaling_by_index<N + 1>(index);
    } else {
        return {};
    }
}

// ---- Lines ---------------------------------------------------------------------------------------------------------

/// Walks JSON text that has been parsed before and finds the line where the value of a path stands.
class LineFinder {
public:
    LineFinder(std::string_view text, const std::vector<std::string>& path) : text_(text), path_(path) {}
    std::int64_t line() {
        value(0);
        return 1 + std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(found_), '\n');
    }

private:
    static constexpr std::size_t beside = static_cast<std::size_t>(-1);

    bool one_of(std::string_view set) const {
        return at_ < text_.size() && set.find(text_[at_]) != std::string_view::npos;
    }
    void space() {
        while (one_of(" \t\r\n")) { ++at_; }
    }
    std::string_view string() {
        const std::size_t begin = ++at_;
        while (at_ < text_.size() && text_[at_] != '"') { at_ += text_[at_] == '\\' ? 2 : 1; }
        const std::size_t end = std::min(at_, text_.size());
        ++at_;
        return text_.substr(begin, end - begin);
    }
    /// The first `matched` parts of the path lead to this value, or it lies beside the path.
    void value(std::size_t matched) {
        space();
        if (matched != beside && matched >= best_) {
            best_ = matched;
            found_ = std::min(at_, text_.size());
        }
        if (one_of("\"")) {
            string();
        } else if (one_of("{[")) {
            members(text_[at_] == '{', matched);
        } else {
            while (at_ < text_.size() && !one_of(",]} \t\r\n")) { ++at_; }
        }
    }
    void members(bool named, std::size_t matched) {
        ++at_;
        for (std::size_t index = 0; at_ < text_.size(); ++index) {
            space();
            if (one_of(",")) { ++at_; }
            space();
            if (one_of("}]")) {
                ++at_;
                return;
            }
            std::string key = std::to_string(index);
            if (named) {
                key = string();
                space();
                ++at_;  // the colon
            }
            const bool leads = matched != beside && matched < path_.size() && path_[matched] == key;
            value(leads ? matched + 1 : beside);
        }
    }

    std::string_view text_;
    const std::vector<std::string>& path_;
    std::size_t at_ = 0;
    std::size_t best_ = 0;
    std::size_t found_ = 0;
};

// ---- Reading -------------------------------------------------------------------------------------------------------

class JsonReader {
public:
    JsonReader(std::string_view text, const json& object, std::vector<std::string> path)
        : text_(text), object_(object), path_(std::move(path)) {
        if (!object_.is_object()) { refuse("", "an object", shown(object_)); }
    }

    template <class T>
    void operator()(const char* key, T& field) {
        known_.insert(key);
        const auto found = object_.find(key);
        if (found == object_.end()) { return; }
        read(key, *found, field);
    }

    /// "layers": how many; "attention" and "feed_forward": of each; "pattern": what differs, layer by layer, repeated.
    void layers(std::vector<LayerConfig>& layers) {
        for (const char* key : {"layers", "attention", "feed_forward", "pattern"}) { known_.insert(key); }
        LayerConfig layer;
        for (const char* key : {"attention", "feed_forward"}) {
            if (!object_.contains(key)) { continue; }
            if (std::string_view(key) == "attention") {
                read(key, object_[key], layer.attention);
            } else {
                read(key, object_[key], layer.feed_forward);
            }
        }
        std::int64_t count = 0;
        if (object_.contains("layers")) { read("layers", object_["layers"], count); }
        if (count < 0 || count > shape_limit::layers) {
            refuse("layers", "0 to " + std::to_string(shape_limit::layers), std::to_string(count));
        }
        layers.assign(static_cast<std::size_t>(count), layer);
        const auto pattern = object_.find("pattern");
        if (pattern == object_.end()) { return; }
        if (!pattern->is_array() || pattern->empty()) { refuse("pattern", "a list of layers", shown(*pattern)); }
        for (std::size_t i = 0; i < layers.size(); ++i) {
            const std::size_t entry = i % pattern->size();
            auto path = path_;
            path.emplace_back("pattern");
            path.push_back(std::to_string(entry));
            JsonReader reader(text_, (*pattern)[entry], std::move(path));
            fields(reader, layers[i]);
            reader.finish();
        }
    }

    void allow(const char* key) { known_.insert(key); }

    void finish() const {
        for (const auto& [key, value] : object_.items()) {
            if (!known_.contains(key)) {
                std::string list;
                for (const std::string& each : known_) { list += (list.empty() ? "" : ", ") + each; }
                refuse(key, "one of " + list, shown(json(key)));
            }
        }
    }

private:
    [[noreturn]] void refuse(const std::string& key, const std::string& expected, const std::string& got) const {
        auto path = path_;
        if (!key.empty()) { path.push_back(key); }
        std::string name;
        for (const std::string& part : path) { name += (name.empty() ? "" : ".") + part; }
        heed::refuse("read_model_config",
                     "line " + std::to_string(LineFinder(text_, path).line()) + ", " +
                         (name.empty() ? "json" : shown(json(name))),
                     expected, got);
    }

    void read(const char* key, const json& value, bool& field) const {
        if (!value.is_boolean()) { refuse(key, "true or false", shown(value)); }
        field = value.get<bool>();
    }
    void read(const char* key, const json& value, std::int64_t& field) const {
        if (!value.is_number_integer() || (value.is_number_unsigned() && value.get<std::uint64_t>() > (1ULL << 62))) {
            refuse(key, "an integer", shown(value));
        }
        field = value.get<std::int64_t>();
    }
    void read(const char* key, const json& value, double& field) const {
        if (!value.is_number() || !std::isfinite(value.get<double>())) { refuse(key, "a number", shown(value)); }
        field = value.get<double>();
    }
    template <class T>
    void read(const char* key, const json& value, std::vector<T>& field) const {
        if (!value.is_array()) { refuse(key, "a list", shown(value)); }
        field.clear();
        for (const json& entry : value) { read(key, entry, field.emplace_back()); }
    }
    template <class T>
    void read(const char* key, const json& value, std::optional<T>& field) const {
        if (value.is_null()) {
            field.reset();
            return;
        }
        if (!field) { field.emplace(); }
        read(key, value, *field);
    }
    void read(const char* key, const json& value, RopeScaling& field) const {
        auto path = path_;
        path.emplace_back(key);
        JsonReader reader(text_, value, std::move(path));
        std::string name = "none";
        reader.allow("type");
        if (value.contains("type") && value["type"].is_string()) { name = value["type"].get<std::string>(); }
        const auto found = std::ranges::find(scaling_names, name);
        if (found == scaling_names.end()) {
            reader.refuse("type", "none, linear, ntk, dynamic, yarn, llama3, longrope or proportional",
                          shown(json(name)));
        }
        field = scaling_by_index(static_cast<std::size_t>(found - scaling_names.begin()));
        std::visit([&](auto& scaling) { fields(reader, scaling); }, field);
        reader.finish();
    }
    template <class T>
    requires std::is_enum_v<T>
    void read(const char* key, const json& value, T& field) const {
        std::string list;
        for (const auto& [word, meaning] : words(T{})) {
            if (value.is_string() && value.get<std::string>() == word) {
                field = meaning;
                return;
            }
            list += (list.empty() ? "" : ", ") + std::string(word);
        }
        refuse(key, "one of " + list, shown(value));
    }
    template <class T>
    requires(std::is_class_v<T>) void read(const char* key, const json& value, T& field) const {
        auto path = path_;
        path.emplace_back(key);
        JsonReader reader(text_, value, std::move(path));
        fields(reader, field);
        reader.finish();
    }

    std::string_view text_;
    const json& object_;
    std::vector<std::string> path_;
    std::set<std::string> known_;
};

// ---- Writing -------------------------------------------------------------------------------------------------------

class JsonWriter {
public:
    nlohmann::ordered_json object = nlohmann::ordered_json::object();

    template <class T>
    void operator()(const char* key, T& field) {
        object[key] = written(field);
    }
    void layers(std::vector<LayerConfig>& layers) {
        object["layers"] = layers.size();
        std::vector<nlohmann::ordered_json> each;
        for (LayerConfig& layer : layers) { each.push_back(written(layer)); }
        if (each.empty()) { return; }
        if (std::ranges::all_of(each, [&](const auto& layer) { return layer == each.front(); })) {
            object["attention"] = each.front()["attention"];
            object["feed_forward"] = each.front()["feed_forward"];
        } else {
            object["pattern"] = each;
        }
    }

private:
    static nlohmann::ordered_json written(bool field) { return field; }
    static nlohmann::ordered_json written(std::int64_t field) { return field; }
    static nlohmann::ordered_json written(double field) { return field; }
    template <class T>
    static nlohmann::ordered_json written(std::vector<T>& field) {
        return field;
    }
    template <class T>
    static nlohmann::ordered_json written(std::optional<T>& field) {
        return field ? written(*field) : nlohmann::ordered_json(nullptr);
    }
    static nlohmann::ordered_json written(RopeScaling& field) {
        JsonWriter writer;
        writer.object["type"] = scaling_names.at(field.index());
        std::visit([&](auto& scaling) { fields(writer, scaling); }, field);
        return writer.object;
    }
    template <class T>
    requires std::is_enum_v<T>
    static nlohmann::ordered_json written(T field) {
        for (const auto& [word, meaning] : words(T{})) {
            if (meaning == field) { return std::string(word); }
        }
        return nullptr;
    }
    template <class T>
    requires(std::is_class_v<T>) static nlohmann::ordered_json written(T& field) {
        JsonWriter writer;
        fields(writer, field);
        return writer.object;
    }
};

}  // namespace

ModelConfig config_from_json(std::string_view text) {
    const json file = parse_config("read_model_config", text);
    ModelConfig config;
    // A stack that generates sees only what came before, unless it says otherwise.
    config.decoder.causal = true;
    JsonReader reader(text, file, {});
    reader.allow("model_type");
    fields(reader, config);
    if (config.kind == ModelKind::encoder_decoder) { config.decoder.cross = true; }
    reader.finish();
    return config;
}

std::string write_model_config(const ModelConfig& config) {
    ModelConfig copy = config;
    JsonWriter writer;
    writer.object["model_type"] = "heed";
    fields(writer, copy);
    if (copy.kind == ModelKind::decoder) { writer.object.erase("encoder"); }
    if (copy.kind == ModelKind::encoder) { writer.object.erase("decoder"); }
    return writer.object.dump(2) + "\n";
}

}  // namespace heed
