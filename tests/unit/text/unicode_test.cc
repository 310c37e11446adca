#include "text/unicode.h"

#include <gtest/gtest.h>

#include "text/regex.h"

namespace heed::text::testing {
namespace {

TEST(Utf8, BrokenSequencesBecomeOneMarkEach) {
    EXPECT_EQ(valid_utf8("a\xF0\x9F\x98z"), "a\xEF\xBF\xBDz");
    EXPECT_EQ(valid_utf8("\xED\xA0\x80"), "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
    EXPECT_EQ(valid_utf8("\xC0\x80\xFF"), "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
    EXPECT_EQ(valid_utf8("\xE2\x82\xAC"), "\xE2\x82\xAC");
}

TEST(Utf8, AnIncompleteEndIsFound) {
    EXPECT_EQ(incomplete_end("ab\xE2\x82"), 2U);
    EXPECT_EQ(incomplete_end("ab\xE2\x82\xAC"), 5U);
    EXPECT_EQ(incomplete_end("ab\xFF"), 3U);
    EXPECT_EQ(incomplete_end("\xF0"), 0U);
}

TEST(Unicode, FormsFollowTheStandard) {
    EXPECT_EQ(normalised("e\u0301", Form::nfc), "\u00e9");
    EXPECT_EQ(normalised("\u00e9", Form::nfd), "e\u0301");
    EXPECT_EQ(normalised("\u1e9b\u0323", Form::nfc), "\u1e9b\u0323");
    EXPECT_EQ(normalised("\u1e9b\u0323", Form::nfkc), "\u1e69");
    EXPECT_EQ(normalised("\u1e9b\u0323", Form::nfkd), "s\u0323\u0307");
    EXPECT_EQ(normalised("\ud55c\uae00", Form::nfc), "\ud55c\uae00");
    EXPECT_EQ(normalised(normalised("\ud55c\uae00", Form::nfd), Form::nfc), "\ud55c\uae00");
    EXPECT_EQ(normalised("\ufb01\xFF", Form::nfkc), "fi\xFF");
}

TEST(Unicode, ClustersStayTogether) {
    EXPECT_EQ(grapheme_size("e\u0301x", 0), 3U);
    EXPECT_EQ(grapheme_size("\r\nx", 0), 2U);
    const std::string family = "\U0001F468\u200D\U0001F469\u200D\U0001F466!";
    EXPECT_EQ(grapheme_size(family, 0), family.size() - 1);
    const std::string flags = "\U0001F1E9\U0001F1EA\U0001F1EB\U0001F1F7";
    EXPECT_EQ(grapheme_size(flags, 0), 8U);
}

std::vector<std::string> matches(const char* pattern, const std::string& text) {
    Regex::Scratch scratch;
    std::vector<Span> found;
    Regex(pattern).find_all(text, scratch, found);
    std::vector<std::string> result;
    for (const Span& span : found) { result.push_back(text.substr(span.begin, span.end - span.begin)); }
    return result;
}

using Words = std::vector<std::string>;

TEST(Regex, WhatTokenizersSplitWith) {
    const char* gpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
    EXPECT_EQ(matches(gpt2, "Hello  it's 12\u00b2 \u00fcber!  \n"),
              (Words{"Hello", " ", " it", "'s", " 12\u00b2", " \u00fcber", "!", "  \n"}));
    EXPECT_EQ(matches(R"((?i:'ll|'s)|\p{N}{1,3})", "'LL12345'\u017f"), (Words{"'LL", "123", "45", "'\u017f"}));
}

TEST(Regex, RepeatsChoicesAndLooking) {
    EXPECT_EQ(matches("a+?b", "aaab"), (Words{"aaab"}));
    EXPECT_EQ(matches("(?:ab)+", "ababa"), (Words{"abab"}));
    EXPECT_EQ(matches("a++a", "aaa"), Words{});
    EXPECT_EQ(matches("(?>a+)a", "aaa"), Words{});
    EXPECT_EQ(matches("(?<=x)a", "xaa"), (Words{"a"}));
    EXPECT_EQ(matches("(?<!x)a", "xaa"), (Words{"a"}));
    EXPECT_EQ(matches("[a-c&&[^b]]+", "abc"), (Words{"a", "c"}));
    EXPECT_EQ(matches("[^a]", "a\u00e9\xFF"), (Words{"\u00e9", "\xFF"}));
    EXPECT_EQ(matches("\\bab\\b", "ab abc"), (Words{"ab"}));
    EXPECT_EQ(matches("x*", "axb"), (Words{"", "x", ""}));
    EXPECT_EQ(matches("[\\p{Han}]+", "\u4e00\u4e8cx"), (Words{"\u4e00\u4e8c"}));
    EXPECT_EQ(matches("a{2}{2}|b{,2}c", "aaaabbc"), (Words{"aaaa", "bbc"}));
}

}  // namespace
}  // namespace heed::text::testing
