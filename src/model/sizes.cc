#include <heed/error.h>
#include <heed/sizes.h>

#include <algorithm>

#include "base/count.h"
#include "base/refuse.h"
#include "model/shape.h"

namespace heed {
namespace {

// One letter per size, as in the formulas: d model, h heads, n + p key parts of MLA, r its latent rank.

Count projection_weights(const ModelShape& m) {
    const Count d = m.d_model, h = m.heads;
    if (m.latent) {
        const Count rq = m.latent->query_rank, r = m.latent->kv_rank;
        const Count n = m.latent->nope_size, p = m.latent->rope_size, v = m.latent->value_size;
        const Count query = rq > 0 ? d * rq + rq * h * (n + p) : d * h * (n + p);
        return query + d * (r + p) + r * h * (n + v) + h * v * d;
    }
    const Count key = m.head_size, value = m.value_size, groups = m.kv_heads;
    return d * h * key + d * groups * key + d * groups * value + h * value * d;
}

Count attention_parameters(const ModelShape& m) {
    Count biases = m.output_bias ? m.d_model : 0;
    Count norms = 0;
    if (m.latent) {
        // Only the projections down to the ranks carry the bias; the ranks are normalised.
        if (m.qkv_bias) { biases = biases + m.latent->query_rank + m.latent->kv_rank + m.latent->rope_size; }
        norms = Count(m.latent->query_rank) + m.latent->kv_rank;
    } else {
        if (m.qkv_bias) {
            biases = biases + Count(m.heads) * m.head_size + Count(m.kv_heads) * (Count(m.head_size) + m.value_size);
        }
        if (m.qk_norm) { norms = Count(2) * m.head_size; }
    }
    return projection_weights(m) + biases + norms;
}

Count ffn_weights(const ModelShape& m, Count d_ff) { return Count(m.gated ? 3 : 2) * m.d_model * d_ff; }

Count ffn_parameters(const ModelShape& m, Count d_ff) {
    const Count biases = m.ffn_bias ? Count(m.gated ? 2 : 1) * d_ff + m.d_model : Count(0);
    return ffn_weights(m, d_ff) + biases;
}

Count expert_weights(const ModelShape& m) { return Count(3) * m.d_model * m.experts->d_ff; }

Count expert_layers(const ModelShape& m) {
    return m.experts ? Count(m.layers - std::min(m.layers, m.experts->dense_layers)) : Count(0);
}

Count norm_parameters(const ModelShape& m) { return Count(m.norm == NormKind::layer_norm ? 2 : 1) * m.d_model; }

bool two_stacks(const ModelShape& m) { return m.kind == ModelKind::encoder_decoder; }

/// Self-attention and, in the decoder of an encoder-decoder, cross-attention: all there are.
Count attentions(const ModelShape& m) {
    return two_stacks(m) ? Count(2) * m.layers + m.encoder_layers : Count(m.layers);
}

Count all_norms(const ModelShape& m) {
    const Count stacks = two_stacks(m) ? 2 : 1;
    const Count sublayers = attentions(m) + m.layers + m.encoder_layers;
    const Count ends = stacks * Count((m.embedding_norm ? 1 : 0) + (m.final_norm ? 1 : 0));
    return (sublayers * m.norms_per_sublayer + ends) * norm_parameters(m);
}

Count head_parameters(const ModelShape& m) {
    const Count d = m.d_model;
    Count result = 0;
    if (m.head && !m.tied) { result = result + d * m.vocab; }
    if (m.head && m.head_bias) { result = result + m.vocab; }
    if (m.head && m.head_transform) { result = result + d * d + d + norm_parameters(m); }
    if (m.pooler) { result = result + d * d + d; }
    return result + Count(m.classes) * (d + 1);
}

ParameterCount count_parameters(const ModelShape& m) {
    const Count d = m.d_model, stacks = two_stacks(m) ? 2 : 1;
    const Count with_experts = expert_layers(m), plain = Count(m.layers) - with_experts;
    const Count plain_ffn = ffn_parameters(m, m.d_ff);
    Count expert_ffn = 0, idle = 0;
    if (with_experts > 0) {
        const Experts& e = *m.experts;
        expert_ffn = (Count(e.routed) + e.shared) * expert_weights(m) + d * e.routed +
                     (e.correction_bias ? Count(e.routed) : Count(0));
        idle = with_experts * (Count(e.routed) - e.active) * expert_weights(m);
    }
    const Count tokens = d * m.vocab, types = d * m.token_types;
    const Count position_table = stacks * m.position_rows * d;
    const Count positions = position_table + stacks * m.relative_buckets * m.heads;
    const Count attention = attentions(m) * attention_parameters(m);
    const Count ffn = plain * plain_ffn + with_experts * expert_ffn +
                      (two_stacks(m) ? Count(m.encoder_layers) * ffn_parameters(m, m.encoder_d_ff) : Count(0));
    const Count norms = all_norms(m), head = head_parameters(m);
    const Count total = tokens + types + positions + attention + ffn + norms + head;
    const Count lookups = types + position_table + (m.head && m.tied ? Count(0) : tokens);
    return {.embedding = (tokens + types).value(),
            .positions = positions.value(),
            .attention = attention.value(),
            .ffn = ffn.value(),
            .norms = norms.value(),
            .head = head.value(),
            .total = total.value(),
            .attention_layer = attention_parameters(m).value(),
            .ffn_layer = plain > 0 ? plain_ffn.value() : 0,
            .expert_ffn_layer = expert_ffn.value(),
            .active = (total - idle).value(),
            .active_without_lookup = (total - idle - lookups).value()};
}

Count flops_per_key(const ModelShape& m, LatentForm form) {
    const Count h = m.heads;
    if (!m.latent) { return Count(2) * h * (Count(m.head_size) + m.value_size); }
    const Count r = m.latent->kv_rank, p = m.latent->rope_size;
    if (form == LatentForm::absorbed) { return Count(2) * h * ((r + p) + r); }
    return Count(2) * h * ((Count(m.latent->nope_size) + p) + m.latent->value_size);
}

/// Keys seen, all layers together, times two: a causal average is a half.
Count doubled_keys(const ModelShape& m, Count context, bool causal_average) {
    const Count full = Count(2) * context;
    const Count own = causal_average && m.kind != ModelKind::encoder ? context + 1 : full;
    return two_stacks(m) ? Count(m.layers) * (own + full) + Count(m.encoder_layers) * full : Count(m.layers) * own;
}

Flops count_flops(const ModelShape& m, Count doubled, Count passes) {
    const Count d = m.d_model, with_experts = expert_layers(m);
    Count ffn = (Count(m.layers) - with_experts) * ffn_weights(m, m.d_ff);
    if (with_experts > 0) {
        const Count visited = Count(m.experts->active) + m.experts->shared;
        ffn = ffn + with_experts * (visited * expert_weights(m) + d * m.experts->routed);
    }
    if (two_stacks(m)) { ffn = ffn + Count(m.encoder_layers) * ffn_weights(m, m.encoder_d_ff); }
    Count head = m.head ? d * m.vocab : Count(0);
    if (m.head && m.head_transform) { head = head + d * d; }

    const Count half_per_key = flops_per_key(m, LatentForm::expanded).value() / 2;  // exact: it is even
    const Count projections = passes * 2 * attentions(m) * projection_weights(m);
    const Count scores = passes * half_per_key * doubled;
    ffn = passes * 2 * ffn;
    head = passes * 2 * head;
    return {.projections = projections.value(),
            .scores = scores.value(),
            .ffn = ffn.value(),
            .head = head.value(),
            .total = (projections + scores + ffn + head).value()};
}

/// Numbers that one attention layer keeps per token.
Count cached_numbers(const ModelShape& m) {
    if (m.latent) { return Count(m.latent->kv_rank) + m.latent->rope_size; }
    return Count(m.kv_heads) * (Count(m.head_size) + m.value_size);
}

/// Bytes per token of the decoder's self-attention, and as many of its cross-attention where it has one.
Count cached_bytes(const ModelShape& m, Count bytes_per_number) {
    return m.kind == ModelKind::encoder ? Count(0) : Count(m.layers) * cached_numbers(m) * bytes_per_number;
}

void check_argument(std::string_view function, std::string_view argument, std::int64_t value, std::int64_t low) {
    if (value < low) {
        refuse(std::string(function), std::string(argument), std::to_string(low) + " or more", std::to_string(value));
    }
}

template <class F>
auto counting(std::string_view function, const ModelShape& model, F&& count) {
    check_shape(function, model);
    try {
        return count();
    } catch (const CountOverflow&) { refuse(std::string(function), "model", "counts below 2^63", "a larger one"); }
}

}  // namespace

ParameterCount parameters(const ModelShape& model) {
    return counting("parameters", model, [&] { return count_parameters(model); });
}

Flops flops_per_token(const ModelShape& model, std::int64_t keys) {
    check_argument("flops_per_token", "keys", keys, 0);
    return counting("flops_per_token", model, [&] { return count_flops(model, doubled_keys(model, keys, false), 1); });
}

Flops training_flops_per_token(const ModelShape& model, std::int64_t context) {
    check_argument("training_flops_per_token", "context", context, 1);
    return counting("training_flops_per_token", model,
                    [&] { return count_flops(model, doubled_keys(model, context, true), 3); });
}

std::int64_t attention_flops_per_key(const ModelShape& model, LatentForm form) {
    return counting("attention_flops_per_key", model, [&] { return flops_per_key(model, form).value(); });
}

std::int64_t kv_bytes_per_token(const ModelShape& model, std::int64_t bytes_per_number) {
    check_argument("kv_bytes_per_token", "bytes_per_number", bytes_per_number, 1);
    return counting("kv_bytes_per_token", model, [&] { return cached_bytes(model, bytes_per_number).value(); });
}

std::int64_t cross_kv_bytes_per_token(const ModelShape& model, std::int64_t bytes_per_number) {
    check_argument("cross_kv_bytes_per_token", "bytes_per_number", bytes_per_number, 1);
    return counting("cross_kv_bytes_per_token", model,
                    [&] { return two_stacks(model) ? cached_bytes(model, bytes_per_number).value() : 0; });
}

std::int64_t kv_cache_bytes(const ModelShape& model, std::int64_t bytes_per_number, std::int64_t context,
                            std::int64_t batch) {
    check_argument("kv_cache_bytes", "bytes_per_number", bytes_per_number, 1);
    check_argument("kv_cache_bytes", "context", context, 0);
    check_argument("kv_cache_bytes", "batch", batch, 0);
    return counting("kv_cache_bytes", model, [&] {
        const Count sources = two_stacks(model) ? 2 : 1;
        return (sources * cached_bytes(model, bytes_per_number) * context * batch).value();
    });
}

std::int64_t weight_bytes(const ModelShape& model, std::int64_t bytes_per_number) {
    check_argument("weight_bytes", "bytes_per_number", bytes_per_number, 1);
    return counting("weight_bytes", model,
                    [&] { return (Count(count_parameters(model).total) * bytes_per_number).value(); });
}

AttentionCost attention_cost(const ModelShape& model, std::int64_t batch, std::int64_t tokens) {
    check_argument("attention_cost", "batch", batch, 0);
    check_argument("attention_cost", "tokens", tokens, 0);
    return counting("attention_cost", model, [&]() -> AttentionCost {
        const Count rows = Count(batch) * tokens, weights = projection_weights(model);
        return {.input_numbers = (rows * model.d_model).value(),
                .score_numbers = (rows * model.heads * tokens).value(),
                .weight_numbers = weights.value(),
                .projection_flops = (Count(2) * rows * weights).value(),
                .score_flops = (rows * tokens * flops_per_key(model, LatentForm::expanded)).value()};
    });
}

}  // namespace heed
