#include <heed/model.h>
#include <heed/model_config.h>

#include <gtest/gtest.h>

namespace heed {
namespace {

std::string refusal(const std::string& text) {
    try {
        read_model_config(text);
    } catch (const Error& error) { return error.what(); }
    return "no error";
}

TEST(ModelConfig, WhatIsNotSaidHasADefault) {
    const ModelConfig config =
        read_model_config(R"({"vocab": 100, "d_model": 64, "decoder": {"layers": 3, "positions": {"kind": "rope"}}})");
    EXPECT_EQ(config.family, "heed");
    ASSERT_EQ(config.decoder.layers.size(), 3U);
    const AttentionConfig& attention = config.decoder.layers[2].attention;
    EXPECT_EQ(attention.kv_heads, 8);
    EXPECT_EQ(attention.head_size, 8);
    EXPECT_EQ(attention.rope->size, 8);
    EXPECT_TRUE(config.decoder.causal);
    EXPECT_EQ(config.decoder.layers[0].feed_forward.size, 256);
}

TEST(ModelConfig, APatternIsRepeatedOverTheLayers) {
    const ModelConfig config = read_model_config(R"({"vocab": 100, "d_model": 64, "decoder": {"layers": 5,
        "attention": {"heads": 4}, "pattern": [{"attention": {"core": "linear"}}, {}, {"feed_forward": {"size": 7}}]}})");
    const auto& layers = config.decoder.layers;
    EXPECT_EQ(layers[0].attention.core, AttentionCore::linear);
    EXPECT_EQ(layers[1].attention.core, AttentionCore::softmax);
    EXPECT_EQ(layers[3].attention.core, AttentionCore::linear);
    EXPECT_EQ(layers[2].feed_forward.size, 7);
    EXPECT_EQ(layers[4].attention.heads, 4);
}

TEST(ModelConfig, WrittenAndReadAgainIsTheSame) {
    const std::string text = R"({"vocab": 50, "d_model": 24, "kind": "encoder_decoder", "decoder_start": 3, "eos": [2],
        "encoder": {"layers": 2, "attention": {"heads": 2}, "positions": {"kind": "relative"}},
        "decoder": {"layers": 2, "positions": {"kind": "rope"}, "pattern": [
            {"attention": {"heads": 3, "rope": {"theta": 500.0, "scaling": {"type": "yarn", "factor": 4.0,
                "trained": 32, "attention_factor": null}}}}, {"attention": {"heads": 6, "kv_heads": 2}}]}})";
    const std::string once = write_model_config(read_model_config(text));
    EXPECT_EQ(write_model_config(read_model_config(once)), once);
    EXPECT_NE(once.find("\"yarn\""), std::string::npos);
}

TEST(ModelConfig, MistakesNameTheLineAndTheKey) {
    EXPECT_EQ(refusal("{\"vocab\": 10, \"d_model\": 8,\n \"decoder\": {\n  \"layers\": 1,\n  \"attention\": {\n"
                      "    \"heads\": \"two\"}}}"),
              "[read_model_config] line 5, \"decoder.attention.heads\": expected an integer, got \"two\"");
    EXPECT_EQ(refusal("{\"vocab\": 10,\n \"dmodel\": 8}").substr(0, 50),
              "[read_model_config] line 2, \"dmodel\": expected one");
    EXPECT_EQ(refusal("{\"vocab\": 10, \"d_model\": 8, \"decoder\": {\"layers\": 1,\n\"pattern\": [{},\n"
                      "{\"attention\": {\"core\": \"fast\"}}]}}"),
              "no error")
        << "the pattern's second entry belongs to no layer";
    EXPECT_EQ(refusal("{\"vocab\": 10, \"d_model\": 8, \"decoder\": {\"layers\": 2,\n\"pattern\": [{},\n"
                      "{\"attention\": {\"core\": \"fast\"}}]}}"),
              "[read_model_config] line 3, \"decoder.pattern.1.attention.core\": expected one of softmax, linear, "
              "infini, gated, delta, gated_delta, got \"fast\"");
    EXPECT_EQ(refusal(R"({"vocab": 10, "d_model": 9, "decoder": {"layers": 1, "attention": {"heads": 2}}})"),
              "[checked] decoder.layers[0].attention.heads: expected a divisor of d_model 9, got 2");
    EXPECT_EQ(refusal(R"({"vocab": 0, "d_model": 8, "decoder": {"layers": 1}})"),
              "[checked] vocab: expected 1 to 1073741824, got 0");
}

TEST(ModelConfig, HugeClaimsAreRefusedBeforeAnythingIsMade) {
    EXPECT_NE(
        refusal(R"({"vocab": 10, "d_model": 8, "decoder": {"layers": 1000}})").find("expected 1 to 512, got 1000"),
        std::string::npos);
    const ModelConfig large = read_model_config(
        R"({"vocab": 100000, "d_model": 1048576, "decoder": {"layers": 100, "attention": {"heads": 128}}})");
    EXPECT_THROW(Model::random(large), Error);
}

TEST(ModelConfig, FamiliesSayWhatHeedLacks) {
    EXPECT_NE(refusal(R"({"model_type": "mamba"})").find("model_type: expected one of bart, bert, bloom"),
              std::string::npos);
    const std::string llama = R"("model_type": "llama", "hidden_size": 8, "num_attention_heads": 2,
        "num_hidden_layers": 1, "intermediate_size": 8, "vocab_size": 10)";
    EXPECT_EQ(refusal("{" + llama + "}"), "no error");
    EXPECT_NE(refusal("{" + llama + R"(, "hidden_act": "mish"})").find("hidden_act: expected an activation"),
              std::string::npos);
    EXPECT_NE(refusal("{" + llama + R"(, "rope_scaling": {"type": "new"}})").find("rope_type"), std::string::npos);
    EXPECT_NE(refusal("{" + llama + R"(, "quantization_config": {"bits": 4}})").find("quantization_config"),
              std::string::npos);
}

