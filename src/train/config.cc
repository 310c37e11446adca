#include <heed/train.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "base/refuse.h"
#include "model/config_text.h"

namespace heed {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

template <class Enum>
using Names = std::vector<std::pair<std::string_view, Enum>>;

const Names<Schedule> schedules = {
    {"constant", Schedule::constant}, {"cosine", Schedule::cosine}, {"paper", Schedule::paper}};
const Names<Optimiser> optimisers = {{"adamw", Optimiser::adamw}, {"adam", Optimiser::adam}};
const Names<DType> types = {{"f32", DType::f32}, {"bf16", DType::bf16}};
const Names<TokenType> token_types = {{"u16", TokenType::u16}, {"u32", TokenType::u32}};

/// One object of the file: every key is asked for once, and what nobody asked for is refused.
class Section {
public:
    Section(const json& file, const std::string& name) : name_(name) {
        const auto at = file.find(name);
        if (at == file.end()) { return; }
        if (!at->is_object()) { refuse("", "an object", *at); }
        object_ = *at;
    }

    void read(const char* key, std::int64_t& value) {
        if (const json* found = find(key)) {
            if (!found->is_number_integer()) { refuse(key, "a whole number", *found); }
            value = found->get<std::int64_t>();
        }
    }
    void read(const char* key, std::uint64_t& value) {
        if (const json* found = find(key)) {
            if (!found->is_number_unsigned()) { refuse(key, "a whole number from 0", *found); }
            value = found->get<std::uint64_t>();
        }
    }
    void read(const char* key, double& value) {
        if (const json* found = find(key)) {
            if (!found->is_number()) { refuse(key, "a number", *found); }
            value = found->get<double>();
        }
    }
    void read(const char* key, bool& value) {
        if (const json* found = find(key)) {
            if (!found->is_boolean()) { refuse(key, "true or false", *found); }
            value = found->get<bool>();
        }
    }
    void read(const char* key, std::string& value) {
        if (const json* found = find(key)) {
            if (!found->is_string()) { refuse(key, "a text", *found); }
            value = found->get<std::string>();
        }
    }
    void read(const char* key, std::filesystem::path& value) {
        std::string text = value.string();
        read(key, text);
        value = text;
    }
    template <class Enum>
    void read(const char* key, Enum& value, const Names<Enum>& names) {
        std::string text;
        read(key, text);
        if (text.empty()) { return; }
        std::string expected;
        for (const auto& [name, entry] : names) {
            if (name == text) {
                value = entry;
                return;
            }
            expected += (expected.empty() ? "" : ", ") + std::string(name);
        }
        refuse(key, "one of " + expected, text);
    }
    void finish() const {
        for (const auto& [key, value] : object_.items()) {
            if (!asked_.contains(key)) {
                std::string known;
                for (const std::string& entry : asked_) { known += (known.empty() ? "" : ", ") + entry; }
                heed::refuse("read_train_config", name_ + "." + shown(key), "one of " + known, "an unknown key");
            }
        }
    }

private:
    const json* find(const char* key) {
        asked_.insert(key);
        const auto at = object_.find(key);
        return at == object_.end() || at->is_null() ? nullptr : &*at;
    }
    [[noreturn]] void refuse(const std::string& key, const std::string& expected, const json& got) const {
        heed::refuse("read_train_config", name_ + (key.empty() ? "" : "." + key), expected, shown(got));
    }

