#include "cuda/cublas_lt.h"

#include "cuda/queue.h"

#include <dlfcn.h>
#include <library_types.h>

#include <cstdint>
#include <map>
#include <tuple>

namespace heed::cuda {
namespace {

// What is used of the library's interface, declared here: its headers are no part of a toolkit's smallest set.
using Handle = void*;
using Described = void*;
struct Algorithm {
    std::uint64_t data[8];
};
struct Found {
    Algorithm algorithm;
    std::size_t workspace;
    int status;
    float waves;
    int reserved[4];
};
enum : int { compute_f32 = 68, compute_f64 = 70 };
enum DescriptionField : int { transpose_a = 3, transpose_b = 4, epilogue = 7, bias_pointer = 8 };
enum PreferenceField : int { most_workspace = 1, reductions = 3, least_alignment = 5 };
constexpr int epilogue_bias = 4;
/// Parts of a sum that are split over blocks are added in a fixed order, in the type that is computed in.
constexpr std::uint32_t ordered_reduction = 2;

struct Library {
    int (*create)(Handle*) = nullptr;
    int (*destroy)(Handle) = nullptr;
    int (*layout_create)(Described*, cudaDataType, std::uint64_t rows, std::uint64_t columns,
                         std::int64_t step) = nullptr;
    int (*layout_destroy)(Described) = nullptr;
    int (*description_create)(Described*, int compute, cudaDataType scale) = nullptr;
    int (*description_set)(Described, int field, const void*, std::size_t) = nullptr;
    int (*description_destroy)(Described) = nullptr;
    int (*preference_create)(Described*) = nullptr;
    int (*preference_set)(Described, int field, const void*, std::size_t) = nullptr;
    int (*preference_destroy)(Described) = nullptr;
    int (*find)(Handle, Described, Described a, Described b, Described c, Described d, Described preference, int count,
                Found*, int* found) = nullptr;
    int (*check)(Handle, Described, Described a, Described b, Described c, Described d, const Algorithm*,
                 Found*) = nullptr;
    int (*multiply)(Handle, Described, const void* alpha, const void* a, Described, const void* b, Described,
                    const void* beta, const void* c, Described, void* d, Described, const Algorithm*, void* workspace,
                    std::size_t, cudaStream_t) = nullptr;
    bool complete = false;

    Library() {
        void* opened = nullptr;
        for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"}) {
            if (opened == nullptr) { opened = dlopen(name, RTLD_NOW | RTLD_LOCAL); }
        }
        if (opened == nullptr) { return; }
        complete = true;
        const auto load = [&](auto& function, const char* name) {
            function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(opened, name));
            complete = complete && function != nullptr;
        };
        load(create, "cublasLtCreate");
        load(destroy, "cublasLtDestroy");
        load(layout_create, "cublasLtMatrixLayoutCreate");
        load(layout_destroy, "cublasLtMatrixLayoutDestroy");
        load(description_create, "cublasLtMatmulDescCreate");
        load(description_set, "cublasLtMatmulDescSetAttribute");
        load(description_destroy, "cublasLtMatmulDescDestroy");
        load(preference_create, "cublasLtMatmulPreferenceCreate");
        load(preference_set, "cublasLtMatmulPreferenceSetAttribute");
        load(preference_destroy, "cublasLtMatmulPreferenceDestroy");
        load(find, "cublasLtMatmulAlgoGetHeuristic");
        load(check, "cublasLtMatmulAlgoCheck");
        load(multiply, "cublasLtMatmul");
    }
};
const Library& library() {
    static const Library loaded;  // stays for the life of the process, as its contexts do
    return loaded;
}

/// A description that is given back.
class Owned {
public:
    explicit Owned(int (*destroy)(Described)) : destroy_(destroy) {}
    ~Owned() {
        if (described != nullptr) { (void)destroy_(described); }
    }
    Owned(const Owned&) = delete;
    Owned& operator=(const Owned&) = delete;
    Described described = nullptr;

private:
    int (*destroy_)(Described);
};

cudaDataType type_of(DType dtype) {
    switch (dtype) {
        case DType::bf16: return CUDA_R_16BF;
        case DType::f16: return CUDA_R_16F;
        case DType::f64: return CUDA_R_64F;
        default: return CUDA_R_32F;
    }
}

/// Rows that an algorithm is chosen for, up to so many and above, so that what a row gives hardly depends on the
/// others.
constexpr std::int64_t usual_rows = 4096, many_rows = 16384;
constexpr std::size_t workspace_bytes = std::size_t{32} << 20U;

