#pragma once
/// Looking inside attention without a T x S matrix: memory is proportional to what is asked for.
/// The weights are those of step 5 in <heed/attention.h>, before dropout.

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include <heed/attention.h>

namespace heed {

/// Which batch entries, query heads and rows; an empty list means all of them.
struct AttentionSelection {
    std::vector<std::int64_t> batches{};
    std::vector<std::int64_t> heads{};
    std::vector<std::int64_t> rows{};
};

/// weights [chosen batches, chosen heads, chosen rows, S] (f32 or f64) of q [B,H,T,D] over k [B,G,S,D].
/// Packed sequences are not accepted here: ask for one sequence at a time.
HEED_API void attention_weights(Context& context, const View& q, const View& k, const MutableView& weights,
                                const AttentionSelection& selection = {}, const AttentionOptions& options = {});

/// Some rows of one head: w[n][j] = weights[n * stride + j] is the weight of key j in row rows[n].
struct AttentionRows {
    std::int64_t batch = 0;
    std::int64_t head = 0;
    std::span<const std::int64_t> rows{};
    const float* weights = nullptr;
    std::int64_t stride = 0;
    std::int64_t keys = 0;
};

/// Hands over the chosen rows of the chosen heads, block by block, for whatever a caller wants to know of them: memory
/// is a block a thread, at any length. `visit` is called from the context's threads, several at once and in no order;
/// what it is given is gone when it returns, and it must not use the same context. A block is up to 32 entries of the
/// selection's rows, beginning at a multiple of 32.
HEED_API void visit_attention_weights(Context& context, const View& q, const View& k,
                                      const std::function<void(const AttentionRows&)>& visit,
                                      const AttentionSelection& selection = {}, const AttentionOptions& options = {});

/// Behind which steps of <heed/attention.h> scores are taken.
enum class ScoreStage : std::uint8_t {
    product,  ///< step 1: scale * q.k, also of keys that are hidden
    capped,   ///< step 2: soft-capped, also of keys that are hidden
    biased,   ///< steps 3 and 4: with bias and ALiBi; minus infinity where hidden
    weight,   ///< step 5: attention_weights
};

/// scores [chosen batches, chosen heads, chosen rows, S] (f32 or f64) of q [B,H,T,D] over k [B,G,S,D], summed in
/// double. Queries and keys at and beyond their lengths are not read: 0, in stage `biased` minus infinity.
HEED_API void attention_scores(Context& context, const View& q, const View& k, const MutableView& scores,
                               ScoreStage stage, const AttentionSelection& selection = {},
                               const AttentionOptions& options = {});

/// One pair of a query and a key.
struct ScorePlace {
    std::int64_t batch = 0;
    std::int64_t head = 0;
    std::int64_t row = 0;
    std::int64_t column = 0;
};

/// Why a query does not see a key: the first reason in this order.
enum class HiddenBy : std::uint8_t {
    nothing,  ///< it sees it
    length,   ///< the query or the key is at or beyond its length
    causal,
    window,
    mask,     ///< AttentionOptions::allow
    pattern,  ///< AttentionOptions::pattern
    bias,     ///< a bias of minus infinity
};
/// "nothing", "length", ...
HEED_API std::string_view name_of(HiddenBy reason);

/// How a weight came about, in the order of <heed/attention.h>. Numbers of keys that are hidden are what they would be
/// were they seen, except that pairs beyond their lengths are not read: all 0.
struct ScoreParts {
    std::vector<double> products{};  ///< q_d k_d, where asked for
    double dot = 0;                  ///< their sum
    double scale = 1;
    double scaled = 0;  ///< scale * dot
    double capped = 0;  ///< behind the soft-cap, where there is one
    double bias = 0;
    double alibi = 0;  ///< -slope * |p_i - p_j|
    double score = 0;  ///< capped + bias + alibi: what goes into the softmax where nothing hides it
    HiddenBy hidden_by = HiddenBy::nothing;
    // Of the whole row, where asked for.
    double log_sum = 0;  ///< ln of the softmax's denominator, a sink in it; minus infinity: the row sees nothing
    double weight = 0;   ///< e^(score - log_sum), 0 where hidden
    double sink = 0;     ///< the share that a sink takes of the row
};

struct ScorePartsOptions {
    bool products = true;
    bool weight = true;  ///< reads every key of the row; false: log_sum, weight and sink stay 0
};

/// The scores at the given places taken apart, summed in double; q [B,H,T,D] over k [B,G,S,D] in memory of the CPU.
HEED_API std::vector<ScoreParts> score_parts(const View& q, const View& k, std::span<const ScorePlace> places,
                                             const AttentionOptions& options = {}, const ScorePartsOptions& parts = {});

/// What to measure: one number a row, each view [B,H,T] and optional; f32 or f64, `argmax` i64.
struct AttentionStatistics {
    MutableView entropy{};      ///< -sum_j w ln w, in nats, over the keys (a sink's share is not counted)
    MutableView max_weight{};   ///< largest weight
    MutableView argmax{};       ///< the key that has it, the first of equals; -1 for a row that sees nothing
    MutableView window_mass{};  ///< sum of weights with p_i - left <= p_j <= p_i + right, `window` below
    MutableView first_mass{};   ///< weight of key 0
    Window window{.left = 0, .right = 0};
};

HEED_API void attention_statistics(Context& context, const View& q, const View& k,
                                   const AttentionStatistics& statistics, const AttentionOptions& options = {});

enum class Pooling : std::uint8_t { mean, max };

/// map [chosen batches, chosen heads, R, C] (f32 or f64): the T x S weights of each head pooled to R x C.
/// Cell (r, c) covers rows from floor(r*T/R) up to ceil((r+1)*T/R), and keys likewise, so cells share a border
/// row where R does not divide T, and a map larger than the matrix repeats its entries. selection.rows must be empty.
HEED_API void attention_map(Context& context, const View& q, const View& k, const MutableView& map, Pooling pooling,
                            const AttentionSelection& selection = {}, const AttentionOptions& options = {});

}  // namespace heed
