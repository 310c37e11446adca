#include "look_text.h"

#include <algorithm>
#include <chrono>
#include <random>

#include <heed/serving.h>

#include "http.h"

namespace heed::web {
namespace {

View row(const std::vector<std::int64_t>& ids) { return View(ids.data(), {1, static_cast<std::int64_t>(ids.size())}); }

/// Bytes that queries and keys of a token take in one layer.
std::size_t bytes_of_layer(const AttentionConfig& a, std::int64_t d_model, std::int64_t rows, std::int64_t columns) {
    if (a.core != AttentionCore::softmax) { return 0; }
    const std::int64_t size = a.latent          ? a.latent->nope_size + a.latent->rope_size
                              : a.head_size > 0 ? a.head_size
                                                : d_model / std::max<std::int64_t>(1, a.heads);
    const std::int64_t keys = a.latent || a.kv_heads <= 0 ? a.heads : a.kv_heads;
    return sizeof(float) * static_cast<std::size_t>(size * (rows * a.heads + columns * keys));
}

std::size_t bytes_of_stack(const ModelConfig& config, const StackConfig& stack, std::int64_t tokens) {
    std::size_t bytes = 0;
    std::int64_t heads = 0;
    for (const LayerConfig& layer : stack.layers) {
        bytes += bytes_of_layer(layer.attention, config.d_model, tokens, tokens);
        heads = std::max(heads, layer.attention.heads);
    }
    if (stack.positions.kind == PositionKind::relative) {
        bytes += sizeof(float) * static_cast<std::size_t>(heads * tokens * tokens);
    }
    return bytes;
}

constexpr std::int64_t longest_target = 64;

/// What looking at so many tokens will keep.
std::size_t bytes_of_text(const ModelConfig& config, std::int64_t tokens, std::int64_t lens_rows) {
    std::size_t bytes = bytes_of_stack(config, config.encoder, tokens);
    const bool both = config.kind == ModelKind::encoder_decoder;
    const std::int64_t target = both ? longest_target : tokens;
    bytes += bytes_of_stack(config, config.decoder, target);
    if (both) {
        for (const LayerConfig& layer : config.decoder.layers) {
            bytes += bytes_of_layer(layer.attention, config.d_model, target, tokens);
        }
    }
    const std::size_t layers = config.encoder.layers.size() + config.decoder.layers.size() + 1;
    return bytes + sizeof(float) * layers * static_cast<std::size_t>(config.d_model * std::min(tokens, lens_rows));
}

std::size_t bytes_of_result(const ForwardResult& result) {
    std::size_t bytes = 0;
    for (const auto* layers : {&result.attention_inputs.self, &result.attention_inputs.encoder,
                               &result.attention_inputs.decoder, &result.attention_inputs.cross}) {
        for (const AttentionInputs& layer : *layers) { bytes += layer ? layer.bytes() : 0; }
        if (!layers->empty() && layers->front().bias) { bytes += layers->front().bias->bytes(); }
    }
    for (const Tensor& hidden : result.hidden) { bytes += hidden.bytes(); }
    return bytes;
}

std::string random_key() {
    constexpr char digits[] = "0123456789abcdef";
    std::random_device source;
    std::string key;
    for (int n = 0; n < 16; ++n) { key += digits[source() & 15U]; }
    return key;
}

/// 1 for each head, 0 for those that are off.
Tensor factors_for(const StackConfig& stack, const std::vector<HeadName>& off, const std::string& kind) {
    if (std::ranges::none_of(off, [&](const HeadName& name) { return name.kind == kind; })) { return {}; }
    std::int64_t heads = 0;
    for (const LayerConfig& layer : stack.layers) { heads = std::max(heads, layer.attention.heads); }
    const auto layers = static_cast<std::int64_t>(stack.layers.size());
    Tensor factors(DType::f32, {layers, heads});
    std::fill_n(factors.as<float>(), factors.elements(), 1.0F);
    for (const HeadName& name : off) {
        if (name.kind != kind) { continue; }
        if (name.layer < 0 || name.layer >= layers || name.head < 0 ||
            name.head >= stack.layers[static_cast<std::size_t>(name.layer)].attention.heads) {
            throw HttpError{400, "off: expected heads that the model has, got layer " + std::to_string(name.layer) +
                                     ", head " + std::to_string(name.head) + " of " + kind};
        }
        factors.as<float>()[name.layer * heads + name.head] = 0;
    }
    return factors;
}

View seen(const Tensor& tensor) { return tensor ? tensor.view() : View(); }

}  // namespace

std::vector<LookKind> kinds_of(const LookedAt& text) {
    const CapturedInputs& in = text.result.attention_inputs;
    std::vector<LookKind> kinds;
    const auto& ids = text.request.ids;
    if (!in.self.empty()) { kinds.push_back({"self", &in.self, &ids, &ids}); }
    if (!in.encoder.empty()) { kinds.push_back({"encoder", &in.encoder, &ids, &ids}); }
    if (!in.decoder.empty()) { kinds.push_back({"decoder", &in.decoder, &text.target, &text.target}); }
    if (!in.cross.empty()) { kinds.push_back({"cross", &in.cross, &text.target, &ids}); }
    return kinds;
}

/// The bytes that it will take; HttpError where it may not be looked at.
std::size_t Looker::check(const LookRequest& request) const {
    const ModelConfig& config = models_[request.model].model.config();
    const auto tokens = static_cast<std::int64_t>(request.ids.size());
    const std::size_t bytes = bytes_of_text(config, tokens, limits_.lens_rows);
    if (tokens < 1 || tokens > limits_.tokens || bytes > limits_.bytes) {
        std::int64_t most = limits_.tokens;
        while (most > 1 && bytes_of_text(config, most, limits_.lens_rows) > limits_.bytes) { most -= most / 16 + 1; }
        throw HttpError{400, "prompt: expected 1 to " + std::to_string(most) + " tokens, got " +
                                 std::to_string(tokens) + "; heed serve --look-memory sets what may be kept"};
    }
    for (const std::int64_t id : request.ids) {
        if (id < 0 || id >= config.vocab) {
            throw HttpError{400,
                            "ids: expected 0 to " + std::to_string(config.vocab - 1) + ", got " + std::to_string(id)};
        }
    }
    return bytes;
}

/// Before anything new is computed, so that the sum never exceeds the limit.
void Looker::make_room(std::size_t bytes) {
    std::size_t sum = bytes;
    for (const auto& text : kept_) { sum += text->bytes; }
    while (!kept_.empty() && (sum > limits_.bytes || kept_.size() >= limits_.texts)) {
        sum -= kept_.back()->bytes;
        maps_.remove_if([&](const KeptMap& map) { return map.text == kept_.back()->key; });
        kept_.pop_back();
    }
}

std::shared_ptr<const LookedAt> Looker::look(const LookRequest& request) {
    const auto known = std::ranges::find_if(kept_, [&](const auto& one) { return one->request == request; });
    if (known != kept_.end()) {
        kept_.splice(kept_.begin(), kept_, known);
        return kept_.front();
    }
    const auto text = std::make_shared<LookedAt>();
    text->request = request;
    text->key = random_key();
    make_room(check(request));
    note_counts();
    run(*text);
    text->bytes = bytes_of_result(text->result);
    kept_.push_front(text);
    note_counts();
    return text;
}

std::shared_ptr<const LookedAt> Looker::find(const std::string& key) {
    const auto known = std::ranges::find_if(kept_, [&](const auto& one) { return one->key == key; });
    if (known == kept_.end()) {
        throw HttpError{404, "text: expected one that is still kept, got " + key.substr(0, 32), "text_gone"};
    }
    kept_.splice(kept_.begin(), kept_, known);
    return kept_.front();
}

std::shared_ptr<const HeadMap> Looker::map(const std::shared_ptr<const LookedAt>& text, const HeadView& head,
                                           const HeadName& name) {
    const auto known =
        std::ranges::find_if(maps_, [&](const KeptMap& one) { return one.text == text->key && one.name == name; });
    if (known != maps_.end()) {
        maps_.splice(maps_.begin(), maps_, known);
        return maps_.front().map;
    }
    while (maps_.size() >= limits_.maps) { maps_.pop_back(); }
    maps_.push_front({text->key, name, std::make_shared<const HeadMap>(context_, head)});
    note_counts();
    return maps_.front().map;
}

Looker::Counts Looker::counts() const {
    const std::lock_guard lock(counts_mutex_);
    return counts_;
}

void Looker::note_counts() {
    Counts counts{.texts = kept_.size(), .maps = maps_.size()};
    for (const auto& text : kept_) { counts.bytes += text->bytes; }
    for (const KeptMap& map : maps_) { counts.map_bytes += map.map->bytes(); }
    const std::lock_guard lock(counts_mutex_);
    counts_ = counts;
}

void Looker::run(LookedAt& text) {
    const Model& model = models_[text.request.model].model;
    const ModelConfig& config = model.config();
    const bool both = config.kind == ModelKind::encoder_decoder;
    const std::vector<HeadName>& off = text.request.off;
    const Tensor first = factors_for(config.first(), off, both ? "encoder" : "self");
    const Tensor second = both ? factors_for(config.decoder, off, "decoder") : Tensor();
    const Tensor cross = both ? factors_for(config.decoder, off, "cross") : Tensor();
    ForwardInputs inputs{.input_ids = row(text.request.ids)};
    if (both) {
        const Generated made =
            generate(context_, model, {.prompt = text.request.ids, .max_new_tokens = longest_target - 1});
        text.target = made.tokens;
        if (!text.target.empty()) { text.target.pop_back(); }
        text.target.insert(text.target.begin(), config.decoder_start ? *config.decoder_start : config.bos.value_or(0));
        inputs.decoder_input_ids = row(text.target);
    }
    ForwardOptions options{.logits = false, .hidden = true, .hidden_last = limits_.lens_rows, .attention_inputs = true};
    options.head_factors = {.self = seen(first), .decoder = seen(second), .cross = seen(cross)};
    const auto begin = std::chrono::steady_clock::now();
    text.result = model.forward(context_, inputs, options);
    text.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace heed::web
