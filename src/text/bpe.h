#pragma once
#include <atomic>
#include <memory>

#include "text/pipeline.h"
#include "text/vocabulary.h"

namespace heed::text {

/// What two neighbours become, and how early.
struct Merge {
    std::uint32_t rank = 0;
    std::int32_t id = -1;
};

/// Pairs of ids to merges, open addressing.
class MergeTable {
public:
    static constexpr std::uint32_t no_rank = 0xFFFFFFFF;

    void reserve(std::size_t count);
    /// The last merge of a pair wins, as in Hugging Face's table.
    void set(std::int32_t left, std::int32_t right, Merge merge);
    Merge find(std::int32_t left, std::int32_t right) const {
        const std::uint64_t key = key_of(left, right);
        for (std::size_t n = place(key);; n = (n + 1) & mask_) {
            if (slots_[n].key == key) { return slots_[n].merge; }
            if (slots_[n].key == free_key) { return {no_rank, -1}; }
        }
    }

private:
    static constexpr std::uint64_t free_key = ~std::uint64_t{0};
    struct Slot {
        std::uint64_t key = free_key;
        Merge merge;
    };
    static std::uint64_t key_of(std::int32_t left, std::int32_t right) {
        return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32U | static_cast<std::uint32_t>(right);
    }
    std::size_t place(std::uint64_t key) const { return (key * 0x9E3779B97F4A7C15) >> shift_; }
    std::vector<Slot> slots_ = std::vector<Slot>(2);
    std::size_t mask_ = 1, count_ = 0;
    unsigned shift_ = 63;
};

struct BpeOptions {
    std::optional<std::int32_t> unknown = std::nullopt;  // id
    std::string prefix = {}, suffix = {};                // of all pieces but the first; of the last
    bool fuse_unknown = false, byte_fallback = false, ignore_merges = false;
    bool bytes = false;  // pieces are bytes, tokens spell them as characters
};

/// Byte pair encoding: neighbours are merged, those of the lowest rank first.
class Bpe final : public Model {
public:
    Bpe(const JsonField& field, bool bytes);

    void encode(std::string_view piece, std::vector<std::int64_t>& ids) const override;
    std::optional<std::int64_t> id_of(std::string_view token) const override { return vocabulary_.id_of(token); }
    std::optional<std::string_view> token_of(std::int64_t id) const override { return vocabulary_.token_of(id); }
    std::int64_t size() const override { return vocabulary_.size(); }
    std::int64_t id_limit() const override { return vocabulary_.id_limit(); }

private:
    class Unknowns;
    void read_merges(const JsonField& field);
    void add_merge(const JsonField& field, std::string_view left, std::string_view right, std::uint32_t rank);
    void prepare_table();
    void merge_to(std::string_view piece, std::vector<std::int64_t>& ids) const;
    void split_characters(std::string_view piece, std::vector<std::int32_t>& symbols) const;
    void merge_few(std::vector<std::int32_t>& symbols) const;
    void merge_many(std::vector<std::int32_t>& symbols) const;
    /// Whether merging the characters of a token gives that token.
    bool merges_to_itself(std::string_view piece, std::int32_t id) const;

    Vocabulary vocabulary_;
    BpeOptions options_;
    MergeTable merges_;
    StringTable pieces_;                                          // as they come: bytes where options say so
    std::vector<std::int32_t> bytes_;                             // the token of each byte: byte fallback
    std::int32_t single_[256];                                    // the token of a piece of one byte
    mutable std::unique_ptr<std::atomic<std::uint8_t>[]> whole_;  // 0 not known, 1 no, 2 yes
};

}  // namespace heed::text
