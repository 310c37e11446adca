#include "ops/mask_blocks.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

namespace heed::detail {
namespace {

/// As wide as the squares in which kernels ask a pattern.
constexpr std::int64_t block = 64;
/// Below that a call is over before looking has paid.
constexpr std::int64_t least_rows = 128;

/// Whether any of `count` <= block bytes, `stride` apart, is not 0.
bool shows(const std::uint8_t* first, std::int64_t stride, std::int64_t count) {
    static constexpr std::array<std::uint8_t, block> hidden{};
    if (stride == 1) { return std::memcmp(first, hidden.data(), static_cast<std::size_t>(count)) != 0; }
    for (std::int64_t n = 0; n < count; ++n) {
        if (first[n * stride] != 0) { return true; }
    }
    return false;
}

bool is_worth_looking(const AttentionProblem& p) {
    const AttentionOptions& o = p.options;
    return o.allow && p.k && !p.packed && !o.query_positions && !o.key_positions &&
           p.q.device().kind == DeviceKind::cpu && p.queries >= least_rows && p.keys >= least_rows &&
           o.allow.extent(3) == p.keys;
}

/// [block of queries][block of keys]: what any batch entry and head sees.
class Occupancy {
public:
    Occupancy(const AttentionProblem& p, std::int64_t shift)
        : first_(shift / block),
          rows_((shift + p.queries - 1) / block - first_ + 1),
          columns_((p.keys + block - 1) / block),
          seen_(static_cast<std::size_t>(rows_ * columns_)) {}

    void add_row(std::int64_t position, const std::uint8_t* row, std::int64_t stride, std::int64_t keys) {
        std::uint8_t* seen = &seen_[static_cast<std::size_t>((position / block - first_) * columns_)];
        for (std::int64_t n = 0; n < columns_; ++n) {
            if (seen[n] == 0 && shows(row + n * block * stride, stride, std::min(block, keys - n * block))) {
                seen[n] = 1;
            }
        }
    }

    Pattern pattern() const {
        const auto visible = std::count(seen_.begin(), seen_.end(), std::uint8_t{1});
        if (visible * 8 > static_cast<std::int64_t>(seen_.size()) * 7) { return {}; }
        std::vector<patterns::BlockPair> pairs;
        pairs.reserve(static_cast<std::size_t>(visible));
        for (std::int64_t n = 0; n < rows_ * columns_; ++n) {
            if (seen_[static_cast<std::size_t>(n)] != 0) { pairs.push_back({first_ + n / columns_, n % columns_}); }
        }
        return patterns::blocks(block, block, pairs);
    }

private:
    std::int64_t first_, rows_, columns_;
    std::vector<std::uint8_t> seen_;
};

}  // namespace

Pattern visible_blocks(const AttentionProblem& problem) {
    if (!is_worth_looking(problem)) { return {}; }
    const View& allow = problem.options.allow;
    const auto* bytes = static_cast<const std::uint8_t*>(allow.data());
    const std::int64_t shift = problem.sequence(0).shift;
    if (shift < 0) { return {}; }  // a list of blocks has none below 0
    Occupancy occupancy(problem, shift);
    for (std::int64_t b = 0; b < allow.extent(0); ++b) {
        for (std::int64_t h = 0; h < allow.extent(1); ++h) {
            const std::uint8_t* table = bytes + b * allow.stride(0) + h * allow.stride(1);
            for (std::int64_t i = 0; i < problem.queries; ++i) {
                const std::uint8_t* row = allow.extent(2) == 1 ? table : table + i * allow.stride(2);
                occupancy.add_row(i + shift, row, allow.stride(3), problem.keys);
            }
        }
    }
    return occupancy.pattern();
}

}  // namespace heed::detail
