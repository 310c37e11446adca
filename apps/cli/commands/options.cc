#include "commands/options.h"

#include <algorithm>
#include <limits>
#include <vector>

#include <fmt/format.h>
#include <heed/positions.h>

#include "print/text.h"

namespace heed::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t largest_side = std::int64_t{1} << 53;

Align parse_align(const std::string& source, const std::string& text) {
    if (text == "bottom-right") { return Align::bottom_right; }
    if (text == "top-left") { return Align::top_left; }
    throw UsageError(fmt::format("{}: expected bottom-right or top-left, got '{}'", source, text));
}

double check_dropout(const std::string& source, double p) {
    if (!(p >= 0 && p < 1)) { throw UsageError(fmt::format("{}: expected 0 <= p < 1, got {}", source, p)); }
    return p;
}

double check_softcap(const std::string& source, double cap) {
    if (!(cap >= 0)) { throw UsageError(fmt::format("{}: expected 0 (none) or more, got {}", source, cap)); }
    return cap;
}

}  // namespace

void Settings::override_with(const Settings& stronger) {
    const auto take = [](auto& mine, const auto& theirs) {
        if (theirs) { mine = theirs; }
    };
    take(scale, stronger.scale);
    take(causal, stronger.causal);
    take(align, stronger.align);
    take(window, stronger.window);
    take(softcap, stronger.softcap);
    take(dropout, stronger.dropout);
    take(seed, stronger.seed);
    take(offset, stronger.offset);
    take(alibi, stronger.alibi);
    take(bias, stronger.bias);
    take(mask, stronger.mask);
    take(lengths, stronger.lengths);
    take(sinks, stronger.sinks);
}

void Settings::apply(AttentionOptions& options) const {
    options.scale = scale;
    options.causal = causal.value_or(false);
    options.align = align.value_or(Align::bottom_right);
    options.window = window.value_or(Window{});
    options.softcap = softcap.value_or(0);
    options.dropout.p = dropout.value_or(0);
    options.dropout.seed = seed.value_or(0);
    options.dropout.offset = offset.value_or(0);
}

void add_settings(CLI::App& command, Settings& settings) {
    Settings* s = &settings;  // outlives the parse; the closures below outlive this call
    const auto text = [&](const char* name, const char* type, const char* help, auto set) {
        return command.add_option_function<std::string>(name, set, help)->type_name(type)->group("Attention");
    };
    const auto set_causal = [s](bool causal) {
        if (s->causal == !causal) { throw UsageError("--causal: expected one of it and --no-causal, got both"); }
        s->causal = causal;
    };
    command
        .add_flag_callback(
            "--causal", [set_causal] { set_causal(true); }, "Hide later keys")
        ->group("Attention");
    command
        .add_flag_callback(
            "--no-causal", [set_causal] { set_causal(false); }, "Not causal, whatever the file says")
        ->group("Attention");
    text("--align", "WHERE", "Query 0 where T != S: bottom-right (default) or top-left",
         [s](const std::string& v) { s->align = parse_align("--align", v); });
    text("--window", "L,R", "See L keys to the left and R to the right; -1: all", [s](const std::string& v) {
        const std::vector<std::int64_t> sides = parse_integers("--window", v, -1, largest_side);
        if (sides.size() != 2) { throw UsageError("--window: expected two numbers L,R, got '" + v + "'"); }
        s->window = Window{.left = sides[0], .right = sides[1]};
    });
    text("--scale", "X", "Factor of the scores (default 1/sqrt(D))",
         [s](const std::string& v) { s->scale = parse_real("--scale", v); });
    text("--softcap", "X", "Soft-cap of the scores; 0: none",
         [s](const std::string& v) { s->softcap = check_softcap("--softcap", parse_real("--softcap", v)); });
    text("--dropout", "P", "Drop weights with this probability",
         [s](const std::string& v) { s->dropout = check_dropout("--dropout", parse_real("--dropout", v)); });
    text("--seed", "N", "Seed of what is random", [s](const std::string& v) {
        s->seed = parse_unsigned("--seed", v, std::numeric_limits<std::uint64_t>::max());
    });
    text("--offset", "N", "Dropout's offset (layer and step)", [s](const std::string& v) {
        const auto most = std::numeric_limits<std::uint32_t>::max();
        s->offset = static_cast<std::uint32_t>(parse_unsigned("--offset", v, most));
    });
    command
        .add_flag_callback(
            "--alibi", [s] { s->alibi = true; }, "ALiBi; usual slopes unless given")
        ->group("Attention");
}

void add_kernel(CLI::App& command, std::string& kernel) {
    command.add_option("--kernel", kernel, "Use this one and no other; heed explain lists the names")
        ->type_name("NAME");
}

