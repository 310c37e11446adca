/// Patterns read from lists of positions: packed documents and global tokens.
#include <memory>
#include <unordered_set>
#include <utility>

#include "ops/pattern_node.h"

namespace heed {
namespace {

using namespace pattern_detail;

/// ids[b][i] == ids[b][j]
class Document final : public Pattern::Node {
public:
    explicit Document(const std::vector<std::vector<std::int64_t>>& ids) : lists_(ids.begin(), ids.end()) {}

    bool allows(std::int64_t batch, std::int64_t, std::int64_t query, std::int64_t key) const override {
        const List* list = entry_of(lists_, batch);
        return list != nullptr && list->has(query) && list->has(key) && list->id(query) == list->id(key);
    }

    /// Exact where each id lies in one piece, sorted or not; otherwise `none` is found for tiles of few runs.
    Cover cover(const PatternTile& tile) const override {
        const List* list = entry_of(lists_, tile.batch);
        if (list == nullptr) return Cover::none;
        const std::int64_t query_begin = std::max(tile.query_begin, std::int64_t{0});
        const std::int64_t query_end = std::min(tile.query_end, list->size());
        const std::int64_t key_begin = std::max(tile.key_begin, std::int64_t{0});
        const std::int64_t key_end = std::min(tile.key_end, list->size());
        if (query_begin >= query_end || key_begin >= key_end) return Cover::none;

        const std::size_t first_query = list->run_at(query_begin);
        const std::size_t last_query = list->run_at(query_end - 1);
        const std::size_t first_key = list->run_at(key_begin);
        const std::size_t last_key = list->run_at(key_end - 1);
        const bool inside = query_begin == tile.query_begin && query_end == tile.query_end &&
                            key_begin == tile.key_begin && key_end == tile.key_end;
        const bool one_run_each = first_query == last_query && first_key == last_key;
        if (one_run_each && list->runs[first_query].id == list->runs[first_key].id) {
            return inside ? Cover::all : Cover::some;
        }
        if (first_query <= last_key && first_key <= last_query) return Cover::some;  // a run in common
        if (list->each_id_in_one_run) return Cover::none;
        constexpr std::size_t pairs_worth_comparing = 256;
        if ((last_query - first_query + 1) * (last_key - first_key + 1) > pairs_worth_comparing) return Cover::some;
        for (std::size_t q = first_query; q <= last_query; ++q) {
            for (std::size_t k = first_key; k <= last_key; ++k) {
                if (list->runs[q].id == list->runs[k].id) return Cover::some;
            }
        }
        return Cover::none;
    }

    void row(std::int64_t batch, std::int64_t, std::int64_t query, std::int64_t key_begin, std::int64_t key_end,
             std::uint8_t* allowed) const override {
        const Row keys{key_begin, key_end, allowed};
        keys.fill(0);
        const List* list = entry_of(lists_, batch);
        if (list == nullptr || !list->has(query)) return;
        const std::int64_t begin = std::max(key_begin, std::int64_t{0});
        const std::int64_t end = std::min(key_end, list->size());
        if (begin >= end) return;
        const std::int64_t id = list->id(query);
        for (std::size_t run = list->run_at(begin); run < list->runs.size() && list->runs[run].begin < end; ++run) {
            if (list->runs[run].id == id) keys.allow(list->runs[run].begin, list->end_of(run) - 1);
        }
    }

    std::string describe(Lists lists) const override {
        if (lists == Lists::all) { return concat("document(", ids_by_runs(), ")"); }
        std::size_t runs = 0;
        for (const List& list : lists_) runs += list.runs.size();
        return concat("document(", lists_.size(), lists_.size() == 1 ? " list, " : " lists, ", runs,
                      runs == 1 ? " run)" : " runs)");
    }

    void write(PatternWriter& program) const override {
        std::vector<std::int64_t> operands{static_cast<std::int64_t>(lists_.size())};
        std::int64_t end = 0;
        for (const List& list : lists_) { operands.push_back(end += list.size()); }
        for (const List& list : lists_) {
            for (std::int64_t n = 0; n < list.size(); ++n) { operands.push_back(list.id(n)); }
        }
        program.write(PatternCode::document, operands);
    }

    void check(const char* function, std::int64_t batches, std::int64_t) const override {
        check_batches(function, "lists of document", lists_.size(), batches);
    }

private:
    struct Run {
        std::int64_t begin;
        std::int64_t id;
    };

