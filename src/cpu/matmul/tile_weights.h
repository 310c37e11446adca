#pragma once
#include "base/pool.h"
#include "cpu/matmul/finish.h"
#include "cpu/matmul/tiles.h"

/// Products on tiles with a layer's weights where they lie.

namespace heed::cpu {

/// The rows of A transposed, as right operands: a tile for every 16 rows and 32 numbers of the depth, those of the same
/// rows behind one another. Zeros fill up what is not whole.
template <class Isa>
struct TurnedRows {
    static constexpr std::int64_t tile_floats = tile_side * tile_side, tile_depth = 2 * tile_side;

    const MatmulProblem& p;
    float* data = nullptr;
    const std::int64_t tiles = (p.depth + tile_depth - 1) / tile_depth;
    const std::int64_t groups = (p.rows + tile_side - 1) / tile_side;

    std::int64_t floats() const { return groups * tiles * tile_floats; }
    HEED_INLINE const float* at(std::int64_t group, std::int64_t tile) const {
        return data + (group * tiles + tile) * tile_floats;
    }

    void copy(detail::Pool& pool) const {
        // A stretch of the depth of 16 rows is a task.
        constexpr std::int64_t at_once = 16;
        const std::int64_t stretches = (tiles + at_once - 1) / at_once;
        const double numbers = static_cast<double>(p.rows) * static_cast<double>(p.depth);
        detail::parallel(pool, groups * stretches, detail::effort_for(numbers), [&](std::int64_t task, int) {
            const std::int64_t begin = task % stretches * at_once, end = smaller(tiles, begin + at_once);
            for (std::int64_t t = begin; t < end; ++t) { tile(task / stretches, t); }
        });
    }

private:
    HEED_INLINE void tile(std::int64_t group, std::int64_t t) const {
        float* to = data + (group * tiles + t) * tile_floats;
        const std::int64_t row = group * tile_side, count = smaller<std::int64_t>(tile_side, p.rows - row);
        const std::int64_t k = t * tile_depth, depth = smaller(tile_depth, p.depth - k);
        const char* from = element_at(p.a, row, k);
        if (p.a.column_stride == 1 && p.a.row_stride % 2 == 0 && depth == tile_depth) {
            return transpose_tile<Isa>(reinterpret_cast<const float*>(from), p.a.row_stride / 2, count, to);
        }
        alignas(64) float pairs[tile_floats] = {};
        for (std::int64_t r = 0; r < count; ++r) {
            copy_pairs<Isa>(element_at(p.a, row + r, k), p.a.column_stride, depth, pairs + r * tile_side);
        }
        transpose_tile<Isa>(pairs, tile_side, tile_side, to);
    }
};

/// Rows of A against a B whose columns are rows in memory, a layer's weights: they are the left operand where they lie,
/// so that nothing of them is rearranged. What is transposed instead are the rows of A and the sums, once each.
template <class Isa, class Tiles>
struct TileWeights {
    static constexpr std::int64_t tile_floats = tile_side * tile_side, tile_depth = 2 * tile_side;
    static constexpr std::int64_t most_columns = 128, most_rows = 256, most_depth = 32, depth_of_copies = 8;
    static constexpr std::int64_t sum_stride = most_columns + tile_side;

    const LinearProblem& problem;
    const TurnedRows<Isa>& a;
    const MatmulProblem& p = problem.product;
    const std::int64_t whole = p.depth / tile_depth;  ///< whole tiles of the depth

    static bool takes(const MatmulProblem& p) {
        return p.b.row_stride == 1 && p.b.column_stride % 2 == 0 && p.columns >= 2 * tile_side && p.depth > 0;
    }

    void run(detail::Pool& pool) const {
        const Blocks blocks = cut(pool.threads());
        const std::int64_t row_blocks = (p.rows + blocks.rows - 1) / blocks.rows;
        // Weights are read from memory once, which may be all there is to wait for.
        const double operations = 2.0 * static_cast<double>(p.columns) * static_cast<double>(p.depth) *
                                  static_cast<double>(larger<std::int64_t>(p.rows, 4));
        detail::parallel(pool, blocks.count(p), detail::effort_for(operations), [&](std::int64_t task, int worker) {
            const typename Tiles::Session session;
            auto* memory = static_cast<float*>(pool.scratch(worker).at_least(static_cast<std::size_t>(floats) * 4));
            // Neighbouring tasks share their weights.
            const std::int64_t row = task % row_blocks * blocks.rows, column = task / row_blocks * blocks.columns;
            block(blocks, row, smaller(blocks.rows, p.rows - row), column, smaller(blocks.columns, p.columns - column),
                  memory);
        });
    }

private:
    static constexpr std::int64_t tiles_of_block = most_rows / tile_side * (most_columns / tile_side);
    static constexpr std::int64_t left_floats = most_columns / tile_side * most_depth * tile_floats;
    static constexpr std::int64_t line_floats = tile_side * sum_stride + tile_side;
    static constexpr std::int64_t floats = tiles_of_block * tile_floats + left_floats + line_floats + most_columns;

