#include <utility>

#include "text/json_field.h"
#include "text/pattern.h"
#include "text/pipeline.h"
#include "text/utf8.h"

namespace heed::text {
namespace {

std::string joined(const std::vector<std::string>& tokens) {
    std::string whole;
    for (const std::string& token : tokens) { whole += token; }
    return whole;
}

std::string with_replaced(std::string_view text, std::string_view what, std::string_view by) {
    if (what.empty()) { return std::string(text); }
    std::string result;
    std::size_t at = 0;
    for (std::size_t hit = 0; (hit = text.find(what, at)) != std::string_view::npos; at = hit + what.size()) {
        result += text.substr(at, hit - at);
        result += by;
    }
    result += text.substr(at);
    return result;
}

/// Spaces that English does not have.
std::string cleaned(std::string text) {
    static constexpr std::pair<std::string_view, std::string_view> changes[] = {
        {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
        {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
    for (const auto& [from, to] : changes) { text = with_replaced(text, from, to); }
    return text;
}

class ByteLevelDecoder final : public Decoder {
public:
    void apply(std::vector<std::string>& tokens, Bytes bytes) const override {
        std::string whole;
        for (const std::string& token : tokens) {
            const auto spelled = characters_as_bytes(token);
            whole += spelled ? *spelled : token;
        }
        tokens.assign(1, bytes == Bytes::kept ? whole : valid_utf8(whole));
    }
};

class WordPieceDecoder final : public Decoder {
public:
    explicit WordPieceDecoder(const JsonField& field)
        : prefix_(field["prefix"].text_or("##")), cleanup_(field["cleanup"].flag_or(true)) {}
    void apply(std::vector<std::string>& tokens, Bytes) const override {
        for (std::size_t n = 0; n < tokens.size(); ++n) {
            if (n > 0 && tokens[n].compare(0, prefix_.size(), prefix_) == 0) {
                tokens[n].erase(0, prefix_.size());
            } else if (n > 0) {
                tokens[n].insert(0, " ");
            }
            if (cleanup_) { tokens[n] = cleaned(std::move(tokens[n])); }
        }
    }

private:
    std::string prefix_;
    bool cleanup_;
};

class MetaspaceDecoder final : public Decoder {
public:
    explicit MetaspaceDecoder(const JsonField& field) {
        append(mark_, field["replacement"].character());
        const std::string scheme = field["prepend_scheme"].text_or("always");
        if (scheme != "always" && scheme != "first" && scheme != "never") {
            field["prepend_scheme"].fail("always, first or never");
        }
        prepended_ = scheme != "never";
        if (!field["add_prefix_space"].flag_or(true) && prepended_) {
            field["add_prefix_space"].fail("what prepend_scheme says, which is always where there is none");
        }
    }
    void apply(std::vector<std::string>& tokens, Bytes) const override {
        for (std::size_t n = 0; n < tokens.size(); ++n) {
            tokens[n] = with_replaced(tokens[n], mark_, n == 0 && prepended_ ? "" : " ");
        }
    }

private:
    std::string mark_;
    bool prepended_ = true;
};

class BpeDecoder final : public Decoder {
public:
    explicit BpeDecoder(const JsonField& field) : suffix_(field["suffix"].text_or("</w>")) {}
    void apply(std::vector<std::string>& tokens, Bytes) const override {
        for (std::size_t n = 0; n < tokens.size(); ++n) {
            tokens[n] = with_replaced(tokens[n], suffix_, n + 1 == tokens.size() ? "" : " ");
        }
    }

private:
    std::string suffix_;
};

class ByteFallbackDecoder final : public Decoder {
public:
    void apply(std::vector<std::string>& tokens, Bytes bytes) const override {
        std::vector<std::string> result;
        std::string run;
        const auto flush = [&] {
            if (run.empty()) { return; }
            if (bytes == Bytes::kept || is_valid_utf8(run)) {
                result.push_back(run);
            } else {
                result.insert(result.end(), run.size(), "\xEF\xBF\xBD");  // one for each byte
            }
            run.clear();
        };
        for (std::string& token : tokens) {
            if (const int byte = byte_of(token); byte >= 0) {
                run.push_back(static_cast<char>(static_cast<unsigned char>(byte)));
                continue;
            }
            flush();
            result.push_back(std::move(token));
        }
        flush();
        tokens = std::move(result);
    }

private:
    /// Of "<0x41>"; -1 for any other token.
    static int byte_of(std::string_view token) {
        if (token.size() != 6 || token.substr(0, 3) != "<0x" || token[5] != '>') { return -1; }
        int value = 0;
        for (const char c : token.substr(3, 2)) {
            const bool digit = c >= '0' && c <= '9', upper = c >= 'A' && c <= 'F', lower = c >= 'a' && c <= 'f';
            if (!digit && !upper && !lower) { return -1; }
            value = value * 16 + (digit ? c - '0' : upper ? c - 'A' + 10 : c - 'a' + 10);
        }
        return value;
    }
};

class FuseDecoder final : public Decoder {
public:
    void apply(std::vector<std::string>& tokens, Bytes) const override { tokens.assign(1, joined(tokens)); }
};

class StripDecoder final : public Decoder {
public:
    explicit StripDecoder(const JsonField& field)
        : content_(field["content"].character()),
          start_(field["start"].number_or(0, 0, 1 << 20)),
          stop_(field["stop"].number_or(0, 0, 1 << 20)) {}
    void apply(std::vector<std::string>& tokens, Bytes) const override {
        for (std::string& token : tokens) {
            std::size_t begin = 0, end = token.size();
            for (std::int64_t n = 0; n < start_ && begin < end; ++n) {
                const Character next = character_at(token, begin);
                if (next.code != content_) { break; }
                begin += static_cast<std::size_t>(next.size);
            }
            for (std::int64_t n = 0; n < stop_ && end > begin; ++n) {
                const Character last = character_before(token, end);
                if (last.code != content_) { break; }
                end -= static_cast<std::size_t>(last.size);
            }
            token = token.substr(begin, end - begin);
        }
    }

private:
    char32_t content_;
    std::int64_t start_, stop_;
};

class ReplaceDecoder final : public Decoder {
public:
    explicit ReplaceDecoder(const JsonField& field) : pattern_(field["pattern"]), content_(field["content"].text()) {}
    void apply(std::vector<std::string>& tokens, Bytes) const override {
        for (std::string& token : tokens) { token = pattern_.replaced(token, content_); }
    }

private:
    Pattern pattern_;
    std::string content_;
};

class CtcDecoder final : public Decoder {
public:
    explicit CtcDecoder(const JsonField& field)
        : pad_(field["pad_token"].text_or("<pad>")),
          delimiter_(field["word_delimiter_token"].text_or("|")),
          cleanup_(field["cleanup"].flag_or(true)) {}
    void apply(std::vector<std::string>& tokens, Bytes) const override {
        std::vector<std::string> result;
        for (std::size_t n = 0; n < tokens.size(); ++n) {
            if (n > 0 && tokens[n] == tokens[n - 1]) { continue; }
            std::string text = with_replaced(tokens[n], pad_, "");
            if (cleanup_) { text = with_replaced(cleaned(std::move(text)), delimiter_, " "); }
            if (!text.empty()) { result.push_back(std::move(text)); }
        }
        tokens = std::move(result);
    }

private:
    std::string pad_, delimiter_;
    bool cleanup_;
};

class DecoderSequence final : public Decoder {
public:
    explicit DecoderSequence(const JsonField& field) {
        field["decoders"].for_each([&](const JsonField& one) {
            if (auto part = read_decoder(one)) { parts_.push_back(std::move(part)); }
        });
    }
    void apply(std::vector<std::string>& tokens, Bytes bytes) const override {
        for (const auto& part : parts_) { part->apply(tokens, bytes); }
    }

private:
    std::vector<std::unique_ptr<Decoder>> parts_;
};

}  // namespace

std::unique_ptr<Decoder> read_decoder(const JsonField& field) {
    if (field.is_null()) { return nullptr; }
    const std::string& type = field["type"].text();
    if (type == "Sequence") { return std::make_unique<DecoderSequence>(field); }
    if (type == "ByteLevel") { return std::make_unique<ByteLevelDecoder>(); }
    if (type == "WordPiece") { return std::make_unique<WordPieceDecoder>(field); }
    if (type == "Metaspace") { return std::make_unique<MetaspaceDecoder>(field); }
    if (type == "BPEDecoder") { return std::make_unique<BpeDecoder>(field); }
    if (type == "ByteFallback") { return std::make_unique<ByteFallbackDecoder>(); }
    if (type == "Fuse") { return std::make_unique<FuseDecoder>(); }
    if (type == "Strip") { return std::make_unique<StripDecoder>(field); }
    if (type == "Replace") { return std::make_unique<ReplaceDecoder>(field); }
    if (type == "CTC") { return std::make_unique<CtcDecoder>(field); }
    field["type"].fail("a decoder that heed knows");
}

}  // namespace heed::text
