#pragma once
/// One call on a batch of caches, between its checks and its results.

#include "cache/cache_state.h"
#include "kernel/attention_problem.h"

namespace heed {

struct CachedStep {
    const char* function = "";
    std::shared_ptr<CachePool::State> pool{};
    std::vector<Cache::State*> caches{};
    std::vector<std::int64_t> cu_q{};  ///< [N+1]: whose tokens are where along T
    std::int64_t layer = 0;
    bool appends = false;
    SharedPrefix share = SharedPrefix::automatic;

    std::vector<std::int64_t> lengths{};         ///< [N]: tokens of the layer when the call is done
    std::vector<std::int64_t> positions{};       ///< [T]: of the new tokens, for masks
    std::vector<std::int64_t> rope_positions{};  ///< [T]: for rotation

    std::size_t count() const { return caches.size(); }
    std::int64_t queries(std::size_t n) const { return cu_q[n + 1] - cu_q[n]; }
    std::int64_t all_queries() const { return cu_q.back(); }
    const CacheConfig& config() const { return pool->config; }
    CachePool::State::Layer& memory() const { return pool->layers[static_cast<std::size_t>(layer)]; }
};

/// The batch and the positions of its T tokens; `tokens` is T.
CachedStep checked_step(const char* function, const CacheBatch& batch, CacheKind kind, std::int64_t tokens,
                        bool appends, const View& positions);

/// Takes pages and writes the rows: k [1,G,T,D], v [1,G,T,E] (latent: absent), of any float type. CacheFull, with
/// nothing changed, where they do not fit. Takes the tokens back, unless kept.
class CacheAppend {
public:
    CacheAppend(Context& context, CachedStep& step, const View& k, const View& v);
    ~CacheAppend();
    CacheAppend(const CacheAppend&) = delete;
    CacheAppend& operator=(const CacheAppend&) = delete;
    void keep() noexcept { kept_ = true; }

private:
    struct Before {
        std::int64_t tokens, written, next;
    };
    void take_pages();
    void undo() noexcept;
    CachedStep& step_;
    std::vector<Before> before_;
    bool kept_ = false;
};
/// Shapes and types of k and v (latent: k alone) against the pool and q's type.
void check_rows(const CachedStep& step, const char* k_name, const View& k, const View& v, DType dtype);

/// One page for each cache that has none, a copy of each that is shared (linear, infini). CacheFull as above.
void take_states(CachedStep& step);

/// Checks, appends, attends. Nothing is appended where that fails.
void attend_step(Context& context, CachedStep& step, const View& q, const View& k, const View& v,
                 const MutableView& out, const AttentionOptions& options, const MutableView& lse);
/// Attention of problem.q over what the caches hold: problem counts tokens, and has no pages yet.
void attend_caches(Context& context, const CachedStep& step, const AttentionProblem& problem);

/// Caches that begin with the same pages.
struct PrefixGroup {
    std::vector<std::size_t> members{};  ///< two or more
    std::int64_t pages = 0;
};
/// Groups among `candidates`, disjoint; none where the options forbid it or it would not pay.
std::vector<PrefixGroup> prefix_groups(const CachedStep& step, const AttentionProblem& problem,
                                       const std::vector<std::size_t>& candidates);
/// The members' rows of problem.out and lse.
void attend_group(Context& context, const CachedStep& step, const AttentionProblem& problem, const PrefixGroup& group);

/// The problem for some of the entries, packed anew.
struct EntryCall {
    AttentionProblem problem;
    std::vector<std::int64_t> cu_q{}, cu_k{};
    std::vector<const std::int32_t*> tables{};
    KvPages pages{};
    EntryCall(const CachedStep& step, const AttentionProblem& whole);
    /// Tables are of rows, not of pages.
    void by_row();
    void add(const std::int32_t* table, std::int64_t queries, std::int64_t keys);
    /// Points the problem at what was added.
    AttentionProblem& finish(const View& q, const MutableView& out, const MutableView& lse);
};

inline View integers(const std::vector<std::int64_t>& numbers, const Shape& shape) {
    return View(DType::i64, numbers.data(), shape);
}

}  // namespace heed