    struct Blocks {
        std::int64_t rows, columns;
        std::int64_t depth;  ///< so many tiles of it at a time
        bool copies;         ///< of the weights, one tile behind the other

        std::int64_t count(const MatmulProblem& p) const {
            return (p.rows + rows - 1) / rows * ((p.columns + columns - 1) / columns);
        }
    };

    /// Which blocks there are changes no bit. Rows of weights that lie pages apart take an entry of the pages' table
    /// each, time and again: where many rows of A meet them, a copy costs less.
    Blocks cut(int threads) const {
        constexpr std::int64_t least = 2 * tile_side, far_apart = 4096, many_rows = 256;
        Blocks blocks{round_up(smaller(p.rows, most_rows), least), round_up(smaller(p.columns, most_columns), least),
                      most_depth, p.rows >= many_rows && p.b.column_stride >= far_apart};
        if (blocks.copies) { blocks.depth = depth_of_copies; }
        // Four blocks for every thread, so that none waits long for the last.
        while (blocks.count(p) < 4 * threads && (blocks.columns > least || blocks.rows > least)) {
            std::int64_t& longer = blocks.columns >= blocks.rows ? blocks.columns : blocks.rows;
            longer = round_up(longer / 2, least);
        }
        return blocks;
    }

    /// 16 columns of a block as left operands: the last begin earlier, so that nothing behind them is read.
    HEED_INLINE std::int64_t first_of(std::int64_t column) const { return smaller(column, p.columns - tile_side); }

    struct Left {
        const float* data;
        std::int64_t stride;  ///< of rows
        std::int64_t step;    ///< from one tile of the depth to the next
    };

    /// Weights of 16 columns over tiles [begin, end) of the depth, copied one behind the other, zeros after the last.
    void copy_left(std::int64_t column, std::int64_t begin, std::int64_t end, float* to) const {
        const std::int64_t first = first_of(column);
        for (std::int64_t n = 0; n < tile_side; ++n) {
            const char* from = element_at(p.b, begin * tile_depth, first + n);
            for (std::int64_t t = begin; t < end; ++t, from += 64) {
                float* line = to + (t - begin) * tile_floats + n * tile_side;
                if (t < whole) {
                    __builtin_memcpy(line, from, 64);
                    continue;
                }
                __builtin_memset(line, 0, 64);
                __builtin_memcpy(line, from, static_cast<std::size_t>(p.depth - whole * tile_depth) * 2);
            }
        }
    }

    void block(const Blocks& blocks, std::int64_t row, std::int64_t rows, std::int64_t column, std::int64_t columns,
               float* memory) const {
        float *sums = memory, *copied = sums + tiles_of_block * tile_floats, *lines = copied + left_floats;
        const std::int64_t groups = (rows + tile_side - 1) / tile_side, first_group = row / tile_side;
        const std::int64_t widths = (columns + tile_side - 1) / tile_side;
        for (std::int64_t k = 0; k < a.tiles; k += blocks.depth) {
            const std::int64_t end = smaller(a.tiles, k + blocks.depth);
            const bool copies = blocks.copies || end > whole;
            Left left[most_columns / tile_side];
            for (std::int64_t w = 0; w < widths; ++w) {
                const std::int64_t at = column + w * tile_side;
                float* own = copied + w * most_depth * tile_floats;
                if (copies) { copy_left(at, k, end, own); }
                left[w] = copies ? Left{own, tile_side, tile_floats}
                                 : Left{reinterpret_cast<const float*>(element_at(p.b, k * tile_depth, first_of(at))),
                                        p.b.column_stride / 2, tile_side};
            }
            for (std::int64_t g = 0; g < groups; g += 2) {
                const bool two = g + 1 < groups;
                for (std::int64_t w = 0; w < widths; w += 2) {
                    const Square square{left[w],
                                        left[smaller(w + 1, widths - 1)],
                                        a.at(first_group + g, k),
                                        a.at(first_group + (two ? g + 1 : g), k),
                                        end - k,
                                        sums + (g * widths + w) * tile_floats,
                                        widths * tile_floats,
                                        k == 0};
                    const bool wide = w + 1 < widths;
                    const bool ahead = g == 0 && !copies && end < whole;
                    if (two && wide) {
                        multiply<2, 2>(square, ahead);
                    } else if (two) {
                        multiply<1, 2>(square, ahead);
                    } else if (wide) {
                        multiply<2, 1>(square, ahead);
                    } else {
                        multiply<1, 1>(square, ahead);
                    }
                }
            }
        }
        for (std::int64_t g = 0; g < groups; ++g) {
            finish(row + g * tile_side, smaller<std::int64_t>(tile_side, rows - g * tile_side), column, columns,
                   sums + g * widths * tile_floats, lines + tile_side);
        }
    }

