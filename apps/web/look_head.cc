#include "look_head.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>

namespace heed::web {
namespace {

/// Squares a side of what a map keeps: 2048 x 2048 floats are 16 MiB.
constexpr std::int64_t most_squares = 2048;
constexpr std::int64_t thumb_cells = 24;
/// Of many pairs, without what their rows would cost.
constexpr ScorePartsOptions scores_alone{.products = false, .weight = false};

/// Are all columns behind a row hidden? Then nobody needs to look at them.
bool triangular(const HeadView& head) { return head.inputs->options.causal && head.rows() == head.columns(); }

/// Rows' largest weight. Lanes of their own, so that the compiler needs no leave to reorder.
float largest(const float* row, std::int64_t count) {
    constexpr std::int64_t lanes = 16;
    std::array<float, lanes> best{};
    std::int64_t j = 0;
    for (; j + lanes <= count; j += lanes) {
        for (std::int64_t n = 0; n < lanes; ++n) {
            best[static_cast<std::size_t>(n)] = std::max(best[static_cast<std::size_t>(n)], row[j + n]);
        }
    }
    for (; j < count; ++j) { best[0] = std::max(best[0], row[j]); }
    return *std::max_element(best.begin(), best.end());
}

/// to[c] = the largest of from[c * step] up to from[(c+1) * step], and of to[c].
void pool_into(const float* from, std::int64_t count, std::int64_t step, float* to) {
    for (std::int64_t c = 0; c * step < count; ++c) {
        const std::int64_t end = std::min(count, (c + 1) * step);
        float best = to[c];
        for (std::int64_t j = c * step; j < end; ++j) { best = std::max(best, from[j]); }
        to[c] = best;
    }
}

void largest_of_both(const float* from, std::int64_t count, float* to) {
    for (std::int64_t j = 0; j < count; ++j) { to[j] = std::max(to[j], from[j]); }
}

// ---- Statistics ----------------------------------------------------------------------------------------------------

struct RowScores {
    double entropy = 0, distance = 0, first = 0, previous = 0, duplicate = 0, induction = 0;
    bool has_duplicate = false, has_induction = false;
    std::array<float, thumb_cells> thumb{};
};

using Places = std::map<std::int64_t, std::vector<std::int64_t>>;

/// Where each token stands.
Places places_of(const HeadTexts& texts) {
    Places places;
    if (texts.rows != texts.columns) { return places; }
    for (std::size_t j = 0; j < texts.columns->size(); ++j) {
        places[(*texts.columns)[j]].push_back(static_cast<std::int64_t>(j));
    }
    return places;
}

RowScores score_row(const float* w, std::int64_t keys, std::int64_t i, const HeadTexts& texts, const Places& places) {
    RowScores s;
    for (std::int64_t j = 0; j < keys; ++j) {
        if (w[j] <= 0) { continue; }
        const double weight = w[j];
        s.entropy -= weight * std::log(weight);
        s.distance += weight * static_cast<double>(std::abs(i - j));
    }
    const std::int64_t cells = std::min(thumb_cells, keys);
    for (std::int64_t c = 0; c < cells; ++c) {
        const std::int64_t begin = c * keys / cells, end = (c + 1) * keys / cells;
        s.thumb[static_cast<std::size_t>(c)] = largest(w + begin, end - begin);
    }
    s.first = w[0];
    if (texts.rows != texts.columns) { return s; }
    if (i > 0) { s.previous = w[i - 1]; }
    for (const std::int64_t j : places.at((*texts.rows)[static_cast<std::size_t>(i)])) {
        if (j >= i) { break; }
        s.has_duplicate = s.has_induction = true;
        s.duplicate += w[j];
        s.induction += w[j + 1];
    }
    return s;
}

HeadScores mean_of(const std::vector<RowScores>& list, const std::vector<std::int64_t>& rows, std::int64_t queries,
                   std::int64_t keys) {
    HeadScores m;
    const std::int64_t height = std::min(thumb_cells, queries), width = std::min(thumb_cells, keys);
    m.thumb.assign(static_cast<std::size_t>(height), std::vector<float>(static_cast<std::size_t>(width)));
    std::int64_t duplicates = 0, inductions = 0, behind_first = 0;
    for (std::size_t n = 0; n < list.size(); ++n) {
        const RowScores& s = list[n];
        m.entropy += s.entropy;
        m.distance += s.distance;
        m.first += s.first;
        m.previous += s.previous;
        m.duplicate += s.duplicate;
        m.induction += s.induction;
        duplicates += s.has_duplicate ? 1 : 0;
        inductions += s.has_induction ? 1 : 0;
        behind_first += rows[n] > 0 ? 1 : 0;
        std::vector<float>& line = m.thumb[static_cast<std::size_t>(((rows[n] + 1) * height - 1) / queries)];
        largest_of_both(s.thumb.data(), width, line.data());
    }
    const auto divide = [](double& sum, std::int64_t count) { sum = count > 0 ? sum / static_cast<double>(count) : 0; };
    for (double* each : {&m.entropy, &m.distance, &m.first}) { divide(*each, static_cast<std::int64_t>(list.size())); }
    divide(m.previous, behind_first);
    divide(m.duplicate, duplicates);
    divide(m.induction, inductions);
    return m;
}

}  // namespace

// ---- Maps ----------------------------------------------------------------------------------------------------------

HeadMap::HeadMap(Context& context, const HeadView& head) {
    while (std::max(head.rows(), head.columns()) > most_squares * step_) { step_ *= 2; }
    height_ = (head.rows() + step_ - 1) / step_;
    width_ = (head.columns() + step_ - 1) / step_;
    squares_.assign(static_cast<std::size_t>(height_ * width_), 0.0F);
    log_sums_.assign(static_cast<std::size_t>(head.rows()), -std::numeric_limits<double>::infinity());
    const auto rows = static_cast<std::size_t>(head.rows());
    Peaks peaks{std::vector<float>(rows), std::vector<ScorePlace>(rows)};
    visit_attention_weights(
        context, head.inputs->q, head.inputs->k, [&](const AttentionRows& part) { add(head, part, peaks); },
        {.heads = {head.head}}, head.inputs->options);
    note_log_sums(head, peaks);
}

/// A row's denominator from its largest weight: ln sum = score - ln weight.
void HeadMap::note_log_sums(const HeadView& head, const Peaks& peaks) {
    const auto scores = score_parts(head.inputs->q, head.inputs->k, peaks.places, head.inputs->options, scores_alone);
    for (std::size_t i = 0; i < scores.size(); ++i) {
        if (peaks.weights[i] > 0) { log_sums_[i] = scores[i].score - std::log(peaks.weights[i]); }
    }
}

/// A block of rows begins where a square does, so no other thread has the same squares.
void HeadMap::add(const HeadView& head, const AttentionRows& part, Peaks& peaks) {
    std::vector<float> both(static_cast<std::size_t>(part.keys));
    for (std::size_t n = 0; n < part.rows.size(); ++n) {
        const std::int64_t i = part.rows[n];
        const float* row = part.weights + static_cast<std::int64_t>(n) * part.stride;
        const std::int64_t seen = triangular(head) ? std::min(part.keys, i + 1) : part.keys;
        if (const float most = largest(row, seen); most > 0) {
            peaks.weights[static_cast<std::size_t>(i)] = most;
            peaks.places[static_cast<std::size_t>(i)] = {
                .head = head.head, .row = i, .column = std::find(row, row + seen, most) - row};
        }
        largest_of_both(row, seen, both.data());
        if ((i + 1) % step_ == 0 || n + 1 == part.rows.size()) {
            pool_into(both.data(), seen, step_, squares_.data() + i / step_ * width_);
            std::fill(both.begin(), both.end(), 0.0F);
        }
    }
}

std::vector<std::vector<float>> HeadMap::tile(Context& context, const HeadView& head, const Tile& tile) const {
    const auto cells_of = [&](std::int64_t begin, std::int64_t extent) {
        return std::min(tile.cells, (extent - begin + tile.step - 1) / tile.step);
    };
    const std::int64_t height = cells_of(tile.top, head.rows()), width = cells_of(tile.left, head.columns());
    std::vector<std::vector<float>> cells(static_cast<std::size_t>(height),
                                          std::vector<float>(static_cast<std::size_t>(width)));
    if (tile.step >= step_) {
        const std::int64_t side = tile.step / step_, left = tile.left / step_;
        const std::int64_t columns = std::min(width * side, width_ - left);
        const std::int64_t end = std::min(height_, tile.top / step_ + height * side);
        for (std::int64_t y = tile.top / step_; y < end; ++y) {
            std::vector<float>& line = cells[static_cast<std::size_t>((y - tile.top / step_) / side)];
            pool_into(squares_.data() + y * width_ + left, columns, side, line.data());
        }
        return cells;
    }
    std::vector<std::int64_t> rows;
    const std::int64_t last = std::min(head.rows(), tile.top + height * tile.step);
    for (std::int64_t i = tile.top; i < last; ++i) { rows.push_back(i); }
    const std::int64_t columns = std::min(width * tile.step, head.columns() - tile.left);
    const auto pool = [&](const AttentionRows& part) {  // 32 rows, which whole cells make up
        for (std::size_t n = 0; n < part.rows.size(); ++n) {
            const float* row = part.weights + static_cast<std::int64_t>(n) * part.stride;
            std::vector<float>& line = cells[static_cast<std::size_t>((part.rows[n] - tile.top) / tile.step)];
            pool_into(row + tile.left, columns, tile.step, line.data());
        }
    };
    visit_attention_weights(context, head.inputs->q, head.inputs->k, pool, {.heads = {head.head}, .rows = rows},
                            head.inputs->options);
    return cells;
}

std::vector<float> HeadMap::column(const HeadView& head, std::int64_t column) const {
    std::vector<ScorePlace> places;
    for (std::int64_t i = 0; i < head.rows(); ++i) {
        places.push_back({.head = head.head, .row = i, .column = column});
    }
    const auto scores = score_parts(head.inputs->q, head.inputs->k, places, head.inputs->options, scores_alone);
    std::vector<float> weights(places.size());
    for (std::size_t i = 0; i < places.size(); ++i) {
        const double sum = log_sum(static_cast<std::int64_t>(i));
        if (scores[i].hidden_by == HiddenBy::nothing && std::isfinite(sum)) {
            weights[i] = static_cast<float>(std::exp(scores[i].score - sum));
        }
    }
    return weights;
}

std::vector<float> row_of(Context& context, const HeadView& head, std::int64_t row) {
    std::vector<float> weights(static_cast<std::size_t>(head.columns()));
    attention_weights(context, head.inputs->q, head.inputs->k, MutableView(weights.data(), {1, 1, 1, head.columns()}),
                      {.heads = {head.head}, .rows = {row}}, head.inputs->options);
    return weights;
}

// ---- All heads -----------------------------------------------------------------------------------------------------

std::vector<std::int64_t> spread_rows(std::int64_t rows, std::int64_t count) {
    count = std::clamp<std::int64_t>(count, 1, rows);
    std::vector<std::int64_t> chosen;
    for (std::int64_t n = 1; n <= count; ++n) { chosen.push_back(n * rows / count - 1); }
    return chosen;
}

std::vector<HeadScores> scores_of(Context& context, const AttentionInputs& layer, const HeadTexts& texts,
                                  const std::vector<std::int64_t>& rows) {
    const std::int64_t heads = layer.q.shape()[1], queries = layer.q.shape()[2], keys = layer.k.shape()[2];
    const Places places = places_of(texts);
    // Each row's numbers first, then their sums in order: the same bits whatever the threads did.
    std::vector<std::vector<RowScores>> all(static_cast<std::size_t>(heads), std::vector<RowScores>(rows.size()));
    visit_attention_weights(
        context, layer.q, layer.k,
        [&](const AttentionRows& part) {
            const auto begin = static_cast<std::size_t>(std::ranges::lower_bound(rows, part.rows[0]) - rows.begin());
            for (std::size_t n = 0; n < part.rows.size(); ++n) {
                all[static_cast<std::size_t>(part.head)][begin + n] = score_row(
                    part.weights + static_cast<std::int64_t>(n) * part.stride, keys, part.rows[n], texts, places);
            }
        },
        {.rows = rows}, layer.options);
    std::vector<HeadScores> result;
    for (const std::vector<RowScores>& head : all) { result.push_back(mean_of(head, rows, queries, keys)); }
    return result;
}

}  // namespace heed::web
