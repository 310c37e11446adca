#include "print/positions_report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numbers>

#include <fmt/format.h>

#include "print/numbers.h"
#include "print/plot.h"

namespace heed::cli {
namespace {

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
    std::vector<std::string> names;
    for (const RopeCurve& curve : report.curves) { names.push_back(curve.name); }
    std::string svg = picture_head(
        fmt::format("{}: {} pairs, theta {:.6g}, trained on {}, read up to {}", report.source, report.pairs(),
                    report.plain.theta, numbers::grouped(report.trained), numbers::grouped(report.length)),
        names, 3);
    const double first = title_height + legend_height;
    svg += frequencies_panel(report, first) + decay_panel(report, first + panel_height) +
           reach_panel(report, first + 2 * panel_height);
    return svg + "</svg>\n";
}

}  // namespace heed::cli
