#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

/// Pictures of curves, in SVG.
namespace heed::cli {

constexpr double picture_width = 760;
constexpr double panel_height = 300;
constexpr double legend_height = 30;
constexpr double title_height = 34;

/// Text as it stands between tags or in an attribute.
std::string escaped(const std::string& text);

/// Text with its anchor at a place; `more` are further attributes.
std::string label(double x, double y, const char* anchor, const std::string& text, const char* more = "");

/// One axis: from values to places, linear or by logarithm.
struct Axis {
    double low, high;   ///< values
    double begin, end;  ///< places
    bool logarithmic = false;

    double operator()(double value) const;
    /// About n round values.
    std::vector<double> ticks(int n) const;
};

struct Panel {
    Axis x, y;
    std::string body;
    /// How the values along y are written; absent: as numbers.
    std::function<std::string(double)> y_text{};

    Panel(double offset, double x_low, double x_high, bool x_log, double y_low, double y_high, bool y_log);

    void frame(const std::string& title, const std::string& x_name, const std::string& y_name);
    /// A value of x or of y that matters, across the panel.
    void upright(double value, const std::string& text);
    void level(double value, const std::string& text);
    void line(std::size_t which, std::size_t points,
              const std::function<std::pair<double, double>(std::size_t)>& point);
};

/// Everything before the panels: the title, and what each line is. The picture ends with "</svg>\n".
std::string picture_head(const std::string& title, const std::vector<std::string>& lines, int panels);

}  // namespace heed::cli
