#include "cpu/matmul/pack_weights.h"

#include "base/dispatch.h"
#include "cpu/instruction_sets.h"

#include <algorithm>
#include <bit>

namespace heed::cpu {
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
void pack_panel(const PackWeightsProblem& p, std::int64_t n) {
    constexpr std::int64_t panel = PackedLayout::panel, stretch = 64;
    const std::int64_t first = n * panel, outputs = std::min(panel, p.outputs - first), inputs = p.inputs;
    std::uint32_t* to = p.panels + n * panel * PackedLayout::lanes(inputs, p.pairs);
    float numbers[panel][stretch] = {};
    for (std::int64_t begin = 0; begin < inputs; begin += stretch) {
        const std::int64_t end = std::min(inputs, begin + stretch);
        for (std::int64_t row = 0; row < outputs; ++row) {
            read_floats(p.weight, first + row, begin, end, numbers[row]);
            for (std::int64_t k = end - begin; k < stretch; ++k) { numbers[row][k] = 0; }
        }
        if (!p.pairs) {
            for (std::int64_t k = 0; k < end - begin; ++k, to += panel) {
                for (std::int64_t lane = 0; lane < panel; ++lane) {
                    to[lane] = std::bit_cast<std::uint32_t>(numbers[lane][k]);
                }
            }
            continue;
        }
        for (std::int64_t k = 0; k < end - begin; k += 2, to += panel) {
            for (std::int64_t lane = 0; lane < panel; ++lane) {
                const std::uint32_t odd = bf16(numbers[lane][k + 1]).bits;
                to[lane] = bf16(numbers[lane][k]).bits | odd << 16U;
            }
        }
    }
}

void pack_weights(detail::Place& place, const PackWeightsProblem& p) {
    const std::int64_t panels = (p.outputs + PackedLayout::panel - 1) / PackedLayout::panel;
    const double numbers = static_cast<double>(p.outputs) * static_cast<double>(p.inputs);
    detail::parallel(*place.pool, panels, detail::effort_for(4 * numbers),
                     [&](std::int64_t n, int) { pack_panel(p, n); });
}

}  // namespace

std::vector<Kernel<PackWeightsProblem>> pack_weights_kernels() {
    return rows_of_sets<Kernel<PackWeightsProblem>>("one source for every set",
                                                    []<const Kernels & kernels>(Kernel<PackWeightsProblem>& row) {
                                                        static_cast<void>(kernels);
                                                        row.forward = pack_weights;
                                                    });
}

}  // namespace heed::cpu
