#include <heed/error.h>
#include <heed/model_config.h>
#include <heed/positions.h>
#include <heed/sizes.h>

#include <cmath>
#include <cstdint>
#include <string_view>

#include "../../src/model/generation_file.h"
#include "require.h"

namespace {

/// The shape that a config.json gives and every figure derived from it. Refusal by Error is the only way out besides
/// success, here and below.
void read_model(std::string_view text) {
    try {
        const heed::ModelShape model = heed::model_from_config(text);
        require(model.layers > 0 && model.d_model > 0 && model.heads > 0 && model.heads % model.kv_heads == 0);
        const heed::ParameterCount count = heed::parameters(model);
        require(count.embedding + count.positions + count.attention + count.ffn + count.norms + count.head ==
                count.total);
        require(count.active > 0 && count.active <= count.total);
        require(heed::flops_per_token(model, 1 << 20).total > 0);
        require(heed::training_flops_per_token(model, 1 << 20).total > 0);
        require(heed::kv_cache_bytes(model, 2, 1 << 20, 16) >= 0);
    } catch (const heed::Error&) { return; }
}

void read_rope(std::string_view text) {
    try {
        const heed::RopeConfig config = heed::rope_from_config(text);
        require(!config.kinds.empty());
        for (const heed::LayerRope& kind : config.kinds) {
            const heed::RopeTable table = heed::rope_table(kind.rope, config.max_positions);
            require(table.frequencies.size() == static_cast<std::size_t>(kind.rope.size / 2));
            require(std::isfinite(table.attention_factor) && table.attention_factor > 0);
        }
    } catch (const heed::Error&) { return; }
}

/// What is accepted is complete, and its written form is read as the same model.
void read_whole(std::string_view text) {
    try {
        const heed::ModelConfig config = heed::read_model_config(text);
        require(!config.last().layers.empty() && config.last().layers.size() <= 512);
        for (const heed::LayerConfig& layer : config.last().layers) {
            require(layer.attention.heads > 0 && layer.attention.kv_heads > 0 && layer.attention.head_size > 0);
            require(layer.attention.heads % layer.attention.kv_heads == 0 && layer.feed_forward.size > 0);
        }
        const std::string written = heed::write_model_config(config);
        require(heed::write_model_config(heed::read_model_config(written)) == written);
    } catch (const heed::Error&) { return; }
}

void read_generation(std::string_view text) {
    try {
        heed::ModelConfig config;
        const heed::GenerationConfig asked = heed::read_generation_config(text, config);
        require(asked.num_beams.value_or(1) >= 1 && asked.rules.no_repeat_ngram_size >= 0);
        for (const auto& word : asked.rules.bad_words_ids) { require(!word.empty()); }
        for (const std::int64_t id : config.eos) { require(id >= 0); }
    } catch (const heed::Error&) { return; }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    read_model(text);
    read_rope(text);
    read_whole(text);
    read_generation(text);
    return 0;
}
