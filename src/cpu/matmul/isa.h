#pragma once
#include "cpu/isa/tables.h"
#include "cpu/matmul/gemm.h"
#include "cpu/simd/convert.h"
#include "kernel/matmul_problem.h"

/// The matrix product in blocks. A task owns a block of C and walks all of K for it: a block of A and of B are copied
/// to float32 where the register tiles read them in order, multiplied, and added to the block's sums. Where both are
/// bf16 and the CPU has dot products of pairs, they are copied as pairs along K instead. Blocks have fixed sizes and
/// every element is summed the same way wherever it lies in them, so the result does not depend on threads, nor on M
/// and N.

namespace heed::cpu {

template <class Isa, class Product>
struct MatmulBlock {
    static constexpr int L = Isa::lanes;
    static constexpr int depth_per_lane = Product::depth_per_lane;
    static constexpr int panel = Registers<Isa>::widest * L;  ///< columns that one register tile spans
    static constexpr std::int64_t rows = 96;                  ///< of C; a multiple of every register tile's
    static constexpr std::int64_t columns = 256;              ///< of C; a multiple of every panel
    static constexpr std::int64_t depth = 256;                ///< of K: a panel of B is 64 KiB, all scratch fits L2
    static constexpr std::int64_t a_stride = depth + 16;      ///< rows of A do not share L1 sets
    /// Rows up to which copying B costs more than reading it where it lies.
    static constexpr std::int64_t few_rows = 12;

    static constexpr std::int64_t a_floats = rows * a_stride;
    static constexpr std::int64_t b_floats = depth * columns;
    static constexpr std::int64_t staging_floats = (panel > 16 ? panel : 16) * depth;
    static constexpr std::int64_t sum_floats = rows * columns;
    static constexpr std::int64_t bytes = 4 * (a_floats + b_floats + staging_floats + sum_floats);

    const MatmulProblem& p;
    float* a;
    float* b;
    float* staging;
    float* sum;

    /// 32-bit lanes that so much of K fills.
    static HEED_INLINE std::int64_t lanes_of(std::int64_t count) {
        return (count + depth_per_lane - 1) / depth_per_lane;
    }
    static HEED_INLINE std::int64_t size_in_bytes(DType dtype) {
        return dtype == DType::f32 ? 4 : dtype == DType::f64 ? 8 : 2;
    }
    static HEED_INLINE char* element(const MatrixAddress& x, std::int64_t offset, std::int64_t row,
                                     std::int64_t column) {
        return x.data + (offset + row * x.row_stride + column * x.column_stride) * size_in_bytes(x.dtype);
    }

    /// to[r][c] = x(row + r, column + c) with rows of `stride`, read along whichever axis lies closer together.
    void copy(const MatrixAddress& x, std::int64_t offset, std::int64_t row, std::int64_t column, std::int64_t count,
              std::int64_t width, float* to, std::int64_t stride) const {
        const std::int64_t row_step = x.row_stride < 0 ? -x.row_stride : x.row_stride;
        const std::int64_t column_step = x.column_stride < 0 ? -x.column_stride : x.column_stride;
        if (column_step <= row_step || count < 4) {
            for (std::int64_t r = 0; r < count; ++r) {
                load_row<Isa>(x.dtype, element(x, offset, row + r, column), x.column_stride, width, to + r * stride);
            }
            return;
        }
        // Columns are rows in memory: `panel` of them at a time, transposed. The transpose fills whole vectors, so the
        // last columns of `to` up to a multiple of L are written too; the caller's stride leaves room.
        for (std::int64_t c = 0; c < width; c += panel) {
            const std::int64_t some = smaller<std::int64_t>(panel, width - c);
            const bool in_place = x.dtype == DType::f32 && x.row_stride == 1;
            if (!in_place) {
                for (std::int64_t n = 0; n < some; ++n) {
                    load_row<Isa>(x.dtype, element(x, offset, row, column + c + n), x.row_stride, count,
                                  staging + n * depth);
                }
            }
            transpose_rows<Isa, L>(
                [&](std::int64_t n) {
                    return in_place ? reinterpret_cast<const float*>(element(x, offset, row, column + c + n))
                                    : static_cast<const float*>(staging + n * depth);
                },
                some, count, to + c, stride);
        }
    }

