#include "print/matrix.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <string_view>

#include <fmt/format.h>

#include "print/text.h"

namespace heed::cli {
namespace {

constexpr std::int64_t shown_first = 6;  // of a row or column with its middle left out; then the last one
constexpr std::int64_t left_out = -1;
constexpr std::int64_t largest_map = 48;

/// Black to yellow among the 256 colours; text is white on the first of them and black on the others.
constexpr std::array heat_colours = {234, 52, 88, 124, 160, 202, 208, 214, 220, 226};
constexpr std::size_t white_text_up_to = 5;
constexpr std::string_view heat_letters = " .:-=+*#%@";

/// By the root of the weight, so that small ones can be told apart: shade n begins at (n/10)^2.
std::size_t shade(double weight) {
    const double root = std::sqrt(std::isfinite(weight) ? std::clamp(weight, 0.0, 1.0) : 0.0);
    return std::min(static_cast<std::size_t>(root * 10), heat_letters.size() - 1);
}

std::string shaded(const std::string& text, double weight) {
    const std::size_t n = shade(weight);
    return fmt::format("\x1b[48;5;{};38;5;{}m{}\x1b[0m", heat_colours[n], n < white_text_up_to ? 231 : 16, text);
}

/// Indices to print: all of them, or the first few, a gap, the last.
std::vector<std::int64_t> shown(std::int64_t count) {
    std::vector<std::int64_t> indices;
    const bool all = count <= whole_table;
    for (std::int64_t n = 0; n < (all ? count : shown_first); ++n) { indices.push_back(n); }
    if (!all) {
        indices.push_back(left_out);
        indices.push_back(count - 1);
    }
    return indices;
}

std::string cell_text(const Matrix& m, std::int64_t index) {
    if (m.visible != nullptr && m.visible[index] == 0) { return std::isinf(m.numbers[index]) ? "-inf" : "."; }
    if (m.kept != nullptr && m.kept[index] == 0) { return "x"; }
    const double value = m.numbers[index];
    if (std::isinf(value)) { return value > 0 ? "inf" : "-inf"; }
    // Numbers that four decimals cannot hold.
    if (value != 0 && (std::abs(value) >= 1e6 || std::abs(value) < 5e-5)) { return fmt::format("{:.1e}", value); }
    return fmt::format("{:.4f}", value + 0.0);
}

std::string padded(const std::string& text, std::size_t width) {
    const std::size_t own = width_of(text);
    return std::string(width > own ? width - own : 0, ' ') + text;
}

}  // namespace

bool wants_colour(const std::string& when) {
    if (when == "always") { return true; }
    if (when == "never") { return false; }
    if (when != "auto") { throw UsageError("--color: expected auto, always or never, got '" + when + "'"); }
    const char* no_colour = std::getenv("NO_COLOR");
    const char* terminal = std::getenv("TERM");
    return isatty(STDOUT_FILENO) != 0 && (no_colour == nullptr || *no_colour == '\0') &&
           (terminal == nullptr || std::string_view(terminal) != "dumb");
}

std::string strong(const std::string& text, bool colour) { return colour ? "\x1b[1m" + text + "\x1b[0m" : text; }
std::string faint(const std::string& text, bool colour) { return colour ? "\x1b[2m" + text + "\x1b[0m" : text; }

std::string number_table(const Matrix& m, int indent, bool colour) {
    const std::vector<std::int64_t> rows = shown(m.rows);
    const std::vector<std::int64_t> columns = shown(m.columns);
    const auto label = [](const std::vector<std::string>& labels, std::int64_t n) {
        return labels.empty() ? std::string() : labels[static_cast<std::size_t>(n)];
    };
    std::size_t label_width = 0;
    std::size_t width = 6;
    for (const std::int64_t r : rows) {
        if (r == left_out) { continue; }
        label_width = std::max(label_width, width_of(label(m.row_labels, r)));
        for (const std::int64_t c : columns) {
            if (c != left_out) { width = std::max(width, cell_text(m, r * m.columns + c).size()); }
        }
    }
    for (const std::int64_t c : columns) {
        if (c != left_out) { width = std::max(width, width_of(label(m.column_labels, c))); }
    }
    const std::string margin(static_cast<std::size_t>(indent), ' ');
    std::string text;
    if (!m.column_labels.empty()) {
        text += margin + std::string(label_width, ' ');
        for (const std::int64_t c : columns) {
            text += "  " + (c == left_out ? "..." : padded(label(m.column_labels, c), width));
        }
        text += '\n';
    }
    for (const std::int64_t r : rows) {
        if (r == left_out) {
            text += margin + "...\n";
            continue;
        }
        text += margin + padded(label(m.row_labels, r), label_width);
        std::string letters;
        for (const std::int64_t c : columns) {
            if (c == left_out) {
                text += "  ...";
                continue;
            }
            const std::int64_t index = r * m.columns + c;
            const std::string cell = cell_text(m, index);
            const bool is_number = cell != "." && cell != "x";
            if (m.is_heat && colour && is_number) {
                text += " " + shaded(" " + padded(cell, width), m.numbers[index]);
            } else {
                text += "  " + std::string(width - cell.size(), ' ') + faint(cell, colour && !is_number);
            }
            letters += is_number ? heat_letters[shade(m.numbers[index])] : ' ';
        }
        if (m.is_heat && !colour && m.columns <= whole_table) { text += "   |" + letters + "|"; }
        text += '\n';
    }
    return text;
}

std::string heat_map(const Matrix& m, int indent, bool colour) {
    const std::int64_t height = std::min(m.rows, largest_map);
    const std::int64_t width = std::min(m.columns, largest_map);
    std::string text;
    for (std::int64_t y = 0; y < height; ++y) {
        text += std::string(static_cast<std::size_t>(indent), ' ');
        if (!colour) { text += '|'; }
        for (std::int64_t x = 0; x < width; ++x) {
            // The cell's part of the matrix: the same rule as attention_map().
            double sum = 0;
            std::int64_t count = 0;
            bool any_visible = false;
            for (std::int64_t r = y * m.rows / height; r < ((y + 1) * m.rows + height - 1) / height; ++r) {
                for (std::int64_t c = x * m.columns / width; c < ((x + 1) * m.columns + width - 1) / width; ++c) {
                    sum += m.numbers[r * m.columns + c];
                    ++count;
                    any_visible = any_visible || m.visible == nullptr || m.visible[r * m.columns + c] != 0;
                }
            }
            const double mean = sum / static_cast<double>(count);
            if (!any_visible) {
                text += colour ? faint(" .", true) : "  ";
            } else if (colour) {
                text += shaded("  ", mean);
            } else {
                text += std::string(2, heat_letters[shade(mean)]);
            }
        }
        text += colour ? "\n" : "|\n";
    }
    return text;
}

std::string heat_legend(int indent, bool colour) {
    std::string text(static_cast<std::size_t>(indent), ' ');
    for (std::size_t n = 0; n < heat_letters.size(); ++n) {
        const double root = static_cast<double>(n) / 10;
        if (n % 3 == 0) { text += fmt::format("{}{:.2f} ", n == 0 ? "" : " ", root * root); }
        const double inside = root + 0.05;  // the middle of the shade, away from rounding at its border
        text += colour ? shaded("  ", inside * inside) : std::string(2, heat_letters[n]);
    }
    return text + "\n";
}

}  // namespace heed::cli
