#pragma once
#include "cpu/matmul/finish.h"
#include "cpu/matmul/isa.h"
#include "kernel/linear_problem.h"

/// Products of two matrices with bias and activation on the way out. Two ways, both with the sums of isa.h, bit for
/// bit, so that it does not matter which rows stand beside a row:
///
/// - packed: all of B is first rearranged into panels, once instead of once for every 96 rows of A (which took a
///   seventh of the time), then blocks of C are computed from the panels;
/// - transposed: a few rows against a B whose columns are rows in memory, a layer's weights. They are read once, in
/// order,
///   transposed in registers and used at once: the speed of memory.

namespace heed::cpu {

/// Numbers of B that are packed at once: more would not stay in the caches between packing and use.
constexpr std::int64_t packed_at_once = std::int64_t{1} << 23;

template <class Isa, class Product>
struct PackedProduct {
    using Block = MatmulBlock<Isa, Product>;
    static constexpr int L = Isa::lanes;
    static constexpr std::int64_t panel = Block::panel;
    static constexpr std::int64_t lanes_of_block = Block::depth / Product::depth_per_lane;

    const LinearProblem& problem;
    const MatmulProblem& p = problem.product;

    static constexpr int NV = Registers<Isa>::widest, MR = Registers<Isa>::rows(NV);
    static constexpr std::int64_t tile_rows = MR;

    /// A block of A for the register tiles: rows of lanes (along_row), or for every MR rows the MR lanes of each depth
    /// behind one another (along_column).
    struct Left {
        const float* lanes;
        std::int64_t stride;  ///< along_row: of rows
        std::int64_t rows;    ///< a multiple of MR
    };

    /// sum[m][n] (+)= A B for one panel, whole register tiles of it: rows and columns that fill them up are zeros.
    template <Walk W, bool First>
    static HEED_NOINLINE void multiply(const Left& left, const float* b, std::int64_t lanes, float* to) {
        for (std::int64_t m = 0; m < left.rows; m += MR) {
            // From zero, then added: the rounding errors of one block do not grow with those before it.
            F<L> part[MR][NV] = {};
            if constexpr (W == Walk::along_row) {
                multiply_add<Isa, Product, L, MR, NV, W>(left.lanes + m * left.stride, left.stride, b, panel, lanes,
                                                         part);
            } else {
                multiply_add<Isa, Product, L, MR, NV, W>(left.lanes + m * lanes_of_block, MR, b, panel, lanes, part);
            }
            HEED_UNROLL
            for (int r = 0; r < MR; ++r) {
                HEED_UNROLL
                for (int n = 0; n < NV; ++n) {
                    float* at = to + (m + r) * Block::columns + n * L;
                    const F<L> before = First ? F<L>{} : Simd<Isa, L>::load(at);
                    Simd<Isa, L>::store(at, before + part[r][n]);
                }
            }
        }
    }
    template <Walk W>
    static void multiply(const Left& left, const float* b, std::int64_t lanes, float* to, bool first) {
        if (left.rows == 0) { return; }
        first ? multiply<W, true>(left, b, lanes, to) : multiply<W, false>(left, b, lanes, to);
    }

    /// Where panel n of the strip has its block of depth d.
    HEED_INLINE float* packed_at(float* packed, std::int64_t n, std::int64_t d) const {
        const std::int64_t all_lanes = Block::lanes_of(p.depth) + lanes_of_block;  // room for the last, rounded up
        return packed + (n * all_lanes + d * lanes_of_block) * panel;
    }
    static std::int64_t packed_floats(const MatmulProblem& p, std::int64_t columns) {
        return (columns + panel - 1) / panel * panel * (Block::lanes_of(p.depth) + lanes_of_block);
    }

