#pragma once
#include "cpu/matmul/packed.h"
#include "cpu/matmul/prepacked.h"
#include "cpu/matmul/tile_weights.h"

/// Linear layers in bf16 on tiles of 16 x 16 sums (Intel's AMX). Two ways, with the same sums, bit for bit, so that it
/// does not matter which rows stand beside a row:
///
/// - weights where they lie (tile_weights.h), wherever the columns of B are rows in memory;
/// - panels: B in panels of 64 columns, packed beforehand or, for other layouts, for the call; the rows of A are copied
///   once, in bf16, padded with zeros to whole tiles; four tiles of sums at a time.
///
/// A tile of sums takes the whole depth in order, 32 numbers at a time.

namespace heed::cpu {

/// The rows of A as pairs of bf16, zeros up to whole tiles of rows and lanes.
template <class Isa>
struct TileRows {
    using Block = MatmulBlock<Isa, Bf16Product>;

    const MatmulProblem& p;
    float* data = nullptr;
    const std::int64_t rows = round_up(p.rows, tile_side);
    const std::int64_t lanes = round_up(Block::lanes_of(p.depth), tile_side);
    const std::int64_t stride = lanes + tile_side;  ///< rows do not share sets of L1

    std::int64_t floats() const { return rows * stride; }

    void copy(detail::Pool& pool) const {
        constexpr std::int64_t at_once = 64;
        const double numbers = static_cast<double>(p.rows) * static_cast<double>(p.depth);
        const std::int64_t tasks = (p.rows + at_once - 1) / at_once;
        detail::parallel(pool, tasks, detail::effort_for(2 * numbers), [&](std::int64_t task, int worker) {
            auto* memory = static_cast<float*>(pool.scratch(worker).at_least(static_cast<std::size_t>(Block::bytes)));
            const std::int64_t row = task * at_once, count = smaller(at_once, p.rows - row);
            const std::int64_t padded = smaller(at_once, rows - row);
            for (std::int64_t n = 0; n < padded; ++n) {
                const std::int64_t begin = n < count ? Block::lanes_of(p.depth) : 0;
                for (std::int64_t k = begin; k < lanes; ++k) { data[(row + n) * stride + k] = 0; }
            }
            for (std::int64_t k = 0; k < p.depth; k += Block::depth) {
                part(row, count, k, smaller(Block::depth, p.depth - k), memory);
            }
        });
    }

private:
    void part(std::int64_t row, std::int64_t count, std::int64_t k, std::int64_t depth, float* memory) const {
        float* to = data + row * stride + k / 2;
        if (p.a.dtype == DType::bf16) {
            const Block block{p, nullptr, nullptr, memory, nullptr};
            const char* from = element_at(p.a, row, k);
            block.copy_as_pairs(from, p.a.column_stride, p.a.row_stride, depth, count, false, to, stride);
            return;
        }
        for (std::int64_t n = 0; n < count; ++n) {
            load_row<Isa>(p.a.dtype, element_at(p.a, row + n, k), p.a.column_stride, depth, memory);
            memory[depth] = 0;
            store_row<Isa>(DType::bf16, reinterpret_cast<char*>(to + n * stride), 1, round_up(depth, 2), memory, 1.0F);
        }
    }
};

/// C from rows of A and panels of B.
template <class Isa, class Tiles>
struct TilePanels {
    static constexpr std::int64_t panel = PackedLayout::panel;
    /// A block of C: its rows of A stay in L1 while the panels pass, 512 numbers of the depth at a time; the panels
    /// stay in L2.
    static constexpr std::int64_t block_rows = 64, block_columns = 256, depth_lanes = 256;
    static constexpr std::int64_t tiles_of_panel = panel / tile_side;
    static constexpr std::int64_t tile_floats = tile_side * tile_side;
    static constexpr std::int64_t sum_floats = block_rows * block_columns;
    static constexpr std::int64_t rest_floats = tiles_of_panel * tile_floats;

    const LinearProblem& problem;
    const TileRows<Isa>& a;
    const float* panels;
    std::int64_t panel_floats;  ///< from one panel to the next
    std::int64_t first;         ///< column of the first panel
    std::int64_t columns;       ///< from there on
    const MatmulProblem& p = problem.product;
    const std::int64_t lanes = PackedLayout::lanes(p.depth, true);

