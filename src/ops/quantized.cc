#include <heed/quantized.h>

#include "base/dispatch.h"
#include "base/huge_pages.h"
#include "base/place.h"
#include "cpu/quantized/tables.h"
#include "kernel/quantized_problem.h"
#include "ops/linear.h"
#include "ops/row_checks.h"
#include "reference/quantized.h"

#include <atomic>
#include <cmath>
#include <cstring>
#include <new>

namespace heed {
namespace {

using Layout = QuantizedLayout;
constexpr std::size_t q8_0_bytes = 34, q4_0_bytes = 18;

std::int64_t groups_of(std::int64_t inputs) { return (inputs + Layout::group - 1) / Layout::group; }

/// 32 numbers of one output and their scale, as they are stored.
struct StoredGroup {
    std::uint16_t scale = 0;
    int number[Layout::group] = {};
};

/// False where it cannot be stored: numbers that are not finite, or too large for a scale in f16.
bool stored(const float (&x)[Layout::group], WeightFormat format, StoredGroup& to) {
    float extreme = 0;
    bool finite = true;
    for (const float number : x) {
        finite = finite && std::isfinite(number);
        if (std::abs(number) > std::abs(extreme)) { extreme = number; }
    }
    const bool bytes = format == WeightFormat::int8;
    const f16 scale(bytes ? std::abs(extreme) / 127.0F : extreme / -8.0F);
    to.scale = scale.bits;
    const auto d = static_cast<float>(scale);
    if (!finite || !std::isfinite(d)) { return false; }
    if (d == 0) { return true; }
    for (std::int64_t n = 0; n < Layout::group; ++n) {
        const float whole = std::nearbyint(x[n] / d);
        to.number[n] = static_cast<int>(std::clamp(whole, bytes ? -127.0F : -8.0F, bytes ? 127.0F : 7.0F));
    }
    return true;
}

/// Puts a group of output `lane` of a panel into its place.
void put_group(const StoredGroup& from, std::int64_t lane, bool four_bits, std::uint8_t* to) {
    std::memcpy(to + 2 * lane, &from.scale, 2);
    std::uint8_t* numbers = to + Layout::scale_bytes;
    for (std::int64_t n = 0; n < Layout::group; ++n) {
        const std::int64_t quad = n / 4, place = 4 * lane + n % 4;
        if (!four_bits) {
            numbers[64 * quad + place] = static_cast<std::uint8_t>(from.number[n] + 128);
            continue;
        }
        std::uint8_t& both = numbers[64 * (quad % 4) + place];
        const int half = from.number[n] + 8;
        both = static_cast<std::uint8_t>(quad < 4 ? (both & 0xF0) | half : (both & 0x0F) | half << 4);
    }
}

/// Fills all panels; group(output, g, stored) gives what is stored there, false where it cannot be.
template <class Group>
bool fill_panels(Context& context, const QuantizedMatrix& matrix, Group&& group) {
    const bool four_bits = matrix.format() == WeightFormat::int4;
    const std::int64_t groups = groups_of(matrix.inputs());
    const std::int64_t panels = (matrix.outputs() + Layout::panel - 1) / Layout::panel;
    auto* data = const_cast<std::uint8_t*>(matrix.data());
    std::atomic<bool> sound = true;
    const auto lock = detail::pool_of(context).lock();
    const double numbers = static_cast<double>(matrix.outputs()) * static_cast<double>(matrix.inputs());
    detail::parallel(detail::pool_of(context), panels, detail::effort_for(20 * numbers), [&](std::int64_t n, int) {
        for (std::int64_t g = 0; g < groups; ++g) {
            std::uint8_t* to = data + (n * groups + g) * Layout::group_bytes(four_bits);
            for (std::int64_t lane = 0; lane < Layout::panel; ++lane) {
                StoredGroup one;
                const std::int64_t output = n * Layout::panel + lane;
                if (output < matrix.outputs() && !group(output, g, one)) {
                    sound.store(false, std::memory_order_relaxed);
                    return;
                }
                put_group(one, lane, four_bits, to);
            }
        }
    });
    return sound.load(std::memory_order_relaxed);
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
    const TensorRows rows = rows_of(weight);
    const bool sound = fill_panels(context, matrix, [&](std::int64_t output, std::int64_t g, StoredGroup& to) {
        float x[Layout::group] = {};
        const char* row = rows.row(output);
        const std::int64_t begin = g * Layout::group, end = std::min(matrix.inputs(), begin + Layout::group);
        for (std::int64_t k = begin; k < end; ++k) {
            x[k - begin] = static_cast<float>(read_number(rows.dtype, row, k * rows.stride));
        }
        return stored(x, format, to);
    });
    if (!sound) { refuse(function, "weight", "finite numbers that a scale in f16 can reach", "one that is not"); }
    return matrix;
}

QuantizedMatrix QuantizedMatrix::from_blocks(Context& context, std::span<const std::byte> blocks, std::int64_t outputs,
                                             std::int64_t inputs, WeightFormat format) {
    constexpr const char* function = "QuantizedMatrix::from_blocks";
    check_matrix_sizes(function, outputs, inputs);
    if (inputs % Layout::group != 0) { refuse(function, "inputs", "a multiple of 32", std::to_string(inputs)); }
    const std::int64_t groups = groups_of(inputs);
    const bool bytes = format == WeightFormat::int8;
    const std::size_t block = bytes ? q8_0_bytes : q4_0_bytes;
    const std::size_t expected = static_cast<std::size_t>(outputs * groups) * block;
    if (blocks.size() != expected) {
        refuse(function, "blocks", std::to_string(expected) + " bytes", std::to_string(blocks.size()));
    }
    QuantizedMatrix matrix(outputs, inputs, format);
    fill_panels(context, matrix, [&](std::int64_t output, std::int64_t g, StoredGroup& to) {
        const std::byte* from = blocks.data() + static_cast<std::size_t>(output * groups + g) * block;
        std::memcpy(&to.scale, from, 2);
        for (std::int64_t n = 0; n < Layout::group; ++n) {
            if (bytes) {
                to.number[n] = static_cast<std::int8_t>(from[2 + n]);
            } else {
                const int both = std::to_integer<int>(from[2 + n % 16]);
                to.number[n] = (n < 16 ? both & 15 : both >> 4) - 8;
            }
        }
        return true;
    });
    return matrix;
}

void QuantizedMatrix::dequantize(Context& context, const MutableView& out) const {
    constexpr const char* function = "QuantizedMatrix::dequantize";
    check_output(function, "out", out, Shape{outputs_, inputs_}, float_types);
    const TensorRows rows = rows_of(out);
    const std::int64_t groups = groups_of(inputs_);
    const bool four_bits = format_ == WeightFormat::int4;
    const auto lock = detail::pool_of(context).lock();
    for_rows(detail::pool_of(context), {outputs_, inputs_}, 10, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t output = begin; output < end; ++output) {
            char* row = rows.row(output);
            for (std::int64_t k = 0; k < inputs_; ++k) {
                const double scale = reference::quantized_scale(data(), four_bits, groups, output, k / Layout::group);
                write_number(rows.dtype, row, k * rows.stride,
                             scale * reference::quantized_number(data(), four_bits, groups, output, k));
            }
        }
    });
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
