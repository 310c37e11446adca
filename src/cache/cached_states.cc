/// Linear and Infini-attention: caches whose size does not grow.
#include "cache/cached_step.h"
#include "ops/infini_attention_checks.h"
#include "ops/linear_attention_checks.h"

#include <cstring>

namespace heed {
namespace {

void check_axes(const char* function, const char* name, const View& view, const char* axes) {
    if (!view || view.rank() != 4) {
        refuse(function, name, std::string("a tensor ") + axes, view ? to_string(view.shape()) : std::string("none"));
    }
}

/// The tokens of entry n.
template <class AnyView>
AnyView of_entry(const CachedStep& step, std::size_t n, const AnyView& x) {
    return x ? x.slice(2, step.cu_q[n], step.cu_q[n + 1]) : x;
}

/// One page of [pages, ...], as a batch of one.
MutableView state_of(Tensor& all, std::int32_t page) {
    return all ? all.view().slice(0, page, page + 1) : MutableView();
}

MutableLinearState own_state(const CachedStep& step, std::size_t n) {
    const std::int32_t page = step.caches[n]->table.front();
    return {state_of(step.memory().s, page), state_of(step.memory().z, page)};
}

void move_on(CachedStep& step) {
    for (std::size_t n = 0; n < step.count(); ++n) {
        Cache::State& cache = *step.caches[n];
        cache.written[static_cast<std::size_t>(step.layer)] = step.lengths[n];
        cache.tokens = std::max(cache.tokens, step.lengths[n]);
        cache.next = cache.tokens;
    }
}

}  // namespace

void cached_linear_attend(Context& context, const CacheBatch& batch, const View& q, const View& k, const View& v,
                          const MutableView& out, const LinearAttentionOptions& given) {
    constexpr const char* function = "cached_linear_attend";
    check_axes(function, "q", q, "[1,H,T,D]");
    CachedStep& step = checked_step(function, batch, CacheKind::linear, q.extent(2), true, {});
    check_device(context, step);
    const CacheConfig& c = step.config();
    check_dtype(function, "q", q, float_types);
    check_rows(step, "k", k, v, q.dtype());
    LinearAttentionOptions options = given;
    options.causal = true;
    if (options.key_lengths) { refuse(function, "key_lengths", "none, as the batch has the tokens", "a tensor"); }
    if (options.cu_seqlens) { refuse(function, "cu_seqlens", "none, as the batch has the tokens", "a tensor"); }
    if (options.normalise != c.normalise) {
        refuse(function, "normalise", c.normalise ? "true as in the pool" : "false as in the pool",
               options.normalise ? "true" : "false");
    }
    // A state of the right shape stands for each of the entries' own.
    const MutableLinearState state{
        step.buffers.q.view(DType::f32, {1, c.states, c.features, c.value_size}, c.device),
        c.normalise ? step.buffers.k.view(DType::f32, {1, c.states, c.features}, c.device) : MutableView()};
    (void)checked_linear_forward(step.caller(), {q, k, v, state}, {.out = out, .final = state}, options);
    take_states(step);
    // A feature function may throw half-way: then the states are put back.
    std::vector<std::pair<Tensor, Tensor>> before;
    try {
        for (std::size_t n = 0; n < step.count(); ++n) {
            if (step.queries(n) == 0) { continue; }
            const MutableLinearState own = own_state(step, n);
            if (options.feature == FeatureMap::function) {
                before.emplace_back(Tensor::copy_of(own.s), own.z ? Tensor::copy_of(own.z) : Tensor());
            }
            options.log_decay = of_entry(step, n, given.log_decay);
            options.beta = of_entry(step, n, given.beta);
            linear_attend(context, of_entry(step, n, q), of_entry(step, n, k), of_entry(step, n, v),
                          {.out = of_entry(step, n, out), .final = own}, options, own);
        }
    } catch (...) {
        std::size_t moved = 0;
        for (std::size_t n = 0; n < step.count() && moved < before.size(); ++n) {
            if (step.queries(n) == 0) { continue; }
            const auto& [old_s, old_z] = before[moved++];
            const MutableLinearState own = own_state(step, n);
            std::memcpy(own.s.data(), old_s.data(), old_s.bytes());
            if (old_z) { std::memcpy(own.z.data(), old_z.data(), old_z.bytes()); }
        }
        throw;
    }
    move_on(step);
}

void cached_infini_attend(Context& context, const CacheBatch& batch, const View& q, const View& k, const View& v,
                          const View& gates, const MutableView& out, const InfiniOptions& given) {
    constexpr const char* function = "cached_infini_attend";
    check_axes(function, "q", q, "[1,H,T,D]");
    CachedStep& step = checked_step(function, batch, CacheKind::infini, q.extent(2), true, {});
    check_device(context, step);
    const CacheConfig& c = step.config();
    const DType stored = step.pool->infini_type();
    check_dtype(function, "q", q, {stored});
    check_rows(step, "k", k, v, q.dtype());
    if (static_cast<bool>(given.memory_k) != c.memory_keys) {
        refuse(function, "memory_k",
               c.memory_keys ? "a tensor, as the pool has memory_keys" : "none without memory_keys",
               c.memory_keys ? "none" : "a tensor");
    }
    InfiniOptions options = given;
    options.segment = c.segment;
    // Sizes are checked against no memory at all, so that a mistake takes no page.
    const InfiniMemory empty;
    (void)checked_infini_forward(context, step.caller(), {q, k, v, gates}, out, empty, options);
    take_states(step);
    for (std::size_t n = 0; n < step.count(); ++n) {
        if (step.queries(n) == 0) { continue; }
        options.memory_q = of_entry(step, n, given.memory_q);
        options.memory_k = of_entry(step, n, given.memory_k);
        infini_attend(context, of_entry(step, n, q), of_entry(step, n, k), of_entry(step, n, v), gates,
                      of_entry(step, n, out), step.pool->memory(step.caches[n]->table.front(), step.layer), options);
    }
    move_on(step);
}

}  // namespace heed
