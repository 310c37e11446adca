#pragma once
/// Key/value caches: what turns attention into generation.
///
///     heed::CachePool pool({.layers = 1, .kv_heads = 8, .head_size = 128, .value_size = 128,
///                           .storage = heed::CacheStorage::bf16, .page_size = 16, .pages = 4096});
///     heed::Cache a = pool.create(), b = pool.create();
///     // Five tokens of a's prompt and one more of b, in one call: appended, then attended to.
///     heed::cached_attend(context, {.caches = {&a, &b}, .tokens = {5, 1}}, q, k, v, out, {.causal = true});
///     heed::Cache c = a.fork();    // another continuation of a: shares its pages until one of them writes
///
/// Letters as in <heed/attention.h>; N caches in a batch, T new tokens of all of them together.
///
/// A pool is memory of fixed size, cut into pages of `page_size` tokens (all layers of them). A cache is the state of
/// one sequence: a list of pages, taken as it grows, given back when it is freed or goes out of scope. Pages may belong
/// to several caches (fork); whoever writes into a shared page copies it first. A contiguous cache is a pool whose page
/// is as long as the sequence (contiguous_cache); results do not depend on the page size, to the bit.
///
/// What fails leaves every cache as it was. A full pool is a CacheFull: free a cache, or drop tokens, and call again.
///
/// Threads: a pool serves any number of threads at once; a cache belongs to one at a time, its forks may go to others.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include <heed/attention.h>
#include <heed/cache_storage.h>
#include <heed/infini_attention.h>
#include <heed/linear_attention.h>
#include <heed/mla.h>
#include <heed/positions.h>
#include <heed/tensor.h>

namespace heed {
namespace detail {
struct Access;
}  // namespace detail

// ---- Pools ---------------------------------------------------------------------------------------------------------

enum class CacheKind : std::uint8_t {
    attention,  ///< keys and values of G heads: MHA, GQA, MQA
    latent,     ///< MLA: one row of r + p numbers a token; G = 1, D = r + p, E = r
    linear,     ///< the state of linear attention, the same size at every length
    infini,     ///< Infini-attention's memory and its open segment, likewise
};

/// What the position of a cached token is, for masks, ALiBi and RoPE.
enum class CachePositions : std::uint8_t {
    original,  ///< that in the text, whatever was dropped before it
    slots,     ///< its place in the cache, as StreamingLLM counts: what follows a gap moves up
};

struct CacheConfig {
    CacheKind kind = CacheKind::attention;
    std::int64_t layers = 1;
    std::int64_t kv_heads = 1;     ///< G
    std::int64_t head_size = 64;   ///< D
    std::int64_t value_size = 64;  ///< E
    /// attention and latent: any. infini: f32, bf16 or f16, the type of its inputs. linear: f32.
    CacheStorage storage = CacheStorage::f32;
    /// Tokens of a page, any number from 1. 16 wastes little and is as fast as larger ones.
    std::int64_t page_size = 16;
    /// Where the pages are. On a GPU without rope, which is then the caller's.
    Device device{};
    /// Of the whole pool, with fewer than 2^31 tokens in all. linear and infini: states, one a cache, whatever its
    /// length.
    std::int64_t pages = 0;
    /// Most pages of one cache; 0: all.
    std::int64_t pages_per_cache = 0;

    /// Where given, queries and keys are rotated here, as they come (latent: their last p numbers).
    std::optional<Rope> rope{};
    /// The length that rope_table is asked for, where the scaling depends on it (dynamic, longrope). 0: the length of
    /// the sequence as it grows. Keys are then stored unrotated and rotated whenever they are read: right at any
    /// length, but each call makes a rotated copy of the keys it reads.
    std::int64_t rope_length = 0;
    CachePositions positions = CachePositions::original;
    /// With slots and rope: tokens that come among the first so many of a cache keep their unrotated keys beside the
    /// page, in f32, so that moving them up any number of times costs no precision. What is in front of a gap beyond
    /// these is rotated on from what is stored.
    std::int64_t sinks = 0;

    // linear
    std::int64_t features = 0;  ///< F; 0: D
    std::int64_t states = 0;    ///< N, H where each query head has its decay; 0: G
    bool normalise = true;      ///< keeps z

