#pragma once
/// One head of one layer over a text: its map at any distance, its statistics, and a score taken apart.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <heed/inspect.h>
#include <heed/nn.h>

namespace heed::web {

/// The head of a layer whose queries and keys were kept.
struct HeadView {
    const AttentionInputs* inputs = nullptr;
    std::int64_t head = 0;
    std::int64_t rows() const { return inputs->q.shape()[2]; }
    std::int64_t columns() const { return inputs->k.shape()[2]; }
};

/// A part of a map: cell (r, c) is the largest weight of rows top + r * step up to top + (r+1) * step and likewise
/// columns. step is a power of two, top and left are multiples of it.
struct Tile {
    std::int64_t step = 1, top = 0, left = 0;
    std::int64_t cells = 64;  ///< a side, at most
};

/// All weights of a head seen once, block by block: their largest in small squares, and each row's denominator. From
/// these any tile is either read off or computed from a few rows.
class HeadMap {
public:
    HeadMap(Context& context, const HeadView& head);

    /// Rows of cells.
    std::vector<std::vector<float>> tile(Context& context, const HeadView& head, const Tile& tile) const;
    /// ln of the denominator of a row; -infinity: it sees nothing.
    double log_sum(std::int64_t row) const { return log_sums_[static_cast<std::size_t>(row)]; }
    /// Weights that all rows give to a column.
    std::vector<float> column(const HeadView& head, std::int64_t column) const;
    std::size_t bytes() const { return squares_.size() * sizeof(float) + log_sums_.size() * sizeof(double); }
    /// Weights in a square's side.
    std::int64_t step() const { return step_; }

private:
    /// The largest weight of each row and where it is.
    struct Peaks {
        std::vector<float> weights;
        std::vector<ScorePlace> places;
    };
    void add(const HeadView& head, const AttentionRows& part, Peaks& peaks);
    void note_log_sums(const HeadView& head, const Peaks& peaks);

    std::int64_t step_ = 1, height_ = 0, width_ = 0;
    std::vector<float> squares_;  ///< [height, width]
    std::vector<double> log_sums_;
};

/// The weights of one row.
std::vector<float> row_of(Context& context, const HeadView& head, std::int64_t row);

/// Means over rows; see docs/look-inside.md.
struct HeadScores {
    double entropy = 0, distance = 0, first = 0, previous = 0, duplicate = 0, induction = 0;
    std::vector<std::vector<float>> thumb = {};
};

/// The token ids of rows and columns; the same list where a text looks at itself.
struct HeadTexts {
    const std::vector<std::int64_t>* rows = nullptr;
    const std::vector<std::int64_t>* columns = nullptr;
};

/// Of all heads of a layer, from the given rows.
std::vector<HeadScores> scores_of(Context& context, const AttentionInputs& layer, const HeadTexts& texts,
                                  const std::vector<std::int64_t>& rows);
/// `count` rows spread over 0..rows, the last among them; all where count is as many.
std::vector<std::int64_t> spread_rows(std::int64_t rows, std::int64_t count);

}  // namespace heed::web
