#pragma once
#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

/// Numbers as people read them.
namespace numbers {

/// 8030261248 -> "8,030,261,248".
inline std::string grouped(std::int64_t value) {
    std::string digits = fmt::format("{}", value);
    const std::size_t sign = value < 0 ? 1 : 0;
    for (std::size_t at = digits.size(); at > sign + 3;) { digits.insert(at -= 3, 1, ','); }
    return digits;
}

/// The value in the largest unit that leaves at least 1, to so many significant digits; "" below one step.
inline std::string scaled(std::int64_t value, double step, std::span<const std::string_view> units, int digits) {
    auto amount = static_cast<double>(value);
    if (amount < step) { return ""; }
    std::size_t unit = 0;
    for (amount /= step; amount >= step && unit + 1 < units.size(); ++unit) { amount /= step; }
    // 999.96 M would print as 1e+03 M.
    if (std::stod(fmt::format("{:.{}g}", amount, digits)) >= step && unit + 1 < units.size()) {
        amount /= step;
        ++unit;
    }
    return fmt::format("{:.{}g} {}", amount, digits, units[unit]);
}

/// "8.03 B".
inline std::string short_count(std::int64_t value) {
    constexpr std::array<std::string_view, 4> units = {"k", "M", "B", "T"};
    return scaled(value, 1000, units, 3);
}

/// "16.1 G", for operations.
inline std::string short_flops(std::int64_t value) {
    constexpr std::array<std::string_view, 5> units = {"k", "M", "G", "T", "P"};
    return scaled(value, 1000, units, 3);
}

/// "1.125 GiB".
inline std::string short_bytes(std::int64_t value) {
    constexpr std::array<std::string_view, 5> units = {"KiB", "MiB", "GiB", "TiB", "PiB"};
    return scaled(value, 1024, units, 4);
}

}  // namespace numbers
