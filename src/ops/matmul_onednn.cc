#include "ops/matmul_onednn.h"

#include <omp.h>
#include <dnnl.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <vector>

namespace heed {
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

/// A matrix as oneDNN takes it.
struct Operand {
    bool transposed;
    std::int64_t leading;  ///< distance of the rows in memory

    Operand(const MatrixAddress& x, std::int64_t columns)
        : transposed(x.column_stride != 1 || x.row_stride < columns),
          leading(transposed ? x.column_stride : x.row_stride) {}

    static bool fits(const MatrixAddress& x, std::int64_t rows, std::int64_t columns) {
        return (x.column_stride == 1 && x.row_stride >= columns) || (x.row_stride == 1 && x.column_stride >= rows);
    }
    dnnl::memory::desc described(std::int64_t rows, std::int64_t columns) const {
        using dnnl::memory;
        return {
            {rows, columns}, memory::data_type::bf16, transposed ? memory::dims{1, leading} : memory::dims{leading, 1}};
    }
};

Operand a_operand(const MatmulProblem& p) { return {p.a, std::min(p.depth, block_depth)}; }
Operand b_operand(const MatmulProblem& p) { return {p.b, block_columns}; }

/// sum [block_rows, block_columns] += a b, for blocks of one depth of matrices that lie as the problem's do.
class BlockProduct {
public:
    BlockProduct(const MatmulProblem& p, std::int64_t depth) : depth_(depth), a_(a_operand(p)), b_(b_operand(p)) {
        if (p.a.dtype != DType::bf16) { return; }
        a_desc_ = a_.described(block_rows, depth);
        b_desc_ = b_.described(depth, block_columns);
        sum_desc_ = {{block_rows, block_columns}, dnnl::memory::data_type::f32, dnnl::memory::dims{block_columns, 1}};
        dnnl::post_ops add;
        add.append_sum(1.0F);
        dnnl::primitive_attr attributes;
        attributes.set_post_ops(add);
        attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);  // its own could not be used by several threads
        const OneOpenMPThread alone;
        const dnnl::matmul::primitive_desc described(dnnl::matmul::desc(a_desc_, b_desc_, sum_desc_), attributes,
                                                     engine());
        scratch_desc_ = described.scratchpad_desc();
        pairs_ = dnnl::matmul(described);
    }

    std::size_t scratch_bytes() const { return pairs_ ? scratch_desc_.get_size() : 0; }

    /// False only for want of memory.
    bool add(char* a, char* b, float* sum, void* scratch) const {
        if (!pairs_) {
            return dnnl_sgemm(a_.transposed ? 'T' : 'N', 'N', block_rows, block_columns, depth_, 1.0F,
                              reinterpret_cast<const float*>(a), a_.leading, reinterpret_cast<const float*>(b),
                              b_.leading, 1.0F, sum, block_columns) == dnnl_success;
        }
        try {
            dnnl::stream stream(engine());
            const auto memory = [](const dnnl::memory::desc& described, void* data) {
                return dnnl::memory(described, engine(), data);
            };
            pairs_.execute(stream, {{DNNL_ARG_SRC, memory(a_desc_, a)},
                                    {DNNL_ARG_WEIGHTS, memory(b_desc_, b)},
                                    {DNNL_ARG_DST, memory(sum_desc_, sum)},
                                    {DNNL_ARG_SCRATCHPAD, memory(scratch_desc_, scratch)}});
            stream.wait();
            return true;
        } catch (const dnnl::error&) { return false; }
    }

private:
    std::int64_t depth_;
    Operand a_, b_;
    dnnl::memory::desc a_desc_, b_desc_, sum_desc_, scratch_desc_;
    dnnl::matmul pairs_;  ///< for bf16; floats need no preparation

    static const dnnl::engine& engine() {
        static const dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
        return cpu;
    }
};