    /// Pairs of bf16 along the depth, for `others` rows of A: to[row][d / 2], or columns of B: to[d / 2][column].
    void copy_as_pairs(const char* first, std::int64_t depth_stride, std::int64_t other_stride, std::int64_t count,
                       std::int64_t others, bool of_b, float* to, std::int64_t stride) const {
        const auto at = [&](std::int64_t d, std::int64_t n) {
            return first + 2 * (d * depth_stride + n * other_stride);
        };
        const auto distance = [](std::int64_t step) { return step < 0 ? -step : step; };
        const bool along_depth = distance(depth_stride) <= distance(other_stride);
        const std::int64_t lanes = lanes_of(count);
        const auto line = [&](std::int64_t n, float* pairs) {
            if (along_depth) {
                copy_pairs<Isa>(at(0, n), depth_stride, count, pairs);
            } else {
                const char* next = 2 * n + 1 < count ? at(2 * n + 1, 0) : nullptr;
                interleave_rows<Isa>(at(2 * n, 0), next, other_stride, others, others, pairs);
            }
        };
        const std::int64_t lines = along_depth ? others : lanes;
        const std::int64_t length = along_depth ? lanes : others;
        if (along_depth != of_b) {
            for (std::int64_t n = 0; n < lines; ++n) { line(n, to + n * stride); }
            return;
        }
        for (std::int64_t c = 0; c < lines; c += panel) {
            const std::int64_t some = smaller<std::int64_t>(panel, lines - c);
            for (std::int64_t n = 0; n < some; ++n) { line(c + n, staging + n * depth); }
            transpose_rows<Isa, L>([&](std::int64_t n) { return static_cast<const float*>(staging + n * depth); }, some,
                                   length, to + c, stride);
        }
    }

    void copy_a(const MatmulOffsets& at, std::int64_t row, std::int64_t k, std::int64_t block_rows,
                std::int64_t block_depth) const {
        if constexpr (depth_per_lane == 2) {
            copy_as_pairs(element(p.a, at.a, row, k), p.a.column_stride, p.a.row_stride, block_depth, block_rows, false,
                          a, a_stride);
        } else {
            copy(p.a, at.a, row, k, block_rows, block_depth, a, a_stride);
        }
    }

    void copy_b(const MatmulOffsets& at, std::int64_t k, std::int64_t column, std::int64_t block_depth,
                std::int64_t width, float* packed) const {
        if constexpr (depth_per_lane == 2) {
            copy_as_pairs(element(p.b, at.b, k, column), p.b.row_stride, p.b.column_stride, block_depth, width, true,
                          packed, panel);
        } else {
            copy(p.b, at.b, k, column, block_depth, width, packed, panel);
        }
        for (std::int64_t n = width; n < round_up(width, L); ++n) {
            for (std::int64_t r = 0; r < lanes_of(block_depth); ++r) { packed[r * panel + n] = 0; }
        }
    }

    /// sum[m][n] += A B for one panel: `vectors` vectors of columns; the depth in lanes.
    void multiply(const float* from, std::int64_t stride, std::int64_t block_rows, std::int64_t lanes, int vectors,
                  float* to) const {
        with_constant<Registers<Isa>::widest>(vectors, [&]<int NV>() {
            constexpr int MR = Registers<Isa>::rows(NV);
            const auto tile = [&]<int Rows>(std::int64_t m) {
                // From zero, then added: the rounding errors of one block do not grow with those before it.
                F<L> part[Rows][NV] = {};
                multiply_add<Isa, Product, L, Rows, NV, Walk::along_row>(a + m * a_stride, a_stride, from, stride,
                                                                         lanes, part);
                HEED_UNROLL
                for (int r = 0; r < Rows; ++r) {
                    HEED_UNROLL
                    for (int n = 0; n < NV; ++n) {
                        float* at = to + (m + r) * columns + n * L;
                        Simd<Isa, L>::store(at, Simd<Isa, L>::load(at) + part[r][n]);
                    }
                }
            };
            std::int64_t m = 0;
            for (; m + MR <= block_rows; m += MR) { tile.template operator()<MR>(m); }
            if (m < block_rows) {
                with_constant<MR - 1>(static_cast<int>(block_rows - m),
                                      [&]<int Rest>() { tile.template operator()<Rest>(m); });
            }
        });
    }