/// A matrix of the problem as the library sees it, by columns.
struct Side {
    const MatrixAddress& at;
    bool transposed = false;
    std::int64_t step = 0;
};
/// [rows, columns] whose columns lie one behind the other where it is row-major here.
Side side_of(const MatrixAddress& x) {
    const bool row_major = x.column_stride == 1;
    return {x, !row_major, row_major ? x.row_stride : x.column_stride};
}

struct Shaped {
    Owned a{library().layout_destroy}, b{library().layout_destroy}, c{library().layout_destroy};

    /// c^T [N,M] = b^T [N,K] a^T [K,M], as the library counts by columns.
    bool make(const MatmulProblem& p, std::int64_t rows) {
        const Library& l = library();
        const auto layout = [&](Owned& to, const Side& side, std::int64_t inner, std::int64_t outer) {
            const auto first = static_cast<std::uint64_t>(side.transposed ? outer : inner);
            const auto second = static_cast<std::uint64_t>(side.transposed ? inner : outer);
            return l.layout_create(&to.described, type_of(side.at.dtype), first, second, side.step) == 0;
        };
        return layout(a, side_of(p.b), p.columns, p.depth) && layout(b, side_of(p.a), p.depth, rows) &&
               layout(c, {p.c, false, p.c.row_stride}, p.columns, rows);
    }
};

class Products final : public CublasLt {
public:
    Products() {
        if (library().create(&handle_) != 0) { handle_ = nullptr; }
    }
    ~Products() override {
        if (handle_ != nullptr) { (void)library().destroy(handle_); }
    }
    Products(const Products&) = delete;
    Products& operator=(const Products&) = delete;

    bool multiply(CudaQueue& queue, const LinearProblem& problem) override {
        if (handle_ == nullptr) { return false; }
        const Library& l = library();
        const MatmulProblem& p = problem.product;
        Owned description(l.description_destroy);
        Shaped shaped;
        if (!describe(problem, description) || !shaped.make(p, p.rows)) { return false; }
        const Algorithm* chosen = algorithm(problem, description.described);
        if (chosen == nullptr) { return false; }
        Found fits{};
        if (l.check(handle_, description.described, shaped.a.described, shaped.b.described, shaped.c.described,
                    shaped.c.described, chosen, &fits) != 0 ||
            fits.workspace > workspace_bytes) {
            return false;
        }
        const bool wide = p.c.dtype == DType::f64;
        const float narrow[] = {static_cast<float>(p.alpha), static_cast<float>(p.beta)};
        const double exact[] = {p.alpha, p.beta};
        const void* alpha = wide ? static_cast<const void*>(exact) : narrow;
        const void* beta = wide ? static_cast<const void*>(exact + 1) : narrow + 1;
        void* workspace = fits.workspace > 0 ? queue.scratch(fits.workspace) : nullptr;
        const int status =
            l.multiply(handle_, description.described, alpha, p.b.data, shaped.a.described, p.a.data,
                       shaped.b.described, beta, p.c.data, shaped.c.described, p.c.data, shaped.c.described, chosen,
                       workspace, fits.workspace, static_cast<cudaStream_t>(queue.stream()));
        queue.finish_scratch();
        return status == 0;
    }

private:
    static int alignment_of(const MatrixAddress& x) {
        const auto step = static_cast<std::uintptr_t>((x.column_stride == 1 ? x.row_stride : x.column_stride) *
                                                      static_cast<std::int64_t>(size_of(x.dtype)));
        int bytes = 256;
        while (bytes > 1 && (reinterpret_cast<std::uintptr_t>(x.data) | step) % static_cast<unsigned>(bytes) != 0) {
            bytes /= 2;
        }
        return bytes;
    }

    static bool describe(const LinearProblem& problem, Owned& description) {
        const Library& l = library();
        const MatmulProblem& p = problem.product;
        const bool wide = p.c.dtype == DType::f64;
        const auto set = [&](int field, const auto& value) {
            return l.description_set(description.described, field, &value, sizeof(value)) == 0;
        };
        const std::int32_t first = side_of(p.b).transposed ? 1 : 0, second = side_of(p.a).transposed ? 1 : 0;
        if (l.description_create(&description.described, wide ? compute_f64 : compute_f32,
                                 wide ? CUDA_R_64F : CUDA_R_32F) != 0 ||
            !set(transpose_a, first) || !set(transpose_b, second)) {
            return false;
        }
        if (problem.bias.data == nullptr) { return true; }
        return set(epilogue, static_cast<std::int32_t>(epilogue_bias)) &&
               set(bias_pointer, static_cast<const void*>(problem.bias.data));
    }