/// One block by both, for matrices of numbers of type T that lie as given. Added to numbers, not to zero: the order of
/// that sum matters too.
template <class T>
bool same_bits(detail::Pool& pool, const cpu::Kernels& own, bool a_transposed, bool b_transposed, std::int64_t depth,
               std::int64_t apart) {
    const auto numbers = []<class Number>(std::int64_t count, std::uint32_t state) {
        std::vector<Number> result(static_cast<std::size_t>(count));
        for (Number& x : result) {
            state = state * 1664525U + 1013904223U;
            x = Number(static_cast<float>(state >> 8) * 0x1p-23F - 1.0F);
        }
        return result;
    };
    std::vector<T> a = numbers.template operator()<T>((a_transposed ? depth : block_rows) * apart, 1);
    std::vector<T> b = numbers.template operator()<T>((b_transposed ? block_columns : depth) * apart, 2);
    std::vector<float> sum = numbers.template operator()<float>(block_rows * block_columns, 3), expected = sum;
    const auto address = []<class Number>(std::vector<Number>& x, bool transposed, std::int64_t distance) {
        return MatrixAddress{dtype_of<Number>(), reinterpret_cast<char*>(x.data()), transposed ? 1 : distance,
                             transposed ? distance : 1};
    };
    MatmulProblem problem;
    problem.rows = block_rows;
    problem.columns = block_columns;
    problem.depth = depth;
    problem.beta = 1;
    problem.a = address(a, a_transposed, apart);
    problem.b = address(b, b_transposed, apart);
    problem.c = address(expected, false, block_columns);
    own.matmul(pool, problem);
    const BlockProduct product(problem, depth);
    std::vector<char> scratch(product.scratch_bytes());
    const OneOpenMPThread alone;
    return product.add(problem.a.data, problem.b.data, sum.data(), scratch.data()) &&
           std::memcmp(sum.data(), expected.data(), sum.size() * sizeof(float)) == 0;
}

/// Whether calls of this kind give the bits of `own`; compared on first use. `own` is the best instruction set of this
/// CPU, one for the whole process. Two threads that come first both compare and both write the same answer. oneDNN's
/// choice of a kernel may depend on how far rows lie apart: two distances are tried.
bool trusted(detail::Pool& pool, const cpu::Kernels& own, const MatmulProblem& p, std::int64_t depth) {
    enum Answer : unsigned char { unknown, yes, no };
    using ByDepth = std::array<std::atomic<unsigned char>, block_depth + 1>;
    static std::array<ByDepth, 8> answers = {};
    const bool pairs = p.a.dtype == DType::bf16;
    const bool a_transposed = a_operand(p).transposed, b_transposed = b_operand(p).transposed;
    const unsigned kind = (pairs ? 4U : 0U) + (a_transposed ? 2U : 0U) + (b_transposed ? 1U : 0U);
    std::atomic<unsigned char>& answer = answers[kind][static_cast<std::size_t>(depth)];
    if (answer.load(std::memory_order_relaxed) == unknown) {
        const auto same = [&](std::int64_t apart) {
            return pairs ? same_bits<bf16>(pool, own, a_transposed, b_transposed, depth, apart)
                         : same_bits<float>(pool, own, a_transposed, b_transposed, depth, apart);
        };
        constexpr std::int64_t odd = block_depth + 5, round = 1024;
        answer.store(same(odd) && same(round) ? yes : no, std::memory_order_relaxed);
    }
    return answer.load(std::memory_order_relaxed) == yes;
}

/// What oneDNN was measured to be faster at. Transposed b is missing among floats: there heed's tiles are as fast.
bool suitable(const MatmulProblem& p) {
    // Another threading library would not know of OneOpenMPThread.
    constexpr bool threads_known =
        DNNL_CPU_THREADING_RUNTIME == DNNL_RUNTIME_OMP || DNNL_CPU_THREADING_RUNTIME == DNNL_RUNTIME_SEQ;
    const bool floats = p.a.dtype == DType::f32 && p.b.dtype == DType::f32 && p.c.dtype == DType::f32;
    const bool pairs =
        p.a.dtype == DType::bf16 && p.b.dtype == DType::bf16 && (p.c.dtype == DType::f32 || p.c.dtype == DType::bf16);
    const std::int64_t depth = std::min(p.depth, block_depth);
    const bool fits = Operand::fits(p.a, block_rows, depth) && Operand::fits(p.b, depth, block_columns);
    return threads_known && (floats || pairs) && fits && (pairs || !b_operand(p).transposed) && p.beta == 0 &&
           p.depth >= least_depth && p.rows >= block_rows && p.columns >= block_columns && p.summed.elements > 0;
}

