#pragma once
#include "cpu/matmul/finish.h"
#include "cpu/matmul/isa.h"
#include "cpu/matmul/stretches.h"
#include "kernel/packed_problem.h"

/// Products with weights that were packed into panels beforehand, with the sums of isa.h, so that neither the rows
/// beside a row nor the number of them changes a bit.

namespace heed::cpu {

/// Pairs of bf16 where the CPU has no dot products of them.
struct SplitPairs {
    static constexpr int depth_per_lane = 2;
    template <class Isa, int L>
    static HEED_INLINE F<L> add(F<L> sum, F<L> a, F<L> b) {
        const U<L> upper = Simd<Isa, L>::all(std::uint32_t{0xFFFF0000U});
        sum = sum + F<L>(U<L>(a) << 16) * F<L>(U<L>(b) << 16);
        return sum + F<L>(U<L>(a) & upper) * F<L>(U<L>(b) & upper);
    }
};

template <class Isa, class Product>
struct PrepackedProduct {
    using Block = MatmulBlock<Isa, Product>;
    using S = Simd<Isa, Isa::lanes>;
    static constexpr int L = Isa::lanes;
    static constexpr std::int64_t panel = PackedLayout::panel;
    static constexpr bool pairs = Product::depth_per_lane == 2;
    static constexpr int NV = Registers<Isa>::widest, MR = Registers<Isa>::rows(NV);
    static constexpr std::int64_t depth_lanes = Block::depth / Product::depth_per_lane;

    const LinearProblem& problem;  ///< rows of A are those of rounded_rows where the weights are pairs
    const float* panels;
    const MatmulProblem& p = problem.product;
    const std::int64_t lanes = PackedLayout::lanes(p.depth, pairs);

    HEED_INLINE const float* panel_at(std::int64_t n) const { return panels + n * lanes * panel; }

    /// Asks for what lies ahead in the panels, a row of lanes at a time: into L2, and 4 KB ahead, which two cores of
    /// Zen 4 read 15 % faster than from anywhere nearer or into L1.
    struct Ahead {
        const float* at;
        HEED_INLINE void operator()() {
            HEED_UNROLL
            for (int n = 0; n < panel; n += 16) { __builtin_prefetch(at + n, 0, 2); }
            at += panel;
        }
    };

    /// to[r][0..64) += Rows rows of A times a panel over some lanes of the depth.
    template <int Rows, bool Streams>
    HEED_INLINE void multiply(const float* a, std::int64_t a_stride, const float* b, std::int64_t count, float* to,
                              std::int64_t to_stride) const {
        constexpr std::int64_t ahead = 16 * panel;
        for (int c = 0; c < panel; c += NV * L) {
            // From zero, then added: the rounding errors of one block do not grow with those before it.
            F<L> part[Rows][NV] = {};
            if constexpr (Streams) {
                Ahead fused{b + ahead};
                multiply_add<Isa, Product, L, Rows, NV, Walk::along_row>(a, a_stride, b + c, panel, count, part, fused);
            } else {
                multiply_add<Isa, Product, L, Rows, NV, Walk::along_row>(a, a_stride, b + c, panel, count, part);
            }
            HEED_UNROLL
            for (int r = 0; r < Rows; ++r) {
                HEED_UNROLL
                for (int n = 0; n < NV; ++n) {
                    float* at = to + r * to_stride + c + n * L;
                    S::store(at, S::load(at) + part[r][n]);
                }
            }
        }
    }

    // ---- Few rows: each panel is read once, from front to back ----------------------------------------------------

    template <int Rows>
    HEED_NOINLINE void few_rows(const float* a, std::int64_t a_stride, std::int64_t n) const {
        float sum[Rows][panel] = {}, buffer[panel];
        const float* b = panel_at(n);
        for (std::int64_t k = 0; k < lanes; k += depth_lanes) {
            multiply<Rows, true>(a + k, a_stride, b + k * panel, smaller(depth_lanes, lanes - k), sum[0], panel);
        }
        const std::int64_t column = n * panel, count = smaller(panel, p.columns - column);
        for (int r = 0; r < Rows; ++r) { finish_row<Isa>(problem, r, column, count, sum[r], buffer); }
    }

    void run_few(detail::Pool& pool) const {
        const auto* a = reinterpret_cast<const float*>(p.a.data);
        std::int64_t a_stride = p.a.row_stride / Product::depth_per_lane;
        if constexpr (!pairs) {
            a_stride = round_up(lanes, 16) + 16;
            const auto bytes = static_cast<std::size_t>(p.rows * a_stride) * sizeof(float);
            auto* rows = static_cast<float*>(pool.shared().at_least(bytes));
            for (std::int64_t r = 0; r < p.rows; ++r) {
                load_row<Isa>(p.a.dtype, element_at(p.a, r, 0), p.a.column_stride, p.depth, rows + r * a_stride);
            }
            a = rows;
        }
        const std::int64_t tasks = (p.columns + panel - 1) / panel;
        // Memory is what this waits for: so many bytes take as long as 4 operations each.
        const double bytes = 4.0 * static_cast<double>(lanes) * static_cast<double>(p.columns);
        in_stretches(pool, tasks, detail::effort_for(4 * bytes), [&](std::int64_t task, int) {
            with_constant<MR>(static_cast<int>(p.rows), [&]<int Rows>() { few_rows<Rows>(a, a_stride, task); });
        });
    }