    /// One row of lanes of all panels: its numbers lie side by side in B, so that they are read in order.
    void pack_lane(std::int64_t lane, std::int64_t begin, std::int64_t end, float* packed) const {
        const std::int64_t k = lane * Product::depth_per_lane;
        for (std::int64_t column = begin; column < end; column += panel) {
            const std::int64_t width = smaller(panel, end - column);
            float* to = packed_at(packed, (column - begin) / panel, 0) + lane * panel;
            const char* from = Block::element(p.b, 0, k, column);
            if constexpr (Product::depth_per_lane == 2) {
                const char* next = k + 1 < p.depth ? Block::element(p.b, 0, k + 1, column) : nullptr;
                interleave_rows<Isa>(from, next, 1, width, panel, to);
            } else {
                if (p.b.dtype == DType::f32 && width == panel) {
                    __builtin_memcpy(to, from, panel * sizeof(float));
                    continue;
                }
                load_row<Isa>(p.b.dtype, from, 1, width, to);
                for (std::int64_t c = width; c < panel; ++c) { to[c] = 0; }
            }
        }
    }

    void pack(detail::Pool& pool, std::int64_t begin, std::int64_t end, float* packed) const {
        if (p.b.column_stride == 1) {
            const std::int64_t lanes = Block::lanes_of(p.depth);
            constexpr std::int64_t at_once = 16;
            const double numbers = static_cast<double>(end - begin) * static_cast<double>(p.depth);
            detail::parallel(pool, (lanes + at_once - 1) / at_once, detail::effort_for(10 * numbers),
                             [&](std::int64_t task, int) {
                                 const std::int64_t last = smaller(lanes, (task + 1) * at_once);
                                 for (std::int64_t lane = task * at_once; lane < last; ++lane) {
                                     pack_lane(lane, begin, end, packed);
                                 }
                             });
        } else {
            pack_turned(pool, begin, end, packed);
        }
    }

    void pack_turned(detail::Pool& pool, std::int64_t begin, std::int64_t end, float* packed) const {
        const std::int64_t panels = (end - begin + panel - 1) / panel;
        const std::int64_t depths = (p.depth + Block::depth - 1) / Block::depth;
        const double numbers = static_cast<double>(end - begin) * static_cast<double>(p.depth);
        detail::parallel(pool, panels, numbers * 10 > matmul_worth_waking, [&](std::int64_t n, int worker) {
            auto* memory = static_cast<float*>(pool.scratch(worker).at_least(static_cast<std::size_t>(Block::bytes)));
            const Block block{p, nullptr, nullptr, memory, nullptr};
            const std::int64_t column = begin + n * panel;
            for (std::int64_t d = 0; d < depths; ++d) {
                const std::int64_t k = d * Block::depth;
                pack_panel(block, column, k, smaller(Block::depth, p.depth - k), packed_at(packed, n, d));
            }
        });
    }

    /// A panel of B over so much of the depth; columns that B does not have are zeros.
    void pack_panel(const Block& block, std::int64_t column, std::int64_t k, std::int64_t depth, float* to) const {
        const std::int64_t width = smaller(panel, p.columns - column);
        block.copy_b({}, k, column, depth, width, to);
        for (std::int64_t r = 0; width < panel && r < Block::lanes_of(depth); ++r) {
            for (std::int64_t c = width; c < panel; ++c) { to[r * panel + c] = 0; }
        }
    }

    /// Rows of a block of A that are read where they lie: whole tiles of rows that are lanes already, unless they share
    /// sets of L1. The rest is copied; copying all of it took a fifteenth of a training step.
    std::int64_t rows_in_place(std::int64_t block_rows) const {
        constexpr std::int64_t per_lane = Product::depth_per_lane;
        const bool lanes = p.a.dtype == (per_lane == 2 ? DType::bf16 : DType::f32) && p.a.column_stride == 1 &&
                           p.a.row_stride % per_lane == 0 && p.depth % per_lane == 0 &&
                           reinterpret_cast<std::uintptr_t>(p.a.data) % sizeof(float) == 0;
        const bool own_sets = p.a.row_stride / per_lane % 1024 != 0;
        return lanes && own_sets ? block_rows / tile_rows * tile_rows : 0;
    }

