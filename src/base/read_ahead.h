#pragma once
#include <algorithm>
#include <cstddef>
#include <span>
#include <unordered_map>

/// Between two products of a step of decoding, one thread does what cannot be shared while memory rests. Whoever waits
/// for the next product can ask for the beginning of its weights meanwhile, if it is known whose they are.

namespace heed::detail {

/// Weights in the order in which a step reads them, round and round.
class ReadingOrder {
public:
    ReadingOrder() = default;
    /// An empty part stands where what comes next is chosen as it goes.
    explicit ReadingOrder(std::span<const std::span<const std::byte>> parts) {
        for (std::size_t n = 0; n < parts.size(); ++n) {
            if (!parts[n].empty()) { next_[parts[n].data()] = parts[(n + 1) % parts.size()]; }
        }
    }
    /// What is read after the part that begins there; empty: not known.
    std::span<const std::byte> after(const void* part) const {
        const auto found = next_.find(part);
        return found == next_.end() ? std::span<const std::byte>() : found->second;
    }

private:
    std::unordered_map<const void*, std::span<const std::byte>> next_;
};

/// While it lives, products on the calling thread go by this order.
class FollowsOrder {
public:
    explicit FollowsOrder(const ReadingOrder* order);
    ~FollowsOrder();
    FollowsOrder(const FollowsOrder&) = delete;
    FollowsOrder& operator=(const FollowsOrder&) = delete;

private:
    const ReadingOrder* before_;
};

/// While it lives, the calling thread's jobs read this part.
class ReadsPart {
public:
    explicit ReadsPart(const void* part);
    ~ReadsPart();
    ReadsPart(const ReadsPart&) = delete;
    ReadsPart& operator=(const ReadsPart&) = delete;
};

/// What the calling thread's next product will read; empty: not known.
std::span<const std::byte> upcoming();

/// A thread's share of what is upcoming, a line at a time: as far as it stays in the second-level cache.
class ReadAhead {
public:
    ReadAhead() = default;
    ReadAhead(std::span<const std::byte> all, int worker, int threads) {
        if (all.empty() || worker >= threads) { return; }
        const std::size_t share = all.size() / static_cast<std::size_t>(threads);
        at_ = all.data() + static_cast<std::size_t>(worker) * share;
        end_ = at_ + std::min(share, most);
    }
    bool done() const { return at_ >= end_; }
    void ask() {
        __builtin_prefetch(at_, 0, 2);
        at_ += std::min<std::size_t>(line, static_cast<std::size_t>(end_ - at_));
    }

    static constexpr std::size_t line = 64, most = std::size_t{256} << 10;

private:
    const std::byte* at_ = nullptr;
    const std::byte* end_ = nullptr;
};

}  // namespace heed::detail
