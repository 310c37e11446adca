#include <gtest/gtest.h>

#include <heed/error.h>
#include <heed/tokenizer.h>

namespace heed {
namespace {

TEST(ByteTokenizer, IdsAreTheBytes) {
    const Tokenizer tokenizer = byte_tokenizer();
    EXPECT_EQ(tokenizer.id_limit(), 256);
    std::string all;
    for (int byte = 0; byte < 256; ++byte) { all += static_cast<char>(byte); }
    const std::vector<std::int64_t> ids = tokenizer.encode(all);
    ASSERT_EQ(ids.size(), 256U);
    for (std::size_t n = 0; n < ids.size(); ++n) { EXPECT_EQ(ids[n], static_cast<std::int64_t>(n)); }
    EXPECT_EQ(tokenizer.decode_bytes(ids), all);
    EXPECT_EQ(tokenizer.decode(tokenizer.encode("naïve 注意\n")), "naïve 注意\n");
}

TEST(ByteTokenizer, SpecialTokensGoAroundAText) {
    const Tokenizer tokenizer =
        with_special_tokens(byte_tokenizer(), {.added = {"<s>", "</s>"}, .before = {"<s>"}, .after = {"</s>"}});
    EXPECT_EQ(tokenizer.encode("ab"), (std::vector<std::int64_t>{256, 'a', 'b', 257}));
    EXPECT_EQ(tokenizer.encode("ab", {.add_special_tokens = false}), (std::vector<std::int64_t>{'a', 'b'}));
    EXPECT_EQ(tokenizer.decode(std::vector<std::int64_t>{256, 'a', 257}), "a");
    EXPECT_TRUE(tokenizer.is_special(257));
    // What is spelled out counts only where the text is trusted.
    EXPECT_EQ(tokenizer.encode("<s>", {.add_special_tokens = false}), (std::vector<std::int64_t>{256}));
    EXPECT_EQ(tokenizer.encode("<s>", {.add_special_tokens = false, .allow_special = false}).size(), 3U);
    // As the file brings it back.
    EXPECT_EQ(Tokenizer::from_json(tokenizer.to_json()).encode("ab"), tokenizer.encode("ab"));
}

TEST(ByteTokenizer, MistakesAreNamed) {
    const auto message = [](const SpecialTokens& tokens) -> std::string {
        try {
            with_special_tokens(byte_tokenizer(), tokens);
        } catch (const Error& error) { return error.what(); }
        return "";
    };
    EXPECT_EQ(message({.added = {"<s>", "<s>"}}),
              "[with_special_tokens] added: expected a token that is new, got '<s>'");
    EXPECT_EQ(message({.added = {"a"}}), "[with_special_tokens] added: expected a token that is new, got 'a'");
    EXPECT_EQ(message({.before = {"<s>"}}),
              "[with_special_tokens] template: expected a token that is there, got '<s>'");
}

}  // namespace
}  // namespace heed