bool read_setting(const std::string& source, const std::string& key, const Json& value, Settings& settings) {
    const std::string name = source + ": " + printable(key);
    const auto wrong = [&](const char* expected) {
        throw UsageError(fmt::format("{}: expected {}, got {}", name, expected, describe(value)));
    };
    const auto truth = [&] {
        if (!value.is_boolean()) { wrong("true or false"); }
        return value.get<bool>();
    };
    const auto real = [&] {
        if (!value.is_number()) { wrong("a number"); }
        return value.get<double>();
    };
    const auto whole = [&](std::uint64_t most) {
        if (!value.is_number_unsigned() || value.get<std::uint64_t>() > most) { wrong("a whole number, 0 or more"); }
        return value.get<std::uint64_t>();
    };
    // Says that a tensor is there; which kind it is ("head", "random") is told by its shape.
    const auto present = [&] {
        if (!value.is_boolean() && !value.is_string()) { wrong("true, false or a word"); }
        return value.is_string() || value.get<bool>();
    };
    // null is "off", as a missing key.
    const bool off = value.is_null();
    if (key == "scale") {
        if (!off) { settings.scale = real(); }
    } else if (key == "causal") {
        settings.causal = !off && truth();
    } else if (key == "align") {
        if (!off && !value.is_string()) { wrong("bottom-right or top-left"); }
        if (!off) { settings.align = parse_align(name, value.get<std::string>()); }
    } else if (key == "window") {
        Window window;
        if (!off) {
            if (!value.is_array() || value.size() != 2) { wrong("[left, right]"); }
            const auto side = [&](const Json& n) {
                if (!n.is_number_integer() || (n.is_number_unsigned() && n.get<std::uint64_t>() > largest_side) ||
                    n.get<std::int64_t>() < -1) {
                    throw UsageError(fmt::format("{}: expected whole numbers, -1 or more, got {}", name, describe(n)));
                }
                return n.get<std::int64_t>();
            };
            window = {.left = side(value[0]), .right = side(value[1])};
        }
        settings.window = window;
    } else if (key == "softcap") {
        settings.softcap = off ? 0 : check_softcap(name, real());
    } else if (key == "dropout") {
        settings.dropout = off ? 0 : check_dropout(name, real());
    } else if (key == "seed") {
        if (!off) { settings.seed = whole(std::numeric_limits<std::uint64_t>::max()); }
    } else if (key == "offset") {
        if (!off) { settings.offset = static_cast<std::uint32_t>(whole(std::numeric_limits<std::uint32_t>::max())); }
    } else if (key == "alibi") {
        settings.alibi = !off && truth();
    } else if (key == "bias") {
        settings.bias = !off && present();
    } else if (key == "mask") {
        settings.mask = !off && present();
    } else if (key == "lengths") {
        settings.lengths = !off && present();
    } else if (key == "sinks") {
        settings.sinks = !off && present();
    } else {
        return false;
    }
    return true;
}

Tensor default_slopes(std::int64_t heads) {
    const std::vector<double> slopes = alibi_slopes(heads);
    Tensor result(DType::f64, {heads});
    std::copy(slopes.begin(), slopes.end(), result.as<double>());
    return result;
}

Json to_spec(const AttentionOptions& options) {
    Json spec = Json::object();
    if (options.scale) { spec["scale"] = *options.scale; }
    spec["causal"] = options.causal;
    spec["align"] = options.align == Align::bottom_right ? "bottom-right" : "top-left";
    if (options.window.left >= 0 || options.window.right >= 0) {
        spec["window"] = {options.window.left, options.window.right};
    }
    if (options.softcap > 0) { spec["softcap"] = options.softcap; }
    if (options.alibi_slopes) { spec["alibi"] = true; }
    if (options.bias) { spec["bias"] = true; }
    if (options.allow) { spec["mask"] = true; }
    if (options.key_lengths || options.query_lengths) { spec["lengths"] = true; }
    if (options.sinks) { spec["sinks"] = true; }
    if (options.dropout.p > 0) {
        spec["dropout"] = options.dropout.p;
        if (!options.dropout.keep) {
            spec["seed"] = options.dropout.seed.value_or(0);
            spec["offset"] = options.dropout.offset;
        }
    }
    return spec;
}

std::string to_words(const AttentionOptions& o) {
    std::vector<std::string> words;
    if (o.causal) { words.emplace_back("causal"); }
    if (o.align == Align::top_left) { words.emplace_back("aligned top-left"); }
    if (o.window.left >= 0 || o.window.right >= 0) {
        words.push_back(fmt::format("window {},{}", o.window.left, o.window.right));
    }
    if (o.scale) { words.push_back(fmt::format("scale {}", *o.scale)); }
    if (o.softcap > 0) { words.push_back(fmt::format("softcap {}", o.softcap)); }
    const auto tensor = [&](const char* name, const View& view) {
        if (view) { words.push_back(fmt::format("{} {}", name, compact(view.shape()))); }
    };
    tensor("bias", o.bias);
    if (o.alibi_slopes) { words.emplace_back("ALiBi"); }
    tensor("mask", o.allow);
    if (o.key_lengths) { words.emplace_back("key lengths"); }
    if (o.query_lengths) { words.emplace_back("query lengths"); }
    if (o.cu_seqlens_q) { words.push_back(fmt::format("{} packed sequences", o.cu_seqlens_q.extent(0) - 1)); }
    if (o.query_positions || o.key_positions) { words.emplace_back("positions"); }
    if (o.sinks) { words.emplace_back("sinks"); }
    if (o.dropout.p > 0) {
        words.push_back(o.dropout.keep ? fmt::format("dropout {} by dropout_keep", o.dropout.p)
                                       : fmt::format("dropout {} seed {} offset {}", o.dropout.p,
                                                     o.dropout.seed.value_or(0), o.dropout.offset));
    }
    return words.empty() ? "none" : fmt::format("{}", fmt::join(words, ", "));
}

}  // namespace heed::cli
