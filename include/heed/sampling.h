#pragma once
/// One token out of logits.

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <heed/error.h>

namespace heed {

/// What happens to the logits of a step before a token is drawn, in the order of transformers' generate: repetition
/// penalty, temperature, top-k, top-p, min-p, softmax.
struct SamplingOptions {
    /// false: the most probable token (after the repetition penalty), of equal ones the lowest id.
    bool do_sample = false;
    double temperature = 1;         ///< logits are divided by it; 0: as do_sample = false
    std::int64_t top_k = 50;        ///< the so many most probable tokens, of equal ones those with lower ids; 0: all
    double top_p = 1;               ///< the fewest tokens whose probabilities reach this together; 1: all
    double min_p = 0;               ///< tokens at least so probable relative to the best one
    double repetition_penalty = 1;  ///< a logit of a token seen before: divided by it if positive, else multiplied
    std::uint64_t seed = 0;
};

/// Where a draw happens. Its random number depends on the seed and on these two alone: not on a batch's other members,
/// on threads, or on how many tokens a step computes.
struct DrawPlace {
    std::uint64_t sequence = 0;
    std::uint64_t step = 0;
};

/// A number of [0, 1), the same for the same coordinates.
HEED_API double uniform_draw(std::uint64_t seed, DrawPlace place);

/// The tokens that are left and their probabilities, ascending ids. `seen`: the text so far, prompt included.
HEED_API std::vector<std::pair<std::int64_t, double>> token_probabilities(std::span<const float> logits,
                                                                          std::span<const std::int64_t> seen,
                                                                          const SamplingOptions& options);
HEED_API std::int64_t sample_token(std::span<const float> logits, std::span<const std::int64_t> seen,
                                   const SamplingOptions& options, DrawPlace place = {});

/// Error where a number is out of range; `function` begins its message.
HEED_API void check_sampling(const char* function, const SamplingOptions& options);

}  // namespace heed