    // infini
    std::int64_t segment = 2048;
    bool memory_keys = false;  ///< InfiniOptions::memory_k will be given
};

/// The same with room for `sequences` caches of up to `capacity` tokens, each in one piece.
HEED_API CacheConfig contiguous_cache(CacheConfig config, std::int64_t capacity, std::int64_t sequences = 1);

/// Bytes that one more token takes, all layers, scales included; 0 for linear and infini.
HEED_API std::int64_t cache_bytes_per_token(const CacheConfig& config);
/// Bytes of one page, or state: what a pool holds `pages` of.
HEED_API std::int64_t cache_bytes_per_page(const CacheConfig& config);

/// The pool has too few pages for what was asked. Nothing has changed.
class HEED_API CacheFull : public Error {
public:
    CacheFull(const std::string& message, std::int64_t needed_pages, std::int64_t free_pages)
        : Error(message), needed(needed_pages), free(free_pages) {}
    std::int64_t needed;
    std::int64_t free;
};

class Cache;

/// A handle on the memory: copies are the same pool. It lives as long as a handle or a cache of it does.
class HEED_API CachePool {
public:
    /// Takes the memory for all pages now; the system provides it as it is first written.
    explicit CachePool(const CacheConfig& config);

    const CacheConfig& config() const;
    std::int64_t pages() const { return config().pages; }
    std::int64_t free_pages() const;
    /// Held by the pool, used or not: pages * cache_bytes_per_page.
    std::int64_t bytes() const;
    /// In pages that some cache has; shared ones count once.
    std::int64_t used_bytes() const;

    /// Empty; takes no page before its first token.
    Cache create() const;
    /// What save wrote, continued bit for bit. The file is not trusted: FileError where it cannot be read or is not
    /// sound, Error where it does not fit the pool, CacheFull where its pages do not.
    Cache restore(const std::filesystem::path& path) const;

    struct State;

private:
    friend class Cache;
    explicit CachePool(std::shared_ptr<State> state) : state_(std::move(state)) {}
    std::shared_ptr<State> state_;
};

// ---- Caches --------------------------------------------------------------------------------------------------------

/// One sequence. Moves; fork() copies. Tokens are counted by index from 0, in the order they came, what was dropped
/// left out.
class HEED_API Cache {
public:
    /// Of no pool: everything but assignment and operator bool is an Error, as after free().
    Cache() noexcept;
    Cache(Cache&&) noexcept;
    Cache& operator=(Cache&&) noexcept;
    /// Gives the pages back.
    ~Cache();

    explicit operator bool() const { return state_ != nullptr; }
    CachePool pool() const;

    /// Tokens that every layer has.
    std::int64_t length() const;
    /// Tokens of one layer: between two layers of a step some have more than others.
    std::int64_t length(std::int64_t layer) const;
    /// That the next token gets where none is said.
    std::int64_t next_position() const;
    /// Of every token, by index.
    std::vector<std::int64_t> positions() const;

    std::int64_t pages() const;
    /// Pages that other caches have too.
    std::int64_t shared_pages() const;
    /// Of its pages; shared ones count fully.
    std::int64_t bytes() const;

    /// The same sequence once more. Costs nothing but the list of pages; tokens are copied, a page at a time, when one
    /// of the two writes into a page that both have.
    Cache fork() const;
    /// Forgets the tokens from `length` on; the next one follows those that stay. Nothing changes, next_position
    /// either, where there are none. A state (linear, infini) can only be truncated to 0.
    void truncate(std::int64_t length);
    /// Forgets the tokens [begin, end); those behind move up by index, and with slots by position too. Pages without
    /// a token go back to the pool, so a range that covers whole pages frees the most. Rows of other pages stay where
    /// they are until gaps are many; results do not depend on it.
    void drop(std::int64_t begin, std::int64_t end);
    /// Keeps the first `sinks` and the last `recent` tokens, so that a cache never holds more. Once a step.
    void keep_window(std::int64_t sinks, std::int64_t recent);
    /// Gives the pages back now. A second time is an Error.
    void free();

    /// Writes all of it to a safetensors file, or nothing: stored bytes as they are.
    void save(const std::filesystem::path& path) const;

    /// What is stored of tokens [begin, end), as f32: keys [1,G,end-begin,D] (rotated as they are stored) and values
    /// [1,G,end-begin,E]. To look at; attention does not need it.
    Tensor keys(std::int64_t layer, std::int64_t begin, std::int64_t end) const;
    Tensor values(std::int64_t layer, std::int64_t begin, std::int64_t end) const;

