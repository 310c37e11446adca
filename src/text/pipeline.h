#pragma once
/// The stages between a text and its ids. Each is a small object that a tokenizer.json describes.
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace heed::text {

class JsonField;

/// Changes characters.
class Normalizer {
public:
    virtual ~Normalizer() = default;
    virtual void apply(std::string& text) const = 0;
};

/// A piece of the text that the model sees on its own.
struct Piece {
    std::size_t begin = 0, end = 0;
    bool first = false;  // begins where the input began
};
struct Pieces {
    std::string text;
    std::vector<Piece> pieces;
};

/// Cuts pieces into smaller ones, and may change their characters.
class PreTokenizer {
public:
    virtual ~PreTokenizer() = default;
    virtual void apply(Pieces& pieces) const = 0;
    /// Whether its last step writes every byte as a character of its own. Then leave_bytes() makes it leave that out,
    /// for a model that reads bytes.
    virtual bool ends_with_bytes() const { return false; }
    virtual void leave_bytes() {}
};

/// Ids of a piece.
class Model {
public:
    virtual ~Model() = default;
    virtual void encode(std::string_view piece, std::vector<std::int64_t>& ids) const = 0;
    virtual std::optional<std::int64_t> id_of(std::string_view token) const = 0;
    virtual std::optional<std::string_view> token_of(std::int64_t id) const = 0;
    virtual std::int64_t size() const = 0;
    virtual std::int64_t id_limit() const = 0;
};

/// Whether what is not UTF-8 becomes U+FFFD.
enum class Bytes { replaced, kept };

/// Turns tokens into text.
class Decoder {
public:
    virtual ~Decoder() = default;
    virtual void apply(std::vector<std::string>& tokens, Bytes bytes) const = 0;
};

/// From their descriptions; null for null.
std::unique_ptr<Normalizer> read_normalizer(const JsonField& field);
std::unique_ptr<PreTokenizer> read_pre_tokenizer(const JsonField& field);
std::unique_ptr<Decoder> read_decoder(const JsonField& field);
/// Whether a model can read bytes instead of the characters that spell them.
bool reads_bytes(const JsonField& model);
/// `bytes`: pieces are bytes, tokens spell them as byte-level BPE does.
std::unique_ptr<Model> read_model(const JsonField& field, bool bytes);

/// Byte-level BPE's way of writing bytes as printable characters.
std::string bytes_as_characters(std::string_view bytes);
/// Back; nothing where a character stands for no byte.
std::optional<std::string> characters_as_bytes(std::string_view text);

}  // namespace heed::text
