#include "text/unicode.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

namespace heed::text {
namespace {

struct Decomposition {
    char32_t code;
    std::uint32_t at;
    std::uint32_t size;
};
struct Composition {
    char32_t first, second, whole;
};
struct CodeRange {
    char32_t first, last;
    std::uint8_t value;
};
struct CasePair {
    char32_t upper, lower;
};

#include "text/unicode_tables.inc"

constexpr unsigned block_bits = 7;
constexpr std::uint8_t category_bits = 0x1F, space_bit = 0x20, alphabetic_bit = 0x40;

std::uint8_t properties_of(char32_t code) {
    if (code >= stray) { return 0; }
    const std::size_t block = property_blocks[code >> block_bits];
    return property_values[(block << block_bits) + (code & ((1U << block_bits) - 1))];
}

template <std::size_t N>
int value_in(const CodeRange (&ranges)[N], char32_t code, int otherwise) {
    const auto* found = std::upper_bound(std::begin(ranges), std::end(ranges), code,
                                         [](char32_t wanted, const CodeRange& range) { return wanted < range.first; });
    if (found == std::begin(ranges) || code > std::prev(found)->last) { return otherwise; }
    return std::prev(found)->value;
}

constexpr Categories span_of(Category first, Category last) { return (bit(last) << 1U) - bit(first); }
constexpr Categories letters = span_of(Category::Lu, Category::Lo), marks = span_of(Category::Mn, Category::Me);

// Hangul syllables are computed, not listed.
constexpr char32_t syllable_base = 0xAC00, lead_base = 0x1100, vowel_base = 0x1161, tail_base = 0x11A7;
constexpr char32_t vowel_count = 21, tail_count = 28, syllable_count = 11172, lead_count = 19;

template <std::size_t N>
const Decomposition* found_in(const Decomposition (&forms)[N], char32_t code) {
    const auto* found = std::lower_bound(std::begin(forms), std::end(forms), code,
                                         [](const Decomposition& form, char32_t wanted) { return form.code < wanted; });
    return found != std::end(forms) && found->code == code ? found : nullptr;
}

int combining_class(char32_t code) { return code < 0x300 ? 0 : value_in(combining_classes, code, 0); }

struct Marked {
    char32_t code;
    int combining;
};

void decompose(std::vector<Marked>& to, char32_t code, bool compatible) {
    if (code < 0xA0) {
        to.push_back({code, 0});
        return;
    }
    if (code >= syllable_base && code < syllable_base + syllable_count) {
        const char32_t n = code - syllable_base;
        to.push_back({lead_base + n / (vowel_count * tail_count), 0});
        to.push_back({vowel_base + n % (vowel_count * tail_count) / tail_count, 0});
        if (n % tail_count != 0) { to.push_back({tail_base + n % tail_count, 0}); }
        return;
    }
    const Decomposition* form = compatible ? found_in(compatible_forms, code) : nullptr;
    if (form == nullptr) { form = found_in(canonical_forms, code); }
    if (form == nullptr) {
        to.push_back({code, combining_class(code)});
        return;
    }
    for (std::uint32_t n = 0; n < form->size; ++n) {
        const char32_t part = decomposition_pool[form->at + n];
        to.push_back({part, combining_class(part)});
    }
}

/// Marks between two starters, in the order of their classes.
void put_in_canonical_order(std::vector<Marked>& text) {
    for (auto at = text.begin(); at != text.end();) {
        if (at->combining == 0) {
            ++at;
            continue;
        }
        const auto end = std::find_if(at, text.end(), [](const Marked& mark) { return mark.combining == 0; });
        std::stable_sort(at, end, [](const Marked& a, const Marked& b) { return a.combining < b.combining; });
        at = end;
    }
}

/// 0 where the two do not compose.
char32_t composed(char32_t first, char32_t second) {
    if (first >= lead_base && first < lead_base + lead_count && second >= vowel_base &&
        second < vowel_base + vowel_count) {
        return syllable_base + ((first - lead_base) * vowel_count + (second - vowel_base)) * tail_count;
    }
    if (first >= syllable_base && first < syllable_base + syllable_count && (first - syllable_base) % tail_count == 0 &&
        second > tail_base && second < tail_base + tail_count) {
        return first + (second - tail_base);
    }
    const auto* found = std::lower_bound(
        std::begin(compositions), std::end(compositions), std::pair(first, second),
        [](const Composition& c, const auto& wanted) { return std::pair(c.first, c.second) < wanted; });
    const bool hit = found != std::end(compositions) && found->first == first && found->second == second;
    return hit ? found->whole : 0;
}

void compose(std::vector<Marked>& text) {
    std::size_t kept = 0, starter = text.size();
    int last = -1;  // class of the last mark kept behind the starter; -1: none
    for (const Marked next : std::vector<Marked>(text)) {
        if (starter < text.size() && last < next.combining) {
            if (const char32_t whole = composed(text[starter].code, next.code); whole != 0) {
                text[starter].code = whole;
                continue;
            }
        }
        if (next.combining == 0) {
            starter = kept;
            last = -1;
        } else {
            last = next.combining;
        }
        text[kept++] = next;
    }
    text.resize(kept);
}

enum Break : std::uint8_t {
    other,
    cr,
    lf,
    control,
    extend,
    zwj,
    regional,
    prepend,
    spacing,
    l,
    v,
    t,
    lv,
    lvt,
    picture
};

int break_of(char32_t code) {
    if (code >= stray) { return control; }
    return value_in(grapheme_breaks, code, other);
}

bool hangul_goes_on(int before, int after) {
    if (before == l) { return after == l || after == v || after == lv || after == lvt; }
    if (before == lv || before == v) { return after == v || after == t; }
    return (before == lvt || before == t) && after == t;
}

}  // namespace

std::optional<Categories> categories_named(std::string_view name) {
    static constexpr std::string_view two[] = {"Cn", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd",
                                               "Nl", "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm",
                                               "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co"};
    static constexpr std::pair<std::string_view, std::string_view> long_names[] = {{"Letter", "L"},
                                                                                   {"Mark", "M"},
                                                                                   {"Number", "N"},
                                                                                   {"Punctuation", "P"},
                                                                                   {"Symbol", "S"},
                                                                                   {"Separator", "Z"},
                                                                                   {"Other", "C"},
                                                                                   {"Uppercase_Letter", "Lu"},
                                                                                   {"Lowercase_Letter", "Ll"},
                                                                                   {"Titlecase_Letter", "Lt"},
                                                                                   {"Modifier_Letter", "Lm"},
                                                                                   {"Other_Letter", "Lo"},
                                                                                   {"Nonspacing_Mark", "Mn"},
                                                                                   {"Spacing_Mark", "Mc"},
                                                                                   {"Enclosing_Mark", "Me"},
                                                                                   {"Decimal_Number", "Nd"},
                                                                                   {"Letter_Number", "Nl"},
                                                                                   {"Other_Number", "No"},
                                                                                   {"Math_Symbol", "Sm"},
                                                                                   {"Currency_Symbol", "Sc"},
                                                                                   {"Modifier_Symbol", "Sk"},
                                                                                   {"Other_Symbol", "So"},
                                                                                   {"Space_Separator", "Zs"},
                                                                                   {"Control", "Cc"},
                                                                                   {"Format", "Cf"}};
    for (const auto& [full, brief] : long_names) {
        if (name == full) { name = brief; }
    }
    Categories result = 0;
    for (std::size_t n = 0; n < std::size(two); ++n) {
        if (two[n] == name || (name.size() == 1 && two[n][0] == name[0])) { result |= Categories{1} << n; }
    }
    if (result == 0) { return std::nullopt; }
    return result;
}

Category category_of(char32_t code) { return static_cast<Category>(properties_of(code) & category_bits); }
int age_of(char32_t code) { return code < 0x500 ? 8 : value_in(later_ages, code, 8); }
bool is_space(char32_t code) { return (properties_of(code) & space_bit) != 0; }

bool is_word(char32_t code) {
    constexpr Categories words = letters | marks | bit(Category::Nd) | bit(Category::Nl) | bit(Category::Pc);
    const std::uint8_t properties = properties_of(code);
    return (words >> (properties & category_bits) & 1U) != 0 || (properties & alphabetic_bit) != 0;
}

std::optional<int> script_named(std::string_view name) {
    const auto* found = std::find(std::begin(script_names), std::end(script_names), name);
    if (found == std::end(script_names)) { return std::nullopt; }
    return static_cast<int>(found - std::begin(script_names));
}

int script_of(char32_t code) { return value_in(script_ranges, code, -1); }
bool is_in_script(int script, char32_t code) { return script_of(code) == script; }

char32_t simple_lower(char32_t code) {
    if (code < 0x80) { return code >= U'A' && code <= U'Z' ? code + 32 : code; }
    const auto* found = std::lower_bound(std::begin(lower_cases), std::end(lower_cases), code,
                                         [](const CasePair& pair, char32_t wanted) { return pair.upper < wanted; });
    return found != std::end(lower_cases) && found->upper == code ? found->lower : code;
}

void append_lower(std::string& text, char32_t code) {
    append(text, simple_lower(code));
    if (code == 0x130) { append(text, 0x307); }
}

std::string normalised(std::string_view text, Form form) {
    if (std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; })) {
        return std::string(text);
    }
    std::vector<Marked> codes;
    codes.reserve(text.size());
    const bool compatible = form == Form::nfkd || form == Form::nfkc;
    for (std::size_t at = 0; at < text.size();) {
        const Character next = character_at(text, at);
        decompose(codes, next.code, compatible);
        at += static_cast<std::size_t>(next.size);
    }
    put_in_canonical_order(codes);
    if (form == Form::nfc || form == Form::nfkc) { compose(codes); }
    std::string result;
    result.reserve(text.size());
    for (const Marked& code : codes) { append(result, code.code); }
    return result;
}

std::size_t grapheme_size(std::string_view text, std::size_t at) {
    const std::size_t begin = at;
    Character here = character_at(text, at);
    int before = break_of(here.code), flags = before == regional ? 1 : 0;
    bool pictures = before == picture, joined = false;  // a picture, then extenders, then a joiner
    for (at += static_cast<std::size_t>(here.size); at < text.size(); at += static_cast<std::size_t>(here.size)) {
        here = character_at(text, at);
        const int after = break_of(here.code);
        const auto is_control = [](int kind) { return kind == control || kind == cr || kind == lf; };
        bool together = false;
        if (before == cr && after == lf) {
            together = true;
        } else if (is_control(before) || is_control(after)) {
            together = false;
        } else {
            together = hangul_goes_on(before, after) || after == extend || after == zwj || after == spacing ||
                       before == prepend || (joined && after == picture) ||
                       (before == regional && after == regional && flags % 2 == 1);
        }
        if (!together) { break; }
        joined = pictures && after == zwj;
        pictures = after == picture || (pictures && (after == extend || after == zwj));
        flags += after == regional ? 1 : 0;
        before = after;
    }
    return at - begin;
}

}  // namespace heed::text
