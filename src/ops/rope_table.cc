#include <heed/positions.h>

#include "ops/attention_checks.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace heed {
namespace {

constexpr const char* rope_table_name = "rope_table";
constexpr std::int64_t largest_size = std::int64_t{1} << 20;

std::string shown(double value) {
    std::string text = std::to_string(value);
    if (text.find('.') != std::string::npos) {
        text.erase(text.find_last_not_of('0') + 1);
        if (text.back() == '.') { text.pop_back(); }
    }
    return text;
}

double positive(const std::string& name, double value) {
    if (!(value > 0) || !std::isfinite(value)) { refuse(rope_table_name, name, "a positive number", shown(value)); }
    return value;
}

double trained_length(const std::string& name, std::int64_t trained) {
    if (trained < 1 || trained > largest_position) {
        refuse(rope_table_name, name + ".trained", "the length the model was trained for, 1 to 2^53",
               std::to_string(trained));
    }
    return static_cast<double>(trained);
}

/// f_i = theta^(-2i/size)
std::vector<double> plain(double theta, std::int64_t size) {
    std::vector<double> f(static_cast<std::size_t>(size / 2));
    for (std::size_t i = 0; i < f.size(); ++i) {
        f[i] = std::pow(theta, -2 * static_cast<double>(i) / static_cast<double>(size));
    }
    return f;
}

/// One function a scaling: what it checks stands beside what it computes.
struct Maker {
    const Rope& rope;
    std::int64_t length;  ///< 0: the trained one

    RopeTable table(std::vector<double> frequencies, double attention_factor = 1) const {
        return {std::move(frequencies), attention_factor, rope.pairing};
    }
    double stretched(const std::string& name, double factor) const {
        if (rope.size < 4) { refuse(rope_table_name, name + ": rope.size", "4 or more", std::to_string(rope.size)); }
        const auto size = static_cast<double>(rope.size);
        return positive(name + ": the stretched rope.theta", rope.theta * std::pow(factor, size / (size - 2)));
    }

    RopeTable operator()(const rope_scaling::None&) const { return table(plain(rope.theta, rope.size)); }

    RopeTable operator()(const rope_scaling::Linear& s) const {
        std::vector<double> f = plain(rope.theta, rope.size);
        for (double& x : f) { x /= positive("linear.factor", s.factor); }
        return table(std::move(f));
    }

    RopeTable operator()(const rope_scaling::Ntk& s) const {
        return table(plain(stretched("ntk", positive("ntk.factor", s.factor)), rope.size));
    }

    RopeTable operator()(const rope_scaling::DynamicNtk& s) const {
        const double factor = positive("dynamic.factor", s.factor);
        const double trained = trained_length("dynamic", s.trained);
        const double n = std::max(static_cast<double>(length), trained);
        return table(plain(stretched("dynamic", factor * n / trained - (factor - 1)), rope.size));
    }

    RopeTable operator()(const rope_scaling::Yarn& s) const {
        const double factor = positive("yarn.factor", s.factor);
        const double trained = trained_length("yarn", s.trained);
        positive("yarn.beta_slow", s.beta_slow);
        if (positive("yarn.beta_fast", s.beta_fast) < s.beta_slow) {
            refuse(rope_table_name, "yarn.beta_fast", "at least beta_slow = " + shown(s.beta_slow), shown(s.beta_fast));
        }
        if (!(rope.theta > 1)) { refuse(rope_table_name, "yarn: rope.theta", "more than 1", shown(rope.theta)); }
        const auto size = static_cast<double>(rope.size);
        // The index of the pair that rotates so many times within the trained length.
        const auto index = [&](double rotations) {
            return size * std::log(trained / (2 * std::numbers::pi * rotations)) / (2 * std::log(rope.theta));
        };
        const auto whole = [&](double x, double rounded) { return s.truncate ? rounded : x; };
        const double fast = index(s.beta_fast);
        const double slow = index(s.beta_slow);
        const double low = std::max(whole(fast, std::floor(fast)), 0.0);
        // Up to size - 1 and not size/2 - 1: every implementation does so. Below `low`, which a very short or very long
        // trained length makes it, the ramp turns around, and models that were trained so need it so.
        double high = std::min(whole(slow, std::ceil(slow)), size - 1);
        if (low == high) { high += 0.001; }
        std::vector<double> f = plain(rope.theta, rope.size);
        for (std::size_t i = 0; i < f.size(); ++i) {
            const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
            f[i] = (1 - ramp) * f[i] + ramp * f[i] / factor;
        }
        return table(std::move(f), yarn_attention_factor(s));
    }

