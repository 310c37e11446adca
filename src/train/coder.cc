#include "train/coder.h"

#include "base/refuse.h"

#include <algorithm>

namespace heed {
namespace {

/// Not one that the tokenizer has already.
std::string new_name(const Tokenizer& tokenizer, std::string name) {
    while (tokenizer.id_of(name)) { name.insert(name.size() - 1, "_"); }
    return name;
}

/// Whether the special tokens lie behind those of the tokenizer, where take_own puts them.
bool has_own_tokens(const TrainConfig& config, const Tokenizer& base) {
    const ModelConfig& model = config.model;
    return config.data.tokenizer.empty() || model.vocab == 0 || model.eos.empty() ||
           model.eos.front() == base.id_limit() + 2;
}

}  // namespace

Coder::Coder(const TrainConfig& config, DataForm form)
    : tokenizer_(config.data.tokenizer.empty() ? byte_tokenizer() : Tokenizer(config.data.tokenizer)),
      bytes_(config.data.tokenizer.empty()) {
    const Tokenizer base = tokenizer_;
    if (has_own_tokens(config, base)) {
        take_own(base, config.model.kind, form);
    } else {
        take_from(base, config.model);
    }
}

void Coder::take_own(const Tokenizer& base, ModelKind kind, DataForm form) {
    SpecialTokens special;
    for (const char* name : {"<pad>", "<s>", "</s>", "<mask>"}) { special.added.push_back(new_name(base, name)); }
    if (form == DataForm::documents) {
        if (kind == ModelKind::encoder_decoder) {
            special.after = {special.added[2]};
        } else {
            special.before = {special.added[1]};
        }
    }
    padding_ = base.id_limit();
    if (form == DataForm::documents) { start_ = padding_ + 1; }  // windows of a text begin anywhere
    end_ = padding_ + 2;
    mask_ = padding_ + 3;
    vocab_ = padding_ + 4;
    tokenizer_ = with_special_tokens(base, special);
}

void Coder::take_from(const Tokenizer& base, const ModelConfig& model) {
    end_ = model.eos.front();
    padding_ = model.pad.value_or(end_);
    start_ = model.bos;
    for (const char* name : {"[MASK]", "<mask>"}) {
        if (!mask_) { mask_ = base.id_of(name); }
    }
    vocab_ = std::max({base.id_limit(), end_ + 1, padding_ + 1});
}

std::int64_t Coder::mask() const {
    if (!mask_) { refuse("open_data", "tokenizer", "one with a token [MASK] or <mask> for an encoder", "none"); }
    return *mask_;
}

std::vector<std::int64_t> Coder::encode(std::string_view text) const {
    return tokenizer_.encode(text, {.add_special_tokens = false, .allow_special = false, .truncate_and_pad = false});
}

std::vector<std::int64_t> Coder::encode_prompt(std::string_view text) const {
    return tokenizer_.encode(text, {.allow_special = false, .truncate_and_pad = false});
}

void Coder::complete(ModelConfig& model) const {
    model.vocab = vocab_;
    model.pad = padding_;
    model.bos = start_;
    model.eos = {end_};
    if (model.kind == ModelKind::encoder_decoder) { model.decoder_start = start_; }
}

}  // namespace heed
