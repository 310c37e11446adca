#include "model/generation_file.h"

#include <array>
#include <nlohmann/json.hpp>

#include "model/config_reader.h"
#include "model/config_text.h"

namespace heed {
namespace {

using nlohmann::json;
constexpr std::int64_t most_id = std::int64_t{1} << 30;
constexpr const char* reader_name = "Model::load";

/// Settings of transformers' generate that heed does not have, and the value that means nothing.
struct UnknownSetting {
    const char* name;
    double neutral;
    bool sampled = false;  ///< matters only where tokens are drawn
};
constexpr std::array unknown_settings = {
    UnknownSetting{"typical_p", 1, true},
    UnknownSetting{"epsilon_cutoff", 0, true},
    UnknownSetting{"eta_cutoff", 0, true},
    UnknownSetting{"top_h", 1, true},
    UnknownSetting{"encoder_repetition_penalty", 1},
    UnknownSetting{"encoder_no_repeat_ngram_size", 0},
    UnknownSetting{"diversity_penalty", 0},
    UnknownSetting{"num_beam_groups", 1},
    UnknownSetting{"num_return_sequences", 1},
    UnknownSetting{"guidance_scale", 1},
    UnknownSetting{"penalty_alpha", 0},
    UnknownSetting{"exponential_decay_length_penalty", 0},
    UnknownSetting{"sequence_bias", 0},
    UnknownSetting{"constraints", 0},
    UnknownSetting{"force_words_ids", 0},
    UnknownSetting{"forced_decoder_ids", 0},
    UnknownSetting{"renormalize_logits", 0},
    UnknownSetting{"watermarking_config", 0},
    UnknownSetting{"dola_layers", 0},
    UnknownSetting{"stop_strings", 0},
    UnknownSetting{"max_time", 0},
};

bool means_nothing(const json& value, double neutral) {
    if (value.is_null() || (value.is_structured() && value.empty())) { return true; }
    if (value.is_boolean()) { return !value.get<bool>(); }
    return value.is_number() && value.get<double>() == neutral;
}

void read_unknown(const json& file, GenerationConfig& result) {
    for (const UnknownSetting& setting : unknown_settings) {
        const auto found = file.find(setting.name);
        if (found == file.end() || means_nothing(*found, setting.neutral)) { continue; }
        (setting.sampled ? result.unknown_sampled : result.unknown)
            .push_back(std::string(setting.name) + " " + shown(*found));
    }
}

std::vector<std::vector<std::int64_t>> read_words(const ConfigReader& reader, const json& file) {
    std::vector<std::vector<std::int64_t>> result;
    const auto found = file.find("bad_words_ids");
    if (found == file.end() || found->is_null()) { return result; }
    const auto refuse = [&] { reader.refuse("bad_words_ids", "lists of token ids"); };
    if (!found->is_array()) { refuse(); }
    for (const json& word : *found) {
        if (!word.is_array() || word.empty()) { refuse(); }
        auto& ids = result.emplace_back();
        for (const json& id : word) {
            if (!id.is_number_integer() || id.get<std::int64_t>() < 0 || id.get<std::int64_t>() > most_id) { refuse(); }
            ids.push_back(id.get<std::int64_t>());
        }
    }
    return result;
}

void read_special_tokens(const ConfigReader& reader, ModelConfig& config) {
    const auto one = [&](std::string_view key, std::optional<std::int64_t>& field) {
        const auto found = reader.integers(key, -1, most_id);
        if (!found.empty() && found[0] >= 0) { field = found[0]; }
    };
    if (const auto eos = reader.integers("eos_token_id", -1, most_id); !eos.empty()) {
        config.eos = eos;
        std::erase_if(config.eos, [](std::int64_t id) { return id < 0; });
    }
    one("bos_token_id", config.bos);
    one("pad_token_id", config.pad);
    one("decoder_start_token_id", config.decoder_start);
    one("forced_bos_token_id", config.forced_bos);
    one("forced_eos_token_id", config.forced_eos);
}

}  // namespace

GenerationConfig read_generation_config(std::string_view text, ModelConfig& config) {
    const ConfigReader reader(reader_name, text);
    const json file = parse_config(reader_name, text);
    read_special_tokens(reader, config);
    GenerationConfig result;
    const auto integer = [&](std::string_view key, std::int64_t low, std::optional<std::int64_t>& field) {
        if (reader.has(key)) { field = reader.integer({key}, low, most_id); }
    };
    const auto number = [&](std::string_view key, double low, double high, std::optional<double>& field) {
        if (reader.has(key)) { field = reader.number_or(key, low, high, 0); }
    };
    constexpr double large = 1e9;
    if (reader.has("do_sample")) { result.do_sample = reader.boolean_or("do_sample", false); }
    number("temperature", 0, large, result.temperature);
    number("top_p", 0, 1, result.top_p);
    number("min_p", 0, 1, result.min_p);
    number("repetition_penalty", 1e-9, large, result.repetition_penalty);
    number("length_penalty", -large, large, result.length_penalty);
    integer("top_k", 0, result.top_k);
    integer("num_beams", 1, result.num_beams);
    integer("max_new_tokens", 0, result.max_new_tokens);
    integer("max_length", 0, result.max_length);
    integer("min_new_tokens", 0, result.min_new_tokens);
    if (const auto found = file.find("early_stopping"); found != file.end() && !found->is_null()) {
        if (!found->is_boolean() && *found != "never") { reader.refuse("early_stopping", "true, false or \"never\""); }
        result.early_stopping = found->is_boolean() ? (found->get<bool>() ? "true" : "false") : "never";
    }
    TokenRules& rules = result.rules;
    rules.suppress_tokens = reader.integers("suppress_tokens", 0, most_id);
    rules.begin_suppress_tokens = reader.integers("begin_suppress_tokens", 0, most_id);
    rules.bad_words_ids = read_words(reader, file);
    rules.no_repeat_ngram_size = reader.integer_or({"no_repeat_ngram_size"}, 0, most_id, 0);
    rules.min_length = reader.integer_or({"min_length"}, 0, most_id, 0);
    read_unknown(file, result);
    return result;
}

}  // namespace heed