char* element(const MatrixAddress& x, std::int64_t offset, std::int64_t row, std::int64_t column) {
    return x.data +
           (offset + row * x.row_stride + column * x.column_stride) * static_cast<std::int64_t>(size_of(x.dtype));
}

void store(const MatmulProblem& p, char* first, const float* sum) {
    const auto alpha = static_cast<float>(p.alpha);
    const auto write = [&]<class T>(T* to) {
        for (std::int64_t m = 0; m < block_rows; ++m) {
            for (std::int64_t n = 0; n < block_columns; ++n) {
                to[m * p.c.row_stride + n * p.c.column_stride] = T(sum[m * block_columns + n] * alpha);
            }
        }
    };
    p.c.dtype == DType::bf16 ? write(reinterpret_cast<bf16*>(first)) : write(reinterpret_cast<float*>(first));
}

/// The blocks, by products of the whole depth and of what is left of it. False for want of memory.
bool multiply_blocks(detail::Pool& pool, const MatmulProblem& p, const BlockProduct& whole, const BlockProduct& rest) {
    const std::int64_t row_blocks = p.rows / block_rows, column_blocks = p.columns / block_columns;
    const std::size_t scratch_bytes = std::max(whole.scratch_bytes(), rest.scratch_bytes());
    std::atomic<bool> failed = false;
    detail::parallel(pool, p.kept.elements * row_blocks * column_blocks, true, [&](std::int64_t task, int worker) {
        constexpr std::size_t bytes = block_rows * block_columns * sizeof(float);
        auto* sum = static_cast<float*>(pool.scratch(worker).at_least(bytes + scratch_bytes));
        const std::int64_t row = task % row_blocks * block_rows;
        const std::int64_t column = task / row_blocks % column_blocks * block_columns;
        const MatmulOffsets kept = offsets_of(p.kept, task / row_blocks / column_blocks);
        const OneOpenMPThread alone;
        // Added to zero, as the tiles do, so that even the sign of a zero is theirs.
        std::fill_n(sum, block_rows * block_columns, 0.0F);
        for (std::int64_t s = 0; s < p.summed.elements; ++s) {
            const MatmulOffsets summed = offsets_of(p.summed, s);
            for (std::int64_t k = 0; k < p.depth; k += block_depth) {
                const BlockProduct& product = k + block_depth <= p.depth ? whole : rest;
                if (!product.add(element(p.a, kept.a + summed.a, row, k), element(p.b, kept.b + summed.b, k, column),
                                 sum, sum + block_rows * block_columns)) {
                    failed.store(true, std::memory_order_relaxed);
                    return;
                }
            }
        }
        store(p, element(p.c, kept.c, row, column), sum);
    });
    return !failed.load(std::memory_order_relaxed);
}

}  // namespace

MatmulDone matmul_onednn(detail::Pool& pool, const MatmulProblem& p, const cpu::Kernels& own) try {
    if (!suitable(p)) { return {}; }
    const std::int64_t most = std::min(p.depth, block_depth);
    const std::int64_t rest = p.depth % block_depth == 0 ? most : p.depth % block_depth;
    if (!trusted(pool, own, p, most) || !trusted(pool, own, p, rest)) { return {}; }
    const bool done = multiply_blocks(pool, p, BlockProduct(p, most), BlockProduct(p, rest));
    // Not done for want of memory: the tiles need less, and beta is 0, so that nothing is lost.
    return done ? MatmulDone{p.rows / block_rows * block_rows, p.columns / block_columns * block_columns}
                : MatmulDone{};
} catch (const dnnl::error&) {  // no product of pairs for this CPU
    return {};
}

}  // namespace heed
