#include <heed/quantized.h>

#include "base/huge_pages.h"
#include "base/place.h"
#include "cpu/quantized/tables.h"
#include "kernel/quantized_problem.h"
#include "ops/linear.h"
#include "ops/row_checks.h"
#include "reference/quantized.h"

namespace heed {
namespace {

using Layout = QuantizedLayout;

std::int64_t groups_of(std::int64_t inputs) { return (inputs + Layout::group - 1) / Layout::group; }

QuantizedPanels panels_of(const QuantizedMatrix& matrix) {
    return {matrix.outputs(), matrix.inputs(), matrix.format() == WeightFormat::int4,
            const_cast<std::uint8_t*>(matrix.data())};
}

void quantized_by_reference(detail::Place& place, const QuantizedProblem& p) {
    for_rows(*place.pool, {p.linear.product.rows, p.linear.product.columns},
             static_cast<double>(p.linear.product.depth),
             [&](std::int64_t begin, std::int64_t end) { reference::quantized_linear(p, begin, end); });
}

std::span<const Kernel<QuantizedProblem>> quantized_kernel_list() {
    static const auto list = kernel_list<QuantizedProblem>(
        {cpu::quantized_kernels(), {reference_kernel<QuantizedProblem>(quantized_by_reference)}});
    return list;
}

void quantize_by_reference(detail::Place& place, const QuantizeProblem& p) {
    const std::int64_t panels = (p.to.outputs + Layout::panel - 1) / Layout::panel;
    constexpr double operations = 20;
    for_rows(*place.pool, {panels, Layout::panel * p.to.inputs}, operations,
             [&](std::int64_t begin, std::int64_t end) { reference::quantize(p, begin, end); });
}

void dequantize_by_reference(detail::Place& place, const DequantizeProblem& p) {
    constexpr double operations = 10;
    for_rows(*place.pool, {p.from.outputs, p.from.inputs}, operations,
             [&](std::int64_t begin, std::int64_t end) { reference::dequantize(p, begin, end); });
}

std::span<const Kernel<QuantizeProblem>> quantize_kernel_list() {
    static const std::vector<Kernel<QuantizeProblem>> list = {reference_kernel<QuantizeProblem>(quantize_by_reference)};
    return list;
}

std::span<const Kernel<DequantizeProblem>> dequantize_kernel_list() {
    static const std::vector<Kernel<DequantizeProblem>> list = {
        reference_kernel<DequantizeProblem>(dequantize_by_reference)};
    return list;
}

void check_matrix_sizes(const char* function, std::int64_t outputs, std::int64_t inputs) {
    constexpr std::int64_t most = std::int64_t{1} << 40;
    if (outputs < 1 || inputs < 1 || outputs > most / inputs) {
        refuse(function, "shape", "at least 1 and at most 2^40 weights", to_string(Shape{outputs, inputs}));
    }
}

}  // namespace

QuantizedMatrix::QuantizedMatrix(std::int64_t outputs, std::int64_t inputs, WeightFormat format)
    : outputs_(outputs), inputs_(inputs), format_(format) {
    const std::int64_t panels = (outputs + Layout::panel - 1) / Layout::panel;
    bytes_ = static_cast<std::size_t>(panels * groups_of(inputs) * Layout::group_bytes(format == WeightFormat::int4));
    data_ = std::static_pointer_cast<std::uint8_t>(detail::lasting_memory(bytes_));
}

QuantizedMatrix QuantizedMatrix::quantize(Context& context, const View& weight, WeightFormat format) {
    constexpr const char* function = "QuantizedMatrix::quantize";
    check_rows(function, {"weight", weight});
    if (weight.rank() != 2) { refuse(function, "weight", "2 axes [outputs, inputs]", to_string(weight.shape())); }
    check_matrix_sizes(function, weight.extent(0), weight.extent(1));
    QuantizedMatrix matrix(weight.extent(0), weight.extent(1), format);
    std::atomic<bool> refused = false;
    run_forward(context, quantize_kernel_list(), {function}, {rows_of(weight), {}, panels_of(matrix), &refused});
    if (refused) { refuse(function, "weight", "finite numbers that a scale in f16 can reach", "one that is not"); }
    return matrix;
}

QuantizedMatrix QuantizedMatrix::from_blocks(Context& context, std::span<const std::byte> blocks, std::int64_t outputs,
                                             std::int64_t inputs, WeightFormat format) {
    constexpr const char* function = "QuantizedMatrix::from_blocks";
    check_matrix_sizes(function, outputs, inputs);
    if (inputs % Layout::group != 0) { refuse(function, "inputs", "a multiple of 32", std::to_string(inputs)); }
    const std::int64_t groups = groups_of(inputs);
    const std::size_t block = Layout::file_block_bytes(format == WeightFormat::int4);
    const std::size_t expected = static_cast<std::size_t>(outputs * groups) * block;
    if (blocks.size() != expected) {
        refuse(function, "blocks", std::to_string(expected) + " bytes", std::to_string(blocks.size()));
    }
    QuantizedMatrix matrix(outputs, inputs, format);
    run_forward(context, quantize_kernel_list(), {function}, {{}, blocks, panels_of(matrix)});
    return matrix;
}

void QuantizedMatrix::dequantize(Context& context, const MutableView& out) const {
    constexpr const char* function = "QuantizedMatrix::dequantize";
    check_output(function, "out", out, Shape{outputs_, inputs_}, float_types);
    run_forward(context, dequantize_kernel_list(), {function}, {panels_of(*this), rows_of(out)});
}

void linear(Context& context, const View& x, const QuantizedMatrix& weight, const MutableView& out,
            const LinearOptions& options) {
    constexpr const char* function = "linear";
    if (!weight) { refuse(function, "weight", "a quantised matrix", "none"); }
    QuantizedProblem problem;
    problem.blocks = weight.data();
    problem.four_bits = weight.format() == WeightFormat::int4;
    for_prepared(function, x, out, options, {weight.outputs(), weight.inputs()}, [&](const LinearProblem& linear) {
        problem.linear = linear;
        run_forward(context, quantized_kernel_list(), {function}, problem);
    });
}

void prefer_huge_pages(const MutableView& memory) {
    if (!memory) { return; }
    check_memory("prefer_huge_pages", "memory", memory);
    if (!all_contiguous({memory})) { return; }
    detail::prefer_huge_pages(memory.data(),
                              static_cast<std::size_t>(memory.shape().elements()) * size_of(memory.dtype()));
}

}  // namespace heed