    static double yarn_attention_factor(const rope_scaling::Yarn& s) {
        const auto not_negative = [](const char* name, double value) {
            if (!(value >= 0) || !std::isfinite(value)) {
                refuse(rope_table_name, name, "0 or a positive number", shown(value));
            }
        };
        not_negative("yarn.mscale", s.mscale);
        not_negative("yarn.mscale_all_dim", s.mscale_all_dim);
        if (s.attention_factor) { return positive("yarn.attention_factor", *s.attention_factor); }
        const auto g = [&](double m) { return s.factor <= 1 ? 1.0 : 0.1 * m * std::log(s.factor) + 1; };
        return s.mscale > 0 && s.mscale_all_dim > 0 ? g(s.mscale) / g(s.mscale_all_dim) : g(1);
    }

    RopeTable operator()(const rope_scaling::Llama3& s) const {
        const double factor = positive("llama3.factor", s.factor);
        const double trained = trained_length("llama3", s.trained);
        positive("llama3.low_freq_factor", s.low_freq_factor);
        if (!(positive("llama3.high_freq_factor", s.high_freq_factor) > s.low_freq_factor)) {
            refuse(rope_table_name, "llama3.high_freq_factor",
                   "more than low_freq_factor = " + shown(s.low_freq_factor), shown(s.high_freq_factor));
        }
        std::vector<double> f = plain(rope.theta, rope.size);
        for (double& x : f) {
            const double rotations = trained * x / (2 * std::numbers::pi);
            const double kept =
                std::clamp((rotations - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor), 0.0, 1.0);
            x = (1 - kept) * x / factor + kept * x;
        }
        return table(std::move(f));
    }

    RopeTable operator()(const rope_scaling::LongRope& s) const {
        const double factor = positive("longrope.factor", s.factor);
        const double trained = trained_length("longrope", s.trained);
        std::vector<double> f = plain(rope.theta, rope.size);
        const auto check = [&](const std::string& name, const std::vector<double>& list) {
            if (list.size() != f.size()) {
                refuse(rope_table_name, name, std::to_string(f.size()) + " numbers, one a pair",
                       std::to_string(list.size()));
            }
            for (std::size_t i = 0; i < list.size(); ++i) { positive(name + "[" + std::to_string(i) + "]", list[i]); }
        };
        check("longrope.short_factors", s.short_factors);
        check("longrope.long_factors", s.long_factors);
        const std::vector<double>& divisors = length > s.trained ? s.long_factors : s.short_factors;
        for (std::size_t i = 0; i < f.size(); ++i) { f[i] /= divisors[i]; }
        if (s.attention_factor) {
            return table(std::move(f), positive("longrope.attention_factor", *s.attention_factor));
        }
        if (factor <= 1) { return table(std::move(f)); }
        if (s.trained < 2) { refuse(rope_table_name, "longrope.trained", "2 or more", std::to_string(s.trained)); }
        return table(std::move(f), std::sqrt(1 + std::log(factor) / std::log(trained)));
    }

    RopeTable operator()(const rope_scaling::Proportional& s) const {
        if (!(s.share > 0 && s.share <= 1)) {
            refuse(rope_table_name, "proportional.share", "0 < share <= 1", shown(s.share));
        }
        const double factor = positive("proportional.factor", s.factor);
        std::vector<double> f = plain(rope.theta, rope.size);
        const auto rotating = static_cast<std::size_t>(s.share * static_cast<double>(rope.size) / 2);
        for (std::size_t i = 0; i < f.size(); ++i) { f[i] = i < rotating ? f[i] / factor : 0; }
        return table(std::move(f));
    }
};

}  // namespace

std::string_view name_of(const RopeScaling& scaling) {
    constexpr std::string_view names[] = {"none", "linear", "ntk",      "dynamic",
                                          "yarn", "llama3", "longrope", "proportional"};
    return names[scaling.index()];
}

bool depends_on_length(const RopeScaling& scaling) {
    return std::holds_alternative<rope_scaling::DynamicNtk>(scaling) ||
           std::holds_alternative<rope_scaling::LongRope>(scaling);
}

RopeTable rope_table(const Rope& rope, std::int64_t length) {
    if (rope.size < 2 || rope.size % 2 != 0 || rope.size > largest_size) {
        refuse(rope_table_name, "rope.size", "an even number from 2 to 2^20", std::to_string(rope.size));
    }
    positive("rope.theta", rope.theta);
    if (rope.pairing != Pairing::interleaved && rope.pairing != Pairing::halves) {
        refuse(rope_table_name, "rope.pairing", "interleaved or halves",
               std::to_string(static_cast<int>(rope.pairing)));
    }
    if (length < 0 || length > largest_position) {
        refuse(rope_table_name, "length", "0 (the trained length) to 2^53", std::to_string(length));
    }
    RopeTable table = std::visit(Maker{rope, length}, rope.scaling);
    // Settings that are each fine can still overflow together.
    for (const double f : table.frequencies) {
        if (!std::isfinite(f)) { refuse(rope_table_name, "rope", "settings that give finite frequencies", shown(f)); }
    }
    positive("rope: the attention factor that its settings give", table.attention_factor);
    return table;
}

}  // namespace heed
