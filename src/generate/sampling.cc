#include <heed/random.h>
#include <heed/sampling.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "base/refuse.h"
#include "generate/first_largest.h"
#include "generate/penalise.h"

namespace heed {
namespace {

using Candidate = std::pair<float, std::int64_t>;  // logit, id

void require(const char* function, const char* name, bool fits, const char* expected, double got) {
    if (fits) { return; }
    refuse(function, name, expected, std::to_string(got));
}

/// More probable first; of equals the lower id.
bool before(const Candidate& a, const Candidate& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
}

/// Probable ones first, until `top_p` is reached: a heap gives them one by one, as few are needed of many.
std::vector<Candidate> most_probable(std::vector<Candidate> candidates, double top_p) {
    const float most = std::min_element(candidates.begin(), candidates.end(), before)->first;
    double sum = 0;
    for (const Candidate& c : candidates) { sum += std::exp(static_cast<double>(c.first) - most); }
    const auto after = [](const Candidate& a, const Candidate& b) { return before(b, a); };
    std::make_heap(candidates.begin(), candidates.end(), after);
    std::vector<Candidate> kept;
    double better = 0;
    while (!candidates.empty() && (kept.empty() || better < top_p * sum)) {
        std::pop_heap(candidates.begin(), candidates.end(), after);
        kept.push_back(candidates.back());
        better += std::exp(static_cast<double>(kept.back().first) - most);
        candidates.pop_back();
    }
    return kept;
}

void check_logits(std::span<const float> logits) {
    if (logits.empty()) { refuse("sample_token", "logits", "at least one", "none"); }
    constexpr float infinity = std::numeric_limits<float>::infinity();
    int strange = 0, possible = 0;
    for (const float logit : logits) {
        strange |= logit < infinity ? 0 : 1;
        possible |= logit > -infinity ? 1 : 0;
    }
    if (strange != 0) { refuse("sample_token", "logits", "numbers or -inf", "NaN or +inf"); }
    if (possible == 0) { refuse("sample_token", "logits", "one above -inf", "none"); }
}

bool is_greedy(const SamplingOptions& options) { return !options.do_sample || options.temperature == 0; }

std::vector<Candidate> candidates_of(const std::vector<float>& logits, const SamplingOptions& options) {
    std::vector<Candidate> candidates;
    candidates.reserve(logits.size());
    for (std::size_t id = 0; id < logits.size(); ++id) {
        if (logits[id] == -std::numeric_limits<float>::infinity()) { continue; }
        candidates.emplace_back(logits[id] / static_cast<float>(options.temperature), static_cast<std::int64_t>(id));
    }
    if (options.top_k > 0 && options.top_k < static_cast<std::int64_t>(candidates.size())) {
        std::nth_element(candidates.begin(), candidates.begin() + options.top_k - 1, candidates.end(), before);
        candidates.resize(static_cast<std::size_t>(options.top_k));
    }
    if (options.top_p < 1) { candidates = most_probable(std::move(candidates), options.top_p); }
    return candidates;
}

}  // namespace

void penalise(std::span<float> logits, std::span<const std::int64_t> seen, double penalty) {
    if (penalty == 1) { return; }
    std::vector<std::int64_t> ids(seen.begin(), seen.end());
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    const auto by = static_cast<float>(penalty);
    for (const std::int64_t id : ids) {
        if (id < 0 || id >= static_cast<std::int64_t>(logits.size())) { continue; }
        float& logit = logits[static_cast<std::size_t>(id)];
        logit = logit < 0 ? logit * by : logit / by;
    }
}

void check_sampling(const char* function, const SamplingOptions& o) {
    require(function, "temperature", o.temperature >= 0 && std::isfinite(o.temperature), "0 or more", o.temperature);
    require(function, "top_k", o.top_k >= 0, "0 or more", static_cast<double>(o.top_k));
    require(function, "top_p", o.top_p >= 0 && o.top_p <= 1, "0 to 1", o.top_p);
    require(function, "min_p", o.min_p >= 0 && o.min_p <= 1, "0 to 1", o.min_p);
    require(function, "repetition_penalty", o.repetition_penalty > 0 && std::isfinite(o.repetition_penalty),
            "more than 0", o.repetition_penalty);
}

double uniform_draw(std::uint64_t seed, DrawPlace place) {
    const auto low = [](std::uint64_t x) { return static_cast<std::uint32_t>(x); };
    const auto high = [](std::uint64_t x) { return static_cast<std::uint32_t>(x >> 32U); };
    const auto words = philox4x32({low(place.step), high(place.step), low(place.sequence), high(place.sequence)}, seed);
    const std::uint64_t bits = (static_cast<std::uint64_t>(words[0]) << 32U | words[1]) >> 11U;
    return static_cast<double>(bits) * 0x1p-53;
}

std::vector<std::pair<std::int64_t, double>> token_probabilities(std::span<const float> given,
                                                                 std::span<const std::int64_t> seen,
                                                                 const SamplingOptions& options) {
    check_sampling("sample_token", options);
    check_logits(given);
    if (is_greedy(options) && options.repetition_penalty == 1) { return {{first_largest(given), 1.0}}; }
    std::vector<float> logits(given.begin(), given.end());
    penalise(logits, seen, options.repetition_penalty);
    if (is_greedy(options)) { return {{first_largest(logits), 1.0}}; }
    std::vector<Candidate> candidates = candidates_of(logits, options);
    const float most = std::min_element(candidates.begin(), candidates.end(), before)->first;
    std::vector<std::pair<std::int64_t, double>> result;
    double sum = 0;
    for (const auto& [logit, id] : candidates) {
        const double weight = std::exp(static_cast<double>(logit) - most);
        if (weight < options.min_p) { continue; }
        result.emplace_back(id, weight);
    }
    std::sort(result.begin(), result.end());
    for (const auto& [id, weight] : result) { sum += weight; }
    for (auto& [id, weight] : result) { weight /= sum; }
    return result;
}

std::int64_t sample_token(std::span<const float> logits, std::span<const std::int64_t> seen,
                          const SamplingOptions& options, DrawPlace place) {
    const auto left = token_probabilities(logits, seen, options);
    if (left.size() == 1) { return left.front().first; }
    const double u = uniform_draw(options.seed, place);
    double reached = 0;
    for (const auto& [id, probability] : left) {
        reached += probability;
        if (reached > u) { return id; }
    }
    return left.back().first;  // rounding left the sum below u
}

}  // namespace heed
