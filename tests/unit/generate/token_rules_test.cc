#include <heed/generation_config.h>

#include <gtest/gtest.h>

#include <cmath>

namespace heed::testing {
namespace {

using Ids = std::vector<std::int64_t>;

Ids hidden(const TokenRules& rules, const Ids& text, std::int64_t made, const Ids& eos = {}, bool forced = false) {
    std::vector<float> logits(8, 1.0F);
    hide_tokens(rules, {.tokens = text, .made = made, .eos = eos, .forced_first = forced}, logits);
    Ids result;
    for (std::size_t i = 0; i < logits.size(); ++i) {
        if (std::isinf(logits[i])) { result.push_back(static_cast<std::int64_t>(i)); }
    }
    return result;
}

TEST(TokenRules, NoneHideNothing) { EXPECT_EQ(hidden({}, {1, 2, 3}, 1, {4}), Ids()); }

TEST(TokenRules, SuppressedTokensNeverComeAndSomeNotFirst) {
    const TokenRules rules{.suppress_tokens = {6, 99}, .begin_suppress_tokens = {2}};
    EXPECT_EQ(hidden(rules, {1, 3}, 0), (Ids{2, 6}));
    EXPECT_EQ(hidden(rules, {1, 3}, 1), (Ids{6}));
    // The first of a decoder is forced: the rule is for the one behind it.
    EXPECT_EQ(hidden(rules, {1}, 0, {}, true), (Ids{6}));
    EXPECT_EQ(hidden(rules, {1, 5}, 1, {}, true), (Ids{2, 6}));
}

TEST(TokenRules, ABadWordIsHiddenBehindItsBeginning) {
    const TokenRules rules{.bad_words_ids = {{7}, {1, 2}, {5, 4, 3}}};
    EXPECT_EQ(hidden(rules, {0, 1}, 1), (Ids{2, 7}));
    EXPECT_EQ(hidden(rules, {0, 5, 4}, 1), (Ids{3, 7}));
    EXPECT_EQ(hidden(rules, {5, 4}, 1), (Ids{7})) << "the word is longer than the text";
    EXPECT_EQ(hidden(rules, {0, 1}, 1, {7}), (Ids{2})) << "an end token may come";
}

TEST(TokenRules, NoPairComesTwice) {
    EXPECT_EQ(hidden({.no_repeat_ngram_size = 2}, {1, 2, 3, 1, 4, 1}, 2), (Ids{2, 4}));
    EXPECT_EQ(hidden({.no_repeat_ngram_size = 1}, {1, 2, 1}, 2), (Ids{1, 2}));
    EXPECT_EQ(hidden({.no_repeat_ngram_size = 4}, {1, 2, 3}, 2), Ids());
}

TEST(TokenRules, ATextIsNotTooShort) {
    EXPECT_EQ(hidden({.min_length = 3}, {1, 2}, 1, {4, 5}), (Ids{4, 5}));
    EXPECT_EQ(hidden({.min_length = 3}, {1, 2, 3}, 2, {4, 5}), Ids());
}

TEST(TokenRules, WhatHeedLacksIsNamed) {
    const GenerationConfig config{.unknown = {}, .unknown_sampled = {"typical_p 0.9"}};
    EXPECT_NO_THROW(refuse_unknown("f", config, false));
    try {
        refuse_unknown("f", config, true);
        FAIL() << "no error";
    } catch (const Error& error) {
        EXPECT_STREQ(error.what(), "[f] generation_config.json: expected settings that heed has, got typical_p 0.9");
    }
}

}  // namespace
}  // namespace heed::testing
