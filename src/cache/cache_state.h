#pragma once
/// What is behind the handles of <heed/cache.h>.

#include <heed/cache.h>

#include "base/access.h"
#include "kernel/kv_pages.h"
#include "ops/checks.h"
#include "ops/kv_transfer.h"

#include <mutex>
#include <span>
#include <string>

namespace heed {

inline bool is_state(CacheKind kind) { return kind == CacheKind::linear || kind == CacheKind::infini; }

/// Memory, and who has which part of it. Page memory is not locked: a page that one cache alone has is written by that
/// cache's thread, and a page that several have is written by nobody.
struct HEED_INTERNAL CachePool::State {
    explicit State(const CacheConfig& config);

    /// One layer of one side of the pool: [G][pages][page_size][row], so that pages of neighbouring numbers are one
    /// stream of memory a head.
    struct Side {
        Tensor data, scales;
    };
    struct Layer {
        Side k, v;              // latent: v is k's first columns
        Tensor s, z;            // linear: [pages,N,F,E], [pages,N,F]
        KvRows k_rows, v_rows;  // as the kernels see them
    };

    CacheConfig config;
    KvRowLayout k_layout, v_layout;
    std::optional<RopeTable> table{};  ///< where it does not depend on the length
    bool rotate_on_read = false;       ///< keys are stored unrotated
    std::vector<Layer> layers;
    std::vector<InfiniMemory> memories;  ///< infini: [pages][layers]

    /// pages = `count` of them with one reference each, in ascending order, as near behind `after` as possible.
    /// CacheFull where there are not as many, which names `function` and `argument`.
    void take(std::int64_t count, std::int32_t after, const char* function, const char* argument,
              std::vector<std::int32_t>& pages);
    void share(std::span<const std::int32_t> pages);
    void release(std::span<const std::int32_t> pages) noexcept;
    /// counts[n] = how many table entries, of all caches, name page n of these.
    void references(std::span<const std::int32_t> pages, std::vector<std::int32_t>& counts) const;
    std::vector<std::int32_t> references(std::span<const std::int32_t> pages) const {
        std::vector<std::int32_t> counts;
        references(pages, counts);
        return counts;
    }
    std::int64_t free_pages() const;

    /// All layers of a page.
    void copy_page(std::int32_t from, std::int32_t to);
    /// One row of all heads and one layer, as it is stored, from one place to another.
    void move_row(std::int64_t layer, std::int32_t from_page, std::int64_t from_row, std::int32_t to_page,
                  std::int64_t to_row);
    /// An empty state (linear, infini).
    void clear_state(std::int32_t page);

    char* k_row(std::int64_t layer, std::int64_t g, std::int32_t page, std::int64_t row) const;
    float* k_scales(std::int64_t layer, std::int64_t g, std::int32_t page, std::int64_t row) const;
    char* v_row(std::int64_t layer, std::int64_t g, std::int32_t page, std::int64_t row) const;
    float* v_scales(std::int64_t layer, std::int64_t g, std::int32_t page, std::int64_t row) const;
    InfiniMemory& memory(std::int32_t page, std::int64_t layer);
    DType infini_type() const;

    /// Numbers at the end of a key that are not rotated come first in MLA: where rotation begins.
    std::int64_t rotated_from() const { return config.kind == CacheKind::latent ? config.value_size : 0; }

private:
    mutable std::mutex mutex_;
    std::vector<std::int32_t> references_;  ///< 0: free
    std::vector<std::uint64_t> free_;       ///< a bit a page, so that giving back never allocates
    std::int64_t free_count_ = 0;

    /// The free page nearest behind `page`, from the start again where there is none.
    std::int32_t next_free(std::int64_t page) const;
};

/// Tokens of one page: rows [begin, end) of page table[n] hold tokens first, first + 1, ... Rows outside were never
/// written, or are gaps that dropping left: nobody reads them. Neighbouring runs may name one page.
struct CacheRun {
    std::int64_t first = 0;
    std::int64_t begin = 0, end = 0;
};

/// Tokens from `first` on stand at `position`, position + 1, ...
struct CacheStretch {
    std::int64_t first = 0;
    std::int64_t position = 0;
};

struct CachedStep;

struct HEED_INTERNAL Cache::State {
    explicit State(std::shared_ptr<CachePool::State> its_pool);
    ~State();
    State(const State&) = delete;
    State& operator=(const State&) = delete;