    /// Whether rows of A are columns in memory, as in the gradient of a weight: they need not be transposed, as a
    /// register tile can as well read the lanes of one depth side by side.
    bool lies_across() const { return p.a.row_stride == 1 && p.a.column_stride != 1; }

    /// Copies such a block; what fills up the last MR rows is 0.
    void copy_across(const Block& block, std::int64_t row, std::int64_t k, std::int64_t rows,
                     std::int64_t depth) const {
        const MatrixAddress transposed{p.a.dtype, p.a.data, p.a.column_stride, p.a.row_stride};
        for (std::int64_t d = 0; d < Block::lanes_of(depth); ++d) {
            const float* line = block.staging;
            // Each row is somewhere else in memory, and short.
            HEED_UNROLL
            for (int n = 0; n < Product::depth_per_lane; ++n) {
                const char* ahead =
                    element_at(transposed, smaller(k + (d + 8) * Product::depth_per_lane + n, p.depth - 1), row);
                for (std::int64_t byte = 0; byte < rows * element_bytes(p.a.dtype); byte += 64) {
                    __builtin_prefetch(ahead + byte);
                }
            }
            if constexpr (Product::depth_per_lane == 2) {
                const char* next = 2 * d + 1 < depth ? Block::element(p.a, 0, row, k + 2 * d + 1) : nullptr;
                interleave_rows<Isa>(Block::element(p.a, 0, row, k + 2 * d), next, 1, rows, rows, block.staging);
            } else {
                line = floats_at<Isa>(transposed, k + d, row, rows, block.staging);
            }
            float* to = block.a + d * MR;
            std::int64_t m = 0;
            for (; m + MR <= rows; m += MR) { __builtin_memcpy(to + m * lanes_of_block, line + m, MR * sizeof(float)); }
            if (m < rows) {
                for (std::int64_t r = 0; r < MR; ++r) { to[m * lanes_of_block + r] = m + r < rows ? line[m + r] : 0; }
            }
        }
    }

    void copy_rest(const Block& block, std::int64_t row, std::int64_t k, std::int64_t rows, std::int64_t there,
                   std::int64_t depth) const {
        if (there < rows) {
            const Block rest{p, block.a + there * Block::a_stride, block.b, block.staging, block.sum};
            rest.copy_a({}, row + there, k, rows - there, depth);
        }
        for (std::int64_t m = rows; m < round_up(rows, MR); ++m) {
            for (std::int64_t n = 0; n < Block::lanes_of(depth); ++n) { block.a[m * Block::a_stride + n] = 0; }
        }
    }

    /// Where the panels of B are.
    struct Panels {
        const float* packed = nullptr;  ///< null: each block packs its own
        std::int64_t first = 0;         ///< column of the first
    };

    /// One block of C.
    void one_block(const Block& block, const Panels& panels, std::int64_t row, std::int64_t column,
                   std::int64_t block_rows, std::int64_t block_columns) const {
        const bool across = lies_across();
        const std::int64_t full_rows = round_up(block_rows, MR), there = across ? 0 : rows_in_place(block_rows);
        if (p.depth == 0) {
            for (std::int64_t n = 0; n < full_rows * Block::columns; ++n) { block.sum[n] = 0; }
        }
        for (std::int64_t k = 0; k < p.depth; k += Block::depth) {
            const std::int64_t depth = smaller(Block::depth, p.depth - k), lanes = Block::lanes_of(depth);
            across ? copy_across(block, row, k, block_rows, depth) : copy_rest(block, row, k, block_rows, there, depth);
            const auto* direct = reinterpret_cast<const float*>(Block::element(p.a, 0, row, k));
            const Left in_place{direct, p.a.row_stride / Product::depth_per_lane, there};
            const Left copied{block.a + there * Block::a_stride, Block::a_stride, full_rows - there};
            for (std::int64_t c = 0; c < block_columns; c += panel) {
                const float* from = block.b;
                if (panels.packed != nullptr) {
                    from = packed_at(const_cast<float*>(panels.packed), (column - panels.first + c) / panel,
                                     k / Block::depth);
                } else {
                    pack_panel(block, column + c, k, depth, block.b);
                }
                if (across) {
                    multiply<Walk::along_column>(copied, from, lanes, block.sum + c, k == 0);
                    continue;
                }
                multiply<Walk::along_row>(in_place, from, lanes, block.sum + c, k == 0);
                multiply<Walk::along_row>(copied, from, lanes, block.sum + there * Block::columns + c, k == 0);
            }
        }
        finish_rows<Isa>(problem, {row, block_rows, column, block_columns}, block.sum, Block::columns, block.staging);
    }