    void run(detail::Pool& pool) const {
        if (a.rows == tile_side) { return run_few(pool); }
        const std::int64_t row_blocks = (p.rows + block_rows - 1) / block_rows;
        std::int64_t task_columns = block_columns;
        // Four tasks for every thread, so that none waits long for the last.
        while (task_columns > panel &&
               row_blocks * ((columns + task_columns - 1) / task_columns) < 4 * pool.threads()) {
            task_columns /= 2;
        }
        const std::int64_t column_blocks = (columns + task_columns - 1) / task_columns;
        each_task(pool, row_blocks * column_blocks, [&](std::int64_t task, float* memory) {
            // Neighbouring tasks share their panels.
            block(task % row_blocks * block_rows, task / row_blocks * task_columns, task_columns, memory);
        });
    }

private:
    template <class Function>
    void each_task(detail::Pool& pool, std::int64_t tasks, const Function& function) const {
        const double operations =
            2.0 * static_cast<double>(a.rows) * static_cast<double>(columns) * static_cast<double>(p.depth);
        constexpr auto bytes = static_cast<std::size_t>(sum_floats + rest_floats + block_columns) * sizeof(float);
        detail::parallel(pool, tasks, detail::effort_for(operations), [&](std::int64_t task, int worker) {
            const typename Tiles::Session session;
            function(task, static_cast<float*>(pool.scratch(worker).at_least(bytes)));
        });
    }

    HEED_INLINE const float* panel_at(std::int64_t column) const { return panels + column / panel * panel_floats; }

    /// The lanes of a panel after its last whole tile, in tiles of their own with zeros below.
    void take_rest(const float* from, float* rest) const {
        const std::int64_t whole = lanes / tile_side * tile_side;
        for (std::int64_t t = 0; whole < lanes && t < tiles_of_panel; ++t) {
            pad_tile<Isa>(from + whole * panel + t * tile_side, panel, lanes - whole, tile_side,
                          rest + t * tile_floats);
        }
    }

    void block(std::int64_t row, std::int64_t column, std::int64_t most, float* memory) const {
        float *sum = memory, *rest = sum + sum_floats, *buffer = rest + rest_floats;
        const std::int64_t rows = smaller(block_rows, a.rows - row), width = smaller(most, columns - column);
        for (std::int64_t k = 0; k == 0 || k < lanes; k += depth_lanes) {  // of no depth at all, too: zeros
            const std::int64_t end = smaller(lanes, k + depth_lanes);
            for (std::int64_t c = 0; c < width; c += panel) {
                const float* b = panel_at(column + c);
                if (end == lanes) { take_rest(b, rest); }
                for (std::int64_t m = 0; m < rows; m += 2 * tile_side) {
                    const float* left = a.data + (row + m) * a.stride;
                    float* to = sum + m * block_columns + c;
                    for (std::int64_t t = 0; t < tiles_of_panel; t += 2) {
                        const Square square{left, b, rest, k, end, t, to + t * tile_side};
                        m + tile_side < rows ? multiply<2>(square) : multiply<1>(square);
                    }
                }
            }
        }
        finish(row, smaller(rows, p.rows - row), column, width, sum, buffer);
    }

    void finish(std::int64_t row, std::int64_t rows, std::int64_t column, std::int64_t width, float* sum,
                float* buffer) const {
        finish_rows<Isa>(problem, {row, rows, first + column, width}, sum, block_columns, buffer);
    }

    /// Two tiles of columns of a panel from tile t on, over lanes [k, end) of the depth.
    struct Square {
        const float *a, *b, *rest;
        std::int64_t k, end, t;
        float* to;
    };

    template <int Rows>
    HEED_INLINE void multiply(const Square& s) const {
        float *c0 = s.to, *c1 = s.to + tile_side * block_columns;
        if (s.k == 0) {
            Tiles::template zero<0>();
            Tiles::template zero<1>();
            if constexpr (Rows == 2) {
                Tiles::template zero<2>();
                Tiles::template zero<3>();
            }
        } else {
            Tiles::template load<0>(c0, block_columns);
            Tiles::template load<1>(c0 + tile_side, block_columns);
            if constexpr (Rows == 2) {
                Tiles::template load<2>(c1, block_columns);
                Tiles::template load<3>(c1 + tile_side, block_columns);
            }
        }
        std::int64_t k = s.k;
        for (; k + tile_side <= s.end; k += tile_side) {
            const float* b = s.b + k * panel + s.t * tile_side;
            step<Rows>(s.a + k, b, b + tile_side, panel);
        }
        if (k < s.end) {
            const float* b = s.rest + s.t * tile_floats;
            step<Rows>(s.a + k, b, b + tile_floats, tile_side);
        }
        Tiles::template store<0>(c0, block_columns);
        Tiles::template store<1>(c0 + tile_side, block_columns);
        if constexpr (Rows == 2) {
            Tiles::template store<2>(c1, block_columns);
            Tiles::template store<3>(c1 + tile_side, block_columns);
        }
    }

    template <int Rows>
    HEED_INLINE void step(const float* from, const float* b0, const float* b1, std::int64_t b_stride) const {
        Tiles::template load<6>(b0, b_stride);
        Tiles::template load<4>(from, a.stride);
        Tiles::template multiply<0, 4, 6>();
        Tiles::template load<7>(b1, b_stride);
        Tiles::template multiply<1, 4, 7>();
        if constexpr (Rows == 2) {
            Tiles::template load<5>(from + tile_side * a.stride, a.stride);
            Tiles::template multiply<2, 5, 6>();
            Tiles::template multiply<3, 5, 7>();
        }
    }

