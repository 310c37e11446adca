#pragma once
/// One call on a batch of caches, between its checks and its results.

#include "cache/cache_state.h"
#include "kernel/attention_problem.h"
#include "ops/attention_kernels.h"

namespace heed {

/// Memory of one call that the next one uses again.
class StepBuffer {
public:
    /// Contents are undefined, and those of the last call gone.
    MutableView view(DType dtype, const Shape& shape, Device device = {});

private:
    Tensor memory_;
};

/// How the keys of an entry are handed to a kernel: its pages as they are, with positions by index as for tensors,
/// unless one of these is so.
struct Way {
    bool dense = false;        ///< a copy, rotated on the way, as keys are stored unrotated
    bool by_row = false;       ///< a table of rows instead of pages: gaps are left out, no kernel ever sees them
    bool by_position = false;  ///< positions are not those by index, and matter

    bool operator==(const Way&) const = default;
};

struct CachedStep;

/// The problem for some of the entries, packed anew.
struct EntryCall {
    AttentionProblem* problem = nullptr;
    std::vector<std::int64_t> cu_q{}, cu_k{};
    std::vector<const std::int32_t*> tables{};
    KvPages pages{};

    /// `target` is the problem of all entries, and will be that of those added.
    void begin(const CachedStep& step, AttentionProblem& target);
    /// Tables are of rows, not of pages.
    void by_row();
    void add(const std::int32_t* table, std::int64_t queries, std::int64_t keys);
    /// Points the problem at what was added.
    AttentionProblem& finish(const View& q, const MutableView& out, const MutableView& lse);
};

/// It stays with the first of its caches, so that decoding asks for memory in its first step alone.
struct CachedStep {
    const char* function = "";
    CachePool::State* pool = nullptr;
    std::vector<Cache::State*> caches{};
    std::vector<std::int64_t> cu_q{};  ///< [N+1]: whose tokens are where along T
    std::int64_t layer = 0;
    bool appends = false;
    SharedPrefix share = SharedPrefix::automatic;

    std::vector<std::int64_t> lengths{};         ///< [N]: tokens of the layer when the call is done
    std::vector<std::int64_t> positions{};       ///< [T]: of the new tokens, for masks
    std::vector<std::int64_t> rope_positions{};  ///< [T]: for rotation

    /// A cache before the call.
    struct Before {
        std::int64_t tokens = 0, written = 0, next = 0;
    };
    struct Buffers {
        std::vector<Cache::State*> sorted{};
        std::vector<std::int32_t> pages{}, references{}, rows{}, new_rows{};
        std::vector<Cache::State::Needs> needs{};
        std::vector<Before> before{};
        std::vector<Way> ways{};
        std::vector<std::size_t> candidates{};
        std::vector<char> done{};
        std::vector<std::int64_t> cu_k{}, key_positions{};
        std::vector<float> numbers{};
        StepBuffer q{}, k{}, absorbed{}, latents{};
        EntryCall call{};
    } buffers{};

    std::size_t count() const { return caches.size(); }
    std::int64_t queries(std::size_t n) const { return cu_q[n + 1] - cu_q[n]; }
    std::int64_t all_queries() const { return cu_q.back(); }
    const CacheConfig& config() const { return pool->config; }
    /// For the checks: tensors lie where the caches do.
    Caller caller() const {
        Caller result(function);
        result.device = config().device;
        return result;
    }
    CachePool::State::Layer& memory() const { return pool->layers[static_cast<std::size_t>(layer)]; }
};

/// Positions that the caller gave, and what the caller's function calls them.
struct GivenPositions {
    View view{};
    const char* name = "query_positions";
};

/// The batch and the positions of its T tokens; `tokens` is T. It holds until the next call whose first cache is this
/// one's.
CachedStep& checked_step(const char* function, const CacheBatch& batch, CacheKind kind, std::int64_t tokens,
                         bool appends, const GivenPositions& positions);

/// Takes pages and writes the rows: k [1,G,T,D], v [1,G,T,E] (latent: absent), of any float type. CacheFull, with
/// nothing changed, where they do not fit. Takes the tokens back, unless kept.
class CacheAppend {
public:
    CacheAppend(Context& context, CachedStep& step, const View& k, const View& v);
    ~CacheAppend();
    CacheAppend(const CacheAppend&) = delete;
    CacheAppend& operator=(const CacheAppend&) = delete;
    void keep() noexcept { committed_ = true; }

private:
    void take_pages();
    void undo() noexcept;
    CachedStep& step_;
    bool committed_ = false;
};
/// A context of the device where the caches are, or refuse.
void check_device(const Context& context, const CachedStep& step);
/// Shapes and types of k and v (latent: k alone) against the pool and q's type.
void check_rows(const CachedStep& step, const char* k_name, const View& k, const View& v, DType dtype);

/// One page for each cache that has none, a copy of each that is shared (linear, infini). CacheFull as above.
void take_states(CachedStep& step);

/// Checks, appends, attends. Nothing is appended where that fails.
void attend_step(Context& context, CachedStep& step, const View& q, const View& k, const View& v,
                 const AttentionOutputs& outputs, const AttentionOptions& options);
/// Attention of problem.q over what the caches hold: problem counts tokens, and has no pages yet. It is used up.
void attend_caches(Context& context, CachedStep& step, const AttentionKernel& kernel, AttentionProblem& problem);

/// Caches that begin with the same pages.
struct PrefixGroup {
    std::vector<std::size_t> members{};  ///< two or more
    std::int64_t pages = 0;
};
/// Groups among `candidates`, disjoint; none where the options forbid it or it would not pay.
std::vector<PrefixGroup> prefix_groups(CachedStep& step, const AttentionProblem& problem,
                                       const std::vector<std::size_t>& candidates);
/// The members' rows of problem.out and lse.
void attend_group(Context& context, const CachedStep& step, const AttentionKernel& kernel,
                  const AttentionProblem& problem, const PrefixGroup& group);

inline View integers(const std::vector<std::int64_t>& numbers, const Shape& shape) {
    return View(DType::i64, numbers.data(), shape);
}

}  // namespace heed