    std::shared_ptr<CachePool::State> pool;
    std::vector<std::int32_t> table;  ///< page of each run; of a state: its page, if any
    std::vector<CacheRun> runs;
    std::vector<CacheStretch> stretches;
    std::int64_t tokens = 0;                ///< of the layer that has most
    std::vector<std::int64_t> written;      ///< tokens of each layer
    std::int64_t next = 0;                  ///< position of the next token (original)
    std::int64_t shift = 0;                 ///< slots: token j was rotated at position j + shift
    std::vector<float> sinks;               ///< slots with rope: unrotated keys [layers][G][sinks][D]
    std::vector<std::int64_t> sink_tokens;  ///< the tokens that they are of, rising; at most as many as there are sinks

    /// The last call whose first cache this was: its memory serves the next one.
    std::unique_ptr<CachedStep> step;

    const CacheConfig& config() const { return pool->config; }
    bool level() const;  ///< every layer has all tokens

    /// to[j] = position(j)
    void fill_positions(std::span<std::int64_t> to) const;
    /// to[j] = the row of token j among all rows of the pool
    void fill_rows(std::span<std::int32_t> to) const;
    /// Positions rise from token to token.
    bool rising() const;
    /// Of token j, as masks count.
    std::int64_t position(std::int64_t j) const;
    /// The run of token j.
    std::size_t run_of(std::int64_t j) const;
    std::int64_t row_of(std::size_t run, std::int64_t j) const { return runs[run].begin + j - runs[run].first; }
    /// Rows that a kernel passes over, gaps included, to read the first `count` tokens.
    std::int64_t slots(std::int64_t count) const;
    bool has_gaps() const;
    /// Does another cache have the page of run n?
    bool is_shared(std::size_t n, std::int32_t references) const;
    /// The unrotated key of token j, null where it was not kept.
    float* sink(std::int64_t layer, std::int64_t g, std::int64_t j);
    /// Makes a place for that of token j, where it is among the first.
    void add_sink(std::int64_t j);
    /// Positions are 0, 1, 2, ... but for a constant.
    bool consecutive() const { return config().positions == CachePositions::slots || stretches.size() <= 1; }
    std::int64_t first_position() const {
        return config().positions == CachePositions::slots || stretches.empty() ? 0 : stretches.front().position;
    }

    /// Pages that writing tokens [begin, end) takes: new ones, and copies of shared ones.
    struct Needs {
        std::int64_t fresh = 0;
        std::vector<std::size_t> copies{};  ///< runs
        std::int64_t pages() const { return fresh + static_cast<std::int64_t>(copies.size()); }
    };
    void needs(std::int64_t begin, std::int64_t end, Needs& needs, std::vector<std::int32_t>& references) const;
    /// Puts `pages` where `needs` said, and makes room for `end` tokens. Does not throw once `room_for` has run.
    void provide(const Needs& needs, std::span<const std::int32_t> pages, std::int64_t end) noexcept;
    void room_for(const Needs& needs);
    /// Records positions of new tokens [first, ...).
    void add_positions(std::int64_t first, std::span<const std::int64_t> positions);

    /// The last tokens go; pages too.
    void shrink(std::int64_t count) noexcept;
    /// Tokens [begin, end) go from the tables; rows stay where they are.
    void cut(std::int64_t begin, std::int64_t end);
    /// The same for the keys of sinks.
    void cut_sinks(std::int64_t begin, std::int64_t end) noexcept;
    /// Are there so many gaps that rows had better move together, and may they, as no other cache has these pages?
    bool is_scattered() const;
    /// Rows move together, so that the cache has as few pages as its tokens need. May be a CacheFull.
    void compact(const char* function);
};

/// Error where the handle has no cache behind it.
Cache::State& checked_cache(const char* function, const std::string& argument, const Cache* cache);

/// x[0..2*pairs) of a row of float32, rotated from one position to another.
void rotate_row(const RopeTable& table, std::int64_t by, double factor, float* x);

}  // namespace heed
