#include <heed/error.h>
#include <heed/sizes.h>

#include "base/refuse.h"
#include "model/shape.h"

namespace heed {
namespace {

constexpr std::int64_t usual_groups = 8;  // Llama-2-70B, Llama-3 and most since

std::int64_t default_groups(const ModelShape& model) {
    if (attention_kind(model) == AttentionKind::gqa) { return model.kv_heads; }
    for (std::int64_t groups = usual_groups; groups > 1; --groups) {
        if (groups < model.heads && model.heads % groups == 0) { return groups; }
    }
    return 1;
}

LatentAttention default_latent(const ModelShape& model) {
    if (model.latent) { return *model.latent; }
    return {.query_rank = 0,
            .kv_rank = 4 * model.head_size,
            .nope_size = model.head_size,
            .rope_size = model.head_size / 2,
            .value_size = model.value_size};
}

}  // namespace

AttentionKind attention_kind(const ModelShape& model) {
    if (model.latent) { return AttentionKind::mla; }
    if (model.kv_heads == model.heads) { return AttentionKind::mha; }
    return model.kv_heads == 1 ? AttentionKind::mqa : AttentionKind::gqa;
}

std::string_view name_of(AttentionKind kind) {
    switch (kind) {
        case AttentionKind::mha: return "MHA";
        case AttentionKind::gqa: return "GQA";
        case AttentionKind::mqa: return "MQA";
        case AttentionKind::mla: return "MLA";
    }
    return "unknown";
}

ModelShape with_attention(const ModelShape& model, AttentionKind kind, const AttentionChoice& choice) {
    check_shape("with_attention", model);
    if (choice.groups < 0 || choice.groups > model.heads || (choice.groups > 0 && model.heads % choice.groups != 0)) {
        refuse("with_attention", "groups", "a divisor of the " + std::to_string(model.heads) + " heads",
               std::to_string(choice.groups));
    }
    ModelShape result = model;
    if (kind == AttentionKind::mla) {
        result.latent = choice.latent ? *choice.latent : default_latent(model);
        if (!model.latent) { result.qkv_bias = result.qk_norm = false; }
    } else {
        if (model.latent) {
            result.head_size = model.latent->nope_size;
            result.value_size = model.latent->value_size;
            result.latent.reset();
        }
        switch (kind) {
            case AttentionKind::mqa: result.kv_heads = 1; break;
            case AttentionKind::gqa: result.kv_heads = choice.groups > 0 ? choice.groups : default_groups(model); break;
            default: result.kv_heads = model.heads; break;
        }
    }
    check_shape("with_attention", result);
    return result;
}

}  // namespace heed
