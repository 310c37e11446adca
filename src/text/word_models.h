#pragma once
#include "text/pipeline.h"
#include "text/trie.h"
#include "text/vocabulary.h"

namespace heed::text {

/// The longest token from the left, again and again; all or nothing for a word.
class WordPiece final : public Model {
public:
    explicit WordPiece(const JsonField& field);
    void encode(std::string_view piece, std::vector<std::int64_t>& ids) const override;
    std::optional<std::int64_t> id_of(std::string_view token) const override { return vocabulary_.id_of(token); }
    std::optional<std::string_view> token_of(std::int64_t id) const override { return vocabulary_.token_of(id); }
    std::int64_t size() const override { return vocabulary_.size(); }
    std::int64_t id_limit() const override { return vocabulary_.id_limit(); }

private:
    Vocabulary vocabulary_;
    Trie first_, later_;  // at the beginning of a word; behind it, without the prefix
    std::int64_t unknown_ = 0;
    std::size_t longest_word_ = 100;
};

/// A word is a token or unknown.
class WordLevel final : public Model {
public:
    explicit WordLevel(const JsonField& field);
    void encode(std::string_view piece, std::vector<std::int64_t>& ids) const override;
    std::optional<std::int64_t> id_of(std::string_view token) const override { return vocabulary_.id_of(token); }
    std::optional<std::string_view> token_of(std::int64_t id) const override { return vocabulary_.token_of(id); }
    std::int64_t size() const override { return vocabulary_.size(); }
    std::int64_t id_limit() const override { return vocabulary_.id_limit(); }

private:
    Vocabulary vocabulary_;
    std::int64_t unknown_ = 0;
};

/// The most probable of all ways to cut a piece.
class Unigram final : public Model {
public:
    explicit Unigram(const JsonField& field);
    void encode(std::string_view piece, std::vector<std::int64_t>& ids) const override;
    std::optional<std::int64_t> id_of(std::string_view token) const override { return vocabulary_.id_of(token); }
    std::optional<std::string_view> token_of(std::int64_t id) const override { return vocabulary_.token_of(id); }
    std::int64_t size() const override { return vocabulary_.id_limit(); }
    std::int64_t id_limit() const override { return vocabulary_.id_limit(); }

private:
    void emit(std::string_view part, std::vector<std::int64_t>& ids) const;

    Vocabulary vocabulary_;
    std::vector<double> scores_;
    Trie trie_;
    std::vector<std::int32_t> bytes_;
    std::int32_t unknown_ = -1;
    double unknown_score_ = 0;
    bool byte_fallback_ = false;
};

}  // namespace heed::text
