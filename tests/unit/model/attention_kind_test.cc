#include <gtest/gtest.h>
#include <heed/error.h>
#include <heed/sizes.h>

namespace heed {
namespace {

TEST(AttentionKind, OfPresets) {
    EXPECT_EQ(attention_kind(model_preset("llama-2-7b")), AttentionKind::mha);
    EXPECT_EQ(attention_kind(model_preset("llama-3-8b")), AttentionKind::gqa);
    EXPECT_EQ(attention_kind(model_preset("deepseek-v3")), AttentionKind::mla);
    EXPECT_EQ(attention_kind(with_attention(model_preset("gpt2"), AttentionKind::mqa)), AttentionKind::mqa);
    EXPECT_EQ(name_of(AttentionKind::gqa), "GQA");
}

TEST(AttentionKind, ItsOwnKindChangesNothing) {
    for (const std::string& name : model_presets()) {
        const ModelShape model = model_preset(name);
        const ModelShape same = with_attention(model, attention_kind(model));
        EXPECT_EQ(parameters(same).total, parameters(model).total) << name;
        EXPECT_EQ(kv_bytes_per_token(same, 2), kv_bytes_per_token(model, 2)) << name;
    }
}

TEST(AttentionKind, DefaultGroups) {
    const auto groups = [](std::int64_t heads) {
        ModelShape model = model_preset("llama-2-7b");
        model.heads = model.kv_heads = heads;
        return with_attention(model, AttentionKind::gqa).kv_heads;
    };
    EXPECT_EQ(groups(96), 8);
    EXPECT_EQ(groups(12), 6);
    EXPECT_EQ(groups(8), 4);
    EXPECT_EQ(groups(25), 5);
    EXPECT_EQ(groups(7), 1);
    EXPECT_EQ(groups(1), 1);
    EXPECT_EQ(with_attention(model_preset("qwen2.5-7b"), AttentionKind::gqa).kv_heads, 4);
}

TEST(AttentionKind, LatentRatios) {
    const ModelShape model = with_attention(model_preset("qwen2.5-7b"), AttentionKind::mla);
    ASSERT_TRUE(model.latent);
    EXPECT_EQ(model.latent->query_rank, 0);
    EXPECT_EQ(model.latent->kv_rank, 512);
    EXPECT_EQ(model.latent->rope_size, 64);
    EXPECT_FALSE(model.qkv_bias);

    const LatentAttention own{.query_rank = 96, .kv_rank = 64, .nope_size = 32, .rope_size = 16, .value_size = 32};
    const ModelShape chosen = with_attention(model_preset("gpt2"), AttentionKind::mla, {.latent = own});
    EXPECT_EQ(kv_bytes_per_token(chosen, 2), 12 * (64 + 16) * 2);
}

TEST(AttentionKind, RefusesGroupsThatDoNotDivide) {
    try {
        with_attention(model_preset("llama-3-8b"), AttentionKind::gqa, {.groups = 5});
        FAIL() << "no error";
    } catch (const Error& error) {
        EXPECT_STREQ(error.what(), "[with_attention] groups: expected a divisor of the 32 heads, got 5");
    }
    EXPECT_THROW(with_attention(model_preset("gpt2"), AttentionKind::gqa, {.groups = -4}), Error);
    EXPECT_THROW(with_attention(model_preset("gpt2"), AttentionKind::mla, {.latent = LatentAttention{}}), Error);
}

}  // namespace
}  // namespace heed