    /// How C is cut up. It changes no bit.
    struct Cut {
        std::int64_t rows, columns;  ///< of a block
        std::int64_t row_blocks = 0, column_blocks = 0;
    };
    Cut cut(std::int64_t columns, int threads) const {
        Cut result{Block::rows, Block::columns};
        const auto count = [&] {
            result.row_blocks = (p.rows + result.rows - 1) / result.rows;
            result.column_blocks = (columns + result.columns - 1) / result.columns;
            return result.row_blocks * result.column_blocks;
        };
        // Four blocks for every thread, so that none waits long for the last.
        while (count() < 4 * threads && result.columns > panel) { result.columns /= 2; }
        // All of about as many rows.
        result.rows = smaller(Block::rows, round_up((p.rows + result.row_blocks - 1) / result.row_blocks, MR));
        count();
        return result;
    }

    /// Columns in strips whose packed panels stay in the caches. Where one block has all rows, and the columns of B are
    /// rows in memory, it packs its panels for itself and uses them at once: nothing waits for others' panels.
    void run(detail::Pool& pool) const {
        const bool own_panels = p.rows <= Block::rows && p.b.column_stride != 1;
        const std::int64_t strip = own_panels
                                       ? larger<std::int64_t>(1, p.columns)
                                       : larger(Block::columns, packed_at_once / larger<std::int64_t>(1, p.depth) /
                                                                    Block::columns * Block::columns);
        for (std::int64_t begin = 0; begin < p.columns; begin += strip) {
            const std::int64_t end = smaller(p.columns, begin + strip);
            Panels panels{nullptr, begin};
            if (!own_panels) {
                const auto bytes = static_cast<std::size_t>(packed_floats(p, end - begin)) * sizeof(float);
                auto* packed = static_cast<float*>(pool.shared().at_least(bytes));
                pack(pool, begin, end, packed);
                panels.packed = packed;
            }
            const double operations =
                2.0 * static_cast<double>(p.rows) * static_cast<double>(end - begin) * static_cast<double>(p.depth);
            const Cut cut = this->cut(end - begin, pool.threads());
            const std::int64_t tasks = cut.row_blocks * cut.column_blocks;
            detail::parallel(pool, tasks, operations > matmul_worth_waking, [&](std::int64_t task, int worker) {
                auto* memory =
                    static_cast<float*>(pool.scratch(worker).at_least(static_cast<std::size_t>(Block::bytes)));
                float* b = memory + Block::a_floats;
                float* staging = b + Block::b_floats;
                const Block block{p, memory, b, staging, staging + Block::staging_floats};
                const std::int64_t row = task % cut.row_blocks * cut.rows;
                const std::int64_t column = begin + task / cut.row_blocks * cut.columns;
                one_block(block, panels, row, column, smaller(cut.rows, p.rows - row),
                          smaller(cut.columns, end - column));
            });
        }
    }
};

/// How the weights are read: L numbers of a row, or L pairs of bf16, as one vector.
struct FloatWeights {
    static constexpr std::int64_t bytes = 4;
    template <class Isa, int L>
    static HEED_INLINE F<L> load(const char* from) {
        return Simd<Isa, L>::load(reinterpret_cast<const float*>(from));
    }
};
struct WidenedWeights {
    static constexpr std::int64_t bytes = 2;
    template <class Isa, int L>
    static HEED_INLINE F<L> load(const char* from) {
        typedef std::uint16_t Half __attribute__((vector_size(2 * L)));
        Half half;
        __builtin_memcpy(&half, from, sizeof(half));
        return F<L>(__builtin_convertvector(half, U<L>) << 16);
    }
};

template <class Isa, class Product, class Weights>
struct TransposedProduct {
    using Packed = PackedProduct<Isa, Product>;
    using Block = typename Packed::Block;
    using S = Simd<Isa, Isa::lanes>;
    static constexpr int L = Isa::lanes;
    /// Rows of A at once: their sums and L rows of weights fill the registers.
    static constexpr int most_rows = Isa::registers >= 32 ? 8 : 4;
    static constexpr std::int64_t task_columns = 2 * L;
    /// Numbers of a row of weights in a vector.
    static constexpr std::int64_t at_once = L * Product::depth_per_lane;
    static constexpr std::int64_t number_bytes = Product::depth_per_lane == 2 ? 2 : Weights::bytes;

