#include <gtest/gtest.h>
#include <heed/error.h>
#include <heed/sizes.h>

#include <limits>

namespace heed {
namespace {

TEST(Sizes, NotesExample) {
    // Batch 32, 20 tokens, d_model 512, 8 heads.
    const AttentionCost cost = attention_cost(model_preset("transformer-base"), 32, 20);
    EXPECT_EQ(cost.projection_flops, 1'342'177'280);
    EXPECT_EQ(cost.score_flops, 26'214'400);
    EXPECT_EQ(cost.input_numbers, 327'680);
    EXPECT_EQ(cost.score_numbers, 102'400);
    EXPECT_EQ(cost.weight_numbers, 1'048'576);
}

TEST(Sizes, LatentDecodePerTokenAndKey) {
    for (const char* name : {"deepseek-v2-lite", "deepseek-v2", "deepseek-v3"}) {
        const ModelShape model = model_preset(name);
        EXPECT_EQ(attention_flops_per_key(model, LatentForm::absorbed), 2176 * model.heads);
        EXPECT_EQ(attention_flops_per_key(model, LatentForm::expanded), 640 * model.heads);
    }
    const ModelShape plain = model_preset("llama-2-7b");
    EXPECT_EQ(attention_flops_per_key(plain, LatentForm::absorbed), attention_flops_per_key(plain));
}

TEST(Sizes, AttentionParametersByKind) {
    const ModelShape model = model_preset("llama-2-7b");
    const std::int64_t d = model.d_model;
    const auto per_layer = [&](AttentionKind kind, AttentionChoice choice = {}) {
        return parameters(with_attention(model, kind, choice)).attention_layer;
    };
    EXPECT_EQ(per_layer(AttentionKind::mha), 4 * d * d);
    EXPECT_EQ(per_layer(AttentionKind::mqa), 2 * d * d + 2 * d * 128);
    EXPECT_EQ(per_layer(AttentionKind::gqa, {.groups = 4}), 2 * d * d + 2 * d * d * 4 / 32);
    // Direct query, then the latent's projections and norm, then the output.
    EXPECT_EQ(per_layer(AttentionKind::mla), d * 32 * 192 + d * (512 + 64) + 512 + 512 * 32 * 256 + 32 * 128 * d);
}

TEST(Sizes, BreakdownAddsUp) {
    for (const std::string& name : model_presets()) {
        const ParameterCount count = parameters(model_preset(name));
        EXPECT_EQ(count.embedding + count.positions + count.attention + count.ffn + count.norms + count.head,
                  count.total)
            << name;
        EXPECT_LE(count.active, count.total) << name;
        EXPECT_LT(count.active_without_lookup, count.active + 1) << name;
    }
}

TEST(Sizes, RuleOfThumb) {
    // 12 L d^2 without embeddings, biases (9 d) and norms (4 d a block, 2 d at the end).
    const ParameterCount count = parameters(model_preset("gpt3-175b"));
    const std::int64_t layers = 96, d = 12288;
    EXPECT_EQ(count.attention + count.ffn, layers * (12 * d * d + 9 * d));
    EXPECT_EQ(count.norms, layers * 4 * d + 2 * d);
}

TEST(Sizes, ForwardFlops) {
    const ModelShape model = model_preset("llama-3-8b");
    const ParameterCount count = parameters(model);
    const Flops flops = flops_per_token(model, 8192);
    EXPECT_EQ(flops.projections, 2 * count.attention);  // no biases, so every parameter multiplies
    EXPECT_EQ(flops.ffn, 2 * count.ffn);
    EXPECT_EQ(flops.head, 2 * count.head);
    EXPECT_EQ(flops.scores, 32LL * 2 * 32 * (128 + 128) * 8192);
    EXPECT_EQ(flops.total, flops.projections + flops.ffn + flops.head + flops.scores);
    EXPECT_EQ(flops_per_token(model, 0).scores, 0);
}

TEST(Sizes, BiasesAndNormsDoNotMultiply) {
    const ModelShape model = model_preset("gpt2");
    const std::int64_t d = 768, layers = 12;
    const Flops flops = flops_per_token(model, 1024);
    EXPECT_EQ(flops.projections + flops.ffn, layers * 24 * d * d);
    EXPECT_EQ(flops.scores, layers * 4 * d * 1024);
    EXPECT_EQ(flops.head, 2 * d * 50257);  // tied: no parameters of its own, but it multiplies
    // Attention passes the linear layers at six times the width.
    const Flops even = flops_per_token(model, 6 * d);
    EXPECT_EQ(even.scores, even.projections + even.ffn);
}

TEST(Sizes, TrainingIsThreeForwardsAtTheCausalMean) {
    const ModelShape causal = model_preset("gpt2");
    const Flops training = training_flops_per_token(causal, 1023);  // odd, so the mean is a whole number: 512
    EXPECT_EQ(training.total, 3 * flops_per_token(causal, 512).total);
    // Even context: the mean of 1..4 is 2.5 keys.
    EXPECT_EQ(training_flops_per_token(causal, 4).scores * 2, 3 * flops_per_token(causal, 5).scores);

    const ModelShape encoder = model_preset("bert-base");
    EXPECT_EQ(training_flops_per_token(encoder, 512).total, 3 * flops_per_token(encoder, 512).total);
}

TEST(Sizes, EncoderDecoderCountsASourceAndATargetToken) {
    const ModelShape model = model_preset("transformer-base");
    const std::int64_t d = 512;
    const Flops forward = flops_per_token(model, 100);
    EXPECT_EQ(forward.projections, 2 * (6 + 12) * 4 * d * d);
    EXPECT_EQ(forward.scores, (6 + 12) * 4 * d * 100);
    EXPECT_EQ(forward.ffn, 12 * 2 * 2 * d * 2048);
    // Encoder and cross-attention see all 99, the decoder's own 50 on average.
    EXPECT_EQ(training_flops_per_token(model, 99).scores, 3 * 4 * d * (6 * 99 + 6 * 99 + 6 * 50));
}

TEST(Sizes, ExpertsCountOnlyWhereVisited) {
    const ModelShape model = model_preset("deepseek-v3");
    const Flops flops = flops_per_token(model, 1);
    const std::int64_t d = 7168, dense = 3 * 3 * d * 18432, sparse = 58 * ((8 + 1) * 3 * d * 2048 + d * 256);
    EXPECT_EQ(flops.ffn, 2 * (dense + sparse));
}

TEST(Sizes, CacheOfEncodersAndEncoderDecoders) {
    EXPECT_EQ(kv_bytes_per_token(model_preset("bert-base"), 2), 0);
    const ModelShape model = model_preset("transformer-base");
    EXPECT_EQ(kv_bytes_per_token(model, 4), 6 * 2 * 512 * 4);
    EXPECT_EQ(cross_kv_bytes_per_token(model, 4), 6 * 2 * 512 * 4);
    EXPECT_EQ(cross_kv_bytes_per_token(model_preset("gpt2"), 4), 0);
    EXPECT_EQ(kv_cache_bytes(model, 4, 100, 3), 2 * (6 * 2 * 512 * 4) * 100 * 3);  // target and source
}

TEST(Sizes, CacheAt8192TokensIn16Bits) {
    constexpr std::int64_t mib = 1 << 20;
    const auto bytes = [](const char* name) { return kv_cache_bytes(model_preset(name), 2, 8192, 1); };
    EXPECT_EQ(bytes("llama-2-7b"), 4096 * mib);
    EXPECT_EQ(bytes("llama-2-13b"), 6400 * mib);
    EXPECT_EQ(bytes("llama-2-70b"), 2560 * mib);
    EXPECT_EQ(bytes("llama-3-8b"), 1024 * mib);
    EXPECT_EQ(bytes("llama-3.1-405b"), 4032 * mib);
    EXPECT_EQ(bytes("qwen2.5-7b"), 448 * mib);
    EXPECT_EQ(bytes("qwen3-8b"), 1152 * mib);
    EXPECT_EQ(bytes("deepseek-v2-lite"), 243 * mib);
    EXPECT_EQ(bytes("deepseek-v2"), 540 * mib);
    EXPECT_EQ(bytes("deepseek-v3"), 549 * mib);
    EXPECT_EQ(kv_cache_bytes(model_preset("llama-3-8b"), 2, 8192, 4), 4096 * mib);
}

TEST(Sizes, WeightBytes) { EXPECT_EQ(weight_bytes(model_preset("llama-3-8b"), 2), 16'060'522'496); }

TEST(Sizes, SharedLatentIsSmallButMqaIsSmaller) {
    const ModelShape model = model_preset("deepseek-v2");
    const auto numbers = [&](AttentionKind kind) { return kv_bytes_per_token(with_attention(model, kind), 1) / 60; };
    EXPECT_EQ(numbers(AttentionKind::mla), 576);
    EXPECT_EQ(numbers(AttentionKind::mha), 32768);
    EXPECT_EQ(numbers(AttentionKind::mqa), 256);
}

std::string message_of(const ModelShape& model) {
    try {
        parameters(model);
    } catch (const Error& error) { return error.what(); }
    return "no error";
}

TEST(Sizes, RefusesShapesThatCannotBe) {
    ModelShape model = model_preset("llama-3-8b");
    model.kv_heads = 5;
    EXPECT_EQ(message_of(model), "[parameters] kv_heads: expected a divisor of the 32 heads, got 5");
    model = model_preset("llama-3-8b");
    model.d_model = 0;
    EXPECT_EQ(message_of(model), "[parameters] d_model: expected 1 to 16777216, got 0");
    model = model_preset("llama-3-8b");
    model.encoder_layers = 3;
    EXPECT_EQ(message_of(model), "[parameters] encoder_layers: expected 0 to 0, got 3");
    model = model_preset("deepseek-v3");
    model.experts->active = 257;
    EXPECT_EQ(message_of(model), "[parameters] experts.active: expected 1 to 256, got 257");
    EXPECT_EQ(message_of({}), "[parameters] layers: expected 1 to 65536, got 0");
}

TEST(Sizes, RefusesCountsThatDoNotFit) {
    ModelShape model = model_preset("deepseek-v3");
    model.layers = 1 << 16;
    model.d_model = model.experts->d_ff = model.experts->routed = 1 << 24;
    EXPECT_EQ(message_of(model), "[parameters] model: expected counts below 2^63, got a larger one");
    constexpr auto huge = std::numeric_limits<std::int64_t>::max();
    EXPECT_THROW(flops_per_token(model_preset("gpt2"), huge), Error);
    EXPECT_THROW(training_flops_per_token(model_preset("gpt2"), huge), Error);
    EXPECT_THROW(attention_cost(model_preset("gpt2"), huge, huge), Error);
    EXPECT_THROW(kv_bytes_per_token(model_preset("gpt2"), huge), Error);
    EXPECT_THROW(kv_cache_bytes(model_preset("gpt2"), 2, huge, 1), Error);
    EXPECT_THROW(weight_bytes(model_preset("gpt2"), huge), Error);
}

TEST(Sizes, RefusesArgumentsOutOfRange) {
    const ModelShape model = model_preset("gpt2");
    EXPECT_THROW(flops_per_token(model, -1), Error);
    EXPECT_THROW(training_flops_per_token(model, 0), Error);
    EXPECT_THROW(kv_bytes_per_token(model, 0), Error);
    EXPECT_THROW(attention_cost(model, -1, 1), Error);
}

}  // namespace
}  // namespace heed
