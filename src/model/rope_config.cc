#include <heed/positions.h>

#include <heed/error.h>

#include "base/refuse.h"
#include "model/config_text.h"
#include "model/rope_families.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

namespace heed {
namespace {

using nlohmann::json;

constexpr std::int64_t largest_length = std::int64_t{1} << 40;
constexpr std::int64_t largest_size = std::int64_t{1} << 20;

[[noreturn]] void fail_rope(std::string_view key, const std::string& expected, const std::string& got) {
    refuse("rope_from_config", std::string(key), expected, got);
}

/// An object of the file and what to call it in messages. null counts as absent, as it does for what writes the files.
struct Object {
    const json* value;
    std::string name;  ///< "" or "rope_scaling."

    const json* find(const std::string& key) const {
        const auto found = value->find(key);
        return found == value->end() || found->is_null() ? nullptr : &*found;
    }
    bool has(const std::string& key) const { return find(key) != nullptr; }

    std::optional<double> number(const std::string& key) const {
        const json* found = find(key);
        if (found == nullptr) { return std::nullopt; }
        if (!found->is_number()) { fail_rope(name + key, "a number", shown(*found)); }
        return found->get<double>();
    }
    double number(const std::string& key, double absent) const { return number(key).value_or(absent); }
    double needed(const std::string& key) const {
        if (!has(key)) { fail_rope(name + key, "a number", "no such key"); }
        return *number(key);
    }

    std::optional<std::int64_t> integer(const std::string& key, std::int64_t most) const {
        const json* found = find(key);
        if (found == nullptr) { return std::nullopt; }
        // Some files write lengths as 8192.0.
        const double x = found->is_number() ? found->get<double>() : 0;
        if (!(x >= 1 && x <= static_cast<double>(most)) || x != std::floor(x)) {
            fail_rope(name + key, "a whole number from 1 to " + std::to_string(most), shown(*found));
        }
        return static_cast<std::int64_t>(x);
    }

    bool boolean(const std::string& key, bool absent) const {
        const json* found = find(key);
        if (found == nullptr) { return absent; }
        if (!found->is_boolean()) { fail_rope(name + key, "true or false", shown(*found)); }
        return found->get<bool>();
    }
    std::string text(const std::string& key, const std::string& absent) const {
        const json* found = find(key);
        if (found == nullptr) { return absent; }
        if (!found->is_string()) { fail_rope(name + key, "a string", shown(*found)); }
        return found->get<std::string>();
    }
    std::vector<double> numbers(const std::string& key) const {
        const json* found = find(key);
        if (found == nullptr) { fail_rope(name + key, "a list of numbers", "no such key"); }
        if (!found->is_array()) { fail_rope(name + key, "a list of numbers", shown(*found)); }
        std::vector<double> list;
        for (const json& entry : *found) {
            if (!entry.is_number()) { fail_rope(name + key, "a list of numbers", shown(entry) + " in it"); }
            list.push_back(entry.get<double>());
        }
        return list;
    }
    std::optional<Object> object(const std::string& key) const {
        const json* found = find(key);
        if (found == nullptr) { return std::nullopt; }
        if (!found->is_object()) { fail_rope(name + key, "an object or null", shown(*found)); }
        return Object{found, name + key + "."};
    }
};

constexpr std::array layer_types = {"full_attention", "sliding_attention", "chunked_attention", "linear_attention"};

/// A setting that we do not know might change every number: better refused than ignored.
void refuse_unknown_settings(const Object& settings) {
    static const std::set<std::string> known = {"rope_type",        "type",
                                                "rope_theta",       "factor",
                                                "attention_factor", "original_max_position_embeddings",
                                                "beta_fast",        "beta_slow",
                                                "mscale",           "mscale_all_dim",
                                                "truncate",         "low_freq_factor",
                                                "high_freq_factor", "short_factor",
                                                "long_factor",      "partial_rotary_factor",
                                                "finetuned"};  // a remark of some YaRN files
    for (const auto& [key, value] : settings.value->items()) {
        if (!value.is_null() && !known.contains(key)) {
            fail_rope(settings.name + shown(key), "settings of a rope type that heed knows", shown(value));
        }
    }
}

std::vector<std::string> listed_layers(const Object& top) {
    std::vector<std::string> result;
    const json* list = top.find("layer_types");
    if (list == nullptr) { return result; }
    if (!list->is_array()) { fail_rope("layer_types", "a list of strings", shown(*list)); }
    for (const json& entry : *list) {
        if (!entry.is_string()) { fail_rope("layer_types", "a list of strings", shown(entry) + " in it"); }
        result.push_back(entry.get<std::string>());
    }
    return result;
}

/// What all layers share.
struct RotaryModel {
    Object top;
    std::string type;
    const RopeFamily& family;
    std::int64_t head_size = 0;
    std::int64_t max_positions = 0;
    Pairing pairing = Pairing::halves;