    const Algorithm* algorithm(const LinearProblem& problem, Described description) {
        const MatmulProblem& p = problem.product;
        // A transposed first matrix has its rows beside one another: its step says how many there are.
        const bool by_rows = side_of(p.a).transposed;
        const std::int64_t rows = by_rows ? p.rows : p.rows > usual_rows ? many_rows : usual_rows;
        const Key key{rows,
                      p.columns,
                      p.depth,
                      static_cast<int>(p.a.dtype) * 256 + static_cast<int>(p.c.dtype),
                      (side_of(p.a).transposed ? 2 : 0) + (side_of(p.b).transposed ? 1 : 0),
                      problem.bias.data != nullptr,
                      alignment_of(p.a),
                      alignment_of(p.b),
                      alignment_of(p.c)};
        const auto known = algorithms_.find(key);
        if (known != algorithms_.end()) { return &known->second; }
        Shaped shaped;
        Owned preference(library().preference_destroy);
        const Library& l = library();
        if (!shaped.make(p, rows) || l.preference_create(&preference.described) != 0) { return nullptr; }
        const std::uint64_t most = workspace_bytes;
        (void)l.preference_set(preference.described, most_workspace, &most, sizeof(most));
        (void)l.preference_set(preference.described, reductions, &ordered_reduction, sizeof(ordered_reduction));
        int field = least_alignment;
        for (const MatrixAddress* x : {&p.b, &p.a, &p.c, &p.c}) {
            const auto bytes = static_cast<std::uint32_t>(alignment_of(*x));
            (void)l.preference_set(preference.described, field++, &bytes, sizeof(bytes));
        }
        Found found{};
        int count = 0;
        if (l.find(handle_, description, shaped.a.described, shaped.b.described, shaped.c.described, shaped.c.described,
                   preference.described, 1, &found, &count) != 0 ||
            count == 0 || found.status != 0) {
            return nullptr;
        }
        return &algorithms_.emplace(key, found.algorithm).first->second;
    }

    using Key = std::tuple<std::int64_t, std::int64_t, std::int64_t, int, int, bool, int, int, int>;
    Handle handle_ = nullptr;
    std::map<Key, Algorithm> algorithms_;
};

bool lies_evenly(const MatrixAddress& x, std::int64_t rows, std::int64_t columns) {
    const bool by_rows = x.column_stride == 1 && x.row_stride >= columns;
    const bool by_columns = x.row_stride == 1 && x.column_stride >= rows;
    return by_rows || by_columns;
}

}  // namespace

bool cublas_lt_found() { return library().complete; }

std::unique_ptr<CublasLt> make_cublas_lt() { return std::make_unique<Products>(); }

const char* cublas_lt_declines(const LinearProblem& problem) {
    constexpr std::int64_t most = std::int64_t{1} << 31;
    const MatmulProblem& p = problem.product;
    if (p.a.dtype != p.b.dtype) { return "two types in one product"; }
    if (p.c.dtype != p.a.dtype && (p.c.dtype != DType::f32 || p.a.dtype == DType::f64)) { return "type of the result"; }
    if (p.outer.elements != 1 || p.summed.elements != 1) { return "several matrices"; }
    if (p.rows < 1 || p.columns < 1 || p.depth < 1) { return "nothing to multiply"; }
    if (p.rows >= most || p.columns >= most || p.depth >= most) { return "too large"; }
    if (!lies_evenly(p.a, p.rows, p.depth) || !lies_evenly(p.b, p.depth, p.columns) || p.c.column_stride != 1 ||
        p.c.row_stride < p.columns) {
        return "strides along both axes";
    }
    if (problem.bias.data != nullptr && (problem.bias.dtype != p.c.dtype || problem.bias.column_stride != 1 ||
                                         reinterpret_cast<std::uintptr_t>(problem.bias.data) % 16 != 0)) {
        return "a bias of another type or with strides";
    }
    if (problem.before.data != nullptr && (problem.before.dtype != p.c.dtype || problem.before.column_stride != 1)) {
        return "type or strides of what is kept";
    }
    return nullptr;
}

}  // namespace heed::cuda
