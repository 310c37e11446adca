#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heed::text {

/// Which of many strings begin a text. About ten bytes a node: the children of a node lie side by side, sorted.
class Trie {
public:
    static constexpr std::int32_t none = -1;

    Trie() = default;
    /// Of equal strings the last wins; empty ones are left out.
    explicit Trie(std::vector<std::pair<std::string, std::int32_t>> entries);

    bool empty() const { return nodes_.size() <= 1; }
    /// visit(length, value) for every entry that begins text[at..], short ones first.
    template <class Visit>
    void prefixes(std::string_view text, std::size_t at, Visit&& visit) const {
        std::uint32_t node = 0;
        for (std::size_t length = 0; at + length < text.size();) {
            node = child(node, static_cast<unsigned char>(text[at + length]));
            if (node == 0) { return; }
            ++length;
            if (nodes_[node].value != none) { visit(length, nodes_[node].value); }
        }
    }
    /// The longest; length 0 where there is none.
    std::pair<std::size_t, std::int32_t> longest(std::string_view text, std::size_t at) const {
        std::pair<std::size_t, std::int32_t> best{0, none};
        prefixes(text, at, [&](std::size_t length, std::int32_t value) { best = {length, value}; });
        return best;
    }

private:
    struct Node {
        std::uint32_t first = 0;  // child
        std::uint16_t count = 0;
        std::uint8_t label = 0;
        std::int32_t value = none;
    };
    std::uint32_t child(std::uint32_t node, unsigned char label) const {
        if (nodes_.empty()) { return 0; }
        if (node == 0) { return from_root_[label]; }
        std::uint32_t low = nodes_[node].first, high = low + nodes_[node].count;
        while (low < high) {
            const std::uint32_t middle = (low + high) / 2;
            if (nodes_[middle].label < label) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        return low < nodes_[node].first + nodes_[node].count && nodes_[low].label == label ? low : 0;
    }
    std::vector<Node> nodes_;
    std::uint32_t from_root_[256] = {};
};

}  // namespace heed::text