TEST(ModelConfig, FamiliesDifferInWhatTheirSettingsMean) {
    const ModelConfig bloom = read_model_config(R"({"model_type": "bloom", "hidden_size": 8, "n_head": 2, "n_layer": 1,
        "vocab_size": 10, "apply_residual_connection_post_layernorm": true})");
    EXPECT_EQ(bloom.decoder.placement, Placement::normed);

    const std::string translator = R"("d_model": 8, "vocab_size": 10, "encoder_layers": 1, "decoder_layers": 1,
        "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8,
        "max_position_embeddings": 16)";
    const ModelConfig bart =
        read_model_config(R"({"model_type": "bart", "tie_word_embeddings": false, )" + translator + "}");
    EXPECT_EQ(bart.source_vocab, 10);
    EXPECT_FALSE(bart.head->tied);
    const ModelConfig marian = read_model_config(R"({"model_type": "marian", "decoder_vocab_size": 13,
        "share_encoder_decoder_embeddings": false, )" +
                                                 translator + "}");
    EXPECT_EQ(marian.source_vocab, 10);
    EXPECT_EQ(marian.input_vocab(), 10);
    EXPECT_EQ(marian.vocab, 13);
    EXPECT_TRUE(marian.head->tied);
    EXPECT_THROW(shape_of(marian), Error);
    EXPECT_NE(refusal(R"({"model_type": "marian", "decoder_vocab_size": 13, )" + translator + "}")
                  .find("decoder_vocab_size: expected the same as vocab_size"),
              std::string::npos);

    const std::string rotary = R"("hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1,
        "intermediate_size": 8, "vocab_size": 10, "max_position_embeddings": 64)";
    // Its experts have an activation of their own.
    EXPECT_EQ(refusal(R"({"model_type": "gpt_oss", "hidden_act": "mish", "num_key_value_heads": 2, "head_dim": 4,
        "num_local_experts": 2, "num_experts_per_tok": 1, "rope_parameters": {"rope_type": "default"}, )" +
                      rotary + "}"),
              "no error");
    const ModelConfig phi3 = read_model_config(R"({"model_type": "phi3", "original_max_position_embeddings": 12,
        "rope_scaling": {"type": "yarn", "short_factor": [1, 1], "long_factor": [2, 3],
                         "original_max_position_embeddings": 99}, )" +
                                               rotary + "}");
    EXPECT_EQ(phi3.recompute_beyond(), 12) << "its yarn is LongRoPE, and the length stands beside the settings";
}

TEST(ModelConfig, DeepseekSettingsByVersion) {
    const std::string both = R"("hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 2, "vocab_size": 10,
        "intermediate_size": 8, "kv_lora_rank": 4, "qk_nope_head_dim": 4, "qk_rope_head_dim": 2, "v_head_dim": 4,
        "n_routed_experts": 4, "num_experts_per_tok": 1, "moe_intermediate_size": 4, "n_shared_experts": 1,
        "n_group": 2, "topk_group": 1, "topk_method": "greedy", "first_k_dense_replace": )";
    const auto groups = [](const ModelConfig& c) { return c.decoder.layers.back().feed_forward.experts.groups; };
    EXPECT_EQ(groups(read_model_config(R"({"model_type": "deepseek_v2", )" + both + "1}")), 1);
    EXPECT_EQ(groups(read_model_config(R"({"model_type": "deepseek_v3", )" + both + "1}")), 2) << "always in groups";
    EXPECT_NE(refusal(R"({"model_type": "deepseek_v2", "mlp_bias": true, )" + both + "1}").find("mlp_bias"),
              std::string::npos);
    const ModelConfig dense = read_model_config(R"({"model_type": "deepseek_v2", "mlp_bias": true, )" + both + "2}");
    EXPECT_TRUE(dense.decoder.layers[0].feed_forward.bias);
}

TEST(ModelConfig, WhatASizeCannotSayIsNotCounted) {
    const ModelConfig config = read_model_config(
        R"({"vocab": 10, "d_model": 8, "decoder": {"layers": 1, "attention": {"heads": 2, "sinks": true}}})");
    EXPECT_THROW(shape_of(config), Error);
}

TEST(ModelConfig, TheModelOf2017ByItsNumbers) {
    const ModelConfig config = transformer_2017();
    EXPECT_EQ(parameters(shape_of(config)).total, 63'045'632);
    const Model small = Model::random(transformer_2017(50));
    EXPECT_EQ(small.parameters().elements(), 63'045'632 - (37000 - 50) * 512);
    Context context(2);
    const std::vector<std::int64_t> source = {4, 7, 9, 3, 2}, target = {0, 8, 6};
    const ForwardResult result = small.forward(
        context, {.input_ids = View(source.data(), {1, 5}), .decoder_input_ids = View(target.data(), {1, 3})},
        {.hidden = true, .attention = true});
    EXPECT_EQ(to_string(result.logits.shape()), "[1, 3, 50]");
    ASSERT_EQ(result.hidden.size(), 7U);
    EXPECT_EQ(to_string(result.hidden[6].shape()), "[1, 3, 512]");
    EXPECT_EQ(to_string(result.encoder_attention.at(5).shape()), "[1, 8, 5, 5]");
    EXPECT_EQ(to_string(result.decoder_attention.at(5).shape()), "[1, 8, 3, 3]");
    EXPECT_EQ(to_string(result.cross_attention.at(5).shape()), "[1, 8, 3, 5]");
}

}  // namespace
}  // namespace heed
