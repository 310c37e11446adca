#include <heed/matmul.h>
#include <heed/mla.h>
#include <heed/tensor.h>

#include "base/overlap.h"
#include "cuda/composition.h"
#include "ops/attention_checks.h"
#include "ops/host_copy.h"
#include "ops/linear.h"
#include "ops/mla.h"
#include "ops/row_sums.h"
#include "reference/mla.h"

#include <cmath>
#include <vector>

namespace heed {
namespace {

using Sizes = MlaSizes;

void check_axes(Caller function, const char* name, const View& view, int rank, const char* axes) {
    if (!view) { refuse(function, name, std::string("a tensor ") + axes, "none"); }
    if (view.rank() != rank) { refuse(function, name, axes, to_string(view.shape())); }
}
void check_shape(Caller function, const char* name, const View& view, const Shape& shape) {
    if (!(view.shape() == shape)) { refuse(function, name, to_string(shape), to_string(view.shape())); }
    check_memory(function, name, view);
}

Sizes checked_expanded(Caller function, const View& q, const View& latent, const View& rotary_key,
                       const MlaWeights& weights) {
    Sizes z = checked_mla_sizes(function, q, weights);
    check_axes(function, "latent", latent, 3, "[B,S,r]");
    check_dtype(function, "latent", latent, {q.dtype()});
    z.keys = latent.extent(1);
    check_shape(function, "latent", latent, {z.batch, z.keys, z.latent});
    if (z.rotary > 0 || rotary_key) {
        check_axes(function, "rotary_key", rotary_key, 3, "[B,S,p]");
        check_dtype(function, "rotary_key", rotary_key, {q.dtype()});
        check_shape(function, "rotary_key", rotary_key, {z.batch, z.keys, z.rotary});
    }
    return z;
}

struct Named {
    const char* name;
    View view;
};
void refuse_overlaps(Caller function, const Named& output, std::initializer_list<Named> inputs) {
    for (const Named& input : inputs) { check_disjoint(function, output.name, output.view, input.name, input.view); }
}

/// [B,S,x] as [B,1,S,x], [H,x,y] as [1,H,x,y].
template <class AnyView>
AnyView with_axis(const AnyView& x, int axis) {
    Shape shape, strides;
    const std::int64_t e[3] = {x.extent(0), x.extent(1), x.extent(2)};
    const std::int64_t s[3] = {x.stride(0), x.stride(1), x.stride(2)};
    if (axis == 0) {
        shape = {1, e[0], e[1], e[2]};
        strides = {0, s[0], s[1], s[2]};
    } else {
        shape = {e[0], 1, e[1], e[2]};
        strides = {s[0], 0, s[1], s[2]};
    }
    return AnyView(x.dtype(), x.data(), shape, strides, x.device());
}

/// The keys and values of every head.
struct Expanded {
    StepMemory key_memory, value_memory;
    MutableView keys;    ///< [B,H,S,n+p]
    MutableView values;  ///< [B,H,S,v]

    Expanded(Context& context, const Sizes& z, DType dtype)
        : keys(key_memory.view(context, detail::KeptMemory::expanded_keys, dtype,
                               {z.batch, z.heads, z.keys, z.plain + z.rotary})),
          values(value_memory.view(context, detail::KeptMemory::expanded_values, dtype,
                                   {z.batch, z.heads, z.keys, z.value})) {}

