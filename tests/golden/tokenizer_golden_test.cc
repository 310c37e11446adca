/// Tokenizers against Hugging Face's: see data/tokenizers.
#include <heed/tokenizer.h>

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

namespace heed::testing {
namespace {

using Ids = std::vector<std::int64_t>;

class TokenizerGolden : public ::testing::TestWithParam<const char*> {};

TEST_P(TokenizerGolden, EncodesAndDecodesAsHuggingFace) {
    const std::string folder = std::string(HEED_TEST_DATA) + "/tokenizers/" + GetParam();
    const Tokenizer tokenizer(folder);
    std::ifstream file(folder + "/cases.json");
    const nlohmann::json cases = nlohmann::json::parse(file)["cases"];
    ASSERT_GT(cases.size(), 100U);
    for (const nlohmann::json& expected : cases) {
        const std::string text = expected["text"];
        const Ids ids = expected["ids"], plain = expected["plain"];
        EXPECT_EQ(tokenizer.encode(text), ids) << text;
        EXPECT_EQ(tokenizer.encode(text, {.add_special_tokens = false}), plain) << text;
        EXPECT_EQ(tokenizer.decode(plain), expected["decoded"].get<std::string>()) << text;
        EXPECT_EQ(tokenizer.decode(ids, false), expected["decoded_with_special"].get<std::string>()) << text;
    }
}

INSTANTIATE_TEST_SUITE_P(Kinds, TokenizerGolden, ::testing::Values("bert", "gpt2", "llama2", "llama3", "unigram"));

}  // namespace
}  // namespace heed::testing
