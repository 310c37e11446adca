#include "cache/cached_step.h"
#include "ops/mla.h"

namespace heed {

void cached_mla_attend(Context& context, const CacheBatch& batch, const View& q, const View& rows,
                       const MlaWeights& weights, const AttentionOutputs& outputs, const AttentionOptions& options) {
    const auto& [out, lse] = outputs;
    constexpr const char* function = "cached_mla_attend";
    const MlaSizes z = checked_mla_sizes({function, context}, q, weights);
    const bool appends = static_cast<bool>(rows);
    CachedStep& step = checked_step(function, batch, CacheKind::latent, z.queries, appends, {options.query_positions});
    check_device(context, step);
    const CacheConfig& c = step.config();
    if (z.latent != c.value_size || z.latent + z.rotary != c.head_size) {
        refuse(function, "up_key",
               "r " + std::to_string(c.value_size) + " and p " + std::to_string(c.head_size - c.value_size) +
                   " as in the pool",
               "r " + std::to_string(z.latent) + " and p " + std::to_string(z.rotary));
    }
    check_output(step.caller(), "out", out, {1, z.heads, z.queries, z.value}, {q.dtype(), DType::f32});
    const std::pair<const char*, View> inputs[] = {{"q", q},
                                                   {"rows", rows},
                                                   {"up_key", weights.up_key},
                                                   {"up_value", weights.up_value},
                                                   {"bias", options.bias},
                                                   {"allow", options.allow}};
    for (const auto& [name, input] : inputs) {
        check_disjoint(function, "out", out, name, input);
        check_disjoint(function, "lse", lse, name, input);
    }
    check_disjoint(function, "lse", lse, "out", out);
    if (appends) { check_rows(step, "rows", rows, {}, q.dtype()); }

    const DType wide = q.dtype() == DType::f64 ? DType::f64 : DType::f32;
    const MutableView absorbed = step.buffers.absorbed.view(wide, {1, z.heads, z.queries, c.head_size}, c.device);
    const MutableView latents = step.buffers.latents.view(wide, {1, z.heads, z.queries, z.latent}, c.device);
    AttentionOptions scaled = options;
    if (!scaled.scale) { scaled.scale = mla_scale(z.plain + z.rotary); }
    absorb_queries(context, z, q, weights, absorbed);
    attend_step(context, step, absorbed, rows, {}, {.out = latents, .lse = lse}, scaled);
    expand_values(context, z, latents, weights, out);
}

}  // namespace heed
