#include "positions_report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numbers>

#include <fmt/format.h>

#include "numbers.h"

namespace heed::cli {
namespace {

constexpr double picture_width = 760;
constexpr double panel_height = 300;
constexpr double left = 84, right = 30, top = 44, bottom = 46;
constexpr double legend_height = 30;
constexpr double title_height = 34;

// Told apart by people who see colours differently, too (Okabe and Ito), and by their dashes.
constexpr std::array<const char*, 8> colours = {"#000000", "#0072b2", "#d55e00", "#009e73",
                                                "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f"};
constexpr std::array<const char*, 4> dashes = {"none", "7 3", "2 2", "9 3 2 3"};

std::string escaped(const std::string& text) {
    std::string result;
    for (const char c : text) {
        switch (c) {
            case '<': result += "&lt;"; break;
            case '>': result += "&gt;"; break;
            case '&': result += "&amp;"; break;
            case '"': result += "&quot;"; break;
            default: result += c;
        }
    }
    return result;
}

std::string label(double x, double y, const char* anchor, const std::string& text, const char* more = "") {
    return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y, anchor, more,
                       escaped(text));
}

/// One axis: from values to places, linear or by logarithm.
struct Axis {
    double low, high;   ///< values
    double begin, end;  ///< places
    bool logarithmic = false;

    double operator()(double value) const {
        const auto at = [&](double x) { return logarithmic ? std::log2(std::max(x, 1e-300)) : x; };
        return begin + (end - begin) * std::clamp((at(value) - at(low)) / (at(high) - at(low)), -0.02, 1.02);
    }
    /// About n round values.
    std::vector<double> ticks(int n) const {
        std::vector<double> result;
        if (logarithmic) {
            const double first = std::ceil(std::log2(low) - 1e-9);
            const double last = std::floor(std::log2(high) + 1e-9);
            const double step = std::max(1.0, std::ceil((last - first) / n));
            for (int tick = 0; first + tick * step <= last; ++tick) {
                result.push_back(std::exp2(first + tick * step));
            }
            return result;
        }
        const double rough = (high - low) / n;
        const double power = std::pow(10, std::floor(std::log10(rough)));
        double step = power;
        for (const double factor : {2.0, 5.0, 10.0}) {
            if (step < rough) { step = factor * power; }
        }
        const double first = std::ceil(low / step - 1e-9);
        for (int tick = 0; first + tick <= high / step + 1e-9; ++tick) { result.push_back((first + tick) * step); }
        return result;
    }
};

std::string tick_text(double value) {
    if (value >= 1e7) { return numbers::short_count(static_cast<std::int64_t>(std::min(value, 9e18))); }
    return value >= 1000 ? numbers::grouped(std::llround(value)) : fmt::format("{:.4g}", value);
}

struct Panel {
    Axis x, y;
    std::string body;

    Panel(double offset, double x_low, double x_high, bool x_log, double y_low, double y_high, bool y_log)
        : x{x_low, x_high, left, picture_width - right, x_log},
          y{y_low, y_high, offset + panel_height - bottom, offset + top, y_log} {}

