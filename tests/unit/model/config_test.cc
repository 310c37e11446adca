#include <gtest/gtest.h>
#include <heed/error.h>
#include <heed/sizes.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

namespace heed {
namespace {

using nlohmann::json;

const std::filesystem::path folder = std::filesystem::path(HEED_TEST_DATA) / "configs";

std::string read_file(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    EXPECT_TRUE(file) << path;
    return {std::istreambuf_iterator<char>(file), {}};
}

json config(const std::string& name) { return json::parse(read_file(folder / (name + ".json"))); }

std::int64_t total(const json& config) { return parameters(model_from_config(config.dump())).total; }

std::string message_of_text(const std::string& text) {
    try {
        model_from_config(text);
    } catch (const Error& error) { return error.what(); }
    return "no error";
}

std::string message_with(const std::string& name, const std::string& key, const json& value) {
    json changed = config(name);
    changed[key] = value;
    return message_of_text(changed.dump());
}

std::string message_without(const std::string& name, const std::string& key) {
    json changed = config(name);
    changed.erase(key);
    return message_of_text(changed.dump());
}

// The element counts come from checkpoints that transformers wrote; see README.md beside them.
TEST(Config, ParametersEqualTheElementsOfTheCheckpoint) {
    const json elements = json::parse(read_file(folder / "elements.json"));
    EXPECT_EQ(elements.size(), 18U);
    for (const auto& [name, count] : elements.items()) {
        EXPECT_EQ(total(config(name)), count.get<std::int64_t>()) << name;
    }
}

json deepseek_v3() {
    return {{"model_type", "deepseek_v3"},
            {"num_hidden_layers", 61},
            {"hidden_size", 7168},
            {"num_attention_heads", 128},
            {"num_key_value_heads", 128},
            {"intermediate_size", 18432},
            {"vocab_size", 129280},
            {"q_lora_rank", 1536},
            {"kv_lora_rank", 512},
            {"qk_nope_head_dim", 128},
            {"qk_rope_head_dim", 64},
            {"v_head_dim", 128},
            {"n_routed_experts", 256},
            {"n_shared_experts", 1},
            {"num_experts_per_tok", 8},
            {"moe_intermediate_size", 2048},
            {"first_k_dense_replace", 3},
            {"moe_layer_freq", 1},
            {"num_nextn_predict_layers", 1},
            {"tie_word_embeddings", false},
            {"max_position_embeddings", 163840},
            {"quantization_config", {{"quant_method", "fp8"}}}};
}

TEST(Config, ExpertsAsInThePreset) {
    const ParameterCount read = parameters(model_from_config(deepseek_v3().dump()));
    const ParameterCount preset = parameters(model_preset("deepseek-v3"));
    EXPECT_EQ(read.total, preset.total);
    EXPECT_EQ(read.active, preset.active);
    json dense = deepseek_v3();
    dense["n_routed_experts"] = nullptr;
    EXPECT_FALSE(model_from_config(dense.dump()).experts);
}

TEST(Config, AbsentKeysTakeTheirDefaults) {
    // As an early Llama-2 file has it: no key/value heads, no head size.
    const json llama = {{"architectures", {"LlamaForCausalLM"}},
                        {"model_type", "llama"},
                        {"hidden_size", 4096},
                        {"intermediate_size", 11008},
                        {"num_attention_heads", 32},
                        {"num_hidden_layers", 32},
                        {"vocab_size", 32000}};
    EXPECT_EQ(total(llama), 6'738'415'616);
    json typeless = llama;
    typeless.erase("model_type");
    EXPECT_EQ(total(typeless), 6'738'415'616);  // the architecture says enough

    json mistral = llama;
    mistral["model_type"] = "mistral";
    mistral["architectures"] = {"MistralForCausalLM"};
    EXPECT_EQ(model_from_config(mistral.dump()).kv_heads, 8);
    mistral["num_key_value_heads"] = nullptr;
    EXPECT_EQ(model_from_config(mistral.dump()).kv_heads, 32);

    json qwen3 = config("qwen3");
    qwen3["head_dim"] = nullptr;
    EXPECT_EQ(model_from_config(qwen3.dump()).head_size, 128);
}

TEST(Config, BothSpellings) {
    json gpt2 = config("gpt2");
    const std::int64_t expected = total(gpt2);
    for (const auto& [old_key, new_key] : {std::pair{"n_embd", "hidden_size"},
                                           {"n_layer", "num_hidden_layers"},
                                           {"n_head", "num_attention_heads"},
                                           {"n_positions", "max_position_embeddings"}}) {
        gpt2[new_key] = gpt2[old_key];
        EXPECT_EQ(total(gpt2), expected) << new_key;  // both, and they agree
        gpt2.erase(old_key);
        EXPECT_EQ(total(gpt2), expected) << new_key;
    }
    EXPECT_EQ(message_with("gpt2", "hidden_size", 128),
              "[model_from_config] hidden_size: expected the same as n_embd, 64, got 128");
}

TEST(Config, BiasesAndTying) {
    json llama = config("llama");
    const std::int64_t plain = total(llama);
    llama["attention_bias"] = true;  // q 64, k and v 32, out 64, in each of 2 layers
    EXPECT_EQ(total(llama), plain + 2 * (64 + 32 + 32 + 64));
    llama["attention_bias"] = false;
    llama["mlp_bias"] = true;
    EXPECT_EQ(total(llama), plain + 2 * (96 + 96 + 64));
    llama["mlp_bias"] = false;
    llama["tie_word_embeddings"] = true;
    EXPECT_EQ(total(llama), plain - 160 * 64);

    json t5 = config("t5");
    const std::int64_t relu = total(t5);
    t5["feed_forward_proj"] = "gated-gelu";  // one more matrix in each of 4 blocks
    EXPECT_EQ(total(t5), relu + 4 * 64 * 96);

    json latent = config("deepseek-v3-mla");
    const std::int64_t unbiased = total(latent);
    latent["attention_bias"] = true;  // query rank 48, latent 32 and rotated part 8, output 64
    EXPECT_EQ(total(latent), unbiased + 2 * (48 + 32 + 8 + 64));
}

TEST(Config, ArchitectureDecidesTheHead) {
    json bert = config("bert");
    const std::int64_t d = 64, vocab = 160, masked = total(bert);
    const std::int64_t transform = d * d + d + 2 * d + vocab, pooler = d * d + d;
    bert["architectures"] = {"BertModel"};
    EXPECT_EQ(total(bert), masked - transform + pooler);
    bert.erase("architectures");
    EXPECT_EQ(total(bert), masked - transform + pooler);
    bert["architectures"] = {"BertForPreTraining"};
    EXPECT_EQ(total(bert), masked + pooler + 2 * (d + 1));

    json llama = config("llama");
    const std::int64_t full = total(llama);
    llama["architectures"] = {"LlamaModel"};
    EXPECT_EQ(total(llama), full - vocab * d);
    EXPECT_EQ(message_with("llama", "architectures", {"LlamaForTokenClassification"}),
              "[model_from_config] architectures: expected LlamaForCausalLM or LlamaModel, got "
              "[\"LlamaForTokenClassification\"]");
}

TEST(Config, UnequalStacks) {
    json bart = config("bart");
    const std::int64_t even = total(bart);
    bart["encoder_ffn_dim"] = 128;
    EXPECT_EQ(total(bart), even + 2 * 32 * (2 * 64 + 1));
    bart["encoder_layers"] = 1;
    const ModelShape model = model_from_config(bart.dump());
    EXPECT_EQ(model.encoder_layers, 1);
    EXPECT_EQ(model.layers, 2);
}

TEST(Config, MessagesNameKeyExpectationAndValue) {
    EXPECT_EQ(message_without("llama", "hidden_size"),
              "[model_from_config] hidden_size: expected an integer from 1 to 16777216, got no such key");
    EXPECT_EQ(message_without("gpt2", "n_layer"),
              "[model_from_config] n_layer or num_hidden_layers: expected an integer from 1 to 65536, got no such key");
    EXPECT_EQ(message_with("llama", "hidden_size", nullptr),
              "[model_from_config] hidden_size: expected an integer from 1 to 16777216, got null");
    EXPECT_EQ(message_with("llama", "hidden_size", -64),
              "[model_from_config] hidden_size: expected an integer from 1 to 16777216, got -64");
    EXPECT_EQ(message_with("llama", "hidden_size", 64.0),
              "[model_from_config] hidden_size: expected an integer from 1 to 16777216, got 64.0");
    EXPECT_EQ(message_with("llama", "hidden_size", "64"),
              "[model_from_config] hidden_size: expected an integer from 1 to 16777216, got \"64\"");
    EXPECT_EQ(message_with("llama", "hidden_size", 18446744073709551615ULL),
              "[model_from_config] hidden_size: expected an integer from 1 to 16777216, got 18446744073709551615");
    EXPECT_EQ(message_with("llama", "num_key_value_heads", 3),
              "[model_from_config] num_key_value_heads: expected a divisor of the 4 heads, got 3");
    EXPECT_EQ(message_with("gpt2", "n_head", 5),
              "[model_from_config] n_head: expected a divisor of the width 64, got 5");
    EXPECT_EQ(message_with("llama", "tie_word_embeddings", "yes"),
              "[model_from_config] tie_word_embeddings: expected true or false, got \"yes\"");
    EXPECT_EQ(message_with("marian", "decoder_vocab_size", 200),
              "[model_from_config] decoder_vocab_size: expected the same as vocab_size, 160, got 200");
    EXPECT_EQ(message_with("gpt2", "add_cross_attention", true),
              "[model_from_config] add_cross_attention: expected false, got true");
    EXPECT_EQ(message_with("deepseek-v3-mla", "num_experts_per_tok", 5),
              "[model_from_config] num_experts_per_tok: expected an integer from 1 to 4, got 5");
    EXPECT_NE(message_with("llama", "model_type", "mamba").find("expected one of bart, bert, bloom, "),
              std::string::npos);
    EXPECT_NE(message_with("llama", "model_type", 7).find("model_type: expected a string, got 7"), std::string::npos);
    EXPECT_NE(message_with("llama", "architectures", "Llama").find("expected a list of strings, got \"Llama\""),
              std::string::npos);
    EXPECT_NE(message_with("llama", "architectures", {1}).find("expected a list of strings, got [1]"),
              std::string::npos);
}

TEST(Config, HostileText) {
    EXPECT_EQ(message_of_text(""), "[model_from_config] json: expected JSON text, got something else at byte 1");
    EXPECT_EQ(message_of_text("[1]"), "[model_from_config] json: expected an object, got [1]");
    EXPECT_EQ(message_of_text("null"), "[model_from_config] json: expected an object, got null");
    EXPECT_NE(message_of_text("{} {}").find("expected JSON text"), std::string::npos);
    EXPECT_NE(message_of_text("{\"model_type\": \"\xff\"}").find("expected JSON text"), std::string::npos);
    EXPECT_NE(message_of_text("{\"a\": 1e999}").find("that a double can hold"), std::string::npos);
    EXPECT_EQ(message_of_text("{\"a\": 1, \"b\": 2, \"a\": 3}"),
              "[model_from_config] json: expected every key once, got \"a\" twice");
    EXPECT_EQ(message_of_text(std::string(100000, '[')),
              "[model_from_config] json: expected at most 32 levels, got more");
    EXPECT_NE(message_of_text(std::string((16U << 20U) + 1, ' ')).find("at most 16777216 bytes"), std::string::npos);
    // Nothing that a terminal would obey, and not more than fits a line.
    const std::string text = message_with("llama", "vocab_size", "\x1b[31m" + std::string(5000, 'x'));
    EXPECT_EQ(text.find('\x1b'), std::string::npos);
    EXPECT_LT(text.size(), 200U);
}

TEST(Config, CutAnywhere) {
    const std::string text = read_file(folder / "llama.json");
    const std::size_t end = text.rfind('}');
    for (std::size_t length = 0; length <= end; ++length) {
        EXPECT_THROW(model_from_config(text.substr(0, length)), Error) << length;
    }
    EXPECT_NO_THROW(model_from_config(text.substr(0, end + 1)));
}

TEST(Config, LargestSizesAreRefusedWhenCounted) {
    json model = deepseek_v3();
    model["num_hidden_layers"] = 65536;
    model["hidden_size"] = model["n_routed_experts"] = model["moe_intermediate_size"] = 1 << 24;
    const ModelShape shape = model_from_config(model.dump());
    EXPECT_THROW(parameters(shape), Error);
}

}  // namespace
}  // namespace heed
