#include <algorithm>

#include "text/json_field.h"
#include "text/pattern.h"
#include "text/pipeline.h"
#include "text/precompiled.h"
#include "text/unicode.h"

namespace heed::text {
namespace {

/// Calls visit(code) for each character.
template <class Visit>
void for_characters(std::string_view text, Visit&& visit) {
    for (std::size_t at = 0; at < text.size();) {
        const Character next = character_at(text, at);
        visit(next.code);
        at += static_cast<std::size_t>(next.size);
    }
}

template <class Keep>
void keep_characters(std::string& text, Keep&& keep) {
    std::string kept;
    kept.reserve(text.size());
    for_characters(text, [&](char32_t code) {
        if (keep(code)) { append(kept, code); }
    });
    text = std::move(kept);
}

std::string lower_case(std::string_view text) {
    std::string lower;
    lower.reserve(text.size());
    for_characters(text, [&](char32_t code) { append_lower(lower, code); });
    return lower;
}

class ToForm final : public Normalizer {
public:
    explicit ToForm(Form form) : form_(form) {}
    void apply(std::string& text) const override { text = normalised(text, form_); }

private:
    Form form_;
};

class Lowercase final : public Normalizer {
public:
    void apply(std::string& text) const override { text = lower_case(text); }
};

class StripSpace final : public Normalizer {
public:
    explicit StripSpace(const JsonField& field)
        : left_(field["strip_left"].flag_or(true)), right_(field["strip_right"].flag_or(true)) {}
    void apply(std::string& text) const override {
        std::size_t begin = 0, end = text.size();
        while (left_ && begin < end) {
            const Character next = character_at(text, begin);
            if (!is_space(next.code)) { break; }
            begin += static_cast<std::size_t>(next.size);
        }
        while (right_ && end > begin) {
            const Character last = character_before(text, end);
            if (!is_space(last.code)) { break; }
            end -= static_cast<std::size_t>(last.size);
        }
        text = text.substr(begin, end - begin);
    }

private:
    bool left_, right_;
};

// The versions of Unicode that Hugging Face's tokenizers know when they drop accents and control characters.
constexpr int bert_age = 8, accents_age = 9;
constexpr Categories all_marks = bit(Category::Mn) | bit(Category::Mc) | bit(Category::Me);

class StripAccents final : public Normalizer {
public:
    void apply(std::string& text) const override {
        keep_characters(text, [](char32_t code) { return !is_in(all_marks, code) || age_of(code) > accents_age; });
    }
};

class Replace final : public Normalizer {
public:
    explicit Replace(const JsonField& field) : pattern_(field["pattern"]), content_(field["content"].text()) {}
    void apply(std::string& text) const override { text = pattern_.replaced(text, content_); }

private:
    Pattern pattern_;
    std::string content_;
};

class Prepend final : public Normalizer {
public:
    explicit Prepend(const JsonField& field) : what_(field["prepend"].text()) {}
    void apply(std::string& text) const override {
        if (!text.empty()) { text.insert(0, what_); }
    }

private:
    std::string what_;
};

class AsBytes final : public Normalizer {
public:
    void apply(std::string& text) const override { text = bytes_as_characters(text); }
};

/// The clean-up that machine translation has used since sentencepiece.
class Nmt final : public Normalizer {
public:
    void apply(std::string& text) const override {
        std::string result;
        for_characters(text, [&](char32_t code) {
            const bool dropped = (code >= 1 && code <= 8) || code == 0x0B || (code >= 0x0E && code <= 0x1F) ||
                                 code == 0x7F || code == 0x8F || code == 0x9F;
            const bool space = code == 0x09 || code == 0x0A || code == 0x0C || code == 0x0D || code == 0x1680 ||
                               (code >= 0x200B && code <= 0x200F) || code == 0x2028 || code == 0x2029 ||
                               code == 0x2581 || code == 0xFEFF || code == 0xFFFD;
            if (!dropped) { append(result, space ? U' ' : code); }
        });
        text = std::move(result);
    }
};

class BertNormalizer final : public Normalizer {
public:
    explicit BertNormalizer(const JsonField& field)
        : clean_(field["clean_text"].flag_or(true)),
          chinese_(field["handle_chinese_chars"].flag_or(true)),
          lower_(field["lowercase"].flag_or(true)),
          strip_(field["strip_accents"].flag_or(lower_)) {}

