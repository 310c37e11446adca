#pragma once
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include <heed/dtype.h>
#include <heed/view.h>

namespace heed::cli {

/// Arguments that cannot be used: `text` is the one line that the user sees.
class UsageError : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

/// Text from files and arguments, fit for a terminal: control characters, bidirectional overrides and bytes that are
/// not UTF-8 come out as \x1b or \u202e.
std::string printable(std::string_view text);
/// Columns on a terminal, one a character.
std::size_t width_of(std::string_view text);

/// A number that takes all of `text`; UsageError, naming `option`, otherwise.
std::int64_t parse_integer(const std::string& option, std::string_view text, std::int64_t least, std::int64_t most);
std::uint64_t parse_unsigned(const std::string& option, std::string_view text, std::uint64_t most);
double parse_real(const std::string& option, std::string_view text);
/// "1,2,3"
std::vector<std::int64_t> parse_integers(const std::string& option, std::string_view text, std::int64_t least,
                                         std::int64_t most);
DType parse_dtype(const std::string& option, std::string_view text);

/// JSON as one value; the error names `source` and says where.
nlohmann::ordered_json parse_json(const std::string& source, std::string_view text);
/// What a JSON value is, short, for messages: `a string`, `3`, `an array of 4`.
std::string describe(const nlohmann::ordered_json& value);
/// Strings that are not UTF-8 get replacement characters instead of an exception.
std::string dump(const nlohmann::ordered_json& value);

/// "[2,8,20,64]", without spaces: narrow enough for tables.
std::string compact(const Shape& shape);
/// The shortest decimal that reads back as the same double: 0.5, 15, 1e-09.
std::string shortest(double value);

}  // namespace heed::cli