    std::string name_;
    json object_ = json::object();
    std::set<std::string> asked_;
};

template <class Reader>
void data_fields(Reader& r, DataConfig& data) {
    r.read("task", data.task);
    r.read("text", data.text);
    r.read("lines", data.lines);
    r.read("token_file", data.token_file);
    r.read("token_type", data.token_type, token_types);
    r.read("tokenizer", data.tokenizer);
    r.read("packed", data.packed);
    r.read("validation", data.validation);
    r.read("validation_share", data.validation_share);
}

template <class Reader>
void train_fields(Reader& r, TrainOptions& o) {
    r.read("steps", o.steps);
    r.read("batch", o.batch);
    r.read("accumulate", o.accumulate);
    r.read("tokens", o.tokens);
    r.read("optimiser", o.optimiser, optimisers);
    r.read("schedule", o.schedule, schedules);
    r.read("learning_rate", o.learning_rate);
    r.read("warmup", o.warmup);
    r.read("final_rate", o.final_rate);
    r.read("beta1", o.beta1);
    r.read("beta2", o.beta2);
    r.read("eps", o.eps);
    r.read("weight_decay", o.weight_decay);
    r.read("clip", o.clip);
    r.read("label_smoothing", o.label_smoothing);
    r.read("mask_share", o.mask_share);
    r.read("dtype", o.dtype, types);
    r.read("recompute", o.recompute);
    r.read("seed", o.seed);
    r.read("spread", o.spread);
    r.read("validate_every", o.validate_every);
    r.read("validation_batches", o.validation_batches);
    r.read("save_every", o.save_every);
}

/// The other way: the same list of fields, written.
struct Writer {
    ordered_json object = ordered_json::object();

    void read(const char* key, const std::filesystem::path& value) {
        if (!value.empty()) { object[key] = value.string(); }
    }
    void read(const char* key, const std::string& value) {
        if (!value.empty()) { object[key] = value; }
    }
    template <class T>
    requires std::is_arithmetic_v<T>
    void read(const char* key, const T& value) { object[key] = value; }
    template <class Enum>
    void read(const char* key, const Enum& value, const Names<Enum>& names) {
        for (const auto& [name, entry] : names) {
            if (entry == value) { object[key] = name; }
        }
    }
};

// ---- Built-in tasks ------------------------------------------------------------------------------------------------

StackConfig small_stack(std::int64_t layers, std::int64_t d_model, bool causal) {
    StackConfig stack;
    LayerConfig layer;
    layer.attention.heads = 4;
    layer.feed_forward.size = 4 * d_model;
    layer.feed_forward.activation = Activation::gelu_tanh;
    stack.layers.assign(static_cast<std::size_t>(layers), layer);
    stack.causal = causal;
    return stack;
}

void use_rope(StackConfig& stack) {
    stack.positions.kind = PositionKind::rope;
    for (LayerConfig& layer : stack.layers) { layer.attention.rope = Rope{}; }
}

}  // namespace

TrainConfig read_train_config(std::string_view text) {
    const json file = parse_config("read_train_config", text);
    for (const auto& [key, value] : file.items()) {
        if (key != "model" && key != "data" && key != "train") {
            refuse("read_train_config", shown(key), "model, data or train", "an unknown key");
        }
    }
    TrainConfig config;
    Section data(file, "data"), train(file, "train");
    data_fields(data, config.data);
    data.finish();
    if (!config.data.task.empty()) {
        const DataConfig given = config.data;
        config = task_config(config.data.task);
        config.data = given;
    }
    train_fields(train, config.options);
    train.finish();
    if (const auto model = file.find("model"); model != file.end()) {
        if (!model->is_object()) { refuse("read_train_config", "model", "an object", shown(*model)); }
        config.model = read_model_config(model->dump());
    } else if (config.data.task.empty()) {
        refuse("read_train_config", "model", "an object that says what to train", "none");
    }
    return config;
}

TrainOptions read_train_options(std::string_view text) {
    const json file = {{"train", parse_config("read_train_options", text)}};
    Section train(file, "train");
    TrainOptions options;
    train_fields(train, options);
    train.finish();
    return options;
}

std::string write_train_config(const TrainConfig& config) {
    Writer data, train;
    data_fields(data, const_cast<DataConfig&>(config.data));
    train_fields(train, const_cast<TrainOptions&>(config.options));
    ordered_json file;
    file["model"] = ordered_json::parse(write_model_config(config.model));
    file["data"] = data.object;
    file["train"] = train.object;
    return file.dump(2) + "\n";
}