    const LinearProblem& problem;
    const MatmulProblem& p = problem.product;
    const float* a;         ///< rows of lanes, as MatmulBlock copies them
    std::int64_t a_stride;  ///< in lanes

    /// sum[r][0..L) += rows of A times L columns from `column` on, over [k, k + depth).
    template <int Rows>
    HEED_INLINE void multiply(std::int64_t column, std::int64_t k, std::int64_t depth, float* sum) const {
        const std::int64_t stride = p.b.column_stride * number_bytes;
        const char* from = p.b.data + column * stride + k * number_bytes;
        const float* x = a + k / Product::depth_per_lane;
        F<L> part[Rows] = {};
        std::int64_t d = 0;
        for (; d + at_once <= depth; d += at_once) {
            F<L> block[L];
            HEED_UNROLL
            for (int n = 0; n < L; ++n) {
                __builtin_prefetch(from + n * stride + 1024, 0, 2);  // to L2: the rows share sets of L1
                block[n] = Weights::template load<Isa, L>(from + n * stride);
            }
            S::transpose(block);
            HEED_UNROLL
            for (int n = 0; n < L; ++n) {
                HEED_UNROLL
                for (int r = 0; r < Rows; ++r) {
                    part[r] = Product::template add<Isa, L>(part[r], S::all(x[r * a_stride + n]), block[n]);
                }
            }
            from += at_once * number_bytes;
            x += L;
        }
        if (d < depth) { rest<Rows>(from, stride, depth - d, x, part); }
        HEED_UNROLL
        for (int r = 0; r < Rows; ++r) { S::store(sum + r * L, S::load(sum + r * L) + part[r]); }
    }

    /// The last numbers of the rows, fewer than fill a vector.
    template <int Rows>
    HEED_NOINLINE void rest(const char* from, std::int64_t stride, std::int64_t count, const float* x,
                            F<L> (&part)[Rows]) const {
        float lane[L][L] = {};
        for (int n = 0; n < L; ++n) {
            if constexpr (Product::depth_per_lane == 2) {
                __builtin_memcpy(lane[n], from + n * stride, static_cast<std::size_t>(count) * 2);
            } else {
                load_row<Isa>(Weights::bytes == 4 ? DType::f32 : DType::bf16, from + n * stride, 1, count, lane[n]);
            }
        }
        for (std::int64_t d = 0; d < Block::lanes_of(count); ++d) {
            float column[L];
            for (int n = 0; n < L; ++n) { column[n] = lane[n][d]; }
            HEED_UNROLL
            for (int r = 0; r < Rows; ++r) {
                part[r] = Product::template add<Isa, L>(part[r], S::all(x[r * a_stride + d]), S::load(column));
            }
        }
    }