    /// The same for a row or few, with B where it lies: as many columns at a time as the registers hold, because each
    /// row of B is on another page of memory.
    template <int Rows>
    void multiply_in_place(const float* from, std::int64_t stride, std::int64_t block_depth, float* to) const {
        constexpr int NV = Isa::registers / 2 / Rows;
        F<L> part[Rows][NV] = {};
        for (std::int64_t k = 0; k < block_depth; ++k) {
            const float* row = from + k * stride;
            HEED_UNROLL
            for (int n = 0; n < NV; ++n) {
                __builtin_prefetch(row + 8 * stride + n * L);
                const F<L> y = Simd<Isa, L>::load(row + n * L);
                HEED_UNROLL
                for (int r = 0; r < Rows; ++r) {
                    part[r][n] = FloatProduct::add<Isa, L>(part[r][n], Simd<Isa, L>::all(a[r * a_stride + k]), y);
                }
            }
        }
        HEED_UNROLL
        for (int r = 0; r < Rows; ++r) {
            HEED_UNROLL
            for (int n = 0; n < NV; ++n) {
                float* at = to + r * columns + n * L;
                Simd<Isa, L>::store(at, Simd<Isa, L>::load(at) + part[r][n]);
            }
        }
    }

    /// The same for few rows and L columns of a B whose columns are rows in memory, such as a layer's weights:
    /// transposed in registers and used at once, which keeps up with memory where a copy would not.
    template <int Rows>
    void multiply_turned(const float* from, std::int64_t stride, std::int64_t block_depth, float* to) const {
        using S = Simd<Isa, L>;
        F<L> part[Rows] = {};
        std::int64_t k = 0;
        for (; k + L <= block_depth; k += L) {
            F<L> block[L];
            HEED_UNROLL
            for (int n = 0; n < L; ++n) { block[n] = S::load(from + n * stride + k); }
            S::transpose(block);
            HEED_UNROLL
            for (int n = 0; n < L; ++n) {
                HEED_UNROLL
                for (int r = 0; r < Rows; ++r) {
                    part[r] = FloatProduct::add<Isa, L>(part[r], S::all(a[r * a_stride + k + n]), block[n]);
                }
            }
        }
        for (; k < block_depth; ++k) {
            float column[L];
            for (int n = 0; n < L; ++n) { column[n] = from[n * stride + k]; }
            HEED_UNROLL
            for (int r = 0; r < Rows; ++r) {
                part[r] = FloatProduct::add<Isa, L>(part[r], S::all(a[r * a_stride + k]), S::load(column));
            }
        }
        HEED_UNROLL
        for (int r = 0; r < Rows; ++r) {
            float* at = to + r * columns;
            S::store(at, S::load(at) + part[r]);
        }
    }

    /// One panel, or more of them where B is read in place, over the block [k, k + block_depth). Returns the columns
    /// done.
    std::int64_t one_panel(const MatmulOffsets& at, std::int64_t column, std::int64_t k, std::int64_t c,
                           std::int64_t block_rows, std::int64_t block_columns, std::int64_t block_depth) const {
        const std::int64_t left = block_columns - c;
        const std::int64_t width = smaller<std::int64_t>(panel, left);
        const int vectors = static_cast<int>((width + L - 1) / L);
        if constexpr (depth_per_lane == 1) {
            const bool in_place = p.b.dtype == DType::f32 && p.b.column_stride == 1 && block_rows <= few_rows;
            const auto* direct = reinterpret_cast<const float*>(element(p.b, at.b, k, column + c));
            constexpr std::int64_t widest = Isa::registers / 2 * L;
            if (in_place && block_rows == 1 && left >= widest) {
                multiply_in_place<1>(direct, p.b.row_stride, block_depth, sum + c);
                return widest;
            }
            if (in_place && block_rows == 2 && left >= widest / 2) {
                multiply_in_place<2>(direct, p.b.row_stride, block_depth, sum + c);
                return widest / 2;
            }
            if (p.b.dtype == DType::f32 && p.b.row_stride == 1 && block_rows <= 4 && left >= L) {
                with_constant<4>(static_cast<int>(block_rows), [&]<int Rows>() {
                    multiply_turned<Rows>(direct, p.b.column_stride, block_depth, sum + c);
                });
                return L;
            }
            if (in_place && width % L == 0) {
                multiply(direct, p.b.row_stride, block_rows, block_depth, vectors, sum + c);
                return width;
            }
        }
        float* packed = b + c * depth;
        copy_b(at, k, column + c, block_depth, width, packed);
        multiply(packed, panel, block_rows, lanes_of(block_depth), vectors, sum + c);
        return width;
    }

