#include "text/pattern.h"

#include "text/json_field.h"

namespace heed::text {

Pattern::Pattern(const JsonField& field) {
    if (const JsonField plain = field["String"]; !plain.is_null()) {
        plain_ = plain.text();
        if (plain_.empty()) { plain.fail("at least one character"); }
        return;
    }
    regex_ = std::make_unique<Regex>(field["Regex"].text());
}

void Pattern::find_all(std::string_view text, Regex::Scratch& scratch, std::vector<Span>& found) const {
    if (regex_) { return regex_->find_all(text, scratch, found); }
    found.clear();
    for (std::size_t at = 0; (at = text.find(plain_, at)) != std::string_view::npos; at += plain_.size()) {
        found.push_back({at, at + plain_.size()});
    }
}

std::string Pattern::replaced(std::string_view text, std::string_view content) const {
    Regex::Scratch scratch;
    std::vector<Span> found;
    find_all(text, scratch, found);
    std::string result;
    result.reserve(text.size());
    std::size_t at = 0;
    for (const Span& span : found) {
        result += text.substr(at, span.begin - at);
        result += content;
        at = span.end;
    }
    result += text.substr(at);
    return result;
}

}  // namespace heed::text
