#include <heed/random.h>

#include <algorithm>
#include <filesystem>

#include "base/refuse.h"
#include "train/coder.h"
#include "train/data.h"
#include "train/rows.h"
#include "train/tokens.h"

namespace heed {
namespace {

/// A text that is turned into tokens is in memory at once.
constexpr std::uint64_t longest_text = std::uint64_t{1} << 33;

std::string read_text(const std::filesystem::path& path) {
    const InputFile file("open_data", path);
    if (file.size() > longest_text) {
        throw FileError("[open_data] " + path.string() + ": expected at most 8 GiB, got " +
                        std::to_string(file.size()) + " bytes");
    }
    std::string text(file.size(), '\0');
    file.read(0, std::as_writable_bytes(std::span(text)));
    return text;
}

/// Windows of a long text: the next token (decoder) or masked ones (encoder).
class TextData final : public TrainData {
public:
    explicit TextData(const TrainConfig& config)
        : options_(config.options), kind_(config.model.kind), coder_(config, DataForm::windows) {
        if (kind_ == ModelKind::encoder_decoder) {
            refuse("open_data", "text", "a decoder or an encoder for plain text", "an encoder-decoder");
        }
        const DataConfig& data = config.data;
        ids_given_ = !data.token_file.empty();
        const std::filesystem::path& path = ids_given_ ? data.token_file : data.text;
        training_ = tokens_of(config, path);
        if (!ids_given_ && training_.size() > 0) {
            bytes_per_token_ =
                static_cast<double>(std::filesystem::file_size(path)) / static_cast<double>(training_.size());
        }
        if (!data.validation.empty()) {
            held_out_ = tokens_of(config, data.validation);
        } else {
            const auto keep =
                static_cast<std::int64_t>(static_cast<double>(training_.size()) * (1 - data.validation_share));
            held_out_ = training_.slice(keep, training_.size());
            training_ = training_.slice(0, keep);
        }
        vocab_ = vocab_of(config);
        for (const Tokens* list : {&training_, &held_out_}) {
            if (list->size() < options_.tokens) {
                refuse("open_data", path.string(),
                       "at least " + std::to_string(options_.tokens) + " tokens for training and for validation each",
                       std::to_string(list->size()));
            }
        }
        if (kind_ == ModelKind::encoder) { mask_ = ids_given_ ? vocab_ - 1 : coder_.mask(); }
    }
    /// Ids without a tokenizer say nothing of how to read them.
    const Tokenizer* tokenizer() const override { return ids_given_ && coder_.bytes() ? nullptr : &coder_.tokenizer(); }
    void complete(ModelConfig& model) const override {
        if (tokenizer() != nullptr) { coder_.complete(model); }
        model.vocab = vocab_;
    }
    std::int64_t vocab() const override { return vocab_; }
    double bytes_per_token() const override { return bytes_per_token_; }
    TrainBatch batch(std::int64_t number) const override {
        Rows inputs, labels;
        const std::int64_t count = training_.size() / options_.tokens;
        for (std::int64_t n = 0; n < options_.batch; ++n) {
            const std::int64_t k = number * options_.batch + n;
            // Windows begin elsewhere in every round, so that no two tokens are always cut apart.
            const std::int64_t slack = training_.size() - count * options_.tokens;
            const std::int64_t spare =
                std::min<std::int64_t>(slack + (count > 1 ? options_.tokens : 0), options_.tokens);
            const auto draw = philox4x32({static_cast<std::uint32_t>(k / count), 0, 0, 0x6f666673U}, options_.seed)[0];
            const std::int64_t shift = spare > 0 ? static_cast<std::int64_t>(draw) % spare : 0;
            const std::int64_t most = training_.size() - options_.tokens;
            add(inputs, labels, training_,
                std::min(most, example_at(k, count, options_.seed) * options_.tokens + shift), k, options_.seed);
        }
        return batch_of(inputs, labels, 0, kind_);
    }
    TrainBatch validation(std::int64_t number) const override {
        Rows inputs, labels;
        const std::int64_t count = held_out_.size() / options_.tokens;
        for (std::int64_t n = 0; n < options_.batch; ++n) {
            const std::int64_t k = number * options_.batch + n;
            add(inputs, labels, held_out_, k % count * options_.tokens, k, 0);
        }
        return batch_of(inputs, labels, 0, kind_);
    }

private:
    Tokens tokens_of(const TrainConfig& config, const std::filesystem::path& path) const {
        if (ids_given_) { return Tokens::of_file(path, config.data.token_type, config.model.vocab); }
        if (coder_.bytes()) { return Tokens::bytes_of(path); }
        const std::vector<std::int64_t> ids = coder_.encode(read_text(path));
        return Tokens(std::vector<std::uint32_t>(ids.begin(), ids.end()));
    }
    std::int64_t vocab_of(const TrainConfig& config) const {
        if (!ids_given_) { return coder_.vocab(); }
        if (config.model.vocab > 0) { return config.model.vocab; }  // ids are compared with it as they are read
        const std::int64_t most = 1 + std::max(training_.largest(), held_out_.largest());
        return tokenizer() != nullptr ? std::max(most, coder_.vocab()) : most;
    }

    void add(Rows& inputs, Rows& labels, const Tokens& from, std::int64_t begin, std::int64_t k,
             std::uint64_t seed) const {
        std::vector<std::int64_t> ids = from.window(begin, options_.tokens);
        labels.ids.push_back(ids);
        if (kind_ == ModelKind::encoder) {
            for (std::int64_t t = 0; t < options_.tokens; ++t) { mask(ids, labels.ids.back(), t, k, seed); }
        }
        inputs.ids.push_back(std::move(ids));
    }
    /// BERT's rule: of the tokens that are to be predicted, eight in ten are hidden, one is another, one stays.
    void mask(std::vector<std::int64_t>& ids, std::vector<std::int64_t>& labels, std::int64_t t, std::int64_t k,
              std::uint64_t seed) const {
        const auto words = philox4x32({static_cast<std::uint32_t>(t), static_cast<std::uint32_t>(k),
                                       static_cast<std::uint32_t>(k >> 32), 0x6d61736bU},
                                      seed);
        const auto at = static_cast<std::size_t>(t);
        if (words[0] >= dropout_threshold(options_.mask_share)) {
            labels[at] = no_label;
        } else if (words[1] % 10 < 8) {
            ids[at] = mask_;
        } else if (words[1] % 10 == 8) {
            ids[at] = words[2] % static_cast<std::uint32_t>(vocab_);
        }
    }

    TrainOptions options_;
    ModelKind kind_;
    Coder coder_;
    bool ids_given_ = false;
    Tokens training_, held_out_;
    std::int64_t vocab_ = 0, mask_ = 0;
    double bytes_per_token_ = 0;
};

}  // namespace

std::unique_ptr<TrainData> open_text(const TrainConfig& config) { return std::make_unique<TextData>(config); }

}  // namespace heed