    struct State;

private:
    friend class CachePool;
    friend struct detail::Access;
    explicit Cache(std::unique_ptr<State> state) noexcept;
    std::unique_ptr<State> state_;
};

// ---- Attention over caches -----------------------------------------------------------------------------------------

/// Pages that several caches of a batch begin with can be attended to once, with all their queries together, and the
/// result merged with that of the pages each has alone: equal to rounding, and memory is read once instead of N times.
enum class SharedPrefix : std::uint8_t {
    automatic,  ///< where it pays: a few queries a cache, and enough shared keys
    never,      ///< the bits of a result do not depend on what else is in the batch
    always,     ///< wherever two caches begin with the same page, and the options allow it
};

/// Which caches a call is for. Their tokens lie end to end along T of q, k, v and out.
struct CacheBatch {
    std::vector<Cache*> caches{};        ///< N different ones of one pool
    std::vector<std::int64_t> tokens{};  ///< of each, 0 or more; empty: T / N of each
    std::int64_t layer = 0;
    SharedPrefix share = SharedPrefix::automatic;
};

/// Appends T tokens, k [1,G,T,D] and v [1,G,T,E], to the layer of each cache, then out [1,H,T,E] = attention of
/// q [1,H,T,D] over everything that its cache holds now. Prefill, a part of a prefill, and decoding are the same call,
/// and may be mixed in one. Without k and v nothing is appended (cross-attention, once cache_append has filled it).
///
/// q, k, v share one of f32, bf16, f16, f64; out has that type or f32; lse as for attend. A batch [N,H,1,D] of decoding
/// is `q.permute({2,1,0,3})` here.
///
/// Options are those of attend, with b the index of the cache, i counted from its first new token and j from its first
/// token; causal is as you say. query_positions [1,T] are the positions of the new tokens and stay with them; absent,
/// they continue those of the cache. Without append, queries without positions are the last tokens of the cache.
/// Left alone: align, query_lengths, key_lengths, cu_seqlens_q, cu_seqlens_k, key_positions.
///
/// The layers of a step may be called in any order; the first takes the pages, so only that one can be a CacheFull.
HEED_API void cached_attend(Context& context, const CacheBatch& batch, const View& q, const View& k, const View& v,
                            const AttentionOutputs& outputs, const AttentionOptions& options = {});

/// The same where nothing but `out` is wanted.
inline void cached_attend(Context& context, const CacheBatch& batch, const View& q, const View& k, const View& v,
                          const MutableView& out, const AttentionOptions& options = {}) {
    cached_attend(context, batch, q, k, v, AttentionOutputs{.out = out}, options);
}

/// Appends only. positions [1,T], i32 or i64, as query_positions above.
HEED_API void cache_append(Context& context, const CacheBatch& batch, const View& k, const View& v,
                           const View& positions = {});

/// MLA over latent caches, in the absorbed form: out [1,H,T,v] of q [1,H,T,n+p] and the new rows [1,1,T,r+p], latents
/// (after their norm) and rotary keys side by side; absent: nothing is appended. See <heed/mla.h>.
HEED_API void cached_mla_attend(Context& context, const CacheBatch& batch, const View& q, const View& rows,
                                const MlaWeights& weights, const AttentionOutputs& outputs,
                                const AttentionOptions& options = {});

/// The same where nothing but `out` is wanted.
inline void cached_mla_attend(Context& context, const CacheBatch& batch, const View& q, const View& rows,
                              const MlaWeights& weights, const MutableView& out, const AttentionOptions& options = {}) {
    cached_mla_attend(context, batch, q, rows, weights, AttentionOutputs{.out = out}, options);
}

/// Linear attention over linear caches: q [1,H,T,D], k [1,G,T,D], v [1,G,T,E], out [1,H,T,E]; the states move on by the
/// T tokens. Causal; key_lengths left alone.
HEED_API void cached_linear_attend(Context& context, const CacheBatch& batch, const View& q, const View& k,
                                   const View& v, const MutableView& out, const LinearAttentionOptions& options = {});

/// Infini-attention over infini caches, likewise; gates [H]. The segment is that of the pool.
HEED_API void cached_infini_attend(Context& context, const CacheBatch& batch, const View& q, const View& k,
                                   const View& v, const View& gates, const MutableView& out,
                                   const InfiniOptions& options = {});

}  // namespace heed
