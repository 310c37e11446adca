#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <heed/context.h>
#include <heed/error.h>

namespace heed {

/// How a text becomes ids.
struct EncodeOptions {
    /// What the file's template puts around a text, such as [CLS] and [SEP] or a begin-of-text token.
    bool add_special_tokens = true;
    /// Special tokens that the text itself spells out become their ids. For text from strangers: false, and they are
    /// letters like all others.
    bool allow_special = true;
    /// Cut and fill up to a length where the file asks for it.
    bool truncate_and_pad = true;
};

/// A text, or two, in ids. The three lists have the same length.
struct Encoding {
    std::vector<std::int64_t> ids;
    std::vector<std::int64_t> type_ids;        // 0, or 1 for a second text where the template says so
    std::vector<std::int64_t> attention_mask;  // 0 where filled up
};

/// Bytes to ids and back, as a tokenizer.json says: byte-level BPE (GPT-2, Llama 3, Qwen), BPE with byte fallback
/// (Llama 2, Mistral), WordPiece (BERT), Unigram (T5) and WordLevel, with their normalisers, pre-tokenisers, templates,
/// added tokens and decoders. Ids and texts are those of Hugging Face's tokenizers.
///
/// Text is bytes. Those that are not valid UTF-8 are taken one by one; byte-level BPE and byte fallback bring back any
/// bytes by decode_bytes(encode(bytes)).
///
/// Copies share their tables. Any number of threads may use one at a time.
class HEED_API Tokenizer {
public:
    struct State;

    /// From a tokenizer.json, or from the folder that has one. Throws FileError for a file that cannot be read, and
    /// Error for one that is broken or asks for what heed does not know.
    explicit Tokenizer(const std::filesystem::path& path);
    /// From the text of a tokenizer.json.
    static Tokenizer from_json(std::string_view json);

    std::vector<std::int64_t> encode(std::string_view text, const EncodeOptions& options = {}) const;
    Encoding encode_all(std::string_view text, const EncodeOptions& options = {}) const;
    Encoding encode_pair(std::string_view first, std::string_view second, const EncodeOptions& options = {}) const;

    /// Ids of many texts, by the threads of a context; each as encode gives them, and as long as the longest where the
    /// file pads to that.
    std::vector<std::vector<std::int64_t>> encode_batch(Context& context, std::span<const std::string_view> texts,
                                                        const EncodeOptions& options = {}) const;

    /// Valid UTF-8: what is not becomes U+FFFD. Ids that the tokenizer does not have are passed over.
    std::string decode(std::span<const std::int64_t> ids, bool skip_special_tokens = true) const;
    /// The bytes themselves.
    std::string decode_bytes(std::span<const std::int64_t> ids, bool skip_special_tokens = true) const;

    /// How many tokens there are, added ones included.
    std::int64_t size() const;
    /// One more than the largest id.
    std::int64_t id_limit() const;
    std::optional<std::int64_t> id_of(std::string_view token) const;
    /// As the file spells it: "Ġthe", "##ing", "▁of".
    std::optional<std::string> token_of(std::int64_t id) const;
    bool is_special(std::int64_t id) const;

    /// What a tokenizer.json of it says.
    std::string to_json() const;

private:
    explicit Tokenizer(std::shared_ptr<const State> state) : state_(std::move(state)) {}
    std::shared_ptr<const State> state_;
};

/// The text of ids that come one after the other. It gives what can no longer change: a character whose bytes come in
/// several tokens appears with the last of them.
class HEED_API DecodeStream {
public:
    explicit DecodeStream(Tokenizer tokenizer, bool skip_special_tokens = true);

    /// What the next id adds; often empty.
    std::string push(std::int64_t id);
    /// What is still held back, broken characters as U+FFFD.
    std::string finish();

private:
    Tokenizer tokenizer_;
    bool skip_special_;
    std::vector<std::int64_t> ids_;  // those that what comes may still depend on
    std::string given_;              // their text so far
};

struct BpeTrainOptions {
    std::int64_t vocabulary = 30000;  // special tokens and the 256 bytes included
    std::int64_t min_count = 2;       // a pair that is rarer is not merged
    std::vector<std::string> special_tokens = {};
    /// Splits the text before anything is merged; empty: GPT-2's.
    std::string pattern = {};
};

/// A byte-level BPE learned from texts: the most frequent pair is merged again and again, of equally frequent ones that
/// with the smaller ids. Deterministic.
HEED_API Tokenizer train_byte_bpe(std::span<const std::string_view> texts, const BpeTrainOptions& options = {});

/// Every byte is a token: ids 0 to 255 are the bytes themselves.
HEED_API Tokenizer byte_tokenizer();

/// Special tokens, and which of a tokenizer's tokens go around a text.
struct SpecialTokens {
    std::vector<std::string> added = {};   // new ones, with the ids from id_limit() on
    std::vector<std::string> before = {};  // what encode puts in front of a text
    std::vector<std::string> after = {};   // and behind it
};
/// The same tokenizer with more special tokens and with this template in the place of its own. Nothing is cut or filled
/// up any longer.
HEED_API Tokenizer with_special_tokens(const Tokenizer& tokenizer, const SpecialTokens& tokens);

}  // namespace heed
