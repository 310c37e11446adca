#pragma once
#include <heed/tokenizer.h>
#include <cstdint>
#include <string>
#include <vector>

namespace heed::text {

class JsonField;

/// What stands around a text or two, and how long the whole may be.
class Template {
public:
    Template() = default;
    Template(const JsonField& post_processor, const JsonField& truncation, const JsonField& padding);

    struct Texts {
        std::vector<std::int64_t> first = {}, second = {};
        bool pair = false;
    };
    Encoding apply(Texts texts, const EncodeOptions& options) const;
    /// Ids of a batch, where the file makes all as long as the longest.
    void pad_batch(std::vector<std::vector<std::int64_t>>& batch, const EncodeOptions& options) const;

private:
    struct Item {
        int sequence = -1;  // 0 first, 1 second; -1: these ids
        std::vector<std::int64_t> ids = {};
        std::int64_t type_id = 0;
    };
    using Items = std::vector<Item>;
    struct Truncation {
        std::int64_t max_length = 0;
        std::string strategy = {};
        bool left = false;
    };
    struct Padding {
        std::int64_t fixed = 0, multiple_of = 0, id = 0, type_id = 0;
        bool left = false;
    };

    void read(const JsonField& field);
    void read_template(const JsonField& field);
    void read_around(const JsonField& field, bool roberta);
    Items read_items(const JsonField& field, const JsonField& special_tokens) const;
    void cut(Texts& texts, std::int64_t room) const;
    void pad(Encoding& encoding) const;
    std::int64_t padded_length(std::int64_t longest) const;
    void fill(std::vector<std::int64_t>& list, std::int64_t value, std::int64_t length) const;

    Items single_, pair_;
    bool given_ = false, truncates_ = false, pads_ = false, fixed_ = false;
    Truncation truncation_;
    Padding padding_;
};

}  // namespace heed::text
