#include "cpu/matmul/matmul_onednn.h"

#include <dnnl.h>
#include <omp.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <vector>

namespace heed::cpu {
namespace {

// Every call is block_rows x block_columns x (block_depth, or what is left of K). The depth is that of heed's own
// tiles, because it decides the order of the sum; the others were chosen by measurement.
constexpr std::int64_t block_rows = 128, block_columns = 128, block_depth = 256;
/// The smallest depth at which oneDNN was measured, and was faster.
constexpr std::int64_t least_depth = 64;

/// The calling thread's OpenMP regions have one thread while this lives: threads are heed's to hand out, and oneDNN
/// splits K over several. A setting of the thread, not of the process.
class OneOpenMPThread {
public:
    OneOpenMPThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
    ~OneOpenMPThread() { omp_set_num_threads(before_); }
    OneOpenMPThread(const OneOpenMPThread&) = delete;
    OneOpenMPThread& operator=(const OneOpenMPThread&) = delete;

private:
    int before_;
};

/// A float matrix as oneDNN takes it.
struct Operand {
    bool transposed;
    std::int64_t leading;  ///< distance of the rows in memory

    std::int64_t offset(std::int64_t row, std::int64_t column) const {
        return transposed ? column * leading + row : row * leading + column;
    }
};

/// sum [block_rows, block_columns] += a b
bool multiply_add(const Operand& a, const float* a_data, const float* b, std::int64_t b_leading, std::int64_t depth,
                  float* sum) {
    return dnnl_sgemm(a.transposed ? 'T' : 'N', 'N', block_rows, block_columns, depth, 1.0F, a_data, a.leading, b,
                      b_leading, 1.0F, sum, block_columns) == dnnl_success;
}

/// One block by both, for rows that lie `distance` apart in memory. oneDNN's choice of a kernel may depend on that
/// distance.
bool same_bits(detail::Pool& pool, const Kernels& own, bool transposed, std::int64_t depth, std::int64_t distance) {
    const auto numbers = [](std::int64_t count, std::uint32_t state) {
        std::vector<float> result(static_cast<std::size_t>(count));
        for (float& x : result) {
            state = state * 1664525U + 1013904223U;
            x = static_cast<float>(state >> 8) * 0x1p-23F - 1.0F;
        }
        return result;
    };
    const std::int64_t a_lines = transposed ? depth : block_rows;
    std::vector<float> a = numbers(a_lines * distance, 1), b = numbers(depth * distance, 2);
    std::vector<float> expected(block_rows * block_columns), sum(block_rows * block_columns);
    const auto address = [](std::vector<float>& x, std::int64_t row_stride, std::int64_t column_stride) {
        return MatrixAddress{DType::f32, reinterpret_cast<char*>(x.data()), row_stride, column_stride};
    };
    MatmulProblem problem;
    problem.rows = block_rows;
    problem.columns = block_columns;
    problem.depth = depth;
    problem.a = transposed ? address(a, 1, distance) : address(a, distance, 1);
    problem.b = address(b, distance, 1);
    problem.c = address(expected, block_columns, 1);
    own.matmul(pool, problem);
    const OneOpenMPThread alone;
    return multiply_add({transposed, distance}, a.data(), b.data(), distance, depth, sum.data()) &&
           std::memcmp(sum.data(), expected.data(), sum.size() * sizeof(float)) == 0;
}

/// Whether calls of this kind give the bits of `own`; compared on first use. `own` is the best instruction set of this
/// CPU, one for the whole process. Two threads that come first both compare and both write the same answer.
bool trusted(detail::Pool& pool, const Kernels& own, bool transposed, std::int64_t depth) {
    enum Answer : unsigned char { unknown, yes, no };
    static std::array<std::array<std::atomic<unsigned char>, block_depth + 1>, 2> answers = {};
    std::atomic<unsigned char>& answer = answers[transposed ? 1 : 0][static_cast<std::size_t>(depth)];
    if (answer.load(std::memory_order_relaxed) == unknown) {
        constexpr std::int64_t odd = block_depth + 5, round = 1024;
        const bool same =
            same_bits(pool, own, transposed, depth, odd) && same_bits(pool, own, transposed, depth, round);
        answer.store(same ? yes : no, std::memory_order_relaxed);
    }
    return answer.load(std::memory_order_relaxed) == yes;
}

/// What oneDNN was measured to be faster at. Transposed b is missing: there heed's tiles are as fast.
bool suitable(const MatmulProblem& p) {
    // Another threading library would not know of OneOpenMPThread.
    constexpr bool threads_known =
        DNNL_CPU_THREADING_RUNTIME == DNNL_RUNTIME_OMP || DNNL_CPU_THREADING_RUNTIME == DNNL_RUNTIME_SEQ;
    const bool floats = p.a.dtype == DType::f32 && p.b.dtype == DType::f32 && p.c.dtype == DType::f32;
    const bool a_fits = (p.a.column_stride == 1 && p.a.row_stride >= std::min(p.depth, block_depth)) ||
                        (p.a.row_stride == 1 && p.a.column_stride >= block_rows);
    const bool b_fits = p.b.column_stride == 1 && p.b.row_stride >= block_columns;
    return threads_known && floats && a_fits && b_fits && p.beta == 0 && p.depth >= least_depth &&
           p.rows >= block_rows && p.columns >= block_columns && p.summed.elements > 0;
}

const float* floats_of(const MatrixAddress& x) { return reinterpret_cast<const float*>(x.data); }

void store(const MatmulProblem& p, std::int64_t offset, const float* sum) {
    const auto alpha = static_cast<float>(p.alpha);
    for (std::int64_t m = 0; m < block_rows; ++m) {
        float* to = reinterpret_cast<float*>(p.c.data) + offset + m * p.c.row_stride;
        for (std::int64_t n = 0; n < block_columns; ++n) {
            to[n * p.c.column_stride] = sum[m * block_columns + n] * alpha;
        }
    }
}

}  // namespace

const char* declines_onednn(const MatmulProblem& problem) {
    return suitable(problem) ? nullptr : "oneDNN is asked for large products of float32 with contiguous rows";
}

MatmulDone matmul_onednn(detail::Pool& pool, const MatmulProblem& p, const Kernels& own) {
    if (!suitable(p)) { return {}; }
    const bool transposed = p.a.column_stride != 1 || p.a.row_stride < std::min(p.depth, block_depth);
    const Operand a{transposed, transposed ? p.a.column_stride : p.a.row_stride};
    const std::int64_t rest = p.depth % block_depth;
    if (p.depth >= block_depth && !trusted(pool, own, transposed, block_depth)) { return {}; }
    if (rest != 0 && !trusted(pool, own, transposed, rest)) { return {}; }

    const std::int64_t row_blocks = p.rows / block_rows, column_blocks = p.columns / block_columns;
    std::atomic<bool> failed = false;
    detail::parallel(pool, p.outer.elements * row_blocks * column_blocks, true, [&](std::int64_t task, int worker) {
        constexpr std::size_t bytes = block_rows * block_columns * sizeof(float);
        auto* sum = static_cast<float*>(pool.scratch(worker).at_least(bytes));
        const std::int64_t row = task % row_blocks * block_rows;
        const std::int64_t column = task / row_blocks % column_blocks * block_columns;
        const MatmulOffsets outer = offsets_of(p.outer, task / row_blocks / column_blocks);
        const OneOpenMPThread alone;
        // Added to zero, as the tiles do, so that even the sign of a zero is theirs.
        std::fill_n(sum, block_rows * block_columns, 0.0F);
        for (std::int64_t s = 0; s < p.summed.elements; ++s) {
            const MatmulOffsets summed = offsets_of(p.summed, s);
            for (std::int64_t k = 0; k < p.depth; k += block_depth) {
                const float* of_a = floats_of(p.a) + outer.a + summed.a + a.offset(row, k);
                const float* of_b = floats_of(p.b) + outer.b + summed.b + k * p.b.row_stride + column;
                if (!multiply_add(a, of_a, of_b, p.b.row_stride, std::min(block_depth, p.depth - k), sum)) {
                    failed.store(true, std::memory_order_relaxed);
                    return;
                }
            }
        }
        store(p, outer.c + row * p.c.row_stride + column * p.c.column_stride, sum);
    });
    // Only for want of memory; the tiles need less, and beta is 0, so that nothing is lost.
    if (failed.load(std::memory_order_relaxed)) { return {}; }
    return {row_blocks * block_rows, column_blocks * block_columns};
}

}  // namespace heed::cpu
