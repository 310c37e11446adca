#include "print/heads.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "print/matrix.h"
#include "print/plot.h"
#include "print/text.h"

namespace heed::cli {
namespace {

constexpr double square = 150;  // a head
constexpr double gap = 14;
constexpr double left_edge = 90;  // names of the layers
constexpr double top_edge = 58;

double weight_at(const HeadsOfLayer& layer, std::int64_t head, std::int64_t row, std::int64_t column) {
    const Shape& s = layer.weights->shape();
    return static_cast<double>(layer.weights->as<float>()[(head * s[2] + row) * s[3] + column]);
}

/// A cell that can be seen: below one in 200 the paper stays white.
std::string cells(const HeadsOfLayer& layer, std::int64_t head, double x, double y) {
    const std::int64_t rows = layer.weights->shape()[2], columns = layer.weights->shape()[3];
    const double size = square / static_cast<double>(std::max(rows, columns));
    std::string text;
    for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t c = 0; c < columns; ++c) {
            const double weight = weight_at(layer, head, r, c);
            if (!(weight >= 0.005)) { continue; }
            text += fmt::format(
                "<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" fill-opacity=\"{:.2f}\">"
                "<title>{} looks at {}: {:.3f}</title></rect>\n",
                x + static_cast<double>(c) * size, y + static_cast<double>(r) * size, size, size, std::min(1.0, weight),
                escaped(layer.rows->at(static_cast<std::size_t>(r))),
                escaped(layer.columns->at(static_cast<std::size_t>(c))), weight);
        }
    }
    return text;
}

}  // namespace

std::string head_map(const HeadsOfLayer& layer, std::int64_t head, bool colour) {
    const std::int64_t rows = layer.weights->shape()[2], columns = layer.weights->shape()[3];
    std::vector<double> numbers;
    for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t c = 0; c < columns; ++c) { numbers.push_back(weight_at(layer, head, r, c)); }
    }
    Matrix matrix;
    matrix.numbers = numbers.data();
    matrix.rows = rows;
    matrix.columns = columns;
    matrix.row_labels = *layer.rows;
    matrix.column_labels = *layer.columns;
    matrix.is_heat = true;
    return fmt::format("{}, head {}\n{}\n", layer.name, head + 1, heat_map(matrix, 2, colour));
}

std::string heads_picture(const std::string& title, const std::vector<HeadsOfLayer>& layers) {
    std::int64_t most = 1;
    for (const HeadsOfLayer& layer : layers) { most = std::max(most, layer.weights->shape()[1]); }
    const double width = left_edge + static_cast<double>(most) * (square + gap) + gap;
    const double height = top_edge + static_cast<double>(layers.size()) * (square + gap) + gap;
    std::string text = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
        "height=\"{1:.0f}\" font-family=\"sans-serif\" font-size=\"13\">\n"
        "<rect width=\"{0:.0f}\" height=\"{1:.0f}\" fill=\"#ffffff\"/>\n",
        width, height);
    text += label(gap, 24, "start", title, "font-size=\"16\"");
    for (std::int64_t h = 0; h < most; ++h) {
        text += label(left_edge + static_cast<double>(h) * (square + gap) + square / 2, top_edge - 8, "middle",
                      fmt::format("head {}", h + 1));
    }
    for (std::size_t n = 0; n < layers.size(); ++n) {
        const double y = top_edge + static_cast<double>(n) * (square + gap);
        text += label(gap, y + square / 2, "start", layers[n].name);
        for (std::int64_t h = 0; h < layers[n].weights->shape()[1]; ++h) {
            const double x = left_edge + static_cast<double>(h) * (square + gap);
            text += fmt::format("<g fill=\"#1f4e9c\">\n{}</g>\n", cells(layers[n], h, x, y));
            text += fmt::format(
                "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{}\" height=\"{}\" fill=\"none\" stroke=\"#999999\"/>\n", x, y,
                square, square);
        }
    }
    return text + "</svg>\n";
}

}  // namespace heed::cli
