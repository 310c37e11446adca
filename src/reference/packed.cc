#include "reference/packed.h"

#include "base/dispatch.h"
#include "reference/activation.h"

#include <bit>

namespace heed::reference {

float packed_number(const PackedProblem& problem, std::int64_t output, std::int64_t input) {
    using Layout = PackedLayout;
    const std::int64_t lanes = Layout::lanes(problem.linear.product.depth, problem.pairs);
    const std::int64_t lane = problem.pairs ? input / 2 : input;
    const std::uint32_t word =
        problem.panels[(output / Layout::panel * lanes + lane) * Layout::panel + output % Layout::panel];
    if (!problem.pairs) { return std::bit_cast<float>(word); }
    return std::bit_cast<float>(input % 2 == 0 ? word << 16U : word & 0xFFFF0000U);
}

void pack_weights(const PackWeightsProblem& p, std::int64_t begin, std::int64_t end) {
    using Layout = PackedLayout;
    const std::int64_t lanes = Layout::lanes(p.inputs, p.pairs);
    for (std::int64_t output = begin; output < end; ++output) {
        const auto number = [&](std::int64_t k) {
            const bool given = output < p.outputs && k < p.inputs;
            return given ? static_cast<float>(read_number(p.weight.dtype, p.weight.row(output), k * p.weight.stride))
                         : 0.0F;
        };
        for (std::int64_t lane = 0; lane < lanes; ++lane) {
            const std::uint32_t word =
                p.pairs ? bf16(number(2 * lane)).bits | std::uint32_t{bf16(number(2 * lane + 1)).bits} << 16U
                        : std::bit_cast<std::uint32_t>(number(lane));
            p.panels[(output / Layout::panel * lanes + lane) * Layout::panel + output % Layout::panel] = word;
        }
    }
}

void packed_linear(const PackedProblem& problem, std::int64_t begin, std::int64_t end) {
    const MatmulProblem& p = problem.linear.product;
    const auto x = [&](std::int64_t row, std::int64_t k) {
        const auto number =
            static_cast<float>(read_number(p.a.dtype, p.a.data, row * p.a.row_stride + k * p.a.column_stride));
        return problem.pairs ? static_cast<double>(bf16(number)) : static_cast<double>(number);
    };
    for (std::int64_t row = begin; row < end; ++row) {
        for (std::int64_t output = 0; output < p.columns; ++output) {
            double sum = 0;
            for (std::int64_t k = 0; k < p.depth; ++k) {
                sum += x(row, k) * static_cast<double>(packed_number(problem, output, k));
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
