#pragma once
#include <array>
#include <cstdint>

namespace heed {

/// Philox4x32: four random words from a 128-bit counter and a 64-bit key. Stateless: the same
/// coordinates give the same words on every backend, whatever the order and the number of threads.
template <int Rounds = 10>
constexpr std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter, std::uint64_t key) {
    auto key0 = static_cast<std::uint32_t>(key);
    auto key1 = static_cast<std::uint32_t>(key >> 32);
    for (int round = 0; round < Rounds; ++round) {
        const std::uint64_t product0 = std::uint64_t{0xD2511F53U} * counter[0];
        const std::uint64_t product1 = std::uint64_t{0xCD9E8D57U} * counter[2];
        counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key0, static_cast<std::uint32_t>(product1),
                   static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key1,
                   static_cast<std::uint32_t>(product0)};
        key0 += 0x9E3779B9U;
        key1 += 0xBB67AE85U;
    }
    return counter;
}

/// The random word of attention-dropout element (row, column) of plane b*H + h; see `AttentionDropout`.
constexpr std::uint32_t dropout_word(std::uint64_t seed, std::uint32_t offset, std::uint32_t plane, std::uint32_t row,
                                     std::uint32_t column) {
    return philox4x32({column / 4, row, plane, offset}, seed)[column % 4];
}

/// An element is kept when its word is at least this: round(p * 2^32).
constexpr std::uint64_t dropout_threshold(double probability) {
    return static_cast<std::uint64_t>(probability * 4294967296.0 + 0.5);
}

}  // namespace heed