    // ---- One tile of rows: each panel is read once, from front to back ---------------------------------------------

    void run_few(detail::Pool& pool) const {
        each_task(pool, (columns + panel - 1) / panel, [&](std::int64_t task, float* memory) {
            float *sum = memory, *rest = sum + sum_floats, *buffer = rest + rest_floats;
            const float* b = panel_at(task * panel);
            take_rest(b, rest);
            Tiles::template zero<0>();
            Tiles::template zero<1>();
            Tiles::template zero<2>();
            Tiles::template zero<3>();
            std::int64_t k = 0;
            for (; k + tile_side <= lanes; k += tile_side) {
                const float* from = b + k * panel;
                prefetch_lanes(from + 2 * tile_side * panel);
                wide_step(a.data + k, from, tile_side, panel);
            }
            if (k < lanes) { wide_step(a.data + k, rest, tile_floats, tile_side); }
            Tiles::template store<0>(sum, block_columns);
            Tiles::template store<1>(sum + tile_side, block_columns);
            Tiles::template store<2>(sum + 2 * tile_side, block_columns);
            Tiles::template store<3>(sum + 3 * tile_side, block_columns);
            finish(0, p.rows, task * panel, smaller(panel, columns - task * panel), sum, buffer);
        });
    }

    static HEED_INLINE void prefetch_lanes(const float* from) {
        for (std::int64_t n = 0; n < tile_side * panel; n += 16) { __builtin_prefetch(from + n, 0, 2); }
    }

    /// One tile of rows times four of columns, `step` from each other.
    HEED_INLINE void wide_step(const float* from, const float* b, std::int64_t step, std::int64_t b_stride) const {
        Tiles::template load<4>(from, a.stride);
        Tiles::template load<5>(b, b_stride);
        Tiles::template multiply<0, 4, 5>();
        Tiles::template load<6>(b + step, b_stride);
        Tiles::template multiply<1, 4, 6>();
        Tiles::template load<7>(b + 2 * step, b_stride);
        Tiles::template multiply<2, 4, 7>();
        Tiles::template load<5>(b + 3 * step, b_stride);
        Tiles::template multiply<3, 4, 5>();
    }
};

/// Where the parts of a call lie in the threads' shared memory: rows of A first.
template <class Isa>
struct TileMemory {
    TileRows<Isa> rows;
    float* rest;

    TileMemory(detail::Pool& pool, const MatmulProblem& p, std::int64_t floats) : rows{p} {
        const auto bytes = static_cast<std::size_t>(rows.floats() + floats) * sizeof(float);
        rows.data = static_cast<float*>(pool.shared().at_least(bytes));
        rest = rows.data + rows.floats();
        rows.copy(pool);
    }
};

template <class Isa, class Tiles>
void linear_on_tiles(detail::Pool& pool, const LinearProblem& problem) {
    using Packed = PackedProduct<Isa, Bf16Product>;
    static_assert(Packed::panel == PackedLayout::panel);
    const MatmulProblem& p = problem.product;
    if (TileWeights<Isa, Tiles>::takes(p)) {
        TurnedRows<Isa> rows{p};
        rows.data =
            static_cast<float*>(pool.shared().at_least(static_cast<std::size_t>(rows.floats()) * sizeof(float)));
        rows.copy(pool);
        return TileWeights<Isa, Tiles>{problem, rows}.run(pool);
    }
    const std::int64_t strip = larger(Packed::Block::columns, packed_at_once / larger<std::int64_t>(1, p.depth) /
                                                                  Packed::Block::columns * Packed::Block::columns);
    const TileMemory<Isa> memory(pool, p, Packed::packed_floats(p, smaller(p.columns, strip)));
    const std::int64_t panel_floats = (PackedLayout::lanes(p.depth, true) + Packed::lanes_of_block) * Packed::panel;
    for (std::int64_t begin = 0; begin < p.columns; begin += strip) {
        const std::int64_t count = smaller(strip, p.columns - begin);
        Packed{problem}.pack(pool, begin, begin + count, memory.rest);
        TilePanels<Isa, Tiles>{problem, memory.rows, memory.rest, panel_floats, begin, count}.run(pool);
    }
}

/// Weights packed beforehand, as pairs.
template <class Isa, class Tiles>
void packed_on_tiles(detail::Pool& pool, const PackedProblem& problem) {
    const MatmulProblem& p = problem.linear.product;
    const TileMemory<Isa> memory(pool, p, 0);
    const auto* panels = reinterpret_cast<const float*>(problem.panels);
    const std::int64_t panel_floats = PackedLayout::lanes(p.depth, true) * PackedLayout::panel;
    TilePanels<Isa, Tiles>{problem.linear, memory.rows, panels, panel_floats, 0, p.columns}.run(pool);
}

}  // namespace heed::cpu
