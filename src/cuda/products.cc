/// Matrix products on the GPU, best first: few rows by a kernel that reads the matrix once, cuBLASLt where it is found,
/// and a kernel for everything.

#include "cuda/products_any.h"

#include "cuda/any_rows.h"
#include "cuda/layers.h"
#include "cuda/layers_any.h"

namespace heed::cuda {
namespace {

const char* linear_declines(const LinearProblem& problem) {
    const MatmulProblem& p = problem.product;
    const bool many = (p.rows / 64 + 1) * (p.columns / 64 + 1) > most_blocks;
    return many ? "too large" : nullptr;
}

const char* matmul_declines(const MatmulProblem& p) {
    const bool many = p.outer.elements * (p.rows / 64 + 1) * (p.columns / 64 + 1) > most_blocks;
    return many ? "too large" : nullptr;
}

void matmul(detail::Place& place, const MatmulProblem& problem) {
    LinearProblem linear;
    linear.product = problem;
    run_one<LinearProblem, launch_linear>(place, linear);
}

LinearProblem linear_of(const MatmulProblem& product) {
    LinearProblem problem;
    problem.product = product;
    return problem;
}

// ---- few rows ------------------------------------------------------------------------------------------------------

const char* few_rows_decline(const LinearProblem& problem) {
    const MatmulProblem& p = problem.product;
    if (problem.wide()) { return "f64"; }
    if (p.rows > few_rows) { return "more than 8 rows"; }
    if (p.outer.elements != 1 || p.summed.elements != 1) { return "several matrices"; }
    if (p.a.column_stride != 1 || p.b.row_stride != 1) { return "numbers of a sum do not lie side by side"; }
    return p.columns / 8 + 1 > most_blocks ? "too large" : nullptr;
}

void run_few_rows(detail::Place& place, const LinearProblem& problem) {
    CudaQueue& queue = queue_of(place);
    const OnDevice on(queue.device());
    launch_few_rows(queue.stream(), problem);
    check_launch("cuda-any/few-rows");
}

// ---- cuBLASLt ------------------------------------------------------------------------------------------------------

bool narrow(DType dtype) { return dtype == DType::bf16 || dtype == DType::f16; }

/// Weights in 16 bits beside numbers in 32: they are widened first.
bool widens(const MatmulProblem& p) {
    constexpr std::int64_t most = std::int64_t{1} << 29;
    return p.a.dtype == DType::f32 && narrow(p.b.dtype) && p.b.row_stride == 1 && p.b.column_stride == p.depth &&
           p.columns * p.depth <= most;
}

const char* library_declines(const LinearProblem& problem) {
    LinearProblem seen = problem;
    if (widens(problem.product)) { seen.product.b.dtype = DType::f32; }
    return cublas_lt_declines(seen);
}

TensorRows rows_at(const MatrixAddress& x, std::int64_t rows) {
    TensorRows result;
    result.dtype = x.dtype;
    result.data = x.data;
    result.present = true;
    result.stride = x.column_stride;
    result.axes = 1;
    result.extent[0] = rows;
    result.step[0] = x.row_stride;
    return result;
}

void widen(CudaQueue& queue, MatmulProblem& p) {
    const std::int64_t numbers = p.columns * p.depth;
    MatrixAddress wide = p.b;
    wide.dtype = DType::f32;
    wide.data =
        static_cast<char*>(queue.kept(detail::KeptMemory::weights, static_cast<std::size_t>(numbers) * sizeof(float)));
    ElementwiseProblem convert;
    convert.shape = {p.columns, p.depth};
    convert.a = rows_at({p.b.dtype, p.b.data, p.depth, 1}, p.columns);
    convert.out = rows_at({DType::f32, wide.data, p.depth, 1}, p.columns);
    launch_elementwise(queue.stream(), convert, false);
    p.b = wide;
}

void run_library(detail::Place& place, const LinearProblem& problem) {
    CudaQueue& queue = queue_of(place);
    const OnDevice on(queue.device());
    const bool keeps = problem.before.data != nullptr;
    LinearProblem product = problem;
    product.activation = Activation::none;
    product.before = {};
    if (keeps) { product.product.c = problem.before; }
    if (widens(product.product)) { widen(queue, product.product); }
    CublasLt* library = queue.cublas_lt();
    if (library == nullptr || !library->multiply(queue, product)) {
        launch_linear(queue.stream(), problem, problem.wide());
        check_launch(any_name);
        return;
    }
    if (problem.activation == Activation::none && !keeps) { return; }
    ActivationProblem activation;
    activation.shape = {problem.product.rows, problem.product.columns};
    activation.activation = problem.activation;
    activation.gate = rows_at(product.product.c, problem.product.rows);
    activation.out = rows_at(problem.product.c, problem.product.rows);
    launch_activation(queue.stream(), activation, problem.wide());
    check_launch("cuda-cublaslt");
}

void run_library_matmul(detail::Place& place, const MatmulProblem& problem) { run_library(place, linear_of(problem)); }

template <class Problem>
Kernel<Problem> library_row() {
    Kernel<Problem> row;
    row.name = "cuda-cublaslt";
    row.what = "GPU, NVIDIA's products";
    row.device = DeviceKind::cuda;
    row.missing = missing_hopper() != nullptr ? missing_hopper()
                  : !cublas_lt_found()        ? "cuBLASLt (libcublasLt.so) is not found"
                                              : nullptr;
    return row;
}

}  // namespace

std::vector<Kernel<LinearProblem>> linear_kernels() {
    auto any = any_row<LinearProblem>(run_one<LinearProblem, launch_linear>);
    any.declines = linear_declines;
    auto few = any_row<LinearProblem>(run_few_rows);
    few.name = "cuda-any/few-rows";
    few.what = "GPU, reads the matrix once";
    few.declines = few_rows_decline;
    auto library = library_row<LinearProblem>();
    library.declines = library_declines;
    library.forward = run_library;
    return {few, library, any};
}

std::vector<Kernel<MatmulProblem>> matmul_kernels() {
    auto any = any_row<MatmulProblem>(matmul);
    any.declines = matmul_declines;
    auto library = library_row<MatmulProblem>();
    library.declines = [](const MatmulProblem& p) { return library_declines(linear_of(p)); };
    library.forward = run_library_matmul;
    return {library, any};
}

}  // namespace heed::cuda
