#pragma once
#include <compare>
#include <cstdint>

namespace heed {

/// Thrown by Count; the public function that was counting turns it into an Error with its own name.
struct CountOverflow {};

/// A signed 64-bit count that never wraps. Sizes come from files: 2^16 layers of 2^24 x 2^24 are easily written down.
class Count {
public:
    constexpr Count(std::int64_t value = 0) : value_(value) {}
    constexpr std::int64_t value() const { return value_; }
    // clang-tidy 14 objects to the 0 that the compiler writes here. NOLINTNEXTLINE(modernize-use-nullptr)
    friend constexpr auto operator<=>(Count, Count) = default;

    friend Count operator+(Count a, Count b) {
        std::int64_t result = 0;
        if (__builtin_add_overflow(a.value_, b.value_, &result)) { throw CountOverflow{}; }
        return result;
    }
    friend Count operator*(Count a, Count b) {
        std::int64_t result = 0;
        if (__builtin_mul_overflow(a.value_, b.value_, &result)) { throw CountOverflow{}; }
        return result;
    }
    friend Count operator-(Count a, Count b) { return a + Count(-b.value_); }  // counts are never the lowest integer

private:
    std::int64_t value_;
};

}  // namespace heed
