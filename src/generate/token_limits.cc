#include "generate/token_limits.h"

#include <algorithm>
#include <limits>

#include "base/dispatch.h"
#include "base/refuse.h"

namespace heed {
namespace {

void check_id(const char* function, const char* name, std::int64_t id, std::int64_t vocab) {
    if (id >= 0 && id < vocab) { return; }
    refuse(function, name, "0 to " + std::to_string(vocab - 1), std::to_string(id));
}

/// Leaves one token possible.
void force(std::span<float> logits, std::int64_t token) {
    std::ranges::fill(logits, -std::numeric_limits<float>::infinity());
    logits[static_cast<std::size_t>(token)] = 0;
}

std::optional<std::int64_t> either(const std::optional<std::int64_t>& given, const std::optional<std::int64_t>& usual) {
    return given ? given : usual;
}

}  // namespace

TokenLimits::TokenLimits(const Model& model, const GivenLimits& given)
    : min_new_tokens_(given.min_new_tokens), max_new_tokens_(given.max_new_tokens) {
    const ModelConfig& config = model.config();
    eos_ = given.eos.value_or(config.eos);
    for (const std::int64_t id : eos_) { check_id(given.function, "eos", id, config.vocab); }
    forced_bos_ = either(given.special.forced_bos, config.forced_bos);
    forced_eos_ = either(given.special.forced_eos, config.forced_eos);
    if (forced_bos_) { check_id(given.function, "forced_bos", *forced_bos_, config.vocab); }
    if (forced_eos_) { check_id(given.function, "forced_eos", *forced_eos_, config.vocab); }
    rules_ = given.rules.value_or(model.generation().rules);
    if (given.min_new_tokens > 0) { rules_.min_length = 0; }  // new tokens win
}

bool TokenLimits::ends(std::int64_t token) const { return std::ranges::find(eos_, token) != eos_.end(); }

void TokenLimits::apply(std::span<const std::int64_t> text, std::int64_t made, std::span<float> logits) const {
    hide_tokens(rules_, {.tokens = text, .made = made, .eos = eos_, .forced_first = forced_bos_.has_value()}, logits);
    if (made < min_new_tokens_) {
        for (const std::int64_t id : eos_) {
            logits[static_cast<std::size_t>(id)] = -std::numeric_limits<float>::infinity();
        }
    }
    if (forced_bos_ && text.size() == 1) { force(logits, *forced_bos_); }
    if (forced_eos_ && made + 1 == max_new_tokens_) { force(logits, *forced_eos_); }
}

std::vector<std::int64_t> behind_padding(const std::vector<std::int64_t>& padding,
                                         const std::vector<std::int64_t>& text) {
    std::vector<std::int64_t> whole = padding;
    whole.insert(whole.end(), text.begin(), text.end());
    return whole;
}

std::vector<std::int64_t> target_beginning(const char* function, const Model& model, const GenerationTokens& special,
                                           const std::vector<std::int64_t>& given) {
    const ModelConfig& config = model.config();
    for (const std::int64_t id : given) { check_id(function, "decoder_prompt", id, config.vocab); }
    const auto start = either(special.decoder_start, either(config.decoder_start, config.bos));
    if (start) { check_id(function, "decoder_start", *start, config.vocab); }
    if (given.empty() && !start) { refuse(function, "model", "a decoder_start_token_id", "none"); }
    return given.empty() ? std::vector<std::int64_t>{*start} : given;
}

std::vector<std::vector<std::int64_t>> decoder_prompts(const char* function, const Model& model,
                                                       const GenerationTokens& special, const View& ids,
                                                       std::int64_t rows) {
    std::vector<std::vector<std::int64_t>> prompts(static_cast<std::size_t>(rows));
    if (!ids) { return prompts; }
    if (ids.rank() != 2 || ids.extent(0) != rows || ids.extent(1) < 1 ||
        (ids.dtype() != DType::i64 && ids.dtype() != DType::i32)) {
        refuse(function, "decoder_input_ids", "i64 or i32 [" + std::to_string(rows) + ", tokens]",
               std::string(name_of(ids.dtype())) + " " + to_string(ids.shape()));
    }
    const std::int64_t start = target_beginning(function, model, special, {}).front();
    bool starts = false;
    for (std::int64_t b = 0; b < rows; ++b) {
        auto& prompt = prompts[static_cast<std::size_t>(b)];
        for (std::int64_t t = 0; t < ids.extent(1); ++t) {
            prompt.push_back(read_integer(ids.dtype(), ids.data(), b * ids.stride(0) + t * ids.stride(1)));
        }
        starts = starts || prompt.front() == start;
    }
    if (!starts) {
        for (auto& prompt : prompts) { prompt.insert(prompt.begin(), start); }
    }
    return prompts;
}

std::int64_t padding_token(const Model& model, const std::optional<std::vector<std::int64_t>>& eos,
                           const GenerationTokens& special) {
    const std::vector<std::int64_t>& ends = eos ? *eos : model.config().eos;
    return either(special.pad, model.config().pad).value_or(ends.empty() ? 0 : ends[0]);
}

}  // namespace heed
