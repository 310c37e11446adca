#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace heed::cli {

/// Whether escape sequences for colour may be written to standard output.
/// `when`: auto (a terminal, and NO_COLOR is not set), always, never.
bool wants_colour(const std::string& when);

/// Bold, where there is colour.
std::string strong(const std::string& text, bool colour);
std::string faint(const std::string& text, bool colour);

/// A matrix to print: numbers of `rows` x `columns`, row-major.
struct Matrix {
    const double* numbers = nullptr;
    std::int64_t rows = 0;
    std::int64_t columns = 0;
    std::vector<std::string> row_labels;     ///< empty: none
    std::vector<std::string> column_labels;  ///< empty: none
    const std::uint8_t* visible = nullptr;   ///< 0: hidden by a mask, printed as "."
    const std::uint8_t* kept = nullptr;      ///< 0: struck out by dropout, printed as "x"
    bool is_heat = false;                    ///< weights: cells are shaded by their size, 0 to 1
};

/// Aligned numbers, four decimals; the middle of a large matrix is left out. Each line begins with `indent` spaces.
std::string number_table(const Matrix& matrix, int indent, bool colour);
/// The whole matrix, a cell two columns wide; matrices of more than 48 rows or columns are averaged down to that.
std::string heat_map(const Matrix& matrix, int indent, bool colour);
/// What the shades of a heat map mean.
std::string heat_legend(int indent, bool colour);

/// Rows and columns up to which number_table leaves nothing out.
constexpr std::int64_t whole_table = 10;

}  // namespace heed::cli