    RotaryModel(const Object& config, const RopeFamily& known) : top(config), type(known.type), family(known) {
        refuse_other_positions();
        max_positions = top.integer("max_position_embeddings", largest_length)
                            .value_or(top.integer("n_positions", largest_length).value_or(0));
        head_size = find_head_size();
        pairing = top.boolean("rope_interleave", family.pairing == Pairing::interleaved) ? Pairing::interleaved
                                                                                         : Pairing::halves;
    }

    /// Some families rotate, or do not, as their files say.
    void refuse_other_positions() const {
        if (top.boolean("alibi", false)) { fail_rope("alibi", "false, for a model with rotary positions", "true"); }
        const std::string kind = top.text("position_embedding_type", "rope");
        if (kind != "rope" && kind != "rotary") {
            fail_rope("position_embedding_type", "rope or rotary, for a model with rotary positions", shown(kind));
        }
    }

    std::int64_t find_head_size() const {
        // These have heads of another width than the model's over their number.
        const char* const own = type == "jetmoe" ? "kv_channels" : type == "zamba2" ? "attention_head_dim" : "";
        if (const auto size = top.integer(own, largest_size)) { return *size; }
        // In DeepSeek's files head_dim, where it is there, means the rotated part too.
        if (const auto size = top.integer("qk_rope_head_dim", largest_size)) { return *size; }
        if (const auto size = top.integer("head_dim", largest_size)) { return *size; }
        // What the families' own software takes where the file is silent.
        if (type == "qwen3") { return 128; }
        if (type == "gemma2") { return 256; }
        if (type == "gpt_oss") { return 64; }
        const auto either = [&](const char* key, const char* old_key) {
            const auto found = top.integer(key, largest_size);
            const auto old = found ? found : top.integer(old_key, largest_size);
            if (!old) { fail_rope(key, "a whole number, or head_dim", "no such key"); }
            return *old;
        };
        const bool dbrx = type == "dbrx";
        const std::int64_t width = either("hidden_size", dbrx ? "d_model" : "n_embd");
        const std::int64_t heads = either("num_attention_heads", dbrx ? "n_heads" : "n_head");
        if (width % heads != 0) {
            fail_rope("num_attention_heads", "a divisor of the width " + std::to_string(width), std::to_string(heads));
        }
        return width / heads;
    }

    /// Of the layers of one kind: Gemma 4 gives those that see everything larger heads.
    std::int64_t head_size_of(const std::string& layer_type) const {
        if (const auto size = top.integer("global_head_dim", largest_size); size && layer_type == "full_attention") {
            return *size;
        }
        const auto layers = top.object("per_layer_config");
        if (!layers || layer_type.empty()) { return head_size; }
        const std::vector<std::string> kinds = listed_layers(top);
        std::set<std::int64_t> sizes;
        for (std::size_t n = 0; n < kinds.size(); ++n) {
            if (kinds[n] == layer_type) { sizes.insert(layer_head_size(*layers, n)); }
        }
        if (sizes.size() > 1) {
            fail_rope("per_layer_config", "one head_dim for all layers of kind " + shown(layer_type),
                      std::to_string(*sizes.begin()) + " and " + std::to_string(*sizes.rbegin()));
        }
        return sizes.empty() ? head_size : *sizes.begin();
    }

    /// Layers are named by their number, with or without zeros before it.
    std::int64_t layer_head_size(const Object& layers, std::size_t layer) const {
        for (const auto& [key, value] : layers.value->items()) {
            const std::size_t digits = key.find_first_not_of('0');
            const std::string number = digits == std::string::npos ? "0" : key.substr(digits);
            if (number != std::to_string(layer) || !value.is_object()) { continue; }
            return layers.object(key)->integer("head_dim", largest_size).value_or(head_size);
        }
        return head_size;
    }

