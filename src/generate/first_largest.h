#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace heed {

/// Where the first of the largest of at least one number lies. Looks at many side by side, as a vocabulary's logits are
/// looked at for every token; NaN is nobody's largest unless it comes first.
inline std::int64_t first_largest(std::span<const float> numbers) {
    constexpr std::size_t side_by_side = 32;
    float most[side_by_side];
    std::fill_n(most, side_by_side, numbers[0]);
    const std::size_t whole = numbers.size() / side_by_side * side_by_side;
    for (std::size_t n = 0; n < whole; n += side_by_side) {
        for (std::size_t lane = 0; lane < side_by_side; ++lane) {
            most[lane] = most[lane] < numbers[n + lane] ? numbers[n + lane] : most[lane];
        }
    }
    float top = *std::max_element(most, most + side_by_side);
    for (const float number : numbers.subspan(whole)) { top = top < number ? number : top; }
    const auto found = std::find(numbers.begin(), numbers.end(), top);
    return found == numbers.end() ? 0 : found - numbers.begin();
}

}  // namespace heed
