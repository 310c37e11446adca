#include "print/size_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "print/numbers.h"

namespace size_report {
namespace {

using heed::AttentionKind;
using heed::ModelKind;
using heed::ModelShape;
using numbers::grouped;

/// Columns of exact numbers, each with a short one in brackets beside it.
class Table {
public:
    using Shortener = std::string (*)(std::int64_t);

    explicit Table(std::vector<std::string> columns) : columns_(std::move(columns)) {}

    void section(std::string title) { rows_.push_back({std::move(title), {}}); }

    void row(std::string label, const std::vector<std::int64_t>& values, Shortener shortener) {
        Row row{"  " + std::move(label), {}};
        for (const std::int64_t value : values) {
            const std::string brief = shortener(value);
            row.cells.push_back({grouped(value), brief.empty() ? "" : "(" + brief + ")"});
        }
        rows_.push_back(std::move(row));
    }

    std::string text() const {
        std::size_t label_width = 0;
        std::vector<std::size_t> exact(columns_.size()), brief(columns_.size());
        for (const Row& row : rows_) {
            label_width = std::max(label_width, row.cells.empty() ? 0 : row.label.size());
            for (std::size_t i = 0; i < row.cells.size(); ++i) {
                exact[i] = std::max(exact[i], row.cells[i].exact.size());
                brief[i] = std::max(brief[i], row.cells[i].brief.size());
            }
        }
        std::string result = fmt::format("{:<{}}", "", label_width);
        for (std::size_t i = 0; i < columns_.size(); ++i) {
            const std::size_t width = exact[i] + 1 + brief[i];
            if (columns_[i].size() > width) { exact[i] += columns_[i].size() - width; }
            result += fmt::format("   {:>{}}", columns_[i], exact[i] + 1 + brief[i]);
        }
        result += '\n';
        for (const Row& row : rows_) {
            std::string line = fmt::format("{:<{}}", row.label, row.cells.empty() ? 0 : label_width);
            for (std::size_t i = 0; i < row.cells.size(); ++i) {
                line += fmt::format("   {:>{}} {:>{}}", row.cells[i].exact, exact[i], row.cells[i].brief, brief[i]);
            }
            result += line.substr(0, line.find_last_not_of(' ') + 1) + '\n';
        }
        return result;
    }

private:
    struct Cell {
        std::string exact, brief;
    };
    struct Row {
        std::string label;
        std::vector<Cell> cells;
    };
    std::vector<std::string> columns_;
    std::vector<Row> rows_;
};

std::string attention_label(const ModelShape& model) {
    const AttentionKind kind = heed::attention_kind(model);
    return kind == AttentionKind::gqa ? fmt::format("GQA {}", model.kv_heads) : std::string(heed::name_of(kind));
}

/// Names may come from folders: nothing that a terminal would obey.
std::string printable(std::string_view name) {
    std::string result(name);
    std::ranges::replace_if(
        result, [](char c) { return static_cast<unsigned char>(c) < ' ' || c == '\x7f'; }, '?');
    return result;
}

template <class Of>
std::vector<std::int64_t> each(const std::vector<ModelShape>& models, Of of) {
    std::vector<std::int64_t> values;
    for (const ModelShape& model : models) { values.push_back(std::invoke(of, model)); }
    return values;
}

/// A row of one field of a struct that is computed for every model.
template <class Counts>
void field_row(Table& table, const char* label, const std::vector<Counts>& counts, std::int64_t Counts::*field,
               Table::Shortener shortener) {
    std::vector<std::int64_t> values;
    for (const Counts& count : counts) { values.push_back(count.*field); }
    table.row(label, values, shortener);
}

void add_parameters(Table& table, const std::vector<ModelShape>& models, const Setting& setting) {
    using heed::ParameterCount;
    std::vector<ParameterCount> counts;
    for (const ModelShape& model : models) { counts.push_back(heed::parameters(model)); }
    const auto row = [&](const char* label, std::int64_t ParameterCount::*field) {
        field_row(table, label, counts, field, numbers::short_count);
    };
    const auto any = [&](std::int64_t ParameterCount::*field) {
        return std::ranges::any_of(counts, [&](const ParameterCount& count) { return count.*field != 0; });
    };
    table.section("Parameters");
    row("embedding", &ParameterCount::embedding);
    if (any(&ParameterCount::positions)) { row("positions", &ParameterCount::positions); }
    row("attention", &ParameterCount::attention);
    row("  one layer", &ParameterCount::attention_layer);
    row("feed-forward", &ParameterCount::ffn);
    row("  one layer", &ParameterCount::ffn_layer);
    if (any(&ParameterCount::expert_ffn_layer)) { row("  one layer of experts", &ParameterCount::expert_ffn_layer); }
    row("norms", &ParameterCount::norms);
    row("head", &ParameterCount::head);
    row("total", &ParameterCount::total);
    if (any(&ParameterCount::expert_ffn_layer)) {
        row("active", &ParameterCount::active);
        row("active, without lookups", &ParameterCount::active_without_lookup);
    }
    table.row(fmt::format("bytes in {}", setting.dtype),
              each(models, [&](const ModelShape& model) { return heed::weight_bytes(model, setting.bytes); }),
              numbers::short_bytes);
}

void add_flops(Table& table, const std::vector<ModelShape>& models, const Setting& setting) {
    using heed::Flops;
    std::vector<Flops> forward, training;
    for (const ModelShape& model : models) {
        forward.push_back(heed::flops_per_token(model, setting.context));
        training.push_back(heed::training_flops_per_token(model, setting.context));
    }
    const auto row = [&](const char* label, const std::vector<Flops>& flops, std::int64_t Flops::*field) {
        field_row(table, label, flops, field, numbers::short_flops);
    };
    table.section(fmt::format("Operations of a token that sees {} keys", grouped(setting.context)));
    row("projections", forward, &Flops::projections);
    row("scores and values", forward, &Flops::scores);
    row("feed-forward", forward, &Flops::ffn);
    row("head", forward, &Flops::head);
    row("forward", forward, &Flops::total);
    table.section(
        fmt::format("Operations of a token in training, mean over a sequence of {}", grouped(setting.context)));
    row("forward and backward", training, &Flops::total);
}

std::string whole_cache(const Setting& setting) {
    return fmt::format("{} tokens, batch {}", grouped(setting.context), grouped(setting.batch));
}

void add_cache(Table& table, const std::vector<ModelShape>& models, const Setting& setting) {
    const auto row = [&](const std::string& label, auto bytes) {
        table.row(label, each(models, bytes), numbers::short_bytes);
    };
    table.section(fmt::format("Bytes of the key/value cache in {}", setting.dtype));
    row("per token", [&](const ModelShape& model) { return heed::kv_bytes_per_token(model, setting.bytes); });
    if (std::ranges::any_of(models, [](const ModelShape& m) { return m.kind == ModelKind::encoder_decoder; })) {
        row("per source token",
            [&](const ModelShape& model) { return heed::cross_kv_bytes_per_token(model, setting.bytes); });
    }
    row(whole_cache(setting), [&](const ModelShape& model) {
        return heed::kv_cache_bytes(model, setting.bytes, setting.context, setting.batch);
    });
}

void add_attention_layer(Table& table, const std::vector<ModelShape>& models, const Setting& setting) {
    using heed::AttentionCost;
    std::vector<AttentionCost> costs;
    for (const ModelShape& model : models) {
        costs.push_back(heed::attention_cost(model, setting.batch, setting.context));
    }
    table.section(fmt::format("One self-attention layer without a mask, {}", whole_cache(setting)));
    field_row(table, "numbers in its input", costs, &AttentionCost::input_numbers, numbers::short_count);
    field_row(table, "numbers in its scores", costs, &AttentionCost::score_numbers, numbers::short_count);
    field_row(table, "numbers in its matrices", costs, &AttentionCost::weight_numbers, numbers::short_count);
    field_row(table, "operations, projections", costs, &AttentionCost::projection_flops, numbers::short_flops);
    field_row(table, "operations, scores and values", costs, &AttentionCost::score_flops, numbers::short_flops);
}

std::string kinds_table(const ModelShape& model, const Setting& setting) {
    std::vector<std::string> labels;
    std::vector<ModelShape> models;
    for (const Variant& variant : variants(model, setting.groups)) {
        labels.push_back(variant.label + (variant.own ? " *" : ""));
        models.push_back(variant.model);
    }
    using heed::LatentForm;
    Table table(labels);
    const auto row = [&](const std::string& label, auto value, Table::Shortener shortener) {
        table.row(label, each(models, value), shortener);
    };
    row(
        "parameters", [](const ModelShape& m) { return heed::parameters(m).total; }, numbers::short_count);
    row(
        "  one attention layer", [](const ModelShape& m) { return heed::parameters(m).attention_layer; },
        numbers::short_count);
    row(
        fmt::format("operations, {} keys", grouped(setting.context)),
        [&](const ModelShape& m) { return heed::flops_per_token(m, setting.context).total; }, numbers::short_flops);
    row(
        "  in training, mean",
        [&](const ModelShape& m) { return heed::training_flops_per_token(m, setting.context).total; },
        numbers::short_flops);
    row(
        "  per key and layer", [](const ModelShape& m) { return heed::attention_flops_per_key(m); },
        numbers::short_flops);
    row(
        "  the same, decoding",
        [](const ModelShape& m) { return heed::attention_flops_per_key(m, LatentForm::absorbed); },
        numbers::short_flops);
    row(
        "cache bytes per token", [&](const ModelShape& m) { return heed::kv_bytes_per_token(m, setting.bytes); },
        numbers::short_bytes);
    row(
        "  " + whole_cache(setting),
        [&](const ModelShape& m) { return heed::kv_cache_bytes(m, setting.bytes, setting.context, setting.batch); },
        numbers::short_bytes);

    const heed::LatentAttention& latent = *models.back().latent;
    std::string note = fmt::format("  * as it is. MLA: latent {}, rotated part {}, {}", grouped(latent.kv_rank),
                                   grouped(latent.rope_size),
                                   latent.query_rank > 0 ? fmt::format("query rank {}", grouped(latent.query_rank))
                                                         : std::string("query projected directly"));
    note += model.latent ? ".\n"
                         : "; not the model's own but DeepSeek's ratios to the\n"
                           "    size of a head (4 and 1/2).\n";
    return fmt::format("\n{} by kind of attention, all else equal\n{}{}", printable(model.name), table.text(), note);
}

std::string notes(const std::vector<ModelShape>& models, const Setting& setting) {
    std::string result = "\nA multiply-add is 2 operations. Sliding windows are not subtracted.";
    if (std::ranges::any_of(models, [](const ModelShape& m) { return m.kind == ModelKind::encoder_decoder; })) {
        result += " In an encoder-decoder the\noperations are those of one source and one target token together.";
    }
    result += "\nDecoding, MLA works on the cached latent itself instead of expanding it.";
    for (const ModelShape& model : models) {
        if (model.kind == ModelKind::encoder) {
            result += fmt::format("\n{} is an encoder: it keeps no cache.", printable(model.name));
        }
        if (model.positions > 0 && setting.context > model.positions) {
            result += fmt::format("\n{} was made for {} tokens, fewer than the {} counted here.", printable(model.name),
                                  grouped(model.positions), grouped(setting.context));
        }
    }
    return result + "\n";
}

}  // namespace

std::string description(const ModelShape& model) {
    const std::string layers =
        model.kind == ModelKind::encoder_decoder
            ? fmt::format("encoder-decoder, {}+{} layers", model.encoder_layers, model.layers)
            : fmt::format("{}, {} layers", model.kind == ModelKind::encoder ? "encoder" : "decoder", model.layers);
    std::string text = fmt::format("{} of {}, {} heads", layers, grouped(model.d_model), model.heads);
    if (model.latent) {
        text += fmt::format(" of {}+{}", model.latent->nope_size, model.latent->rope_size);
    } else {
        text += fmt::format(" of {}", model.head_size);
    }
    text += fmt::format(", {}, feed-forward {}", attention_label(model), grouped(model.d_ff));
    if (model.experts) {
        text += fmt::format(" then {} of {} experts of {}", model.experts->active, model.experts->routed,
                            grouped(model.experts->d_ff));
        if (model.experts->shared > 0) { text += fmt::format(" and {} shared", model.experts->shared); }
    }
    return text + fmt::format(", vocabulary {}", grouped(model.vocab));
}

std::vector<Variant> variants(const ModelShape& model, std::int64_t groups) {
    std::vector<Variant> result;
    const AttentionKind own = heed::attention_kind(model);
    const auto add = [&](const ModelShape& shape, bool is_own) {
        result.push_back({attention_label(shape), shape, is_own});
    };
    add(heed::with_attention(model, AttentionKind::mha), own == AttentionKind::mha);
    add(heed::with_attention(model, AttentionKind::mqa), own == AttentionKind::mqa);
    const ModelShape grouped_heads = heed::with_attention(model, AttentionKind::gqa, {.groups = groups});
    const bool same = own == AttentionKind::gqa && grouped_heads.kv_heads == model.kv_heads;
    if (own == AttentionKind::gqa && !same) { add(model, true); }
    if (heed::attention_kind(grouped_heads) == AttentionKind::gqa) { add(grouped_heads, same); }
    add(heed::with_attention(model, AttentionKind::mla), own == AttentionKind::mla);
    return result;
}

std::string to_text(const std::vector<ModelShape>& models, const Setting& setting) {
    std::string result;
    std::vector<std::string> names;
    for (const ModelShape& model : models) {
        names.push_back(printable(model.name));
        result += fmt::format("{}: {}\n", names.back(), description(model));
    }
    Table table(names);
    add_parameters(table, models, setting);
    add_flops(table, models, setting);
    add_cache(table, models, setting);
    add_attention_layer(table, models, setting);
    result += "\n" + table.text();
    for (const ModelShape& model : models) { result += kinds_table(model, setting); }
    return result + notes(models, setting);
}

}  // namespace size_report