    void accumulate(const MatmulOffsets& at, std::int64_t row, std::int64_t column, std::int64_t block_rows,
                    std::int64_t block_columns) const {
        // Many rows: each block of A is copied once. Few: copying A again costs nothing, and the rows of a transposed B
        // are read to their ends.
        const bool few = block_rows <= few_rows;
        std::int64_t c = 0;
        do {
            std::int64_t done = 0;
            for (std::int64_t k = 0; k < p.depth; k += depth) {
                const std::int64_t block_depth = smaller(depth, p.depth - k);
                copy_a(at, row, k, block_rows, block_depth);
                for (std::int64_t n = c; n < block_columns && (!few || n == c); n += done) {
                    done = one_panel(at, column, k, n, block_rows, block_columns, block_depth);
                }
            }
            c = few && done > 0 ? c + done : block_columns;
        } while (c < block_columns);
    }

    void store(const MatmulOffsets& at, std::int64_t row, std::int64_t column, std::int64_t block_rows,
               std::int64_t block_columns) const {
        const auto alpha = static_cast<float>(p.alpha);
        const auto beta = static_cast<float>(p.beta);
        for (std::int64_t m = 0; m < block_rows; ++m) {
            float* row_sum = sum + m * columns;
            char* to = element(p.c, at.c, row + m, column);
            if (p.beta == 0) {
                store_row<Isa>(p.c.dtype, to, p.c.column_stride, block_columns, row_sum, alpha);
                continue;
            }
            load_row<Isa>(p.c.dtype, to, p.c.column_stride, block_columns, staging);
            for (std::int64_t n = 0; n < block_columns; ++n) { staging[n] = alpha * row_sum[n] + beta * staging[n]; }
            store_row<Isa>(p.c.dtype, to, p.c.column_stride, block_columns, staging, 1.0F);
        }
    }
};

/// Work below this is done where it is: waking a thread costs as much.
constexpr double matmul_worth_waking = 1e6;

template <class Isa, class Product>
void matmul_of(detail::Pool& pool, const MatmulProblem& p) {
    using Block = MatmulBlock<Isa, Product>;
    const std::int64_t row_blocks = (p.rows + Block::rows - 1) / Block::rows;
    const std::int64_t column_blocks = (p.columns + Block::columns - 1) / Block::columns;
    const double operations = 2.0 * static_cast<double>(p.rows) * static_cast<double>(p.columns) *
                              static_cast<double>(p.depth) * static_cast<double>(p.outer.elements * p.summed.elements);
    const std::int64_t tasks = p.outer.elements * row_blocks * column_blocks;
    detail::parallel(pool, tasks, operations > matmul_worth_waking, [&](std::int64_t task, int worker) {
        auto* memory = static_cast<float*>(pool.scratch(worker).at_least(static_cast<std::size_t>(Block::bytes)));
        float* b = memory + Block::a_floats;
        float* staging = b + Block::b_floats;
        const Block block{p, memory, b, staging, staging + Block::staging_floats};
        // Neighbouring tasks share their columns of B, which is the larger operand where M is small.
        const std::int64_t row = task % row_blocks * Block::rows;
        const std::int64_t column = task / row_blocks % column_blocks * Block::columns;
        const std::int64_t block_rows = smaller(Block::rows, p.rows - row);
        const std::int64_t block_columns = smaller(Block::columns, p.columns - column);
        const MatmulOffsets outer = offsets_of(p.outer, task / row_blocks / column_blocks);
        for (std::int64_t m = 0; m < block_rows; ++m) {
            for (std::int64_t n = 0; n < round_up(block_columns, Block::L); ++n) {
                block.sum[m * Block::columns + n] = 0;
            }
        }
        for (std::int64_t s = 0; s < p.summed.elements; ++s) {
            const MatmulOffsets summed = offsets_of(p.summed, s);
            block.accumulate({outer.a + summed.a, outer.b + summed.b, 0}, row, column, block_rows, block_columns);
        }
        block.store(outer, row, column, block_rows, block_columns);
    });
}

template <class Isa>
void matmul(detail::Pool& pool, const MatmulProblem& p) {
    matmul_of<Isa, FloatProduct>(pool, p);
}

/// Whether the set with dot products of pairs has a product of its own for these types.
HEED_INLINE bool multiplies_pairs(const MatmulProblem& p) {
    return p.a.dtype == DType::bf16 && p.b.dtype == DType::bf16;
}

}  // namespace heed::cpu
