#include "reference/quantized.h"

#include "base/dispatch.h"
#include "reference/activation.h"
#include "reference/rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace heed::reference {
namespace {

using Layout = QuantizedLayout;

const std::uint8_t* group_at(const std::uint8_t* blocks, bool four_bits, std::int64_t groups, std::int64_t output,
                             std::int64_t group) {
    return blocks + (output / Layout::panel * groups + group) * Layout::group_bytes(four_bits);
}

/// 32 numbers of a row of x, rounded to bytes, and their scale.
struct ByteGroup {
    int number[Layout::group] = {};
    double scale = 0;

    ByteGroup(const MatmulProblem& p, std::int64_t row, std::int64_t group) {
        const std::int64_t begin = group * Layout::group, end = std::min(p.depth, begin + Layout::group);
        const auto at = [&](std::int64_t k) {
            return static_cast<float>(read_number(p.a.dtype, p.a.data, row * p.a.row_stride + k * p.a.column_stride));
        };
        float largest = 0;
        bool finite = true;
        for (std::int64_t k = begin; k < end; ++k) {
            largest = std::max(largest, std::abs(at(k)));
            finite = finite && std::isfinite(at(k));
        }
        scale = finite ? static_cast<double>(largest / 127.0F) : std::nan("");
        if (!finite || largest == 0) { return; }
        for (std::int64_t k = begin; k < end; ++k) {
            number[k - begin] = static_cast<int>(std::nearbyint(at(k) * (127.0F / largest)));
        }
    }
};

}  // namespace

int quantized_number(const std::uint8_t* blocks, bool four_bits, std::int64_t groups, std::int64_t output,
                     std::int64_t input) {
    const std::int64_t within = input % Layout::group, quad = within / 4;
    const std::uint8_t* group = group_at(blocks, four_bits, groups, output, input / Layout::group);
    const std::int64_t place = 4 * (output % Layout::panel) + within % 4;
    const std::uint8_t* numbers = group + Layout::scale_bytes;
    if (!four_bits) { return numbers[64 * quad + place] - 128; }
    const int both = numbers[64 * (quad % 4) + place];
    return (quad < 4 ? both & 15 : both >> 4) - 8;
}

double quantized_scale(const std::uint8_t* blocks, bool four_bits, std::int64_t groups, std::int64_t output,
                       std::int64_t group) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, group_at(blocks, four_bits, groups, output, group) + 2 * (output % Layout::panel), 2);
    return static_cast<double>(f16::from_bits(bits));
}

void dequantize(const QuantizedPanels& from, std::int64_t begin, std::int64_t end, const TensorRows& to) {
    for (std::int64_t output = begin; output < end; ++output) {
        char* row = to.row(output);
        for (std::int64_t k = 0; k < from.inputs; ++k) {
            const double scale = quantized_scale(from.data, from.four_bits, from.groups(), output, k / Layout::group);
            write_number(to.dtype, row, k * to.stride,
                         scale * quantized_number(from.data, from.four_bits, from.groups(), output, k));
        }
    }
}

void quantized_linear(const QuantizedProblem& problem, std::int64_t begin, std::int64_t end) {
    const MatmulProblem& p = problem.linear.product;
    const std::int64_t groups = (p.depth + Layout::group - 1) / Layout::group;
    for (std::int64_t row = begin; row < end; ++row) {
        std::vector<ByteGroup> x;
        for (std::int64_t g = 0; g < groups; ++g) { x.emplace_back(p, row, g); }
        for (std::int64_t output = 0; output < p.columns; ++output) {
            double sum = 0;
            for (std::int64_t g = 0; g < groups; ++g) {
                int products = 0;
                for (std::int64_t n = 0; n < Layout::group; ++n) {
                    products += x[index(g)].number[n] * quantized_number(problem.blocks, problem.four_bits, groups,
                                                                         output, g * Layout::group + n);
                }
                sum += products * x[index(g)].scale *
                       quantized_scale(problem.blocks, problem.four_bits, groups, output, g);
            }
            const MatrixAddress& bias = problem.linear.bias;
            if (bias.data != nullptr) { sum += read_number(bias.dtype, bias.data, output * bias.column_stride); }
            const auto write = [&](const MatrixAddress& to, double value) {
                write_number(to.dtype, to.data, row * to.row_stride + output * to.column_stride, value);
            };
            if (problem.linear.before.data != nullptr) { write(problem.linear.before, sum); }
            write(p.c, activated(problem.linear.activation, sum));
        }
    }
}

}  // namespace heed::reference