    /// Numbers of a head that rotate.
    std::int64_t rotary_size(const Object& settings, std::int64_t of_head) const {
        if (const auto size = top.integer("rotary_dim", largest_size)) {
            if (*size > of_head || *size % 2 != 0) {
                fail_rope("rotary_dim", "an even number up to the head size " + std::to_string(of_head),
                          std::to_string(*size));
            }
            return *size;
        }
        std::string name = settings.name + "partial_rotary_factor";
        std::optional<double> share = settings.number("partial_rotary_factor");
        for (const char* key : {"partial_rotary_factor", "rotary_pct"}) {
            if (!share && top.has(key)) {
                share = top.number(key);
                name = key;
            }
        }
        if (top.has("qk_rope_head_dim")) { share.reset(); }  // that size is the share already
        if (share && !(*share > 0 && *share <= 1)) { fail_rope(name, "more than 0, up to 1", shown(*share)); }
        const double unsaid = top.has("qk_rope_head_dim") ? 1 : family.share;
        const auto size = static_cast<std::int64_t>(static_cast<double>(of_head) * share.value_or(unsaid));
        if (size < 2 || size % 2 != 0) {
            fail_rope(share ? name : "head_dim", "an even number of rotated numbers, 2 or more", std::to_string(size));
        }
        return size;
    }

    /// The length before stretching. Phi-3 has it beside the settings.
    std::int64_t trained(const Object& settings, bool needed) const {
        constexpr const char* key = "original_max_position_embeddings";
        // Where Phi-3 has it twice, that of the file itself counts.
        if (const auto length = top.integer(key, largest_length); length && type == "phi3") { return *length; }
        if (const auto length = settings.integer(key, largest_length)) { return *length; }
        if (const auto length = top.integer(key, largest_length)) { return *length; }
        if (needed || max_positions == 0) { fail_rope(settings.name + key, "a length", "no such key"); }
        return max_positions;
    }

    /// Where it is missing, the longest length over the trained one.
    double factor(const Object& settings, std::int64_t trained_length) const {
        if (const auto factor = settings.number("factor")) { return *factor; }
        if (max_positions == 0) { fail_rope(settings.name + "factor", "a number", "no such key"); }
        return static_cast<double>(max_positions) / static_cast<double>(trained_length);
    }

    RopeScaling scaling(const Object& settings, const std::string& rope_type) const {
        if (rope_type == "default") { return rope_scaling::None{}; }
        if (rope_type == "linear") { return rope_scaling::Linear{settings.needed("factor")}; }
        if (rope_type == "dynamic") {
            if (max_positions == 0) { fail_rope("max_position_embeddings", "a length", "no such key"); }
            return rope_scaling::DynamicNtk{settings.needed("factor"), max_positions};
        }
        if (rope_type == "yarn") {
            const std::int64_t length = trained(settings, false);
            return rope_scaling::Yarn{.factor = factor(settings, length),
                                      .trained = length,
                                      .beta_fast = settings.number("beta_fast", 32),
                                      .beta_slow = settings.number("beta_slow", 1),
                                      .truncate = settings.boolean("truncate", true),
                                      .attention_factor = settings.number("attention_factor"),
                                      .mscale = settings.number("mscale", 0),
                                      .mscale_all_dim = settings.number("mscale_all_dim", 0)};
        }
        if (rope_type == "llama3") {
            return rope_scaling::Llama3{.factor = settings.needed("factor"),
                                        .trained = trained(settings, true),
                                        .low_freq_factor = settings.needed("low_freq_factor"),
                                        .high_freq_factor = settings.needed("high_freq_factor")};
        }
        if (rope_type == "longrope" || rope_type == "su") {
            const std::int64_t length = trained(settings, false);
            return rope_scaling::LongRope{.factor = factor(settings, length),
                                          .trained = length,
                                          .short_factors = settings.numbers("short_factor"),
                                          .long_factors = settings.numbers("long_factor"),
                                          .attention_factor = settings.number("attention_factor")};
        }
        if (rope_type == "proportional") {
            return rope_scaling::Proportional{.share = settings.number("partial_rotary_factor", 1),
                                              .factor = settings.number("factor", 1)};
        }
        fail_rope(settings.name + "rope_type", "default, linear, dynamic, yarn, llama3, longrope or proportional",
                  shown(rope_type));
    }

    LayerRope layer(const std::string& layer_type, const Object& settings) const {
        refuse_unknown_settings(settings);
        const std::string old_name = settings.text("type", "default");
        std::string rope_type = settings.text("rope_type", old_name);
        if (settings.has("type") && rope_type != old_name) {
            fail_rope(settings.name + "type", "the same as rope_type, " + shown(rope_type), shown(old_name));
        }
        if (type == "phi3" && rope_type == "yarn") { rope_type = "longrope"; }  // an early name of it
        LayerRope result;
        result.layer_type = layer_type;
        result.rope.pairing = pairing;
        result.rope.theta = settings.number("rope_theta", theta(layer_type));
        result.rope.scaling = scaling(settings, rope_type);
        const std::int64_t of_head = head_size_of(layer_type);
        result.rope.size = rope_type == "proportional" ? of_head : rotary_size(settings, of_head);
        try {
            static_cast<void>(rope_table(result.rope));
        } catch (const Error& error) {
            refuse_within("[rope_from_config] " + settings.name + "rope_type " + rope_type, error);
        }
        return result;
    }

