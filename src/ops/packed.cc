#include <heed/packed.h>

#include "base/dispatch.h"
#include "base/huge_pages.h"
#include "cpu/matmul/products.h"
#include "kernel/packed_problem.h"
#include "ops/linear.h"
#include "ops/row_checks.h"
#include "reference/packed.h"

#include <bit>
#include <new>

namespace heed {
namespace {

/// Numbers [begin, end) of a row.
void read_floats(const TensorRows& rows, std::int64_t row, std::int64_t begin, std::int64_t end, float* to) {
    const char* from = rows.row(row);
    if (rows.dtype == DType::f32 && rows.stride == 1) {
        std::copy_n(reinterpret_cast<const float*>(from) + begin, end - begin, to);
        return;
    }
    if (rows.dtype == DType::bf16 && rows.stride == 1) {
        const auto* halves = reinterpret_cast<const bf16*>(from) + begin;
        for (std::int64_t k = 0; k < end - begin; ++k) { to[k] = static_cast<float>(halves[k]); }
        return;
    }
    for (std::int64_t k = begin; k < end; ++k) {
        to[k - begin] = static_cast<float>(read_number(rows.dtype, from, k * rows.stride));
    }
}

/// One panel, a stretch of inputs at a time, so that what is read and what is written stay in the first cache.
void pack_panel(const TensorRows& rows, std::int64_t first, std::int64_t outputs, std::int64_t inputs, bool pairs,
                std::uint32_t* to) {
    constexpr std::int64_t panel = PackedLayout::panel, stretch = 64;
    float numbers[panel][stretch] = {};
    for (std::int64_t begin = 0; begin < inputs; begin += stretch) {
        const std::int64_t end = std::min(inputs, begin + stretch);
        for (std::int64_t n = 0; n < outputs; ++n) {
            read_floats(rows, first + n, begin, end, numbers[n]);
            for (std::int64_t k = end - begin; k < stretch; ++k) { numbers[n][k] = 0; }
        }
        if (!pairs) {
            for (std::int64_t k = 0; k < end - begin; ++k, to += panel) {
                for (std::int64_t n = 0; n < panel; ++n) { to[n] = std::bit_cast<std::uint32_t>(numbers[n][k]); }
            }
            continue;
        }
        for (std::int64_t k = 0; k < end - begin; k += 2, to += panel) {
            for (std::int64_t n = 0; n < panel; ++n) {
                to[n] = bf16(numbers[n][k]).bits | static_cast<std::uint32_t>(bf16(numbers[n][k + 1]).bits) << 16U;
            }
        }
    }
}

void packed_by_reference(detail::Place& place, const PackedProblem& p) {
    for_rows(*place.pool, {p.linear.product.rows, p.linear.product.columns},
             static_cast<double>(p.linear.product.depth),
             [&](std::int64_t begin, std::int64_t end) { reference::packed_linear(p, begin, end); });
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
    const TensorRows rows = rows_of(weight);
    const bool pairs = dtype == DType::bf16;
    const std::int64_t panels = (outputs + PackedLayout::panel - 1) / PackedLayout::panel;
    const std::int64_t words = PackedLayout::panel * PackedLayout::lanes(inputs, pairs);
    const auto lock = detail::pool_of(context).lock();
    const double numbers = static_cast<double>(outputs) * static_cast<double>(inputs);
    detail::parallel(detail::pool_of(context), panels, detail::effort_for(4 * numbers), [&](std::int64_t n, int) {
        const std::int64_t first = n * PackedLayout::panel;
        pack_panel(rows, first, std::min(PackedLayout::panel, outputs - first), inputs, pairs,
                   matrix.data_.get() + n * words);
    });
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