    struct List {
        explicit List(const std::vector<std::int64_t>& ids) : run_of(ids.size()) {
            std::unordered_set<std::int64_t> seen;
            for (std::size_t n = 0; n < ids.size(); ++n) {
                if (n == 0 || ids[n] != ids[n - 1]) {
                    runs.push_back({static_cast<std::int64_t>(n), ids[n]});
                    each_id_in_one_run = seen.insert(ids[n]).second && each_id_in_one_run;
                }
                run_of[n] = static_cast<std::uint32_t>(runs.size() - 1);
            }
        }

        std::int64_t size() const { return static_cast<std::int64_t>(run_of.size()); }
        bool has(std::int64_t position) const { return position >= 0 && position < size(); }
        std::size_t run_at(std::int64_t position) const { return run_of[static_cast<std::size_t>(position)]; }
        std::int64_t id(std::int64_t position) const { return runs[run_at(position)].id; }
        std::int64_t end_of(std::size_t run) const { return run + 1 < runs.size() ? runs[run + 1].begin : size(); }

        std::vector<Run> runs;              ///< stretches of one id, in order
        std::vector<std::uint32_t> run_of;  ///< each position's, so that tiles need no search
        bool each_id_in_one_run = true;
    };

    /// "0*3, 1*5; 0*8"
    std::string ids_by_runs() const {
        std::string text;
        for (std::size_t n = 0; n < lists_.size(); ++n) {
            const List& list = lists_[n];
            text += n == 0 ? "" : "; ";
            for (std::size_t run = 0; run < list.runs.size(); ++run) {
                const std::int64_t count = list.end_of(run) - list.runs[run].begin;
                text += concat(run == 0 ? "" : ", ", list.runs[run].id, "*", count);
            }
        }
        return text;
    }

    std::vector<List> lists_;
};

/// i or j is one of these positions.
class GlobalTokens final : public Pattern::Node {
public:
    explicit GlobalTokens(std::vector<std::int64_t> positions) : positions_(std::move(positions)) {
        std::sort(positions_.begin(), positions_.end());
        positions_.erase(std::unique(positions_.begin(), positions_.end()), positions_.end());
    }

    bool allows(std::int64_t, std::int64_t, std::int64_t query, std::int64_t key) const override {
        return is_global(query) || is_global(key);
    }

    /// Exact: a pair is ruled out when neither side is global, so all pairs are seen only where one whole side is.
    Cover cover(const PatternTile& tile) const override {
        const std::uint64_t queries = global_between(tile.query_begin, tile.query_end);
        const std::uint64_t keys = global_between(tile.key_begin, tile.key_end);
        if (queries == 0 && keys == 0) return Cover::none;
        const bool all = queries == count_between(tile.query_begin, tile.query_end) ||
                         keys == count_between(tile.key_begin, tile.key_end);
        return all ? Cover::all : Cover::some;
    }

    void row(std::int64_t, std::int64_t, std::int64_t query, std::int64_t key_begin, std::int64_t key_end,
             std::uint8_t* allowed) const override {
        const Row keys{key_begin, key_end, allowed};
        if (is_global(query)) return keys.fill(1);
        keys.fill(0);
        for (auto at = std::lower_bound(positions_.begin(), positions_.end(), key_begin);
             at != positions_.end() && *at < key_end; ++at) {
            allowed[count_between(key_begin, *at)] = 1;
        }
    }

    std::string describe(Lists lists) const override { return concat("global(", list_numbers(positions_, lists), ")"); }
    void write(PatternWriter& program) const override { program.write(PatternCode::global_tokens, positions_); }

private:
    bool is_global(std::int64_t position) const {
        return std::binary_search(positions_.begin(), positions_.end(), position);
    }
    std::uint64_t global_between(std::int64_t begin, std::int64_t end) const {
        const auto first = std::lower_bound(positions_.begin(), positions_.end(), begin);
        return static_cast<std::uint64_t>(std::lower_bound(first, positions_.end(), end) - first);
    }

    std::vector<std::int64_t> positions_;  ///< sorted, each once
};

}  // namespace

Pattern patterns::document(std::vector<std::vector<std::int64_t>> ids) {
    for (std::size_t b = 0; b < ids.size(); ++b) {
        if (ids[b].size() > std::numeric_limits<std::uint32_t>::max()) {
            refuse("patterns::document", concat("ids[", b, "]"), "less than 2^32 positions", concat(ids[b].size()));
        }
    }
    return pattern_of(std::make_shared<Document>(ids));
}

Pattern patterns::global_tokens(std::vector<std::int64_t> positions) {
    expect_none_negative("patterns::global_tokens", "positions", positions);
    return pattern_of(std::make_shared<GlobalTokens>(std::move(positions)));
}

}  // namespace heed
