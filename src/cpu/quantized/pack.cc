#include "cpu/quantized/pack.h"

#include "base/dispatch.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

namespace heed::cpu {
namespace {

using Layout = QuantizedLayout;

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

/// Fills all panels; group(output, g, stored) gives what is stored there, false where it cannot be.
template <class Group>
bool fill_panels(detail::Pool& pool, const QuantizedPanels& to, Group&& group) {
    const std::int64_t groups = to.groups();
    const std::int64_t panels = (to.outputs + Layout::panel - 1) / Layout::panel;
    const double numbers = static_cast<double>(to.outputs) * static_cast<double>(to.inputs);
    std::atomic<bool> sound = true;
    const auto lock = pool.lock();
    detail::parallel(pool, panels, detail::effort_for(20 * numbers), [&](std::int64_t n, int) {
        for (std::int64_t g = 0; g < groups; ++g) {
            std::uint8_t* place = to.data + (n * groups + g) * Layout::group_bytes(to.four_bits);
            for (std::int64_t lane = 0; lane < Layout::panel; ++lane) {
                StoredGroup one;
                const std::int64_t output = n * Layout::panel + lane;
                if (output < to.outputs && !group(output, g, one)) {
                    sound.store(false, std::memory_order_relaxed);
                    return;
                }
                put_group(one, lane, to.four_bits, place);
            }
        }
    });
    return sound.load(std::memory_order_relaxed);
}

}  // namespace

bool quantize(detail::Pool& pool, const TensorRows& weight, const QuantizedPanels& to) {
    return fill_panels(pool, to, [&](std::int64_t output, std::int64_t g, StoredGroup& group) {
        float x[Layout::group] = {};
        const char* row = weight.row(output);
        const std::int64_t begin = g * Layout::group, end = std::min(to.inputs, begin + Layout::group);
        for (std::int64_t k = begin; k < end; ++k) {
            x[k - begin] = static_cast<float>(read_number(weight.dtype, row, k * weight.stride));
        }
        return stored(x, to.four_bits, group);
    });
}

void panels_of_blocks(detail::Pool& pool, std::span<const std::byte> blocks, const QuantizedPanels& to) {
    const std::size_t block = Layout::file_block_bytes(to.four_bits);
    fill_panels(pool, to, [&](std::int64_t output, std::int64_t g, StoredGroup& group) {
        const std::byte* from = blocks.data() + static_cast<std::size_t>(output * to.groups() + g) * block;
        std::memcpy(&group.scale, from, 2);
        for (std::int64_t n = 0; n < Layout::group; ++n) {
            if (!to.four_bits) {
                group.number[n] = static_cast<std::int8_t>(from[2 + n]);
            } else {
                const int both = std::to_integer<int>(from[2 + n % 16]);
                group.number[n] = (n < 16 ? both & 15 : both >> 4) - 8;
            }
        }
        return true;
    });
}

}  // namespace heed::cpu
