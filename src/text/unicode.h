#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "text/utf8.h"

namespace heed::text {

/// General categories, in the order of the generated tables.
enum class Category : std::uint8_t {
    Cn,
    Lu,
    Ll,
    Lt,
    Lm,
    Lo,
    Mn,
    Mc,
    Me,
    Nd,
    Nl,
    No,
    Pc,
    Pd,
    Ps,
    Pe,
    Pi,
    Pf,
    Po,
    Sm,
    Sc,
    Sk,
    So,
    Zs,
    Zl,
    Zp,
    Cc,
    Cf,
    Cs,
    Co
};

/// A set of categories, one bit each.
using Categories = std::uint32_t;
constexpr Categories bit(Category category) { return Categories{1} << static_cast<unsigned>(category); }

/// The set that a name such as "L", "Lu" or "Punctuation" stands for.
std::optional<Categories> categories_named(std::string_view name);

Category category_of(char32_t code);
inline bool is_in(Categories set, char32_t code) { return (set & bit(category_of(code))) != 0; }
/// The version of Unicode that brought the character; 8 stands for that and all before it.
int age_of(char32_t code);
/// White_Space of the Unicode database.
bool is_space(char32_t code);
/// What \w means: letters, marks, digits, connectors and what else is alphabetic.
bool is_word(char32_t code);

/// The number of a script, by its full name; and whether a character belongs to it.
std::optional<int> script_named(std::string_view name);
bool is_in_script(int script, char32_t code);
/// -1 where the database names none.
int script_of(char32_t code);

/// Lower case of one character; U+0130 becomes two.
void append_lower(std::string& text, char32_t code);
char32_t simple_lower(char32_t code);

enum class Form { nfd, nfkd, nfc, nfkc };
std::string normalised(std::string_view text, Form form);

/// The size in bytes of the grapheme cluster that begins at `at`.
std::size_t grapheme_size(std::string_view text, std::size_t at);

}  // namespace heed::text