    double theta(const std::string& layer_type) const {
        if (type == "modernbert") {
            return layer_type == "sliding_attention" ? top.number("local_rope_theta", 10000)
                                                     : top.number("global_rope_theta", 160000);
        }
        return top.number("rope_theta", top.number("rotary_emb_base", family.theta));
    }
};

/// The part of the file that says how the text model rotates, and what is known of its type.
struct RotaryPart {
    Object top;
    const RopeFamily* family;
};

bool says_rope(const Object& top) {
    constexpr std::array keys = {"rope_theta", "rope_scaling",    "rope_parameters",      "rotary_dim",
                                 "rotary_pct", "rotary_emb_base", "partial_rotary_factor"};
    return std::ranges::any_of(keys, [&](const char* key) { return top.value->contains(key); });
}

/// A file without model_type is read as Llama's; a type that was not checked is refused.
RotaryPart find_rotary_part(const Object& file) {
    static const RopeFamily& unnamed = *find_rope_family("llama");
    Object top = file;
    const auto known = [&]() -> const RopeFamily* {
        const std::string type = top.text("model_type", "");
        if (type.empty()) { return says_rope(top) ? &unnamed : nullptr; }
        return find_rope_family(type);
    };
    const RopeFamily* family = known();
    // A model of several parts keeps its text model's settings apart.
    if (const auto part = file.object("text_config"); part && family == nullptr) {
        top = *part;
        family = known();
    }
    if (family != nullptr) { return {top, family}; }
    const std::string type = shown(top.text("model_type", ""));
    if (says_rope(top)) {
        fail_rope(top.name + "model_type", "a type whose rotation was checked against transformers", type);
    }
    fail_rope("rope_theta, rope_scaling or rope_parameters", "one of them, for a model with rotary positions",
              "none in a model of type " + type);
}

}  // namespace

RopeConfig rope_from_config(std::string_view text) {
    const json file = parse_config("rope_from_config", text);
    const auto [top, family] = find_rotary_part({&file, ""});
    const RotaryModel model(top, *family);
    RopeConfig config;
    config.head_size = model.head_size;
    config.max_positions = model.max_positions;
    config.layer_types = listed_layers(top);

    const json nothing = json::object();
    const auto parameters = top.object("rope_parameters");
    if (parameters && top.has("rope_scaling")) { fail_rope("rope_scaling", "none beside rope_parameters", "both"); }
    if (parameters && !parameters->value->empty() &&
        std::ranges::all_of(parameters->value->items(),
                            [](const auto& item) { return item.value().is_object() || item.value().is_null(); })) {
        for (const auto& [key, value] : parameters->value->items()) {
            const bool listed = std::ranges::find(config.layer_types, key) != config.layer_types.end();
            if (!listed && std::ranges::find(layer_types, key) == layer_types.end()) {
                fail_rope("rope_parameters." + shown(key), "a kind of layer such as full_attention", shown(value));
            }
            if (value.is_object()) { config.kinds.push_back(model.layer(key, *parameters->object(key))); }
        }
        if (config.kinds.empty()) { fail_rope("rope_parameters", "settings for a kind of layer", "null"); }
        return config;
    }
    const auto scaling = top.object("rope_scaling");
    const Object settings = parameters ? *parameters : scaling ? *scaling : Object{&nothing, ""};
    if (model.type == "modernbert") {
        config.kinds = {model.layer("full_attention", settings), model.layer("sliding_attention", settings)};
        return config;
    }
    const auto local = top.number("rope_local_base_freq");
    if (family->settings == RopeFamily::Settings::by_layer && !local) {
        fail_rope("rope_parameters", "settings for each kind of layer of " + shown(std::string(family->type)),
                  parameters || scaling ? "one for all" : "no such key");
    }
    if (family->settings == RopeFamily::Settings::needed && !parameters && !scaling) {
        fail_rope("rope_parameters", "how a model of type " + shown(std::string(family->type)) + " is scaled",
                  "no such key");
    }
    if (local) {
        config.kinds = {model.layer("full_attention", settings), model.layer("sliding_attention", {&nothing, ""})};
        config.kinds[1].rope.theta = *local;
        if (!(*local > 0) || !std::isfinite(*local)) {
            fail_rope("rope_local_base_freq", "a positive number", shown(*local));
        }
        return config;
    }
    config.kinds = {model.layer("", settings)};
    return config;
}

}  // namespace heed
