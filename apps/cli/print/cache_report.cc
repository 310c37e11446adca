#include "print/cache_report.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>
#include <heed/error.h>
#include <nlohmann/json.hpp>

#include "print/numbers.h"
#include "print/plot.h"
#include "print/size_report.h"
#include "print/text.h"

namespace heed::cli {
namespace {

CacheConfig config_of(const ModelShape& m, std::int64_t page_size) {
    CacheConfig c{.layers = m.kind == ModelKind::encoder_decoder ? 2 * m.layers : m.layers, .page_size = page_size};
    if (m.latent) {
        c.kind = CacheKind::latent;
        c.head_size = m.latent->kv_rank + m.latent->rope_size;
        c.value_size = m.latent->kv_rank;
    } else {
        c.kv_heads = m.kv_heads;
        c.head_size = m.head_size;
        c.value_size = m.value_size;
    }
    return c;
}

std::string bytes_text(std::int64_t bytes) {
    const std::string text = numbers::short_bytes(bytes);
    return text.empty() ? fmt::format("{} B", bytes) : text;
}

/// A table of text: the first column left, the others right.
std::string table(const std::vector<std::vector<std::string>>& rows) {
    std::vector<std::size_t> widths(rows.front().size(), 0);
    for (const auto& row : rows) {
        for (std::size_t n = 0; n < row.size(); ++n) { widths[n] = std::max(widths[n], width_of(row[n])); }
    }
    std::string text;
    for (const auto& row : rows) {
        std::string line = fmt::format("  {:<{}}", row[0], widths[0]);
        for (std::size_t n = 1; n < row.size(); ++n) { line += fmt::format("   {:>{}}", row[n], widths[n]); }
        text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
    }
    return text;
}

/// The storages that make a difference to a row; a state of linear attention is always f32.
bool applies(const CacheReport::Row& row, CacheStorage storage) {
    if (row.config.kind == CacheKind::linear) { return storage == CacheStorage::f32; }
    return row.config.kind != CacheKind::infini || storage <= CacheStorage::f16;
}
CacheStorage nearest(const CacheReport::Row& row, CacheStorage storage) {
    if (applies(row, storage)) { return storage; }
    return row.config.kind == CacheKind::linear ? CacheStorage::f32 : CacheStorage::bf16;
}

std::vector<std::string> heading(const std::string& first) {
    std::vector<std::string> cells{first};
    for (const CacheStorage storage : report_storages) {
        cells.emplace_back(storage == CacheStorage::bf16 ? "bf16, f16" : name_of(storage));
    }
    return cells;
}
std::string label_of(const CacheReport::Row& row) { return row.label + (row.own ? " *" : ""); }

template <class Cell>
std::string storages_table(const CacheReport& r, const std::string& first, Cell cell) {
    std::vector<std::vector<std::string>> rows{heading(first)};
    for (const CacheReport::Row& row : r.rows) {
        rows.push_back({label_of(row)});
        for (const CacheStorage storage : report_storages) {
            rows.back().push_back(applies(row, storage) ? cell(row, storage) : "-");
        }
    }
    return table(rows);
}

std::string chart(const CacheReport& r) {
    constexpr double width = 40;
    double largest = 0;
    std::size_t label_width = 0;
    for (const CacheReport::Row& row : r.rows) {
        const auto bytes = static_cast<double>(row.sequence_bytes(nearest(row, r.drawn), r.length));
        largest = std::max(largest, bytes);
        label_width = std::max(label_width, label_of(row).size());
    }
    std::string text;
    for (const CacheReport::Row& row : r.rows) {
        const CacheStorage storage = nearest(row, r.drawn);
        const std::int64_t bytes = row.sequence_bytes(storage, r.length);
        const auto bar = static_cast<std::size_t>(std::lround(width * static_cast<double>(bytes) / largest));
        text += fmt::format("  {:<{}} |{:<40}| {}{}\n", label_of(row), label_width,
                            std::string(std::max<std::size_t>(bar, 1), '#'), bytes_text(bytes),
                            storage == r.drawn ? "" : fmt::format(" ({})", name_of(storage)));
    }
    return text;
}

}  // namespace

CacheConfig CacheReport::Row::with(CacheStorage storage) const {
    CacheConfig c = config;
    c.storage = storage;
    return c;
}
std::int64_t CacheReport::Row::token_bytes(CacheStorage storage) const { return cache_bytes_per_token(with(storage)); }
std::int64_t CacheReport::Row::sequence_bytes(CacheStorage storage, std::int64_t length) const {
    const std::int64_t page = cache_bytes_per_page(with(storage));
    std::int64_t bytes = 0;
    const std::int64_t pages = is_state() ? 1 : (length + config.page_size - 1) / config.page_size;
    if (__builtin_mul_overflow(page, pages, &bytes)) {
        throw Error("[cache] --length: expected a length whose bytes fit 63 bits, got " + std::to_string(length));
    }
    return bytes;
}

std::int64_t CacheReport::fits(const Row& row, CacheStorage storage) const {
    const double count = *memory / static_cast<double>(row.sequence_bytes(storage, length));
    return static_cast<std::int64_t>(std::min(std::floor(count), 9e18));
}

CacheReport make_cache_report(const ModelShape& model, std::int64_t groups, std::int64_t page_size,
                              std::int64_t segment) {
    if (model.kind == ModelKind::encoder) {
        throw UsageError(fmt::format("expected a model that decodes, got {}, an encoder", model.name));
    }
    CacheReport report;
    report.name = printable(model.name);
    report.sources = model.kind == ModelKind::encoder_decoder;
    report.page_size = page_size;
    for (const size_report::Variant& variant : size_report::variants(model, groups)) {
        report.rows.push_back({variant.label, variant.own, config_of(variant.model, page_size)});
    }
    // States have the model's key/value heads; those of MLA are all of them.
    const ModelShape heads = model.latent ? with_attention(model, AttentionKind::mha) : model;
    CacheConfig state = config_of(heads, page_size);
    state.kind = CacheKind::linear;
    report.rows.push_back({"linear", false, state});
    state.kind = CacheKind::infini;
    state.segment = segment;
    report.rows.push_back({fmt::format("Infini, {}", numbers::grouped(segment)), false, state});
    return report;
}

std::string to_text(const CacheReport& r) {
    std::string text =
        fmt::format("{}: what it keeps of the tokens behind it\n\nBytes per token, all layers\n", r.name);
    text += storages_table(r, "", [](const CacheReport::Row& row, CacheStorage storage) {
        return row.is_state() ? "0 B" : bytes_text(row.token_bytes(storage));
    });
    const std::string what = fmt::format("{} tokens, batch {}", numbers::grouped(r.length), numbers::grouped(r.batch));
    text += fmt::format("\nBytes of {}, pages of {}\n", what, numbers::grouped(r.page_size));
    text += storages_table(r, "", [&](const CacheReport::Row& row, CacheStorage storage) {
        std::int64_t bytes = 0;
        if (__builtin_mul_overflow(row.sequence_bytes(storage, r.length), r.batch, &bytes)) {
            throw Error("[cache] --batch: expected a batch whose bytes fit 63 bits, got " + std::to_string(r.batch));
        }
        return bytes_text(bytes);
    });
    text +=
        fmt::format("\nOne sequence of {} tokens in {}\n{}", numbers::grouped(r.length), name_of(r.drawn), chart(r));
    if (r.memory) {
        text += fmt::format("\nSequences of {} tokens in {:.6g} GB\n", numbers::grouped(r.length), *r.memory / 1e9);
        text += storages_table(r, "", [&](const CacheReport::Row& row, CacheStorage storage) {
            return numbers::grouped(r.fits(row, storage));
        });
    }
    text += "\n  * as it is. i8 has a scale per token and head, i4 one per 32 numbers; both are counted.\n";
    text += "  linear and Infini keep a state of one size, whatever the length; Infini the open segment too.\n";
    if (r.sources) { text += "  With the keys and values of a source of as many tokens, for cross-attention.\n"; }
    return text;
}

std::string to_json(const CacheReport& r) {
    using Json = nlohmann::ordered_json;
    Json kinds = Json::array();
    for (const CacheReport::Row& row : r.rows) {
        Json per_token = Json::object(), bytes = Json::object(), fits = Json::object();
        for (const CacheStorage storage : report_storages) {
            if (!applies(row, storage)) { continue; }
            const std::string name(name_of(storage));
            per_token[name] = row.token_bytes(storage);
            bytes[name] = row.sequence_bytes(storage, r.length);
            if (r.memory) { fits[name] = r.fits(row, storage); }
        }
        Json kind = {{"label", row.label},
                     {"own", row.own},
                     {"layers", row.config.layers},
                     {"kv_heads", row.config.kv_heads},
                     {"head_size", row.config.head_size},
                     {"value_size", row.config.value_size},
                     {"bytes_per_token", std::move(per_token)},
                     {"bytes_per_sequence", std::move(bytes)}};
        if (r.memory) { kind["sequences"] = std::move(fits); }
        kinds.push_back(std::move(kind));
    }
    Json result = {{"name", r.name}, {"length", r.length}, {"batch", r.batch}, {"page_size", r.page_size}};
    if (r.memory) { result["memory_bytes"] = *r.memory; }
    result["kinds"] = std::move(kinds);
    return dump(result);
}

std::string to_svg(const CacheReport& r) {
    std::vector<std::string> names;
    double low = std::numeric_limits<double>::infinity(), high = 0;
    const double shortest_length = 256, longest = std::max(2.0 * shortest_length, static_cast<double>(r.length));
    const auto bytes = [&](const CacheReport::Row& row, double length) {
        return static_cast<double>(row.sequence_bytes(nearest(row, r.drawn), std::llround(length)));
    };
    for (const CacheReport::Row& row : r.rows) {
        names.push_back(label_of(row));
        low = std::min(low, bytes(row, shortest_length));
        high = std::max(high, bytes(row, longest));
    }
    if (r.memory) { high = std::max(high, *r.memory); }
    std::string svg = picture_head(fmt::format("{}: bytes of one sequence in {}", r.name, name_of(r.drawn)), names, 1);
    Panel panel(title_height + legend_height, shortest_length, longest, true, low / 1.5, high * 1.5, true);
    panel.y_text = [](double value) { return bytes_text(static_cast<std::int64_t>(value)); };
    panel.frame("", "tokens", "");
    if (r.memory) { panel.level(*r.memory, fmt::format("{:.6g} GB", *r.memory / 1e9)); }
    constexpr std::size_t points = 64;
    for (std::size_t n = 0; n < r.rows.size(); ++n) {
        panel.line(n, points + 1, [&](std::size_t k) {
            const double length =
                shortest_length * std::pow(longest / shortest_length, static_cast<double>(k) / points);
            return std::pair{length, bytes(r.rows[n], length)};
        });
    }
    return svg + panel.body + "</svg>\n";
}

}  // namespace heed::cli
