#include "print/pattern_picture.h"

#include "print/plot.h"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

namespace heed::cli {
namespace {

std::int64_t blocks_of(std::int64_t length, std::int64_t block) { return (length + block - 1) / block; }

/// Pairs that may be seen among queries [i, i_end) and keys [j, j_end).
std::int64_t count_pairs(const PatternPicture& p, std::int64_t i, std::int64_t i_end, std::int64_t j,
                         std::int64_t j_end, std::vector<std::uint8_t>& row) {
    std::int64_t pairs = 0;
    row.resize(static_cast<std::size_t>(j_end - j));
    for (; i < i_end; ++i) {
        p.pattern.row(0, p.head, p.position(i), j, j_end, row.data());
        pairs += std::count_if(row.begin(), row.end(), [](std::uint8_t allowed) { return allowed != 0; });
    }
    return pairs;
}

constexpr double side = 512;  // of the picture, the longer axis
constexpr double picture_margin = 24, picture_top = 40;
constexpr std::int64_t finest = 512;  // rows or columns up to which single pairs are drawn
constexpr std::size_t most_runs = 20000;

struct Scale {
    double unit;  // of one query or key
    double x(std::int64_t key) const { return picture_margin + static_cast<double>(key) * unit; }
    double y(std::int64_t query) const { return picture_top + static_cast<double>(query) * unit; }
};

/// Neighbouring blocks of one tone, a row at a time, are one rectangle.
void draw_blocks(const PatternPicture& p, const Scale& at, Cover cover, std::string& svg) {
    for (std::int64_t row = 0; row < p.query_blocks; ++row) {
        for (std::int64_t column = 0; column < p.key_blocks;) {
            const std::int64_t begin = column;
            while (column < p.key_blocks && p.cover(row, column) == cover) { ++column; }
            if (column == begin) {
                ++column;
                continue;
            }
            const std::int64_t right = std::min(column * p.block, p.keys);
            const std::int64_t bottom = std::min((row + 1) * p.block, p.queries);
            fmt::format_to(std::back_inserter(svg), "<path d=\"M{:.6g} {:.6g}H{:.6g}V{:.6g}H{:.6g}z\"/>\n",
                           at.x(begin * p.block), at.y(row * p.block), at.x(right), at.y(bottom),
                           at.x(begin * p.block));
        }
    }
}

/// The pairs in partial blocks, as one path of runs; empty where they are too many to be told apart.
std::string pair_runs(const PatternPicture& p, const Scale& at) {
    if (p.queries > finest || p.keys > finest) { return ""; }
    std::string path;
    std::size_t runs = 0;
    std::vector<std::uint8_t> row(static_cast<std::size_t>(p.keys));
    for (std::int64_t i = 0; i < p.queries; ++i) {
        p.pattern.row(0, p.head, p.position(i), 0, p.keys, row.data());
        const auto seen = [&](std::int64_t j) {
            return row[static_cast<std::size_t>(j)] != 0 && p.cover(i / p.block, j / p.block) == Cover::some;
        };
        for (std::int64_t j = 0; j < p.keys;) {
            const std::int64_t begin = j;
            while (j < p.keys && seen(j)) { ++j; }
            if (j == begin) {
                ++j;
                continue;
            }
            if (++runs > most_runs) { return ""; }
            fmt::format_to(std::back_inserter(path), "M{:.6g} {:.6g}h{:.6g}v{:.6g}h{:.6g}z", at.x(begin), at.y(i),
                           static_cast<double>(j - begin) * at.unit, at.unit, static_cast<double>(begin - j) * at.unit);
        }
    }
    return path;
}

}  // namespace

PatternPicture::PatternPicture(Pattern drawn, std::int64_t query_count, std::int64_t key_count, std::int64_t block_size,
                               std::int64_t drawn_head)
    : pattern(std::move(drawn)),
      queries(query_count),
      keys(key_count),
      block(block_size),
      head(drawn_head),
      query_blocks(blocks_of(query_count, block_size)),
      key_blocks(blocks_of(key_count, block_size)),
      covers(static_cast<std::size_t>(query_blocks * key_blocks)) {
    const Pattern causal = patterns::causal();
    std::vector<std::uint8_t> row;
    for (std::int64_t r = 0; r < query_blocks; ++r) {
        const std::int64_t i = r * block, i_end = std::min(i + block, queries);
        for (std::int64_t c = 0; c < key_blocks; ++c) {
            const std::int64_t j = c * block, j_end = std::min(j + block, keys);
            const PatternTile tile{.batch = 0,
                                   .head = head,
                                   .query_begin = position(i),
                                   .query_end = position(i_end),
                                   .key_begin = j,
                                   .key_end = j_end};
            const Cover cover = pattern.cover(tile);
            covers[static_cast<std::size_t>(r * key_blocks + c)] = cover;
            causal_blocks += causal.cover(tile) == Cover::none ? 0 : 1;
            if (cover == Cover::all) {
                ++full;
                pairs += (i_end - i) * (j_end - j);
            } else if (cover == Cover::some) {
                ++partial;
                pairs += count_pairs(*this, i, i_end, j, j_end, row);
            }
        }
    }
}

std::string draw_text(const PatternPicture& p, std::int64_t width, bool ascii) {
    const char* none = ascii ? ". " : "· ";
    const char* some = ascii ? "oo" : "▒▒";
    const char* all = ascii ? "##" : "██";
    const std::int64_t step = std::max<std::int64_t>(1, blocks_of(std::max(p.key_blocks, p.query_blocks), width));
    std::string text;
    for (std::int64_t row = 0; row < p.query_blocks; row += step) {
        for (std::int64_t column = 0; column < p.key_blocks; column += step) {
            bool any = false;
            bool every = true;
            for (std::int64_t r = row; r < std::min(row + step, p.query_blocks); ++r) {
                for (std::int64_t c = column; c < std::min(column + step, p.key_blocks); ++c) {
                    any = any || p.cover(r, c) != Cover::none;
                    every = every && p.cover(r, c) == Cover::all;
                }
            }
            text += every ? all : any ? some : none;
        }
        while (text.ends_with(' ')) { text.pop_back(); }
        text += '\n';
    }
    return text;
}

std::string draw_svg(const PatternPicture& p) {
    const Scale at{side / static_cast<double>(std::max<std::int64_t>({p.queries, p.keys, 1}))};
    const double right = at.x(p.keys), bottom = at.y(p.queries);
    std::string svg;
    const auto add = [&]<class... Values>(fmt::format_string<Values...> format, Values&&... values) {
        fmt::format_to(std::back_inserter(svg), format, std::forward<Values>(values)...);
    };
    add("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {:.6g} {:.6g}\" font-family=\"sans-serif\" "
        "font-size=\"12\">\n",
        std::max(right, picture_margin + 320) + picture_margin, bottom + 44);
    const std::string title = escaped(p.pattern.describe());
    add("<title>{}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n", title);
    add("<text x=\"{:.6g}\" y=\"24\" font-size=\"14\">{}</text>\n", picture_margin, title);
    svg += "<g fill=\"#bcd7f0\">\n";
    draw_blocks(p, at, Cover::some, svg);
    svg += "</g>\n<g fill=\"#1f5f99\">\n";
    draw_blocks(p, at, Cover::all, svg);
    svg += "</g>\n";
    if (const std::string runs = pair_runs(p, at); !runs.empty()) { add("<path fill=\"#1f5f99\" d=\"{}\"/>\n", runs); }
    if (p.key_blocks <= 64 && p.query_blocks <= 64) {
        svg += "<path fill=\"none\" stroke=\"#888\" stroke-width=\"0.3\" d=\"";
        for (std::int64_t c = 1; c < p.key_blocks; ++c) {
            add("M{:.6g} {:.6g}V{:.6g}", at.x(c * p.block), picture_top, bottom);
        }
        for (std::int64_t r = 1; r < p.query_blocks; ++r) {
            add("M{:.6g} {:.6g}H{:.6g}", picture_margin, at.y(r * p.block), right);
        }
        svg += "\"/>\n";
    }
    add("<rect x=\"{:.6g}\" y=\"{:.6g}\" width=\"{:.6g}\" height=\"{:.6g}\" fill=\"none\" stroke=\"#444\"/>\n",
        picture_margin, picture_top, right - picture_margin, bottom - picture_top);
    add("<text x=\"{:.6g}\" y=\"{:.6g}\">keys 0 to {}; queries downwards; blocks of {}</text>\n", picture_margin,
        bottom + 16, p.keys - 1, p.block);
    add("<text x=\"{:.6g}\" y=\"{:.6g}\">{} of {} blocks visited, {:.1f} % of dense</text>\n", picture_margin,
        bottom + 32, p.visited(), p.blocks(), 100 * p.share());
    svg += "</svg>\n";
    return svg;
}

}  // namespace heed::cli
