/// The checks of a call on a batch of caches, and the positions of its tokens.
#include "cache/cached_step.h"

#include "base/dispatch.h"
#include "ops/checks.h"

#include <algorithm>

namespace heed {
namespace {

const char* name_of_kind(CacheKind kind) {
    switch (kind) {
        case CacheKind::attention: return "attention";
        case CacheKind::latent: return "latent";
        case CacheKind::linear: return "linear";
        case CacheKind::infini: return "infini";
    }
    return "unknown";
}

void check_caches(CachedStep& step, const CacheBatch& batch, CacheKind kind) {
    const auto name = [](std::size_t n) { return "caches[" + std::to_string(n) + "]"; };
    for (std::size_t n = 0; n < batch.caches.size(); ++n) {
        Cache::State& cache = checked_cache(step.function, name(n), batch.caches[n]);
        if (n == 0 && cache.config().kind != kind) {
            refuse(step.function, name(n), std::string("a cache of kind ") + name_of_kind(kind),
                   name_of_kind(cache.config().kind));
        }
        if (cache.pool.get() != step.pool) {
            refuse(step.function, name(n), "a cache of the pool of caches[0]", "another pool's");
        }
        step.caches.push_back(&cache);
    }
    std::vector<Cache::State*>& sorted = step.buffers.sorted;
    sorted = step.caches;
    std::ranges::sort(sorted);
    if (std::ranges::adjacent_find(sorted) != sorted.end()) {
        refuse(step.function, "caches", "every cache once", "one of them twice");
    }
    if (batch.layer < 0 || batch.layer >= step.config().layers) {
        refuse(step.function, "layer", "0 to " + std::to_string(step.config().layers - 1), std::to_string(batch.layer));
    }
    if (batch.share > SharedPrefix::always) {
        refuse(step.function, "share", "automatic, never or always", std::to_string(static_cast<int>(batch.share)));
    }
}

void share_out_tokens(CachedStep& step, const CacheBatch& batch, std::int64_t tokens) {
    const auto count = static_cast<std::int64_t>(step.count());
    if (batch.tokens.empty()) {
        if (tokens % count != 0) {
            refuse(step.function, "tokens",
                   "the tokens of each cache, as T is not a multiple of " + std::to_string(count),
                   std::to_string(tokens));
        }
    } else if (batch.tokens.size() != step.count()) {
        refuse(step.function, "tokens", std::to_string(count) + " numbers, one a cache",
               std::to_string(batch.tokens.size()));
    }
    step.cu_q.assign(1, 0);
    for (std::size_t n = 0; n < step.count(); ++n) {
        const std::int64_t more = batch.tokens.empty() ? tokens / count : batch.tokens[n];
        if (more < 0 || more > tokens - step.cu_q.back()) {
            refuse(step.function, "tokens[" + std::to_string(n) + "]",
                   "0 to " + std::to_string(tokens - step.cu_q.back()) + " of the T = " + std::to_string(tokens),
                   std::to_string(more));
        }
        step.cu_q.push_back(step.cu_q.back() + more);
    }
    if (step.cu_q.back() != tokens) {
        refuse(step.function, "tokens", "a sum of T = " + std::to_string(tokens), std::to_string(step.cu_q.back()));
    }
}

void find_positions(CachedStep& step, const GivenPositions& asked_for) {
    const View& given = asked_for.view;
    const char* argument = asked_for.name;
    const std::int64_t tokens = step.all_queries();
    const bool slots = step.config().positions == CachePositions::slots;
    if (given) {
        if (slots) { refuse(step.function, argument, "none where positions are slots", "a tensor"); }
        if (!(given.shape() == Shape{1, tokens})) {
            refuse(step.function, argument, to_string(Shape{1, tokens}), to_string(given.shape()));
        }
        check_dtype(step.function, argument, given, {DType::i64, DType::i32});
        check_memory(step.function, argument, given);
    }
    step.positions.reserve(static_cast<std::size_t>(tokens));
    step.rope_positions.reserve(static_cast<std::size_t>(tokens));
    for (std::size_t n = 0; n < step.count(); ++n) {
        const Cache::State& cache = *step.caches[n];
        // Queries that come with no keys of their own are the last tokens, whichever those are.
        const std::int64_t first = step.lengths[n] - step.queries(n);
        for (std::int64_t i = 0; i < step.queries(n); ++i) {
            const std::int64_t j = first + i;
            const bool known = j >= 0 && j < cache.tokens;
            std::int64_t position = known ? cache.position(j) : j;
            if (!known && !slots && !cache.stretches.empty()) {
                position = j < 0 ? cache.position(0) + j : cache.next + j - cache.tokens;
            } else if (!known && !slots && j >= 0) {
                position = cache.next + j - cache.tokens;
            }
            if (given) {
                const std::int64_t at = step.cu_q[n] + i;
                const std::int64_t asked = read_integer(given.dtype(), given.data(), at * given.stride(1));
                const std::string name = std::string(argument) + "[" + std::to_string(at) + "]";
                if (asked > largest_position || asked < -largest_position) {
                    refuse(step.function, name, "within 2^53", std::to_string(asked));
                }
                if (step.appends && known && asked != position) {
                    refuse(step.function, name, "that of the layers before, " + std::to_string(position),
                           std::to_string(asked));
                }
                position = asked;
            }
            step.positions.push_back(position);
            step.rope_positions.push_back(slots && !step.pool->rotate_on_read ? position + cache.shift : position);
        }
    }
}

}  // namespace

MutableView StepBuffer::view(DType dtype, const Shape& shape, Device device) {
    const std::int64_t bytes = shape.elements() * static_cast<std::int64_t>(size_of(dtype));
    if (!memory_ || static_cast<std::int64_t>(memory_.bytes()) < bytes || !(memory_.device() == device)) {
        memory_ = Tensor::uninitialised(DType::u8, {std::max<std::int64_t>(bytes, 1)}, device);
    }
    return MutableView(dtype, memory_.data(), shape, device);
}

CachedStep& checked_step(const char* function, const CacheBatch& batch, CacheKind kind, std::int64_t tokens,
                         bool appends, const GivenPositions& positions) {
    if (batch.caches.empty()) { refuse(function, "caches", "at least one", "none"); }
    Cache::State& first = checked_cache(function, "caches[0]", batch.caches[0]);
    if (!first.step) { first.step = std::make_unique<CachedStep>(); }
    CachedStep& step = *first.step;
    step.function = function;
    step.pool = first.pool.get();
    step.appends = appends;
    step.layer = batch.layer;
    step.share = batch.share;
    step.caches.clear();
    step.lengths.clear();
    step.positions.clear();
    step.rope_positions.clear();
    check_caches(step, batch, kind);
    share_out_tokens(step, batch, tokens);
    for (std::size_t n = 0; n < step.count(); ++n) {
        const std::int64_t written = step.caches[n]->written[static_cast<std::size_t>(step.layer)];
        step.lengths.push_back(appends ? written + step.queries(n) : written);
    }
    if (!is_state(kind)) { find_positions(step, positions); }
    return step;
}

void check_device(const Context& context, const CachedStep& step) {
    if (context.device() == step.config().device) { return; }
    refuse(step.function, "context", "one on " + to_string(step.config().device) + ", where the caches are",
           "one on " + to_string(context.device()));
}

void check_rows(const CachedStep& step, const char* k_name, const View& k, const View& v, DType dtype) {
    const CacheConfig& c = step.config();
    const auto check = [&](const char* name, const View& view, std::int64_t size) {
        const Shape expected{1, c.kv_heads, step.all_queries(), size};
        if (!view) { refuse(step.function, name, "a tensor " + to_string(expected), "none"); }
        if (!(view.shape() == expected)) { refuse(step.function, name, to_string(expected), to_string(view.shape())); }
        check_dtype(step.function, name, view, {dtype});
        check_memory(step.caller(), name, view);
    };
    check(k_name, k, c.head_size);
    if (c.kind != CacheKind::latent) { check("v", v, c.value_size); }
}

}  // namespace heed
