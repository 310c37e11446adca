#pragma once
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace heed::text {

/// Mixes 8 bytes at a time; for tables whose keys a file chose, a collision costs time only.
inline std::uint64_t hash_of(std::string_view text) {
    constexpr std::uint64_t odd = 0x9E3779B97F4A7C15;
    std::uint64_t hash = text.size() * odd;
    const char* at = text.data();
    std::size_t left = text.size();
    for (; left >= 8; left -= 8, at += 8) {
        std::uint64_t word = 0;
        std::memcpy(&word, at, 8);
        hash = (hash ^ word) * odd;
        hash ^= hash >> 32U;
    }
    std::uint64_t word = 0;
    if (left > 0) { std::memcpy(&word, at, left); }
    hash = (hash ^ word) * odd;
    return hash ^ hash >> 29U;
}

/// Strings to numbers, open addressing. All keys lie in one buffer.
class StringTable {
public:
    static constexpr std::int32_t none = -1;

    void reserve(std::size_t count) { grow(count * 2 + 16); }
    /// The last value of a key wins.
    void set(std::string_view key, std::int32_t value) {
        if ((count_ + 1) * 2 > slots_.size()) { grow(slots_.size() * 2 + 16); }
        Slot& slot = slots_[place(key, hash_of(key))];
        if (slot.value == none) {
            ++count_;
            slot = {hash_of(key), keys_.size(), static_cast<std::uint32_t>(key.size()), value};
            keys_ += key;
        }
        slot.value = value;
    }
    std::int32_t find(std::string_view key) const {
        return slots_.empty() ? none : slots_[place(key, hash_of(key))].value;
    }
    std::size_t size() const { return count_; }

private:
    struct Slot {
        std::uint64_t hash = 0;
        std::size_t at = 0;
        std::uint32_t size = 0;
        std::int32_t value = none;
    };
    std::size_t place(std::string_view key, std::uint64_t hash) const {
        const std::size_t mask = slots_.size() - 1;
        for (std::size_t n = hash & mask;; n = (n + 1) & mask) {
            const Slot& slot = slots_[n];
            if (slot.value == none || (slot.hash == hash && slot.size == key.size() &&
                                       std::memcmp(keys_.data() + slot.at, key.data(), key.size()) == 0)) {
                return n;
            }
        }
    }
    void grow(std::size_t wanted) {
        std::size_t size = 16;
        while (size < wanted) { size *= 2; }
        if (size <= slots_.size()) { return; }
        std::vector<Slot> old(size);
        old.swap(slots_);
        for (const Slot& slot : old) {
            if (slot.value == none) { continue; }
            std::size_t n = slot.hash & (size - 1);
            while (slots_[n].value != none) { n = (n + 1) & (size - 1); }
            slots_[n] = slot;
        }
    }
    std::vector<Slot> slots_;
    std::string keys_;
    std::size_t count_ = 0;
};

}  // namespace heed::text
