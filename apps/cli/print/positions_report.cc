#include "print/positions_report.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "print/numbers.h"
#include "print/text.h"

namespace heed::cli {
namespace {

/// About so many pairs, the first and the last among them.
std::vector<std::size_t> some_pairs(std::size_t pairs, std::size_t most) {
    std::vector<std::size_t> result;
    const std::size_t count = std::min(pairs, most);
    for (std::size_t n = 0; n < count; ++n) {
        result.push_back(count == 1 ? 0 : (n * (pairs - 1) + (count - 1) / 2) / (count - 1));
    }
    return result;
}

/// 0, 1, 2, 4, ... and the trained and the full length.
std::vector<std::int64_t> some_distances(const RopeReport& report) {
    std::vector<std::int64_t> result = {0, report.trained - 1, report.length - 1};
    for (std::int64_t d = 1; d < report.length; d *= 2) { result.push_back(d); }
    std::ranges::sort(result);
    result.erase(std::unique(result.begin(), result.end()), result.end());
    return result;
}

std::string tokens(double value) {
    if (!std::isfinite(value)) { return "never"; }
    return value < 1000 ? fmt::format("{:.4g}", value)
                        : numbers::grouped(static_cast<std::int64_t>(std::min(std::round(value), 9e18)));
}

}  // namespace

double RopeCurve::score(std::int64_t distance) const {
    double sum = 0;
    for (const double f : table.frequencies) { sum += std::cos(static_cast<double>(distance) * f); }
    return table.attention_factor * table.attention_factor * sum / static_cast<double>(table.frequencies.size());
}

bool RopeReport::comes_round(std::size_t pair) const {
    return before[pair] * static_cast<double>(trained) >= 2 * std::numbers::pi;
}

void RopeReport::add(const std::string& name, const Rope& rope) {
    RopeCurve curve{.name = name, .rope = rope, .table = rope_table(rope, length)};
    constexpr double rounding = 1 + 1e-9;
    const double stretch = static_cast<double>(length) / static_cast<double>(trained);
    for (std::size_t i = 0; i < before.size(); ++i) {
        const double now = curve.table.frequencies[i];
        if (now * rounding >= before[i]) {
            ++curve.kept;
        } else if (now * stretch > before[i] * rounding) {
            ++curve.blended;
        } else {
            ++curve.slowed;
        }
        if (!comes_round(i) &&
            now * static_cast<double>(length) > before[i] * static_cast<double>(trained) * rounding) {
            ++curve.unseen;
        }
    }
    curves.push_back(std::move(curve));
}

std::string to_text(const RopeReport& report) {
    const std::size_t pairs = report.before.size();
    std::string text = fmt::format(
        "{}: {} numbers rotate ({} pairs), theta {}\ntrained on {} tokens, read up to {} ({:.4g} times)\n\n",
        report.source, 2 * pairs, pairs, shortest(report.plain.theta), numbers::grouped(report.trained),
        numbers::grouped(report.length), static_cast<double>(report.length) / static_cast<double>(report.trained));
    std::size_t width = 8;
    for (const RopeCurve& curve : report.curves) { width = std::max(width, width_of(curve.name)); }
    const auto cell = [&](const std::string& value) { return fmt::format("  {:>{}}", value, width); };
    const auto heads = [&] {
        std::string line;
        for (const RopeCurve& curve : report.curves) { line += cell(curve.name); }
        return line + "\n";
    };

    text +=
        fmt::format("What each scaling does to the {} pairs up to token {}\n", pairs, numbers::grouped(report.length));
    text += fmt::format("{:<{}}  {:>5}  {:>7}  {:>6}  {:>13}  {:>14}  {:>12}\n", "scaling", width, "kept", "blended",
                        "slowed", "unseen angles", "slowest turn", "score factor");
    for (const RopeCurve& curve : report.curves) {
        const double slowest = *std::ranges::min_element(curve.table.frequencies);
        text += fmt::format("{:<{}}  {:>5}  {:>7}  {:>6}  {:>13}  {:>14}  {:>12.6g}\n", curve.name, width, curve.kept,
                            curve.blended, curve.slowed, curve.unseen, tokens(2 * std::numbers::pi / slowest),
                            curve.table.attention_factor * curve.table.attention_factor);
    }
    text +=
        "kept: turns as in training. slowed: by the stretch or more. unseen angles: pairs that never came round in\n"
        "training and now reach further than they did. slowest turn: in tokens. score factor: A squared.\n\n";

    text += "Frequencies, and what each scaling makes of them (1 = kept)\n";
    text += fmt::format("{:>4}  {:>11}  {:>14}{}", "pair", "frequency", "tokens a turn", heads());
    for (const std::size_t i : some_pairs(pairs, 10)) {
        text += fmt::format("{:>4}  {:>11.5g}  {:>14}", i, report.before[i],
                            tokens(2 * std::numbers::pi / report.before[i]));
        for (const RopeCurve& curve : report.curves) {
            text += cell(fmt::format("{:.5g}", curve.table.frequencies[i] / report.before[i]));
        }
        text += "\n";
    }

    text += "\nScore of two equal vectors by their distance (1 = at the same place, unscaled)\n";
    text += fmt::format("{:>11}{}", "distance", heads());
    for (const std::int64_t distance : some_distances(report)) {
        text += fmt::format("{:>11}", numbers::grouped(distance));
        for (const RopeCurve& curve : report.curves) { text += cell(fmt::format("{:.4f}", curve.score(distance))); }
        text += "\n";
    }
    return text;
}

std::string to_json(const RopeReport& report) {
    nlohmann::ordered_json json;
    json["source"] = report.source;
    json["size"] = 2 * report.pairs();
    json["theta"] = report.plain.theta;
    json["pairing"] = report.plain.pairing == Pairing::interleaved ? "interleaved" : "halves";
    json["trained"] = report.trained;
    json["length"] = report.length;
    json["frequencies"] = report.before;
    const std::vector<std::int64_t> distances = some_distances(report);
    json["distances"] = distances;
    for (const RopeCurve& curve : report.curves) {
        std::vector<double> scores;
        for (const std::int64_t distance : distances) { scores.push_back(curve.score(distance)); }
        json["scalings"].push_back({{"name", curve.name},
                                    {"type", name_of(curve.rope.scaling)},
                                    {"frequencies", curve.table.frequencies},
                                    {"attention_factor", curve.table.attention_factor},
                                    {"kept", curve.kept},
                                    {"blended", curve.blended},
                                    {"slowed", curve.slowed},
                                    {"unseen", curve.unseen},
                                    {"scores", scores}});
    }
    return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace heed::cli