    void fill(Context& context, const Sizes& z, const View& latent, const View& rotary_key, const MlaWeights& weights) {
        matmul(context, with_axis(latent, 1), transposed(with_axis(weights.up_key, 0)), keys.slice(3, 0, z.plain));
        matmul(context, with_axis(latent, 1), transposed(with_axis(weights.up_value, 0)), values);
        if (z.rotary > 0) {
            copy_or_sum(context, with_axis(rotary_key, 1), keys.slice(3, z.plain, z.plain + z.rotary));
        }
    }
};

AttentionOptions with_scale(AttentionOptions options, const Sizes& z) {
    if (!options.scale) { options.scale = mla_scale(z.plain + z.rotary); }
    return options;
}

DType wide(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

constexpr const char* of_mla_backward = "mla_attend_backward";

/// One row for each device: there is nothing to force.
std::span<const Kernel<SeenLatentsProblem>> seen_latents_kernel_list(const Context& context) {
    static const std::vector<Kernel<SeenLatentsProblem>> here = {reference::seen_latents_kernel()},
                                                         there = cuda::seen_latents_kernels();
    return on_host(context) ? here : there;
}

/// k = W_UK c, value = W_UV c: the gradients of W_UK and W_UV.
void weight_gradients(Context& context, const View& latent, const View& dkeys, const View& dvalues,
                      const MlaGradients& gradients) {
    const auto one = [&](const View& latents, const View& dupper, const MutableView& dweight) {
        if (dweight) { matmul(context, transposed(dupper), with_axis(latents, 1), with_axis(dweight, 0)); }
    };
    if (!gradients.dup_key && !gradients.dup_value) { return; }
    // On a GPU nobody waits to hear whether they are.
    if (on_host(context) && reference::all_finite(latent)) {
        one(latent, dkeys, gradients.dup_key);
        one(latent, dvalues, gradients.dup_value);
        return;
    }
    StepMemory memory;
    const MutableView seen = memory.view(context, detail::KeptMemory::latents, latent.dtype(), latent.shape());
    for (std::int64_t h = 0; h < dkeys.extent(1); ++h) {
        const View dkeys_of_head = dkeys.slice(1, h, h + 1), dvalues_of_head = dvalues.slice(1, h, h + 1);
        run_forward(context, seen_latents_kernel_list(context), {of_mla_backward},
                    {latent, dkeys_of_head, dvalues_of_head, seen});
        const auto head = [h](const MutableView& view) { return view ? view.slice(0, h, h + 1) : view; };
        one(seen, dkeys_of_head, head(gradients.dup_key));
        one(seen, dvalues_of_head, head(gradients.dup_value));
    }
}

/// ... and of c, in one rounding.
void latent_gradient(Context& context, const Sizes& z, const MlaWeights& weights, const View& dkeys,
                     const View& dvalues, const MutableView& dlatent) {
    if (!dlatent) { return; }
    const bool direct = dlatent.dtype() == wide(dlatent.dtype());
    StepMemory memory;
    const MutableView sums =
        direct ? dlatent : memory.view(context, detail::KeptMemory::latents, DType::f32, {z.batch, z.keys, z.latent});
    const MutableView target = with_axis(sums, 1);
    matmul(context, dkeys, with_axis(weights.up_key, 0), target);
    matmul(context, dvalues, with_axis(weights.up_value, 0), target, {.beta = 1});
    if (!direct) { copy_or_sum(context, target, with_axis(dlatent, 1)); }
}

}  // namespace

namespace {
/// One query a sequence: the batch takes the place of the rows, so that each head's weights are read once.
template <class AnyView>
AnyView rows_of(const MlaSizes& z, const AnyView& view) {
    return z.queries == 1 ? view.permute({2, 1, 0, 3}) : view;
}
}  // namespace

MlaSizes checked_mla_sizes(Caller function, const View& q, const MlaWeights& weights) {
    check_axes(function, "q", q, 4, "[B,H,T,n+p]");
    check_dtype(function, "q", q, float_types);
    check_axes(function, "up_key", weights.up_key, 3, "[H,n,r]");
    check_axes(function, "up_value", weights.up_value, 3, "[H,v,r]");
    check_dtype(function, "up_key", weights.up_key, {q.dtype()});
    check_dtype(function, "up_value", weights.up_value, {q.dtype()});
    MlaSizes z{};
    z.batch = q.extent(0);
    z.heads = q.extent(1);
    z.queries = q.extent(2);
    z.plain = weights.up_key.extent(1);
    z.latent = weights.up_key.extent(2);
    z.rotary = q.extent(3) - z.plain;
    z.value = weights.up_value.extent(1);
    if (z.rotary < 0) {
        refuse(function, "q", "at least n = " + std::to_string(z.plain) + " numbers a head, the rows of up_key",
               std::to_string(q.extent(3)));
    }
    if (z.plain < 1 || z.latent < 1) {
        refuse(function, "up_key", "sizes n and r of at least 1", to_string(weights.up_key.shape()));
    }
    check_shape(function, "up_key", weights.up_key, {z.heads, z.plain, z.latent});
    check_shape(function, "up_value", weights.up_value, {z.heads, z.value, z.latent});
    return z;
}

void absorb_queries(Context& context, const MlaSizes& z, const View& q, const MlaWeights& weights,
                    const MutableView& absorbed) {
    matmul(context, rows_of(z, q.slice(3, 0, z.plain)), with_axis(weights.up_key, 0),
           rows_of(z, absorbed.slice(3, 0, z.latent)));
    if (z.rotary > 0) {
        copy_or_sum(context, q.slice(3, z.plain, z.plain + z.rotary), absorbed.slice(3, z.latent, z.latent + z.rotary));
    }
}

void expand_values(Context& context, const MlaSizes& z, const View& latents, const MlaWeights& weights,
                   const MutableView& out) {
    matmul(context, rows_of(z, latents), transposed(with_axis(weights.up_value, 0)), rows_of(z, out));
}

double mla_scale(std::int64_t head_size, double mscale) {
    if (head_size < 1) { refuse("mla_scale", "head_size", "at least 1", std::to_string(head_size)); }
    if (!std::isfinite(mscale)) { refuse("mla_scale", "mscale", "a finite number", std::to_string(mscale)); }
    return mscale * mscale / std::sqrt(static_cast<double>(head_size));
}

void mla_attend(Context& context, const View& q, const View& latent, const View& rotary_key, const MlaWeights& weights,
                const AttentionOutputs& outputs, const AttentionOptions& options) {
    const Caller function("mla_attend", context);
    const Sizes z = checked_expanded(function, q, latent, rotary_key, weights);
    Expanded expanded(context, z, q.dtype());
    const AttentionOptions scaled = with_scale(options, z);
    checked_forward(function, q, expanded.keys, expanded.values, outputs, scaled);
    const std::initializer_list<Named> inputs = {
        {"latent", latent}, {"rotary_key", rotary_key}, {"up_key", weights.up_key}, {"up_value", weights.up_value}};
    refuse_overlaps(function, {"out", outputs.out}, inputs);
    refuse_overlaps(function, {"lse", outputs.lse}, inputs);
    expanded.fill(context, z, latent, rotary_key, weights);
    attend(context, q, expanded.keys, expanded.values, outputs, scaled);
}

void mla_attend_backward(Context& context, const MlaBackwardInputs& inputs, const MlaGradients& gradients,
                         const AttentionOptions& options) {
    const Caller function("mla_attend_backward", context);
    const auto& [q, latent, rotary_key, weights, out, lse, dout, dlse] = inputs;
    const Sizes z = checked_expanded(function, q, latent, rotary_key, weights);
    Expanded expanded(context, z, q.dtype());
    StepMemory dkey_memory, dvalue_memory;
    const MutableView dkeys =
        dkey_memory.view(context, detail::KeptMemory::dexpanded_keys, wide(q.dtype()), expanded.keys.shape());
    const MutableView dvalues =
        dvalue_memory.view(context, detail::KeptMemory::dexpanded_values, wide(q.dtype()), expanded.values.shape());
    const AttentionOptions scaled = with_scale(options, z);
    const AttentionGradients inner{.dq = gradients.dq,
                                   .dk = dkeys,
                                   .dv = dvalues,
                                   .dbias = gradients.dbias,
                                   .dsinks = gradients.dsinks,
                                   .dalibi_slopes = gradients.dalibi_slopes};
    const AttentionBackwardInputs attention{q, expanded.keys, expanded.values, out, lse, dout, dlse};
    checked_backward(function, attention, inner, scaled);

    const Named outputs[] = {{"dq", gradients.dq},
                             {"dlatent", gradients.dlatent},
                             {"drotary_key", gradients.drotary_key},
                             {"dup_key", gradients.dup_key},
                             {"dup_value", gradients.dup_value},
                             {"dbias", gradients.dbias},
                             {"dsinks", gradients.dsinks},
                             {"dalibi_slopes", gradients.dalibi_slopes}};
    const View like[] = {q, latent, rotary_key, weights.up_key, weights.up_value};
    for (int n = 1; n < 5; ++n) {
        if (!outputs[n].view) { continue; }
        if (!like[n]) { refuse(function, outputs[n].name, "none where there is no rotary_key", "a tensor"); }
        check_output(function, outputs[n].name, outputs[n].view, like[n].shape(), {q.dtype(), DType::f32});
    }
    for (int n = 0; n < 8; ++n) {
        refuse_overlaps(function, outputs[n],
                        {{"q", q},
                         {"latent", latent},
                         {"rotary_key", rotary_key},
                         {"up_key", weights.up_key},
                         {"up_value", weights.up_value},
                         {"out", out},
                         {"lse", lse},
                         {"dout", dout},
                         {"dlse", dlse},
                         {"bias", options.bias},
                         {"sinks", options.sinks},
                         {"alibi_slopes", options.alibi_slopes}});
        for (int other = 0; other < n; ++other) { refuse_overlaps(function, outputs[n], {outputs[other]}); }
    }

    expanded.fill(context, z, latent, rotary_key, weights);
    attend_backward(context, attention, inner, scaled);
    // k = [W_UK c ; kr], value = W_UV c
    const View dplain = View(dkeys).slice(3, 0, z.plain);
    weight_gradients(context, latent, dplain, dvalues, gradients);
    latent_gradient(context, z, weights, dplain, dvalues, gradients.dlatent);
    if (gradients.drotary_key) {
        copy_or_sum(context, View(dkeys).slice(3, z.plain, z.plain + z.rotary), with_axis(gradients.drotary_key, 1));
    }
}

void mla_attend_absorbed(Context& context, const View& q, const View& cache, const MlaWeights& weights,
                         const AttentionOutputs& outputs, const AttentionOptions& options) {
    const Caller function("mla_attend_absorbed", context);
    const auto& [out, lse] = outputs;
    Sizes z = checked_mla_sizes(function, q, weights);
    check_axes(function, "cache", cache, 3, "[B,S,r+p]");
    check_dtype(function, "cache", cache, {q.dtype()});
    z.keys = cache.extent(1);
    check_shape(function, "cache", cache, {z.batch, z.keys, z.latent + z.rotary});
    const Shape out_shape{z.batch, z.heads, z.queries, z.value};
    check_output(function, "out", out, out_shape, {q.dtype(), DType::f32});
    for (const Named& output : {Named{"out", out}, Named{"lse", lse}}) {
        refuse_overlaps(function, output,
                        {{"q", q},
                         {"cache", cache},
                         {"up_key", weights.up_key},
                         {"up_value", weights.up_value},
                         {"allow", options.allow},
                         {"bias", options.bias}});
    }
    if (lse) { refuse_overlaps(function, {"lse", lse}, {{"out", out}}); }

    StepMemory absorbed_memory, latent_memory;
    const MutableView absorbed = absorbed_memory.view(context, detail::KeptMemory::absorbed, q.dtype(),
                                                      {z.batch, z.heads, z.queries, z.latent + z.rotary});
    const MutableView latents = latent_memory.view(context, detail::KeptMemory::latents, wide(q.dtype()),
                                                   {z.batch, z.heads, z.queries, z.latent});
    const View keys = with_axis(cache, 1);
    const View values = keys.slice(3, 0, z.latent);
    const AttentionOptions scaled = with_scale(options, z);
    checked_forward(function, absorbed, keys, values, {.out = latents, .lse = lse}, scaled);

    absorb_queries(context, z, q, weights, absorbed);
    attend(context, absorbed, keys, values, {.out = latents, .lse = lse}, scaled);
    expand_values(context, z, latents, weights, out);
}

}  // namespace heed