    /// Two times two tiles of sums, [columns][rows], over `steps` tiles of the depth.
    struct Square {
        Left left0, left1;
        const float *right0, *right1;
        std::int64_t steps;
        float* to;
        std::int64_t to_step;  ///< from the sums of one group of rows to those of the next
        bool first;
    };

    /// Sums 0 and 1 are of the first group of rows, 2 and 3 of the second.
    template <int Widths, int Groups>
    static HEED_INLINE void multiply(const Square& s, bool ahead) {
        float *c0 = s.to, *c1 = s.to + s.to_step;
        if (s.first) {
            Tiles::template zero<0>();
            if constexpr (Widths == 2) { Tiles::template zero<1>(); }
            if constexpr (Groups == 2) { Tiles::template zero<2>(); }
            if constexpr (Widths == 2 && Groups == 2) { Tiles::template zero<3>(); }
        } else {
            Tiles::template load<0>(c0, tile_side);
            if constexpr (Widths == 2) { Tiles::template load<1>(c0 + tile_floats, tile_side); }
            if constexpr (Groups == 2) { Tiles::template load<2>(c1, tile_side); }
            if constexpr (Widths == 2 && Groups == 2) { Tiles::template load<3>(c1 + tile_floats, tile_side); }
        }
        const float *l0 = s.left0.data, *l1 = s.left1.data, *r0 = s.right0, *r1 = s.right1;
        for (std::int64_t k = 0; k < s.steps; ++k) {
            if (ahead) {
                for (int n = 0; n < tile_side; ++n) {
                    __builtin_prefetch(l0 + n * s.left0.stride + s.steps * tile_side, 0, 2);
                    if constexpr (Widths == 2) {
                        __builtin_prefetch(l1 + n * s.left1.stride + s.steps * tile_side, 0, 2);
                    }
                }
            }
            Tiles::template load<6>(r0, tile_side);
            Tiles::template load<4>(l0, s.left0.stride);
            Tiles::template multiply<0, 4, 6>();
            if constexpr (Widths == 2) {
                Tiles::template load<5>(l1, s.left1.stride);
                Tiles::template multiply<1, 5, 6>();
            }
            if constexpr (Groups == 2) {
                Tiles::template load<7>(r1, tile_side);
                Tiles::template multiply<2, 4, 7>();
            }
            if constexpr (Widths == 2 && Groups == 2) { Tiles::template multiply<3, 5, 7>(); }
            l0 += s.left0.step;
            l1 += s.left1.step;
            r0 += tile_floats;
            r1 += tile_floats;
        }
        Tiles::template store<0>(c0, tile_side);
        if constexpr (Widths == 2) { Tiles::template store<1>(c0 + tile_floats, tile_side); }
        if constexpr (Groups == 2) { Tiles::template store<2>(c1, tile_side); }
        if constexpr (Widths == 2 && Groups == 2) { Tiles::template store<3>(c1 + tile_floats, tile_side); }
    }

    /// Rows of sums [16 columns][16 rows], which are turned first. Columns that began earlier are put there; they are
    /// the sums that their neighbours have. `lines` has room for 16 numbers before it.
    void finish(std::int64_t row, std::int64_t rows, std::int64_t column, std::int64_t columns, const float* sums,
                float* lines) const {
        using S = Simd<Isa, tile_side>;
        const std::int64_t widths = (columns + tile_side - 1) / tile_side;
        for (std::int64_t w = 0; w < widths; ++w) {
            const std::int64_t at = first_of(column + w * tile_side) - column;
            F<tile_side> square[tile_side];
            HEED_UNROLL
            for (int n = 0; n < tile_side; ++n) { square[n] = S::load(sums + w * tile_floats + n * tile_side); }
            S::transpose(square);
            HEED_UNROLL
            for (int n = 0; n < tile_side; ++n) { S::store(lines + n * sum_stride + at, square[n]); }
        }
        finish_rows<Isa>(problem, {row, rows, column, columns}, lines, sum_stride, lines + line_floats - tile_side);
    }
};

}  // namespace heed::cpu