TrainConfig task_config(std::string_view task) {
    TrainConfig config;
    config.data.task = std::string(task);
    ModelConfig& model = config.model;
    TrainOptions& o = config.options;
    model.vocab = task_vocab();
    model.pad = 0;
    model.bos = 1;
    model.eos = {2};
    const auto all = tasks();
    const auto info = std::ranges::find(all, task, &TaskInfo::name);
    if (info == all.end()) { static_cast<void>(task_example(task, 0, 0, false)); }  // says which there are
    model.kind = info->kind;
    model.d_model = 64;
    o.tokens = 64;
    o.batch = 64;
    o.learning_rate = 2e-3;
    o.warmup = 50;
    o.weight_decay = 0.01;
    o.final_rate = 0.02;
    if (model.kind == ModelKind::encoder_decoder) {
        model.decoder_start = 1;
        model.encoder = small_stack(2, model.d_model, false);
        model.decoder = small_stack(2, model.d_model, true);
        model.decoder.cross = true;
        use_rope(model.encoder);
        use_rope(model.decoder);
        o.steps = 1500;
        o.learning_rate = 3e-3;
        o.weight_decay = 0.05;
    } else if (model.kind == ModelKind::encoder) {
        model.encoder = small_stack(3, model.d_model, false);
        use_rope(model.encoder);
        o.steps = 800;
    } else {
        model.decoder = small_stack(2, model.d_model, true);
        use_rope(model.decoder);
        o.steps = task == "grammar" ? 400 : 1000;
        if (task == "induction") {
            // Looking up is learned all at once, after a while without progress: small steps and wide first weights
            // make that while short, large steps make it endless.
            o.steps = 1500;
            o.batch = 32;
            o.learning_rate = 1e-3;
            o.spread = 1;
        }
    }
    return config;
}

std::vector<std::string> attention_words() {
    return {"mha", "gqa", "mqa", "mla", "window", "linear", "infini", "gated", "delta", "gated_delta", "hybrid"};
}

void set_attention(ModelConfig& model, std::string_view kind) {
    const std::vector<std::string> known = attention_words();
    if (std::ranges::find(known, kind) == known.end()) {
        std::string names;
        for (const std::string& name : known) { names += (names.empty() ? "" : ", ") + name; }
        refuse("set_attention", "kind", "one of " + names, "'" + std::string(kind) + "'");
    }
    for (StackConfig* stack : {&model.encoder, &model.decoder}) {
        for (std::size_t n = 0; n < stack->layers.size(); ++n) {
            AttentionConfig& a = stack->layers[n].attention;
            const std::int64_t size = a.head_size > 0 ? a.head_size : model.d_model / a.heads;
            a.core = AttentionCore::softmax;
            a.latent = std::nullopt;
            a.kv_heads = a.heads;
            a.window = {};
            if (kind == "gqa") { a.kv_heads = std::max<std::int64_t>(1, a.heads / 2); }
            if (kind == "mqa") { a.kv_heads = 1; }
            if (kind == "mla") {
                const std::int64_t rope = stack->positions.kind == PositionKind::rope ? size / 4 * 2 : 0;
                a.head_size = 0;
                a.value_size = 0;
                a.latent = LatentAttention{
                    .query_rank = 0, .kv_rank = 2 * size, .nope_size = size, .rope_size = rope, .value_size = size};
                if (a.rope) { a.rope->size = 0; }
            }
            if (kind == "window") { a.window = {.left = 31, .right = stack->causal ? 0 : 31}; }
            if (kind == "linear" || (kind == "hybrid" && n % 4 != 3 && n + 1 != stack->layers.size())) {
                a.core = AttentionCore::linear;
            }
            a.value_heads = 0;
            if (kind == "gated") { a.core = AttentionCore::gated; }
            if (kind == "delta") { a.core = AttentionCore::delta; }
            if (kind == "gated_delta") { a.core = AttentionCore::gated_delta; }
            if (kind == "infini") {
                a.core = AttentionCore::infini;
                a.segment = 32;
            }
        }
    }
}

}  // namespace heed
