#include <heed/alibi.h>
#include <heed/error.h>

#include <bit>
#include <cmath>
#include <string>

namespace heed {

std::vector<double> default_alibi_slopes(std::int64_t heads) {
    if (heads < 0 || heads > 1 << 20) {
        throw Error("[default_alibi_slopes] heads: expected 0 to 1048576, got " + std::to_string(heads));
    }
    std::vector<double> slopes;
    const auto power = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(heads)));
    for (std::int64_t k = 0; k < heads; ++k) {
        // Beyond the power of two: the odd members of the series for twice as many heads.
        const double exponent =
            k < power ? -8.0 * static_cast<double>(k + 1) : -4.0 * static_cast<double>(2 * (k - power) + 1);
        slopes.push_back(std::exp2(exponent / static_cast<double>(power)));
    }
    return slopes;
}

}  // namespace heed