    // ---- Many rows: blocks of C ------------------------------------------------------------------------------------

    HEED_NOINLINE void tiles(const float* a, const float* b, std::int64_t rows, std::int64_t count, float* to) const {
        for (std::int64_t m = 0; m < rows; m += MR) {
            multiply<MR, false>(a + m * Block::a_stride, Block::a_stride, b, count, to + m * Block::columns,
                                Block::columns);
        }
    }

    void one_block(const Block& block, std::int64_t row, std::int64_t column, std::int64_t rows,
                   std::int64_t columns) const {
        const std::int64_t full = round_up(rows, MR);
        for (std::int64_t n = 0; n < full * Block::columns; ++n) { block.sum[n] = 0; }
        for (std::int64_t k = 0; k < p.depth; k += Block::depth) {
            const std::int64_t depth = smaller(Block::depth, p.depth - k);
            block.copy_a({}, row, k, rows, depth);
            for (std::int64_t m = rows; m < full; ++m) {
                for (std::int64_t n = 0; n < Block::lanes_of(depth); ++n) { block.a[m * Block::a_stride + n] = 0; }
            }
            for (std::int64_t c = 0; c < columns; c += panel) {
                const float* b = panel_at((column + c) / panel) + k / Product::depth_per_lane * panel;
                tiles(block.a, b, full, Block::lanes_of(depth), block.sum + c);
            }
        }
        for (std::int64_t m = 0; m < rows; ++m) {
            finish_row<Isa>(problem, row + m, column, columns, block.sum + m * Block::columns, block.staging);
        }
    }

    void run_many(detail::Pool& pool) const {
        const std::int64_t row_blocks = (p.rows + Block::rows - 1) / Block::rows;
        const std::int64_t column_blocks = (p.columns + Block::columns - 1) / Block::columns;
        const double operations =
            2.0 * static_cast<double>(p.rows) * static_cast<double>(p.columns) * static_cast<double>(p.depth);
        detail::parallel(
            pool, row_blocks * column_blocks, detail::effort_for(operations), [&](std::int64_t task, int worker) {
                auto* memory =
                    static_cast<float*>(pool.scratch(worker).at_least(static_cast<std::size_t>(Block::bytes)));
                float* staging = memory + Block::a_floats + Block::b_floats;
                const Block block{p, memory, nullptr, staging, staging + Block::staging_floats};
                // Neighbouring tasks share their panels.
                const std::int64_t row = task % row_blocks * Block::rows;
                const std::int64_t column = task / row_blocks * Block::columns;
                one_block(block, row, column, smaller(Block::rows, p.rows - row),
                          smaller(Block::columns, p.columns - column));
            });
    }

    void run(detail::Pool& pool) const { p.rows <= MR ? run_few(pool) : run_many(pool); }
};

/// The rows of A in bf16, in shared memory, filled up with zeros to whole pairs.
template <class Isa>
LinearProblem rounded_rows(detail::Pool& pool, const LinearProblem& problem) {
    const MatmulProblem& p = problem.product;
    const std::int64_t stride = round_up(p.depth, 32) + 32;
    const auto bytes = static_cast<std::size_t>(p.rows * stride) * 2;
    auto* rounded = static_cast<char*>(pool.shared().at_least(bytes));
    const double numbers = static_cast<double>(p.rows) * static_cast<double>(p.depth);
    detail::parallel(pool, p.rows, detail::effort_for(2 * numbers), [&](std::int64_t row, int) {
        constexpr std::int64_t at_once = 256;
        float part[at_once];
        for (std::int64_t k = 0; k < p.depth; k += at_once) {
            const std::int64_t count = smaller(at_once, p.depth - k);
            load_row<Isa>(p.a.dtype, element_at(p.a, row, k), p.a.column_stride, count, part);
            for (std::int64_t n = count; n < round_up(count, 2); ++n) { part[n] = 0; }
            store_row<Isa>(DType::bf16, rounded + 2 * (row * stride + k), 1, round_up(count, 2), part, 1.0F);
        }
    });
    LinearProblem result = problem;
    result.product.a = {DType::bf16, rounded, stride, 1};
    return result;
}

template <class Isa, class Pairs>
void packed_product(detail::Pool& pool, const PackedProblem& problem) {
    const auto* panels = reinterpret_cast<const float*>(problem.panels);
    if (problem.pairs) {
        const LinearProblem rounded = rounded_rows<Isa>(pool, problem.linear);
        PrepackedProduct<Isa, Pairs>{rounded, panels}.run(pool);
    } else {
        PrepackedProduct<Isa, FloatProduct>{problem.linear, panels}.run(pool);
    }
}

}  // namespace heed::cpu