    void apply(std::string& text) const override {
        if (clean_) { clean(text); }
        if (chinese_) { set_apart(text); }
        if (strip_) {
            text = normalised(text, Form::nfd);
            keep_characters(text,
                            [](char32_t code) { return category_of(code) != Category::Mn || age_of(code) > bert_age; });
        }
        if (lower_) { text = lower_case(text); }
    }

private:
    static void clean(std::string& text) {
        constexpr Categories control = bit(Category::Cc) | bit(Category::Cf) | bit(Category::Co);
        std::string result;
        result.reserve(text.size());
        for_characters(text, [&](char32_t code) {
            const bool kept_control = code == U'\t' || code == U'\n' || code == U'\r';
            const bool dropped = !kept_control && is_in(control, code) && age_of(code) <= bert_age;
            if (code == 0 || code == 0xFFFD || dropped) { return; }
            append(result, is_space(code) ? U' ' : code);
        });
        text = std::move(result);
    }
    /// 2B920 instead of 2B820: a slip of the original that every vocabulary since was made with.
    static bool is_chinese(char32_t code) {
        return (code >= 0x4E00 && code <= 0x9FFF) || (code >= 0x3400 && code <= 0x4DBF) ||
               (code >= 0x20000 && code <= 0x2A6DF) || (code >= 0x2A700 && code <= 0x2B73F) ||
               (code >= 0x2B740 && code <= 0x2B81F) || (code >= 0x2B920 && code <= 0x2CEAF) ||
               (code >= 0xF900 && code <= 0xFAFF) || (code >= 0x2F800 && code <= 0x2FA1F);
    }
    static void set_apart(std::string& text) {
        std::string result;
        result.reserve(text.size());
        for_characters(text, [&](char32_t code) {
            const bool apart = is_chinese(code);
            if (apart) { result += ' '; }
            append(result, code);
            if (apart) { result += ' '; }
        });
        text = std::move(result);
    }

    bool clean_, chinese_, lower_, strip_;
};

class NormalizerSequence final : public Normalizer {
public:
    explicit NormalizerSequence(const JsonField& field) {
        field["normalizers"].for_each([&](const JsonField& one) { parts_.push_back(read_normalizer(one)); });
    }
    void apply(std::string& text) const override {
        for (const auto& part : parts_) {
            if (part) { part->apply(text); }
        }
    }

private:
    std::vector<std::unique_ptr<Normalizer>> parts_;
};

}  // namespace

std::unique_ptr<Normalizer> read_normalizer(const JsonField& field) {
    if (field.is_null()) { return nullptr; }
    const std::string& type = field["type"].text();
    if (type == "Sequence") { return std::make_unique<NormalizerSequence>(field); }
    if (type == "NFC") { return std::make_unique<ToForm>(Form::nfc); }
    if (type == "NFD") { return std::make_unique<ToForm>(Form::nfd); }
    if (type == "NFKC") { return std::make_unique<ToForm>(Form::nfkc); }
    if (type == "NFKD") { return std::make_unique<ToForm>(Form::nfkd); }
    if (type == "Lowercase") { return std::make_unique<Lowercase>(); }
    if (type == "Strip") { return std::make_unique<StripSpace>(field); }
    if (type == "StripAccents") { return std::make_unique<StripAccents>(); }
    if (type == "Replace") { return std::make_unique<Replace>(field); }
    if (type == "Prepend") { return std::make_unique<Prepend>(field); }
    if (type == "ByteLevel") { return std::make_unique<AsBytes>(); }
    if (type == "Nmt") { return std::make_unique<Nmt>(); }
    if (type == "BertNormalizer") { return std::make_unique<BertNormalizer>(field); }
    if (type == "Precompiled") { return read_precompiled(field); }
    field["type"].fail("a normaliser that heed knows");
}

}  // namespace heed::text