    void frame(const std::string& title, const std::string& x_name, const std::string& y_name) {
        body += label(left, y.end - 14, "start", title, " font-weight=\"bold\"");
        for (const double value : x.ticks(9)) {
            body +=
                fmt::format("<path d=\"M{0:.1f} {1:.1f}V{2:.1f}\" stroke=\"#e4e4e4\"/>\n", x(value), y.begin, y.end);
            body += label(x(value), y.begin + 15, "middle", tick_text(value));
        }
        for (const double value : y.ticks(6)) {
            body += fmt::format("<path d=\"M{:.1f} {:.1f}H{:.1f}\" stroke=\"#e4e4e4\"/>\n", x.begin, y(value), x.end);
            body += label(x.begin - 6, y(value) + 4, "end", tick_text(value));
        }
        body += fmt::format("<path d=\"M{:.1f} {:.1f}V{:.1f}H{:.1f}\" fill=\"none\" stroke=\"#333\"/>\n", x.begin,
                            y.end, y.begin, x.end);
        body += label((x.begin + x.end) / 2, y.begin + 34, "middle", x_name);
        const double middle = (y.begin + y.end) / 2;
        body +=
            label(18, middle, "middle", y_name, fmt::format(" transform=\"rotate(-90 18 {:.1f})\"", middle).c_str());
    }
    /// A value of x or of y that matters, across the panel.
    void upright(double value, const std::string& text) {
        body += fmt::format("<path d=\"M{:.1f} {:.1f}V{:.1f}\" stroke=\"#999\" stroke-dasharray=\"3 3\"/>\n", x(value),
                            y.begin, y.end);
        body += label(x(value) - 4, y.end + 10, "end", text, " fill=\"#555\"");
    }
    void level(double value, const std::string& text) {
        body += fmt::format("<path d=\"M{:.1f} {:.1f}H{:.1f}\" stroke=\"#999\" stroke-dasharray=\"3 3\"/>\n", x.begin,
                            y(value), x.end);
        body += label(x.begin + 6, y(value) - 4, "start", text, " fill=\"#555\"");
    }
    void line(std::size_t which, std::size_t points,
              const std::function<std::pair<double, double>(std::size_t)>& point) {
        std::string path;
        for (std::size_t n = 0; n < points; ++n) {
            const auto [a, b] = point(n);
            path += fmt::format("{}{:.1f} {:.1f}", n == 0 ? "M" : "L", x(a), y(b));
        }
        body +=
            fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.8\" stroke-dasharray=\"{}\"/>\n",
                        path, colours[which % colours.size()], dashes[which % dashes.size()]);
    }
};

/// Whole distances from 1 to `longest`, evenly by their logarithm.
std::vector<std::int64_t> spread(std::int64_t longest) {
    constexpr int points = 160;
    std::vector<std::int64_t> result;
    for (int n = 0; n <= points; ++n) {
        result.push_back(std::llround(std::pow(static_cast<double>(longest), static_cast<double>(n) / points)));
    }
    result.erase(std::unique(result.begin(), result.end()), result.end());
    return result;
}

/// The mean score of the distances within a tenth: single ones swing, which would hide the decay.
double mean_score(const RopeCurve& curve, std::int64_t distance) {
    const std::int64_t reach = distance / 10;
    const std::int64_t step = std::max<std::int64_t>(1, reach / 32);
    double sum = 0;
    double count = 0;
    for (std::int64_t d = distance - reach; d <= distance + reach; d += step) {
        sum += curve.score(d);
        count += 1;
    }
    return sum / count;
}

double wavelength(double frequency) { return frequency > 0 ? 2 * std::numbers::pi / frequency : 1e18; }

std::string frequencies_panel(const RopeReport& r, double offset) {
    double longest = static_cast<double>(r.length);
    for (const RopeCurve& c : r.curves) {
        for (const double f : c.table.frequencies) {
            if (f > 0) { longest = std::max(longest, wavelength(f)); }
        }
    }
    Panel p(offset, 0, static_cast<double>(std::max<std::int64_t>(r.pairs() - 1, 1)), false, 4, longest * 1.2, true);
    p.frame("Tokens that a pair needs to come round", "pair", "tokens");
    p.level(static_cast<double>(r.trained), "trained length");
    p.level(static_cast<double>(r.length), "length asked for");
    for (std::size_t n = 0; n < r.curves.size(); ++n) {
        p.line(n, r.before.size(), [&](std::size_t i) {
            return std::pair{static_cast<double>(i), wavelength(r.curves[n].table.frequencies[i])};
        });
    }
    return p.body;
}

