#include "text/trie.h"

#include <algorithm>
#include <deque>

namespace heed::text {

Trie::Trie(std::vector<std::pair<std::string, std::int32_t>> entries) {
    std::stable_sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    // Level by level, so that the children of a node come one after the other.
    struct Range {
        std::uint32_t node;
        std::size_t begin, end, depth;
    };
    nodes_.emplace_back();
    std::deque<Range> waiting{{0, 0, entries.size(), 0}};
    while (!waiting.empty()) {
        const Range range = waiting.front();
        waiting.pop_front();
        std::size_t at = range.begin;
        for (; at < range.end && entries[at].first.size() == range.depth; ++at) {
            if (range.depth > 0) { nodes_[range.node].value = entries[at].second; }
        }
        nodes_[range.node].first = static_cast<std::uint32_t>(nodes_.size());
        while (at < range.end) {
            const char label = entries[at].first[range.depth];
            const std::size_t begin = at;
            while (at < range.end && entries[at].first[range.depth] == label) { ++at; }
            const auto child = static_cast<std::uint32_t>(nodes_.size());
            nodes_.push_back({.label = static_cast<std::uint8_t>(label)});
            ++nodes_[range.node].count;
            if (range.node == 0) { from_root_[static_cast<unsigned char>(label)] = child; }
            waiting.push_back({child, begin, at, range.depth + 1});
        }
    }
}

}  // namespace heed::text
