#pragma once
/// Multi-head attention on a small example, with every intermediate result kept for people to look at.
///
///     heed::Context context;
///     for (const auto& step : heed::walk_through(context, heed::teaching_example(), {.causal = true}).steps) { ... }

#include <cstdint>
#include <string>
#include <vector>

#include <heed/attention.h>
#include <heed/tensor.h>

namespace heed {

/// Tokens and projections; any float types. Letters as in <heed/attention.h>, and M is the size of a token.
struct WalkthroughInput {
    Tensor x;   ///< [B,T,M]
    Tensor wq;  ///< [M,H*D]: q = x wq. An absent matrix, here and below, is the identity.
    Tensor wk;  ///< [M,G*D]
    Tensor wv;  ///< [M,G*E]
    Tensor wo;  ///< [H*E,N]: the result is [B,T,N]
    std::int64_t heads = 1;
    std::int64_t kv_heads = 0;  ///< 0: as many as heads
};

/// One line of the calculation.
struct WalkthroughStep {
    std::string name;     ///< "weights": what programs go by
    std::string title;    ///< "Softmax: each row of scores becomes weights that add up to 1"
    std::string formula;  ///< "W = softmax(S)"
    std::vector<Shape> operands;
    Shape shape;    ///< of the result, over the whole batch
    Tensor values;  ///< f64: the result for one batch entry, so without the axis B; hidden scores are -infinity
};

struct Walkthrough {
    std::int64_t batch_entry = 0;  ///< the one that `values` are of
    std::int64_t heads = 1;
    std::int64_t kv_heads = 1;
    double scale = 1;
    /// In the order of the calculation: input, queries, keys, values, query_heads, key_heads, value_heads, scores,
    /// scaled, softcap*, bias*, mask*, weights, dropout*, mixed, joined, output. Those marked * only where asked for.
    std::vector<WalkthroughStep> steps;
    Tensor visible;  ///< u8 [H,T,T]: 1 where the query may see the key
    Tensor kept;     ///< u8 [H,T,T]: 1 where dropout keeps the weight; absent without dropout
    /// The steps are those of the reference; the weights and results that attention_weights() and attend() give for
    /// the same options differ from them by at most this.
    double largest_difference = 0;

    /// The step of that name; nullptr where the calculation has none.
    HEED_API const WalkthroughStep* find(const std::string& name) const;
};

/// Computes the example in double, for all of the batch, and keeps the steps of one entry of it. For small examples:
/// T x T matrices are stored. Every option but packed sequences may be given.
HEED_API Walkthrough walk_through(Context& context, const WalkthroughInput& input, const AttentionOptions& options = {},
                                  std::int64_t batch_entry = 0);

/// Two tokens, [1,0,1,0] and [0,1,0,1], one head, identity projections: small enough for pencil and paper.
HEED_API WalkthroughInput teaching_example();

/// Normal tokens; projections with variance 1/M, so that queries and keys have variance 1. Head sizes are M/H.
/// The same numbers for the same seed everywhere.
HEED_API WalkthroughInput random_example(std::int64_t batch, std::int64_t tokens, std::int64_t d_model,
                                         std::int64_t heads, std::int64_t kv_heads, std::uint64_t seed);

}  // namespace heed