std::string decay_panel(const RopeReport& r, double offset) {
    const std::vector<std::int64_t> distances = spread(r.length);
    std::vector<std::vector<double>> scores(r.curves.size());
    double low = 0, high = 1;
    for (std::size_t n = 0; n < r.curves.size(); ++n) {
        for (const std::int64_t d : distances) { scores[n].push_back(mean_score(r.curves[n], d)); }
        low = std::min(low, std::ranges::min(scores[n]));
        high = std::max(high, std::ranges::max(scores[n]));
    }
    Panel p(offset, 1, static_cast<double>(r.length), true, low, high * 1.05, false);
    p.frame("Score of two equal vectors by their distance (mean within a tenth of it)", "distance in tokens", "score");
    p.upright(static_cast<double>(r.trained), "trained");
    for (std::size_t n = 0; n < r.curves.size(); ++n) {
        p.line(n, distances.size(), [&](std::size_t k) {
            return std::pair{static_cast<double>(distances[k]), scores[n][k]};
        });
    }
    return p.body;
}

std::string reach_panel(const RopeReport& r, double offset) {
    const double stretch = static_cast<double>(r.length) / static_cast<double>(r.trained);
    const auto reach = [&](const RopeCurve& c, std::size_t i) {
        return c.table.frequencies[i] / r.before[i] * stretch;
    };
    double low = 0.7, high = std::max(stretch, 1.5);
    for (const RopeCurve& c : r.curves) {
        for (std::size_t i = 0; i < r.before.size(); ++i) {
            if (reach(c, i) > 0) { low = std::min(low, reach(c, i)); }
            high = std::max(high, reach(c, i));
        }
    }
    Panel p(offset, 0, static_cast<double>(std::max<std::int64_t>(r.pairs() - 1, 1)), false, low, high * 1.1, true);
    std::size_t round = 0;
    while (round < r.before.size() && r.comes_round(round)) { ++round; }
    const double edge = round == 0 ? p.x.begin : p.x(static_cast<double>(round) - 0.5);
    p.body += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"#eef4ea\"/>\n",
                          p.x.begin, p.y.end, std::max(0.0, edge - p.x.begin), p.y.begin - p.y.end);
    p.frame(fmt::format("Furthest angle at {} tokens, over the furthest in training", numbers::grouped(r.length)),
            "pair", "times");
    if (round > 0) {
        p.body += label(p.x.begin + 6, p.y.begin - 8, "start", "shaded: came round in training, every angle is known",
                        " fill=\"#555\"");
    }
    p.level(1, "seen in training up to here");
    for (std::size_t n = 0; n < r.curves.size(); ++n) {
        p.line(n, r.before.size(), [&](std::size_t i) {
            return std::pair{static_cast<double>(i), reach(r.curves[n], i)};
        });
    }
    return p.body;
}

}  // namespace

std::string to_svg(const RopeReport& report) {
    const double height = title_height + legend_height + 3 * panel_height;
    std::string svg = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
        "height=\"{1:.0f}\" "
        "font-family=\"sans-serif\" font-size=\"12\" fill=\"#222\">\n<rect width=\"100%\" height=\"100%\" "
        "fill=\"#fff\"/>\n",
        picture_width, height);
    svg += label(left, 22, "start",
                 fmt::format("{}: {} pairs, theta {:.6g}, trained on {}, read up to {}", report.source, report.pairs(),
                             report.plain.theta, numbers::grouped(report.trained), numbers::grouped(report.length)),
                 " font-size=\"14\" font-weight=\"bold\"");
    double at = left;
    for (std::size_t n = 0; n < report.curves.size(); ++n) {
        const double y = title_height + legend_height / 2;
        svg +=
            fmt::format("<path d=\"M{:.1f} {:.1f}h26\" stroke=\"{}\" stroke-width=\"2.4\" stroke-dasharray=\"{}\"/>\n",
                        at, y - 4, colours[n % colours.size()], dashes[n % dashes.size()]);
        svg += label(at + 31, y, "start", report.curves[n].name);
        at += 48 + 7.0 * static_cast<double>(report.curves[n].name.size());
    }
    const double first = title_height + legend_height;
    svg += frequencies_panel(report, first) + decay_panel(report, first + panel_height) +
           reach_panel(report, first + 2 * panel_height);
    return svg + "</svg>\n";
}

}  // namespace heed::cli
