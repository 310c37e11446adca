#include "print/training.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <heed/search.h>

#include "print/numbers.h"
#include "print/plot.h"
#include "print/text.h"

namespace heed::cli {
namespace {

void write_file(const std::filesystem::path& path, const std::string& text) {
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file << text;
    file.flush();
    if (!file) { throw UsageError(path.string() + ": cannot be written"); }
}

/// The mean of every n steps around a point: single batches are too noisy to look at.
std::vector<std::pair<double, double>> smoothed(const std::vector<LossPoint>& curve) {
    const std::size_t width = std::max<std::size_t>(1, curve.size() / 60);
    std::vector<std::pair<double, double>> points;
    for (std::size_t begin = 0; begin < curve.size(); begin += width) {
        const std::size_t end = std::min(curve.size(), begin + width);
        double sum = 0;
        for (std::size_t n = begin; n < end; ++n) { sum += curve[n].loss; }
        points.emplace_back(static_cast<double>(curve[end - 1].step), sum / static_cast<double>(end - begin));
    }
    return points;
}

struct Curve {
    std::string name;
    std::vector<std::pair<double, double>> points;
};

std::string loss_picture(const std::string& title, const std::vector<Curve>& curves) {
    double low = std::numeric_limits<double>::infinity(), high = 0, last = 1;
    std::vector<std::string> names;
    for (const Curve& curve : curves) {
        names.push_back(curve.name);
        for (const auto& [step, loss] : curve.points) {
            if (!std::isfinite(loss)) { continue; }
            low = std::min(low, loss);
            high = std::max(high, loss);
            last = std::max(last, step);
        }
    }
    low = std::isfinite(low) ? std::max(low, 1e-4) : 1e-4;
    high = std::max(high, low * 1.5);
    Panel panel(title_height + legend_height, 0, last, false, low * 0.9, high * 1.1, true);
    panel.frame("loss, nats a target", "step", "loss");
    for (std::size_t n = 0; n < curves.size(); ++n) {
        const auto& points = curves[n].points;
        panel.line(n, points.size(),
                   [&](std::size_t i) { return std::pair(points[i].first, std::max(points[i].second, low * 0.9)); });
    }
    return picture_head(title, names, 1) + panel.body + "</svg>\n";
}

/// Where each character of the answer looked, in shades.
void show_alignment(Context& context, const Model& model, const TaskExample& example,
                    const std::vector<std::int64_t>& answer) {
    std::vector<std::int64_t> source = task_encode(example.source);
    source.push_back(2);
    const auto columns = static_cast<std::int64_t>(source.size()), rows = static_cast<std::int64_t>(answer.size());
    ForwardInputs inputs;
    inputs.input_ids = View(source.data(), {1, columns});
    inputs.decoder_input_ids = View(answer.data(), {1, rows});
    const ForwardResult result = model.forward(context, inputs, {.logits = false, .attention = true});
    if (result.cross_attention.empty()) { return; }
    // The head whose rows are the most decided, of the last layer: the mean of all would blur them.
    const Tensor& weights = result.cross_attention.back();
    const std::int64_t heads = weights.shape()[1];
    std::int64_t best = 0;
    double most = -1;
    for (std::int64_t h = 0; h < heads; ++h) {
        double sum = 0;
        for (std::int64_t r = 0; r < rows; ++r) {
            const float* row = weights.as<float>() + (h * rows + r) * columns;
            sum += static_cast<double>(*std::max_element(row, row + columns));
        }
        if (sum > most) {
            most = sum;
            best = h;
        }
    }
    const std::string written = task_decode(std::span(answer).subspan(1));
    fmt::print("\nWhere head {} of the last layer looked while it wrote (darker: more):\n\n    {}\n", best + 1,
               example.source);
    constexpr std::array<std::string_view, 5> shades = {" ", "░", "▒", "▓", "█"};
    for (std::size_t r = 0; r < written.size(); ++r) {
        const float* row = weights.as<float>() + (best * rows + static_cast<std::int64_t>(r)) * columns;
        std::string line;
        for (std::size_t c = 0; c < example.source.size(); ++c) {
            line += shades[std::min<std::size_t>(4, static_cast<std::size_t>(row[c] * 5))];
        }
        fmt::print("  {} {}\n", written[r], line);
    }
    fmt::print("\n");
}

/// An encoder's answer: the most probable letter at every place that is asked for.
std::string encoder_answer(Context& context, const Model& model, const TaskExample& example) {
    const std::vector<std::int64_t> ids = task_encode(example.source);
    const auto columns = static_cast<std::int64_t>(ids.size());
    ForwardInputs inputs;
    inputs.input_ids = View(ids.data(), {1, columns});
    const ForwardResult result = model.forward(context, inputs);
    const std::int64_t vocab = result.logits.shape()[2];
    std::string text;
    for (std::int64_t t = 0; t < columns; ++t) {
        const float* z = result.logits.as<float>() + t * vocab;
        const std::int64_t id = std::max_element(z, z + vocab) - z;
        text += example.target[static_cast<std::size_t>(t)] == '.' ? "." : task_decode(std::vector<std::int64_t>{id});
    }
    return text;
}

/// A decoder's answer where only some letters are asked for: the most probable one behind all that comes before it.
std::string asked_answer(Context& context, const Model& model, const TaskExample& example) {
    std::vector<std::int64_t> ids = task_encode(example.source + example.target);
    ids.insert(ids.begin(), 1);
    ForwardInputs inputs;
    inputs.input_ids = View(ids.data(), {1, static_cast<std::int64_t>(ids.size())});
    const ForwardResult result = model.forward(context, inputs);
    const std::int64_t vocab = result.logits.shape()[2];
    std::string text = example.target;
    for (std::size_t n = 0; n < text.size(); ++n) {
        if (example.asked[n] != '1') { continue; }
        // Behind the start token and the question, and the logits of the token before speak of this one.
        const float* z = result.logits.as<float>() + static_cast<std::int64_t>(example.source.size() + n) * vocab;
        const std::string letter = task_decode(std::vector<std::int64_t>{std::max_element(z, z + vocab) - z});
        text[n] = letter.empty() ? '?' : letter[0];
    }
    return text;
}

}  // namespace

void write_loss_chart(const std::filesystem::path& path, const std::vector<LossPoint>& curve) {
    Curve training{"training", smoothed(curve)}, validation{"validation", {}};
    for (const LossPoint& point : curve) {
        if (!std::isnan(point.validation)) {
            validation.points.emplace_back(static_cast<double>(point.step), point.validation);
        }
    }
    write_file(path, loss_picture("Loss", {training, validation}));
}

void show_answers(Context& context, const Model& model, const TrainConfig& config, std::int64_t count) {
    fmt::print("\nHeld-out questions of {}:\n", config.data.task);
    std::vector<std::int64_t> first_answer;
    for (std::int64_t n = 0; n < count; ++n) {
        const TaskExample example = task_example(config.data.task, 0, n, true);
        std::string answer;
        if (model.config().kind == ModelKind::encoder) {
            answer = encoder_answer(context, model, example);
        } else if (!example.asked.empty()) {
            answer = asked_answer(context, model, example);
        } else {
            const bool two = model.config().kind == ModelKind::encoder_decoder;
            std::vector<std::int64_t> prompt = task_encode(example.source);
            two ? prompt.push_back(2) : static_cast<void>(prompt.insert(prompt.begin(), 1));
            SearchOptions options;
            options.max_new_tokens = static_cast<std::int64_t>(example.target.size()) + 4;
            Decoding decoding(model, search_room(static_cast<std::int64_t>(prompt.size()), options));
            const std::vector<std::int64_t> ids = search(context, decoding, prompt, options);
            answer = task_decode(std::span(ids).subspan(two ? 1 : prompt.size()));
            if (n == 0) { first_answer = ids; }
        }
        if (example.source.empty()) {
            fmt::print("  {}\n", answer);
        } else {
            fmt::print("  {:<46} -> {}{}\n", example.source, answer,
                       answer == example.target ? "" : "   (right: " + example.target + ")");
        }
    }
    if (model.config().kind == ModelKind::encoder_decoder && !first_answer.empty()) {
        show_alignment(context, model, task_example(config.data.task, 0, 0, true), first_answer);
    }
}

CacheBytes cache_bytes(const ModelConfig& given) {
    const ModelConfig config = checked(given);
    CacheBytes bytes;
    for (const LayerConfig& layer : config.last().layers) {
        const AttentionConfig& a = layer.attention;
        const std::int64_t key = a.head_size, value = a.value_size > 0 ? a.value_size : a.head_size;
        const std::int64_t row =
            a.latent ? 2 * (a.latent->kv_rank + a.latent->rope_size) : 2 * a.kv_heads * (key + value);
        switch (a.core) {
            case AttentionCore::softmax:
                if (a.window.left >= 0) {
                    bytes.fixed += row * (a.window.left + 1);
                } else {
                    bytes.per_token += row;
                }
                break;
            case AttentionCore::linear: bytes.fixed += 4 * a.kv_heads * key * (value + 1); break;
            case AttentionCore::gated:
            case AttentionCore::delta:
            case AttentionCore::gated_delta: bytes.fixed += 4 * a.values() * key * value; break;
            case AttentionCore::infini:
                bytes.fixed += 4 * a.kv_heads * key * (value + 1) + 4 * a.kv_heads * (key + value) * a.segment;
                break;
        }
    }
    return bytes;
}

std::vector<double> loss_beyond(Context& context, const Model& model, const TrainConfig& given) {
    if (given.data.text.empty() || model.config().kind != ModelKind::decoder) { return {}; }
    constexpr std::int64_t parts = 8, rows = 4, batches = 4;
    TrainConfig config = given;
    config.options.tokens *= 2;
    config.options.batch = rows;
    std::unique_ptr<TrainData> data;
    try {
        data = open_data(config);
    } catch (const Error&) { return {}; }  // too little held-out text for twice the length
    const std::int64_t tokens = config.options.tokens;
    std::vector<double> sums(parts, 0), counts(parts, 0);
    for (std::int64_t n = 0; n < batches; ++n) {
        const TrainBatch batch = data->validation(n);
        ForwardInputs inputs;
        inputs.input_ids = batch.input_ids.view();
        const ForwardResult result = model.forward(context, inputs);
        const std::int64_t vocab = result.logits.shape()[2];
        for (std::int64_t r = 0; r < rows; ++r) {
            for (std::int64_t t = 0; t + 1 < tokens; ++t) {
                const float* z = result.logits.as<float>() + (r * tokens + t) * vocab;
                const std::int64_t label = batch.labels.as<std::int64_t>()[r * tokens + t + 1];
                const float top = *std::max_element(z, z + vocab);
                double sum = 0;
                for (std::int64_t v = 0; v < vocab; ++v) { sum += std::exp(static_cast<double>(z[v] - top)); }
                const auto part = static_cast<std::size_t>(t * parts / tokens);
                sums[part] += std::log(sum) + static_cast<double>(top - z[label]);
                counts[part] += 1;
            }
        }
    }
    for (std::size_t n = 0; n < sums.size(); ++n) { sums[n] /= std::max(1.0, counts[n]); }
    return sums;
}

void print_comparison(const std::vector<ComparedRun>& runs) {
    const auto bytes = [](std::int64_t value) {
        const std::string text = numbers::short_bytes(value);
        return text.empty() ? fmt::format("{} B", value) : text;
    };
    fmt::print("\n{:<11} {:>11} {:>8} {:>8} {:>10} {:>12} {:>12} {:>12}\n", "kind", "parameters", "loss", "exact",
               "tokens/s", "memory", "cache/token", "cache fixed");
    for (const ComparedRun& run : runs) {
        fmt::print("{:<11} {:>11} {:>8.4f} {:>6.1f} % {:>10} {:>12} {:>12} {:>12}\n", run.kind,
                   numbers::grouped(run.parameters), run.result.last.loss, 100 * run.result.last.exact,
                   numbers::grouped(static_cast<std::int64_t>(run.result.tokens_per_second)),
                   bytes(static_cast<std::int64_t>(run.result.peak_bytes)), bytes(run.cache.per_token),
                   bytes(run.cache.fixed));
    }
    if (runs.empty() || runs.front().far.empty()) { return; }
    fmt::print("\nLoss by position, in eighths of twice the trained length (from the fifth on beyond it):\n");
    for (const ComparedRun& run : runs) {
        fmt::print("{:<11}", run.kind);
        for (const double loss : run.far) { fmt::print(" {:>7.3f}", loss); }
        fmt::print("\n");
    }
}

void write_comparison(const std::filesystem::path& folder, const std::vector<ComparedRun>& runs) {
    std::vector<Curve> curves;
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const ComparedRun& run : runs) {
        curves.push_back({run.kind, smoothed(run.curve)});
        list.push_back({{"kind", run.kind},
                        {"parameters", run.parameters},
                        {"loss", run.result.last.loss},
                        {"exact", run.result.last.exact},
                        {"tokens_per_second", run.result.tokens_per_second},
                        {"peak_bytes", run.result.peak_bytes},
                        {"cache_bytes_per_token", run.cache.per_token},
                        {"cache_bytes_fixed", run.cache.fixed},
                        {"loss_by_position", run.far}});
    }
    write_file(folder / "compare.json", list.dump(2) + "\n");
    write_file(folder / "compare.svg", loss_picture("The same model and data, another kind of attention", curves));
}

}  // namespace heed::cli
