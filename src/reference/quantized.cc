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

/// 32 numbers of one output and their scale, as they are stored.
struct StoredGroup {
    std::uint16_t scale = 0;
    int number[Layout::group] = {};
};

/// False where it cannot be stored: numbers that are not finite, or too large for a scale in f16.
bool stored(const float (&x)[Layout::group], bool four_bits, StoredGroup& to) {
    float extreme = 0;
    bool finite = true;
    for (const float number : x) {
        finite = finite && std::isfinite(number);
        if (std::abs(number) > std::abs(extreme)) { extreme = number; }
    }
    const f16 scale(four_bits ? extreme / -8.0F : std::abs(extreme) / 127.0F);
    to.scale = scale.bits;
    const auto d = static_cast<float>(scale);
    if (!finite || !std::isfinite(d)) { return false; }
    if (d == 0) { return true; }
    for (std::int64_t n = 0; n < Layout::group; ++n) {
        const float whole = std::nearbyint(x[n] / d);
        to.number[n] = static_cast<int>(std::clamp(whole, four_bits ? -8.0F : -127.0F, four_bits ? 7.0F : 127.0F));
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

/// Group g of an output as it is stored; false where it cannot be.
bool rounded_group(const QuantizeProblem& p, std::int64_t output, std::int64_t g, StoredGroup& group) {
    float x[Layout::group] = {};
    const char* row = p.weight.row(output);
    const std::int64_t begin = g * Layout::group, end = std::min(p.to.inputs, begin + Layout::group);
    for (std::int64_t k = begin; k < end; ++k) {
        x[k - begin] = static_cast<float>(read_number(p.weight.dtype, row, k * p.weight.stride));
    }
    return stored(x, p.to.four_bits, group);
}

/// The same, of a file's block.
void read_block(const QuantizeProblem& p, std::int64_t output, std::int64_t g, StoredGroup& group) {
    const std::size_t block = Layout::file_block_bytes(p.to.four_bits);
    const std::byte* from = p.blocks.data() + static_cast<std::size_t>(output * p.to.groups() + g) * block;
    std::memcpy(&group.scale, from, 2);
    for (std::int64_t n = 0; n < Layout::group; ++n) {
        if (!p.to.four_bits) {
            group.number[n] = static_cast<std::int8_t>(from[2 + n]);
            continue;
        }
        const int both = std::to_integer<int>(from[2 + n % 16]);
        group.number[n] = (n < 16 ? both & 15 : both >> 4) - 8;
    }
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

void quantize(const QuantizeProblem& p, std::int64_t begin, std::int64_t end) {
    const std::int64_t groups = p.to.groups();
    for (std::int64_t n = begin; n < end; ++n) {
        for (std::int64_t g = 0; g < groups; ++g) {
            std::uint8_t* place = p.to.data + (n * groups + g) * Layout::group_bytes(p.to.four_bits);
            for (std::int64_t lane = 0; lane < Layout::panel; ++lane) {
                StoredGroup group;
                const std::int64_t output = n * Layout::panel + lane;
                if (output < p.to.outputs && !p.blocks.empty()) {
                    read_block(p, output, g, group);
                } else if (output < p.to.outputs && !rounded_group(p, output, g, group)) {
                    p.refused->store(true, std::memory_order_relaxed);
                    return;
                }
                put_group(group, lane, p.to.four_bits, place);
            }
        }
    }
}

void dequantize(const DequantizeProblem& p, std::int64_t begin, std::int64_t end) {
    const auto& [from, to] = p;
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
