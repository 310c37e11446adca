#include "text/template.h"

#include <algorithm>

#include "base/refuse.h"
#include "text/json_field.h"

namespace heed::text {
namespace {

constexpr std::int64_t id_most = 0x7FFFFFFE;
constexpr std::int64_t length_most = std::int64_t{1} << 40;
constexpr std::int64_t padded_most = 1 << 20;

bool is_left(const JsonField& field) {
    const std::string side = field.text_or("Right");
    if (side != "Right" && side != "Left") { field.fail("Right or Left"); }
    return side == "Left";
}

void keep(std::vector<std::int64_t>& ids, std::int64_t count, bool left) {
    const auto size = static_cast<std::int64_t>(ids.size());
    if (size <= count) { return; }
    if (left) {  // cut on the left
        ids.erase(ids.begin(), ids.begin() + (size - count));
    } else {
        ids.resize(static_cast<std::size_t>(count));
    }
}

}  // namespace

Template::Template(const JsonField& post_processor, const JsonField& truncation, const JsonField& padding) {
    single_ = {{.sequence = 0}};
    pair_ = {{.sequence = 0}, {.sequence = 1, .type_id = 1}};
    if (!post_processor.is_null()) { read(post_processor); }
    if (!truncation.is_null()) {
        truncates_ = true;
        truncation_ = {.max_length = truncation["max_length"].number(0, length_most),
                       .strategy = truncation["strategy"].text_or("LongestFirst"),
                       .left = is_left(truncation["direction"])};
        const std::string& strategy = truncation_.strategy;
        if (strategy != "LongestFirst" && strategy != "OnlyFirst" && strategy != "OnlySecond") {
            truncation["strategy"].fail("LongestFirst, OnlyFirst or OnlySecond");
        }
    }
    if (!padding.is_null()) {
        pads_ = true;
        padding_ = {.multiple_of = padding["pad_to_multiple_of"].number_or(0, 0, padded_most),
                    .id = padding["pad_id"].number_or(0, 0, id_most),
                    .type_id = padding["pad_type_id"].number_or(0, 0, id_most),
                    .left = is_left(padding["direction"])};
        const JsonField strategy = padding["strategy"];
        if (strategy.value().is_object()) {
            padding_.fixed = strategy["Fixed"].number(0, padded_most);
            fixed_ = true;
        } else if (strategy.text_or("BatchLongest") != "BatchLongest") {
            strategy.fail("BatchLongest or Fixed");
        }
    }
}

void Template::read(const JsonField& field) {
    const std::string& type = field["type"].text();
    if (type == "Sequence") {
        field["processors"].for_each([&](const JsonField& one) { read(one); });
        return;
    }
    if (type == "ByteLevel") { return; }  // trims offsets only
    if (given_) { field.fail("one template", "two of them"); }
    given_ = true;
    if (type == "TemplateProcessing") { return read_template(field); }
    if (type == "BertProcessing") { return read_around(field, false); }
    if (type == "RobertaProcessing") { return read_around(field, true); }
    field["type"].fail("a post-processor that heed knows");
}

/// BERT: [CLS] A [SEP] B [SEP]. RoBERTa: <s> A </s></s> B </s>, all of one type.
void Template::read_around(const JsonField& field, bool roberta) {
    const auto token = [&](const char* key) {
        const JsonField given = field[key];
        if (!given.value().is_array() || given.value().size() != 2) { given.fail("[token, id]"); }
        return JsonField(given.value()[1], given.name()).number(0, id_most);
    };
    const std::int64_t begin = token("cls"), end = token("sep"), second = roberta ? 0 : 1;
    single_ = {{.ids = {begin}}, {.sequence = 0}, {.ids = {end}}};
    pair_ = single_;
    if (roberta) { pair_.push_back({.ids = {end}}); }
    pair_.push_back({.sequence = 1, .type_id = second});
    pair_.push_back({.ids = {end}, .type_id = second});
}

Template::Items Template::read_items(const JsonField& field, const JsonField& special_tokens) const {
    Items items;
    field.for_each([&](const JsonField& one) {
        if (const JsonField sequence = one["Sequence"]; !sequence.is_null()) {
            const std::string& id = sequence["id"].text();
            if (id != "A" && id != "B") { sequence["id"].fail("A or B"); }
            items.push_back({.sequence = id == "A" ? 0 : 1, .type_id = sequence["type_id"].number_or(0, 0, id_most)});
            return;
        }
        const JsonField special = one["SpecialToken"];
        Item item{.type_id = special["type_id"].number_or(0, 0, id_most)};
        const JsonField known = special_tokens[special["id"].text().c_str()];
        if (known.is_null()) { special["id"].fail("one of special_tokens"); }
        known["ids"].for_each([&](const JsonField& id) { item.ids.push_back(id.number(0, id_most)); });
        items.push_back(std::move(item));
    });
    return items;
}

void Template::read_template(const JsonField& field) {
    single_ = read_items(field["single"], field["special_tokens"]);
    pair_ = read_items(field["pair"], field["special_tokens"]);
}

/// As Hugging Face's LongestFirst: the shorter keeps what it can.
void Template::cut(Texts& texts, std::int64_t room) const {
    auto first = static_cast<std::int64_t>(texts.first.size()), second = static_cast<std::int64_t>(texts.second.size());
    if (first + second <= room) { return; }
    const std::int64_t over = first + second - room;
    if (room == 0) {
        first = second = 0;
    } else if (truncation_.strategy != "LongestFirst") {
        std::int64_t& only = truncation_.strategy == "OnlyFirst" ? first : second;
        if (only <= over) {
            refuse("Tokenizer", "text",
                   "the " + std::string(truncation_.strategy == "OnlyFirst" ? "first" : "second") +
                       " of two, which alone is cut, to be longer than what has to go",
                   std::to_string(only) + " tokens, " + std::to_string(over) + " too many");
        }
        only -= over;
    } else if (!texts.pair) {
        first -= over;
    } else {
        const bool swapped = first > second;
        if (swapped) { std::swap(first, second); }
        second = first > room ? first : std::max(first, room - first);
        if (first + second > room) {
            first = room / 2;
            second = first + room % 2;
        }
        if (swapped) { std::swap(first, second); }
    }
    keep(texts.first, first, truncation_.left);
    keep(texts.second, second, truncation_.left);
}

std::int64_t Template::padded_length(std::int64_t longest) const {
    const std::int64_t wanted = fixed_ ? padding_.fixed : longest,
                       multiple = std::max<std::int64_t>(padding_.multiple_of, 1);
    return (wanted + multiple - 1) / multiple * multiple;
}

void Template::fill(std::vector<std::int64_t>& list, std::int64_t value, std::int64_t length) const {
    const std::int64_t missing = length - static_cast<std::int64_t>(list.size());
    if (missing <= 0) { return; }
    list.insert(padding_.left ? list.begin() : list.end(), static_cast<std::size_t>(missing), value);
}

void Template::pad(Encoding& encoding) const {
    const std::int64_t length = padded_length(static_cast<std::int64_t>(encoding.ids.size()));
    fill(encoding.ids, padding_.id, length);
    fill(encoding.type_ids, padding_.type_id, length);
    fill(encoding.attention_mask, 0, length);
}

void Template::pad_batch(std::vector<std::vector<std::int64_t>>& batch, const EncodeOptions& options) const {
    if (!pads_ || !options.truncate_and_pad) { return; }
    std::size_t longest = 0;
    for (const auto& ids : batch) { longest = std::max(longest, ids.size()); }
    for (auto& ids : batch) { fill(ids, padding_.id, padded_length(static_cast<std::int64_t>(longest))); }
}

Encoding Template::apply(Texts texts, const EncodeOptions& options) const {
    Items items = texts.pair ? pair_ : single_;
    if (!options.add_special_tokens) {
        items.erase(std::remove_if(items.begin(), items.end(), [](const Item& item) { return item.sequence < 0; }),
                    items.end());
    }
    std::int64_t added = 0;
    for (const Item& item : items) { added += static_cast<std::int64_t>(item.ids.size()); }
    if (truncates_ && options.truncate_and_pad) {
        cut(texts, std::max<std::int64_t>(0, truncation_.max_length - added));
    }
    Encoding result;
    for (const Item& item : items) {
        const std::vector<std::int64_t>& ids = item.sequence == 0   ? texts.first
                                               : item.sequence == 1 ? texts.second
                                                                    : item.ids;
        result.ids.insert(result.ids.end(), ids.begin(), ids.end());
        result.type_ids.resize(result.ids.size(), item.type_id);
    }
    result.attention_mask.assign(result.ids.size(), 1);
    if (pads_ && options.truncate_and_pad) { pad(result); }
    return result;
}

}  // namespace heed::text
