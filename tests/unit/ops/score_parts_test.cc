/// Scores taken apart, against the scores and weights of the whole matrix.

#include <heed/pattern.h>

#include "unit/ops/attention_call.h"

namespace heed::testing {
namespace {

constexpr Sizes sizes{.T = 12, .S = 15};

/// Every kind of addition to a score, and every reason to hide one.
struct Everything {
    Everything() {
        AttentionOptions& o = call.options;
        for (int n = 0; n < 5; ++n) { bias.as<float>()[7 * n] = -std::numeric_limits<float>::infinity(); }
        for (std::int64_t n = 0; n < allow.elements(); ++n) { allow.as<std::uint8_t>()[n] = n % 5 == 3 ? 0 : 1; }
        o.causal = true;
        o.window = {.left = 9, .right = -1};
        o.softcap = 2;
        o.bias = bias;
        o.allow = allow;
        o.alibi_slopes = slopes;
        o.sinks = sinks;
        o.key_lengths = key_lengths;
        o.query_lengths = query_lengths;
        o.pattern = patterns::parse("causal & strided(3)");
    }
    Random random{3};
    Call call{DType::f32, sizes, 5};
    Tensor bias = random_tensor(random, DType::f32, {1, 4, 12, 15});
    Tensor allow{DType::u8, {1, 1, 12, 15}};
    const Tensor slopes = filled(DType::f64, {4}, {0.5, 0.25, 0.125, 0});
    const Tensor sinks = filled(DType::f32, {4}, {0, -1, 1, -infinity});
    const Tensor key_lengths = filled(DType::i64, {2}, {15, 11});
    const Tensor query_lengths = filled(DType::i64, {2}, {12, 10});
};

std::vector<ScorePlace> all_places() {
    std::vector<ScorePlace> places;
    for (std::int64_t n = 0; n < 2 * 4 * 12 * 15; ++n) {
        places.push_back({.batch = n / 720, .head = n / 180 % 4, .row = n / 15 % 12, .column = n % 15});
    }
    return places;
}

TEST(ScoreParts, AddUpToScoresAndWeights) {
    Everything e;
    Context context(1);
    const auto scores = [&](ScoreStage stage) {
        Tensor all(DType::f64, {2, 4, 12, 15});
        attention_scores(context, e.call.q, e.call.k, all, stage, {}, e.call.options);
        return all;
    };
    const Tensor product = scores(ScoreStage::product), capped = scores(ScoreStage::capped),
                 biased = scores(ScoreStage::biased);
    Tensor weights(DType::f64, {2, 4, 12, 15});
    AttentionOptions plain = e.call.options;
    plain.kernel = "reference";
    attention_weights(context, e.call.q, e.call.k, weights, {}, plain);
    const auto places = all_places();
    const auto all = score_parts(e.call.q, e.call.k, places, e.call.options);
    ASSERT_EQ(all.size(), places.size());
    std::vector<int> reasons(7);
    for (std::size_t n = 0; n < all.size(); ++n) {
        const ScoreParts& p = all[n];
        const auto at = static_cast<std::int64_t>(n);
        ++reasons[static_cast<std::size_t>(p.hidden_by)];
        double dot = 0;
        for (const double x : p.products) { dot += x; }
        EXPECT_EQ(p.products.size(), 5U);
        EXPECT_DOUBLE_EQ(dot, p.dot);
        EXPECT_DOUBLE_EQ(p.scaled, number(product, at));
        EXPECT_DOUBLE_EQ(p.capped, number(capped, at));
        const bool seen = p.hidden_by == HiddenBy::nothing;
        EXPECT_EQ(seen, std::isfinite(number(biased, at)));
        EXPECT_NEAR(p.weight, number(weights, at), 1e-12);
        if (!seen) { continue; }
        EXPECT_DOUBLE_EQ(p.capped + p.bias + p.alibi, p.score);
        EXPECT_NEAR(p.score, number(biased, at), 1e-12);
        EXPECT_NEAR(std::exp(p.score - p.log_sum), p.weight, 1e-12);
    }
    for (std::size_t reason = 0; reason < reasons.size(); ++reason) { EXPECT_GT(reasons[reason], 0) << reason; }
}

TEST(ScoreParts, TheSinkTakesWhatTheKeysLeave) {
    Everything e;
    for (std::int64_t head = 0; head < 4; ++head) {
        std::vector<ScorePlace> row;
        for (std::int64_t j = 0; j < 15; ++j) { row.push_back({.head = head, .row = 11, .column = j}); }
        double sum = 0;
        const auto all = score_parts(e.call.q, e.call.k, row, e.call.options);
        for (const ScoreParts& p : all) { sum += p.weight; }
        EXPECT_NEAR(sum + all[0].sink, 1, 1e-12);
    }
}

TEST(ScoreParts, WhatWasNotAskedForIsLeftOut) {
    Everything e;
    const ScorePlace place{.row = 5, .column = 5};
    const auto all = score_parts(e.call.q, e.call.k, {&place, 1}, e.call.options, {.products = false, .weight = false});
    EXPECT_TRUE(all[0].products.empty());
    EXPECT_EQ(all[0].weight, 0);
    EXPECT_NE(all[0].dot, 0);
}

TEST(ScoreParts, PlacesAreChecked) {
    Everything e;
    for (const ScorePlace place : {ScorePlace{.batch = 2}, ScorePlace{.head = 4}, ScorePlace{.row = 12},
                                   ScorePlace{.column = 15}, ScorePlace{.row = -1}}) {
        EXPECT_THROW(score_parts(e.call.q, e.call.k, {&place, 1}, e.call.options), Error);
    }
    EXPECT_EQ(name_of(HiddenBy::window), "window");
}

}  // namespace
}  // namespace heed::testing
