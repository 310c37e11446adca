#pragma once
#include <heed/tokenizer.h>
#include <heed/train.h>

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace heed {

/// What examples are made of: windows of a text, or documents and questions with their answers.
enum class DataForm : std::uint8_t { windows, documents };

/// Texts to ids, as the model that learns from them will be asked later: with the tokenizer of the run, whose template
/// goes around a prompt.
///
/// A fresh model, and one that was trained before on the same data, has four tokens of its own behind the tokenizer's
/// (padding, start, end, mask). A model that came with its tokenizer keeps the special tokens that its configuration
/// names.
class Coder {
public:
    Coder(const TrainConfig& config, DataForm form);

    const Tokenizer& tokenizer() const { return tokenizer_; }
    std::int64_t vocab() const { return vocab_; }
    std::int64_t padding() const { return padding_; }
    std::int64_t end() const { return end_; }
    /// Error where the tokenizer has none.
    std::int64_t mask() const;
    /// Whether the ids of a text are its bytes.
    bool bytes() const { return bytes_; }

    /// A text alone.
    std::vector<std::int64_t> encode(std::string_view text) const;
    /// With what the template puts around it.
    std::vector<std::int64_t> encode_prompt(std::string_view text) const;

    /// What a fresh model has to know of its data.
    void complete(ModelConfig& model) const;

private:
    void take_own(const Tokenizer& base, ModelKind kind, DataForm form);
    void take_from(const Tokenizer& base, const ModelConfig& model);

    Tokenizer tokenizer_;
    bool bytes_ = false;
    std::int64_t vocab_ = 0, padding_ = 0, end_ = 0;
    std::optional<std::int64_t> start_, mask_;
};

}  // namespace heed
