#include <heed/packed.h>

#include "base/huge_pages.h"
#include "cpu/matmul/pack_weights.h"
#include "cpu/matmul/products.h"
#include "kernel/packed_problem.h"
#include "ops/linear.h"
#include "ops/row_checks.h"
#include "reference/packed.h"

namespace heed {
namespace {

void packed_by_reference(detail::Place& place, const PackedProblem& p) {
    for_rows(*place.pool, {p.linear.product.rows, p.linear.product.columns},
             static_cast<double>(p.linear.product.depth),
             [&](std::int64_t begin, std::int64_t end) { reference::packed_linear(p, begin, end); });
}

void pack_weights_by_reference(detail::Place& place, const PackWeightsProblem& p) {
    constexpr std::int64_t panel = PackedLayout::panel;
    for_rows(*place.pool, {(p.outputs + panel - 1) / panel * panel, p.inputs}, 4,
             [&](std::int64_t begin, std::int64_t end) { reference::pack_weights(p, begin, end); });
}

std::span<const Kernel<PackWeightsProblem>> pack_weights_kernel_list() {
    static const auto list = kernel_list<PackWeightsProblem>(
        {cpu::pack_weights_kernels(), {reference_kernel<PackWeightsProblem>(pack_weights_by_reference)}});
    return list;
}

std::span<const Kernel<PackedProblem>> packed_kernel_list() {
    static const auto list =
        kernel_list<PackedProblem>({cpu::packed_kernels(), {reference_kernel<PackedProblem>(packed_by_reference)}});
    return list;
}

}  // namespace

PackedMatrix::PackedMatrix(std::int64_t outputs, std::int64_t inputs, DType dtype)
    : outputs_(outputs), inputs_(inputs), dtype_(dtype) {
    const std::int64_t panels = (outputs + PackedLayout::panel - 1) / PackedLayout::panel;
    const std::int64_t lanes = PackedLayout::lanes(inputs, dtype == DType::bf16);
    bytes_ = static_cast<std::size_t>(panels * PackedLayout::panel * lanes) * sizeof(std::uint32_t);
    data_ = std::static_pointer_cast<std::uint32_t>(detail::lasting_memory(bytes_));
}

PackedMatrix PackedMatrix::pack(Context& context, const View& weight, DType dtype) {
    constexpr const char* function = "PackedMatrix::pack";
    check_rows(function, {"weight", weight});
    if (weight.rank() != 2) { refuse(function, "weight", "2 axes [outputs, inputs]", to_string(weight.shape())); }
    constexpr std::int64_t most = std::int64_t{1} << 40;
    const std::int64_t outputs = weight.extent(0), inputs = weight.extent(1);
    if (outputs < 1 || inputs < 1 || outputs > most / inputs) {
        refuse(function, "weight", "at least 1 and at most 2^40 weights", to_string(weight.shape()));
    }
    if (dtype != DType::f32 && dtype != DType::bf16) {
        refuse(function, "dtype", "f32 or bf16", std::string(name_of(dtype)));
    }
    PackedMatrix matrix(outputs, inputs, dtype);
    run_forward(context, pack_weights_kernel_list(), {function},
                {rows_of(weight), outputs, inputs, dtype == DType::bf16, matrix.data_.get()});
    return matrix;
}

void linear(Context& context, const View& x, const PackedMatrix& weight, const MutableView& out,
            const LinearOptions& options) {
    constexpr const char* function = "linear";
    if (!weight) { refuse(function, "weight", "a packed matrix", "none"); }
    PackedProblem problem;
    problem.panels = weight.data();
    problem.pairs = weight.dtype() == DType::bf16;
    for_prepared(function, x, out, options, {weight.outputs(), weight.inputs()}, [&](const LinearProblem& linear) {
        problem.linear = linear;
        run_forward(context, packed_kernel_list(), {function}, problem);
    });
}

}  // namespace heed
