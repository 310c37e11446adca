#include <heed/sampling.h>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace heed::testing {
namespace {

using Ids = std::vector<std::int64_t>;
const std::vector<float> logits = {1.0F, 3.0F, 2.0F, 0.0F, 3.0F, -1.0F};

Ids kept(const SamplingOptions& options, const Ids& seen = {}) {
    Ids ids;
    for (const auto& [id, probability] : token_probabilities(logits, seen, options)) { ids.push_back(id); }
    return ids;
}

TEST(Sampling, FiltersAsTransformers) {
    const SamplingOptions all{.do_sample = true, .top_k = 0};
    EXPECT_EQ(kept(all).size(), logits.size());
    EXPECT_EQ(kept({.do_sample = true, .top_k = 3}), (Ids{1, 2, 4}));
    EXPECT_EQ(kept({.do_sample = true, .top_k = 1}), (Ids{1}));
    EXPECT_EQ(kept({.do_sample = true, .top_k = 100}).size(), logits.size());
    EXPECT_EQ(kept({.do_sample = true, .top_k = 0, .top_p = 0}), (Ids{1}));
    // 3 and 3 have 0.386 each, 2 has 0.142: two of them reach 0.7, not 0.8
    EXPECT_EQ(kept({.do_sample = true, .top_k = 0, .top_p = 0.7}), (Ids{1, 4}));
    EXPECT_EQ(kept({.do_sample = true, .top_k = 0, .top_p = 0.8}), (Ids{1, 2, 4}));
    EXPECT_EQ(kept({.do_sample = true, .top_k = 0, .min_p = 0.2}), (Ids{1, 2, 4}));
    EXPECT_EQ(kept({.do_sample = true, .temperature = 0}), (Ids{1}));
    EXPECT_EQ(kept({}), (Ids{1}));
}

TEST(Sampling, PenaltyCountsATokenOnce) {
    EXPECT_EQ(kept({.repetition_penalty = 1.1}, {1, 1, 1}), (Ids{4}));
    EXPECT_EQ(kept({.repetition_penalty = 4}, {1, 4}), (Ids{2}));
}

TEST(Sampling, ProbabilitiesAreThoseOfSoftmax) {
    double sum = 0;
    for (const auto& [id, probability] :
         token_probabilities(logits, {}, {.do_sample = true, .temperature = 2, .top_k = 0})) {
        sum += probability;
        double whole = 0;
        for (const float x : logits) { whole += std::exp(x / 2); }
        EXPECT_NEAR(probability, std::exp(logits[static_cast<std::size_t>(id)] / 2) / whole, 1e-7);
    }
    EXPECT_NEAR(sum, 1, 1e-12);
}

TEST(Sampling, DrawsFollowTheProbabilities) {
    const SamplingOptions options{.do_sample = true, .top_k = 0, .seed = 5};
    constexpr int draws = 100000;
    std::vector<int> counts(logits.size());
    for (int n = 0; n < draws; ++n) {
        ++counts[static_cast<std::size_t>(
            sample_token(logits, {}, options, {.sequence = 3, .step = static_cast<std::uint64_t>(n)}))];
    }
    double chi = 0;
    for (const auto& [id, probability] : token_probabilities(logits, {}, options)) {
        const double expected = probability * draws, difference = counts[static_cast<std::size_t>(id)] - expected;
        chi += difference * difference / expected;
    }
    EXPECT_LT(chi, 20.5);  // 5 degrees of freedom: exceeded once in a thousand
}

TEST(Sampling, ADrawDependsOnSeedSequenceAndStep) {
    EXPECT_EQ(uniform_draw(1, {2, 3}), uniform_draw(1, {2, 3}));
    EXPECT_NE(uniform_draw(1, {2, 3}), uniform_draw(1, {3, 2}));
    EXPECT_NE(uniform_draw(1, {2, 3}), uniform_draw(2, {2, 3}));
}

TEST(Sampling, GreedyIsTheFirstOfTheLargestWhereverItLies) {
    constexpr float inf = std::numeric_limits<float>::infinity();
    for (const std::size_t size : {1U, 2U, 31U, 32U, 33U, 64U, 100U}) {
        for (std::size_t best = 0; best < size; ++best) {
            std::vector<float> row(size, -inf);
            for (std::size_t n = 0; n < size; ++n) { row[n] = n % 3 == 0 ? -inf : -1.0F - static_cast<float>(n % 7); }
            for (std::size_t n = best; n < size; n += 5) { row[n] = 0.5F; }  // equals follow
            EXPECT_EQ(sample_token(row, {}, {}), static_cast<std::int64_t>(best)) << size;
            row[best] = std::nanf("");
            EXPECT_THROW(sample_token(row, {}, {}), Error);
            row[best] = inf;
            EXPECT_THROW(sample_token(row, {}, {}), Error);
        }
    }
    EXPECT_EQ(sample_token(std::vector<float>{-0.0F, 0.0F}, {}, {}), 0);
}

TEST(Sampling, WhatCannotBeIsRefused) {
    constexpr float inf = std::numeric_limits<float>::infinity();
    EXPECT_THROW(sample_token({}, {}, {}), Error);
    EXPECT_THROW(sample_token(std::vector<float>{-inf, -inf}, {}, {}), Error);
    EXPECT_THROW(sample_token(std::vector<float>{0, std::nanf("")}, {}, {}), Error);
    EXPECT_THROW(sample_token(logits, {}, {.temperature = -1}), Error);
    EXPECT_THROW(sample_token(logits, {}, {.top_p = 1.5}), Error);
    EXPECT_THROW(sample_token(logits, {}, {.repetition_penalty = 0}), Error);
    EXPECT_EQ(sample_token(std::vector<float>{-inf, 0}, {}, {.do_sample = true}), 1);
}

}  // namespace
}  // namespace heed::testing
