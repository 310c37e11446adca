#include <heed/tokenizer.h>

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <thread>

namespace heed::testing {
namespace {

using Ids = std::vector<std::int64_t>;
using nlohmann::json;

Tokenizer small_bpe() {
    const std::vector<std::string_view> texts(20, "the cat sat on the mat, the rat and the hat; that is that");
    return train_byte_bpe(texts, {.vocabulary = 300, .special_tokens = {"<end>"}});
}

/// A file whose parts are replaced by `changes`.
std::string file_with(const json& changes) {
    json file = {
        {"version", "1.0"},
        {"added_tokens", json::array()},
        {"normalizer", nullptr},
        {"pre_tokenizer", {{"type", "WhitespaceSplit"}}},
        {"post_processor", nullptr},
        {"decoder", nullptr},
        {"model", {{"type", "WordLevel"}, {"unk_token", "?"}, {"vocab", {{"?", 0}, {"a", 1}, {"b", 2}, {"c", 3}}}}}};
    file.update(changes);
    return file.dump();
}

TEST(Tokenizer, AnyBytesComeBack) {
    const Tokenizer tokenizer = small_bpe();
    std::mt19937 random(7);
    for (int round = 0; round < 300; ++round) {
        std::string bytes(random() % 60, '\0');
        for (char& byte : bytes) { byte = static_cast<char>(random() % (round % 2 == 0 ? 256 : 128)); }
        const Ids ids = tokenizer.encode(bytes);
        EXPECT_EQ(tokenizer.decode_bytes(ids), bytes);
        for (const std::int64_t id : ids) { EXPECT_LT(id, tokenizer.id_limit()); }
    }
}

TEST(Tokenizer, ThreadsShareOne) {
    const Tokenizer tokenizer = small_bpe();
    const Ids expected = tokenizer.encode("that cat sat on the hat");
    const Tokenizer fresh = Tokenizer::from_json(tokenizer.to_json());
    std::vector<std::thread> threads;
    for (int n = 0; n < 4; ++n) {
        threads.emplace_back([&] {
            for (int round = 0; round < 100; ++round) { EXPECT_EQ(fresh.encode("that cat sat on the hat"), expected); }
        });
    }
    for (std::thread& thread : threads) { thread.join(); }
}

TEST(Tokenizer, ABatchHasTheIdsOfEachText) {
    const Tokenizer tokenizer = small_bpe();
    std::mt19937 random(3);
    std::vector<std::string> texts;
    for (std::size_t n = 0; n < 200; ++n) {
        std::string text = n % 7 == 0 ? "" : "the cat ";
        for (std::size_t i = random() % (n % 50 == 0 ? 9000 : 80); i > 0; --i) { text += "that mat;"[random() % 9]; }
        texts.push_back(text);
    }
    const std::vector<std::string_view> views(texts.begin(), texts.end());
    for (const int threads : {1, 3}) {
        Context context(threads);
        const std::vector<Ids> batch = tokenizer.encode_batch(context, views);
        ASSERT_EQ(batch.size(), texts.size());
        for (std::size_t n = 0; n < texts.size(); ++n) { ASSERT_EQ(batch[n], tokenizer.encode(texts[n])); }
        EXPECT_TRUE(tokenizer.encode_batch(context, {}).empty());
    }
}

TEST(Tokenizer, LongRunsTakeTimeInProportion) {
    const Tokenizer tokenizer = small_bpe();
    const std::string letters(400000, 't'), spaces(400000, ' ');
    EXPECT_EQ(tokenizer.decode_bytes(tokenizer.encode(letters)), letters);
    EXPECT_EQ(tokenizer.decode_bytes(tokenizer.encode(spaces + "x")), spaces + "x");
}

TEST(Tokenizer, StreamGivesTheSameText) {
    const Tokenizer tokenizer = small_bpe();
    const std::string text = "the cat \xF0\x9F\x98\x80 sat \xE2\x82\xAC \xFF!";
    DecodeStream stream(tokenizer);
    std::string whole;
    for (int repeat = 0; repeat < 5; ++repeat) {
        for (const std::int64_t id : tokenizer.encode(text)) {
            const std::string piece = stream.push(id);
            EXPECT_TRUE(piece.find("\xF0\x9F\x98") == std::string::npos ||
                        piece.find("\xF0\x9F\x98\x80") != std::string::npos);
            whole += piece;
        }
    }
    whole += stream.finish();
    std::string expected;
    for (int repeat = 0; repeat < 5; ++repeat) {
        expected += "the cat \xF0\x9F\x98\x80 sat \xE2\x82\xAC \xEF\xBF\xBD!";
    }
    EXPECT_EQ(whole, expected);
}

TEST(Tokenizer, SpecialTokensInTextCanBeLetters) {
    const Tokenizer tokenizer = small_bpe();
    EXPECT_EQ(tokenizer.encode("<end>"), Ids{0});
    const Ids letters = tokenizer.encode("<end>", {.allow_special = false});
    EXPECT_GT(letters.size(), 1U);
    EXPECT_EQ(tokenizer.decode(letters), "<end>");
    EXPECT_EQ(tokenizer.decode(Ids{0}), "");
    EXPECT_EQ(tokenizer.decode(Ids{0}, false), "<end>");
    EXPECT_TRUE(tokenizer.is_special(0));
}

TEST(Tokenizer, AddedTokensTakeSpacesAndWholeWordsAsTold) {
    const auto with = [](const json& options) {
        json token = {{"id", 9}, {"content", "<x>"}, {"normalized", false}, {"special", false}};
        token.update(options);
        return Tokenizer::from_json(file_with(
            {{"added_tokens", json::array({token})},
             {"pre_tokenizer", {{"type", "Split"}, {"pattern", {{"String", " "}}}, {"behavior", "Isolated"}}}}));
    };
    EXPECT_EQ(with(json::object()).encode("a <x> b"), (Ids{1, 0, 4, 0, 2}));
    EXPECT_EQ(with({{"lstrip", true}}).encode("a <x> b"), (Ids{1, 4, 0, 2}));
    EXPECT_EQ(with({{"rstrip", true}}).encode("a <x> b"), (Ids{1, 0, 4, 2}));
    EXPECT_EQ(with({{"single_word", true}}).encode("a<x>"), (Ids{0}));
}

TEST(Tokenizer, AddedTokensHaveTheNextIdsWhateverTheFileSays) {
    const Tokenizer tokenizer =
        Tokenizer::from_json(file_with({{"added_tokens", json::array({{{"id", 70}, {"content", "<x>"}},
                                                                      {{"id", 9}, {"content", "b"}},
                                                                      {{"id", 3}, {"content", "<y>"}}})}}));
    EXPECT_EQ(tokenizer.encode("<y> b <x>"), (Ids{5, 2, 4}));
    EXPECT_EQ(tokenizer.size(), 6);
}

TEST(Tokenizer, ATokenInTheSpacesOfAnotherCountsUnlessNothingIsLeft) {
    const auto with = [](bool lstrip) {
        const json token = {{"id", 4}, {"content", "  "}, {"normalized", false}, {"lstrip", lstrip}, {"rstrip", true}};
        return Tokenizer::from_json(file_with({{"added_tokens", json::array({token})}}));
    };
    EXPECT_EQ(with(false).encode("a    b"), (Ids{1, 4, 4, 2}));
    EXPECT_EQ(with(true).encode("a    b"), (Ids{1, 4, 2}));
}

TEST(Tokenizer, AMissingUnknownTokenIsRefusedWhereATextNeedsIt) {
    const json words = {{"?", 0}, {"a", 1}, {"b", 2}};
    for (const json& model :
         {json{{"type", "WordLevel"}, {"unk_token", "none"}, {"vocab", words}},
          json{{"type", "WordPiece"}, {"unk_token", "none"}, {"vocab", words}},
          json{{"type", "BPE"}, {"unk_token", "none"}, {"vocab", words}, {"merges", json::array()}}}) {
        const Tokenizer tokenizer = Tokenizer::from_json(file_with({{"model", model}}));
        EXPECT_EQ(tokenizer.encode("a b"), (Ids{1, 2}));
        EXPECT_THROW(tokenizer.encode("a z"), Error) << model;
    }
    json pieces = json::array({json::array({"a", -1.0})});
    for (const char* byte : {"<0x62>", "<0x7A>"}) { pieces.push_back(json::array({byte, -2.0})); }
    const json unigram = {{"type", "Unigram"}, {"byte_fallback", true}, {"vocab", pieces}};
    EXPECT_THROW(Tokenizer::from_json(file_with({{"model", unigram}})).encode("z"), Error);
}

TEST(Tokenizer, TemplatesForOneAndTwo) {
    const json around = {{"type", "BertProcessing"}, {"sep", {"c", 3}}, {"cls", {"b", 2}}};
    const Tokenizer tokenizer = Tokenizer::from_json(file_with({{"post_processor", around}}));
    EXPECT_EQ(tokenizer.encode("a a"), (Ids{2, 1, 1, 3}));
    const Encoding pair = tokenizer.encode_pair("a", "a a");
    EXPECT_EQ(pair.ids, (Ids{2, 1, 3, 1, 1, 3}));
    EXPECT_EQ(pair.type_ids, (Ids{0, 0, 0, 1, 1, 1}));
}

TEST(Tokenizer, CutsAndFillsUpWhereTheFileAsks) {
    const json around = {{"type", "BertProcessing"}, {"sep", {"c", 3}}, {"cls", {"b", 2}}};
    const Tokenizer tokenizer = Tokenizer::from_json(file_with(
        {{"post_processor", around},
         {"truncation", {{"direction", "Right"}, {"max_length", 5}, {"strategy", "LongestFirst"}, {"stride", 0}}},
         {"padding", {{"strategy", {{"Fixed", 6}}}, {"direction", "Right"}, {"pad_id", 7}}}}));
    const Encoding one = tokenizer.encode_all("a b c a b c");
    EXPECT_EQ(one.ids, (Ids{2, 1, 2, 3, 3, 7}));
    EXPECT_EQ(one.attention_mask, (Ids{1, 1, 1, 1, 1, 0}));
    EXPECT_EQ(tokenizer.encode("a b c a", {.truncate_and_pad = false}), (Ids{2, 1, 2, 3, 1, 3}));
}

TEST(Tokenizer, ABatchIsAsLongAsItsLongest) {
    const auto with = [](const json& strategy, const char* side) {
        return Tokenizer::from_json(file_with(
            {{"padding", {{"strategy", strategy}, {"direction", side}, {"pad_id", 7}, {"pad_to_multiple_of", 2}}}}));
    };
    Context context(1);
    const std::vector<std::string_view> texts = {"a", "a b c", ""};
    EXPECT_EQ(with("BatchLongest", "Left").encode_batch(context, texts),
              (std::vector<Ids>{{7, 7, 7, 1}, {7, 1, 2, 3}, {7, 7, 7, 7}}));
    EXPECT_EQ(with("BatchLongest", "Right").encode("a b c"), (Ids{1, 2, 3, 7}));
    // A fixed length is filled up to, and what is longer stays.
    EXPECT_EQ(with({{"Fixed", 1}}, "Right").encode_batch(context, texts),
              (std::vector<Ids>{{1, 7}, {1, 2, 3}, {7, 7}}));
}

TEST(Tokenizer, WhatCannotBeCutIsRefused) {
    const auto with = [](const char* strategy) {
        return Tokenizer::from_json(file_with(
            {{"truncation", {{"direction", "Right"}, {"max_length", 2}, {"strategy", strategy}, {"stride", 0}}}}));
    };
    EXPECT_EQ(with("OnlyFirst").encode("a b c"), (Ids{1, 2}));
    EXPECT_EQ(with("OnlyFirst").encode_pair("a b", "c").ids, (Ids{1, 3}));
    EXPECT_THROW(with("OnlyFirst").encode_pair("a", "b c"), Error);
    EXPECT_THROW(with("OnlySecond").encode("a b c"), Error);
    EXPECT_EQ(with("OnlySecond").encode_pair("a", "b c").ids, (Ids{1, 2}));
    EXPECT_THROW(with("Magic"), Error);
}

/// Pieces by their number, a = 1, as a Split of this kind leaves them.
Ids pieces_of(const json& pre_tokenizer, const std::string& text, const std::vector<std::string>& words) {
    json vocabulary = {{"?", 0}};
    for (std::size_t n = 0; n < words.size(); ++n) { vocabulary[words[n]] = n + 1; }
    return Tokenizer::from_json(
               file_with({{"pre_tokenizer", pre_tokenizer},
                          {"model", {{"type", "WordLevel"}, {"unk_token", "?"}, {"vocab", vocabulary}}}}))
        .encode(text);
}

TEST(Tokenizer, ExpressionsMeanWhatOnigurumaMeans) {
    const auto isolated = [](const char* pattern) {
        return json{{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}};
    };
    // A fraction of Latin-1 is a word character, but not in brackets.
    EXPECT_EQ(pieces_of(isolated("\\w+"), "a½-", {"a½", "-"}), (Ids{1, 2}));
    EXPECT_EQ(pieces_of(isolated("[^\\w]"), "a½-", {"a", "½", "-"}), (Ids{1, 2, 3}));
    EXPECT_EQ(pieces_of(isolated("\\b"), "a½-", {"a½", "-"}), (Ids{1, 2}));
    EXPECT_EQ(pieces_of(isolated("[[:digit:][:blank:]]+"), "a1 \tb", {"a", "1 \t", "b"}), (Ids{1, 2, 3}));
    EXPECT_EQ(pieces_of(isolated("\\p{XDigit}+"), "xFf9g", {"x", "Ff9", "g"}), (Ids{1, 2, 3}));
    EXPECT_EQ(pieces_of(isolated("\\H+"), "xFf9g", {"x", "Ff9", "g"}), (Ids{1, 2, 3}));
    EXPECT_EQ(pieces_of(isolated("(?m:a.)b"), "ca\nb", {"c", "a\nb"}), (Ids{1, 2}));
}

TEST(Tokenizer, CharactersNewerThanTheTableOfScriptsBelongToAny) {
    const json scripts = {{"type", "UnicodeScripts"}};
    EXPECT_EQ(pieces_of(scripts, "a\U00020000", {"a", "\U00020000"}), (Ids{1, 2}));
    EXPECT_EQ(pieces_of(scripts, "a\U0003000D", {"a\U0003000D"}), (Ids{1}));
    EXPECT_EQ(pieces_of(scripts, "a\uE000", {"a\uE000"}), (Ids{1}));
    EXPECT_EQ(pieces_of(scripts, ".\u061C", {".\u061C"}), (Ids{1}));
    EXPECT_EQ(pieces_of(scripts, ".\u0589", {".\u0589"}), (Ids{1}));
}

TEST(Tokenizer, FilesThatCannotBeUsedAreRefused) {
    const auto refused = [](const std::string& text, const std::string& because) {
        try {
            Tokenizer::from_json(text);
            ADD_FAILURE() << "accepted: " << text.substr(0, 200);
        } catch (const Error& error) {
            EXPECT_NE(std::string(error.what()).find(because), std::string::npos) << error.what();
        }
    };
    refused("", "JSON text");
    refused("[]", "expected an object");
    refused(std::string(100, '['), "levels");
    refused(file_with({{"model", {{"type", "Magic"}}}}), "model.type");
    refused(file_with({{"normalizer", {{"type", "Magic"}}}}), "normaliser that heed knows");
    refused(file_with({{"pre_tokenizer", {{"type", "Magic"}}}}), "pre-tokeniser");
    refused(file_with({{"decoder", {{"type", "Magic"}}}}), "decoder");
    refused(
        file_with({{"model", {{"type", "WordLevel"}, {"unk_token", "?"}, {"vocab", {{"?", 0}, {"a", 1000000000}}}}}}),
        "gaps");
    refused(file_with({{"model", {{"type", "WordLevel"}, {"unk_token", "?"}, {"vocab", {{"?", 0}, {"a", 0}}}}}}),
            "every id once");
    refused(file_with({{"version", "2.0"}}), "version");
    refused(file_with({{"pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "_"}, {"add_prefix_space", false}}}}),
            "add_prefix_space");
    refused(file_with({{"decoder", {{"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "maybe"}}}}),
            "prepend_scheme");
    refused(file_with({{"added_tokens", json::array({{{"id", 5}, {"content", "<x>"}}})},
                       {"model", {{"type", "WordLevel"}, {"unk_token", "?"}, {"vocab", {{"?", 0}, {"a", 2}}}}}}),
            "twice");
    refused(file_with({{"model", {{"type", "BPE"}, {"vocab", {{"a", 0}}}, {"merges", {"a b"}}}}}),
            "two tokens of the vocabulary");
    refused(file_with({{"model", {{"type", "BPE"}, {"vocab", {{"a", 0}, {"b", 1}}}, {"merges", {"a b"}}}}}),
            "make one");
    refused(
        file_with({{"model", {{"type", "BPE"}, {"dropout", 0.1}, {"vocab", {{"a", 0}}}, {"merges", json::array()}}}}),
        "dropout");
    refused(file_with({{"model",
                        {{"type", "Unigram"},
                         {"unk_id", 3},
                         {"vocab", json::array({json::array({"a", 0.0}), json::array({"b", 0.0})})}}}}),
            "unk_id");
    for (const char* pattern : {"(", "[a", "a**b)", "(a)\\1", "\\p{Nonsense}", "x{2000}", "(a*)*", "(?<n>a)",
                                "[\\p{L}--[a]]", "\\p{Script=Greek}", "[[:magic:]]", "\\R"}) {
        refused(file_with({{"pre_tokenizer",
                            {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Removed"}}}}),
                "pattern");
    }
}

TEST(Tokenizer, PatternsThatExplodeAreGivenUp) {
    const Tokenizer tokenizer = Tokenizer::from_json(file_with(
        {{"pre_tokenizer",
          {{"type", "Split"}, {"pattern", {{"Regex", "(?:a|aa)+(?:a|aa)+(?:a|aa)+x"}}}, {"behavior", "Removed"}}}}));
    EXPECT_EQ(tokenizer.encode("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"), Ids{0});
    EXPECT_THROW(tokenizer.encode(std::string(100000, 'a')), Error);
}

TEST(TrainByteBpe, MergesTheMostFrequentPairFirst) {
    const std::vector<std::string_view> texts = {"low low low low low", "lower lower",
                                                 "newest newest newest newest newest newest"};
    const Tokenizer tokenizer = train_byte_bpe(texts, {.vocabulary = 260});
    EXPECT_EQ(tokenizer.size(), 260);
    EXPECT_EQ(tokenizer.token_of(256), "we");
    EXPECT_EQ(train_byte_bpe(texts, {.vocabulary = 260}).to_json(), tokenizer.to_json());
    EXPECT_THROW(train_byte_bpe(texts, {.vocabulary = 255}), Error);
    EXPECT_THROW(train_byte_bpe(texts, {.special_tokens = {""}}), Error);
}

}  // namespace
}  // namespace heed::testing