    template <int Rows>
    void columns(std::int64_t begin, std::int64_t end) const {
        float sum[Rows][L], row[L], buffer[L];
        for (std::int64_t column = begin; column < end; column += L) {
            // Behind the last column lies nothing: the last vector begins so much earlier.
            const std::int64_t first = smaller(column, p.columns - L);
            for (auto& each : sum) {
                for (float& x : each) { x = 0; }
            }
            for (std::int64_t k = 0; k < p.depth; k += Block::depth) {
                multiply<Rows>(first, k, smaller(Block::depth, p.depth - k), sum[0]);
            }
            const std::int64_t count = smaller<std::int64_t>(L, end - column);
            for (int r = 0; r < p.rows; ++r) {
                for (std::int64_t n = 0; n < count; ++n) { row[n] = sum[r][column - first + n]; }
                finish_row<Isa>(problem, r, column, count, row, buffer);
            }
        }
    }

    static std::int64_t padded_rows(std::int64_t rows) { return rows <= 2 ? rows : rows <= 4 ? 4 : most_rows; }

    static bool takes(const MatmulProblem& p) {
        return p.rows <= most_rows && p.b.row_stride == 1 && p.columns >= L && p.depth > 0 && p.depth <= deepest;
    }
    static constexpr std::int64_t deepest = 1 << 16;

    static void run(detail::Pool& pool, const LinearProblem& problem) {
        const MatmulProblem& p = problem.product;
        const std::int64_t a_stride = round_up(Block::lanes_of(p.depth), 16) + 16;
        const std::int64_t rows = padded_rows(p.rows);
        const auto bytes = static_cast<std::size_t>(rows * a_stride) * sizeof(float);
        auto* a = static_cast<float*>(pool.shared().at_least(bytes));
        for (std::int64_t n = p.rows * a_stride; n < rows * a_stride; ++n) { a[n] = 0; }
        for (std::int64_t r = 0; r < p.rows; ++r) {
            const char* from = Block::element(p.a, 0, r, 0);
            if constexpr (Product::depth_per_lane == 2) {
                copy_pairs<Isa>(from, p.a.column_stride, p.depth, a + r * a_stride);
            } else {
                load_row<Isa>(p.a.dtype, from, p.a.column_stride, p.depth, a + r * a_stride);
            }
        }
        const TransposedProduct transposed{problem, problem.product, a, a_stride};
        const std::int64_t tasks = (p.columns + task_columns - 1) / task_columns;
        // Memory is what this waits for: so many bytes take as long as 4 operations each.
        const double bytes_read = static_cast<double>(p.columns) * static_cast<double>(p.depth * number_bytes);
        detail::parallel(pool, tasks, detail::effort_for(4 * bytes_read), [&](std::int64_t task, int) {
            const std::int64_t begin = task * task_columns, end = smaller(p.columns, begin + task_columns);
            // Rows that make up the number are zeros.
            switch (padded_rows(p.rows)) {
                case 1: transposed.template columns<1>(begin, end); break;
                case 2: transposed.template columns<2>(begin, end); break;
                case 4: transposed.template columns<4>(begin, end); break;
                default: transposed.template columns<most_rows>(begin, end); break;
            }
        });
    }
};

/// Any product of floats of up to 32 bits.
template <class Isa>
void linear_product(detail::Pool& pool, const LinearProblem& problem) {
    const MatmulProblem& p = problem.product;
    using OfFloats = TransposedProduct<Isa, FloatProduct, FloatWeights>;
    using OfHalves = TransposedProduct<Isa, FloatProduct, WidenedWeights>;
    if (OfFloats::takes(p) && p.b.dtype == DType::f32) { return OfFloats::run(pool, problem); }
    if (OfHalves::takes(p) && p.b.dtype == DType::bf16) { return OfHalves::run(pool, problem); }
    PackedProduct<Isa, FloatProduct>{problem}.run(pool);
}

#if defined(__AVX512BF16__)
/// Of bf16 with bf16, in pairs.
template <class Isa>
void linear_product_of_pairs(detail::Pool& pool, const LinearProblem& problem) {
    using Turned = TransposedProduct<Isa, Bf16Product, FloatWeights>;
    if (Turned::takes(problem.product)) { return Turned::run(pool, problem); }
    PackedProduct<Isa, Bf16Product>{problem}.run(pool);
}
#endif

}  // namespace heed::cpu
