#include <heed/elementwise.h>
#include <heed/model.h>

#include <algorithm>
#include <numeric>

#include "base/access.h"
#include "model/run.h"
#include "ops/host_copy.h"

namespace heed {
namespace {

bool same_cache(const CacheConfig& a, const CacheConfig& b) {
    return a.kind == b.kind && a.kv_heads == b.kv_heads && a.head_size == b.head_size && a.value_size == b.value_size &&
           a.rope.has_value() == b.rope.has_value() && a.states == b.states && a.normalise == b.normalise &&
           a.segment == b.segment && a.memory_keys == b.memory_keys &&
           (!a.rope || rope_table(*a.rope) == rope_table(*b.rope));
}

CachePool make_pool(CacheConfig c, const DecodingOptions& options, std::int64_t tokens, std::size_t layers,
                    Device device) {
    c.layers = static_cast<std::int64_t>(layers);
    const bool state = c.kind == CacheKind::linear || c.kind == CacheKind::infini;
    c.storage = state ? CacheStorage::f32 : options.storage;
    c.device = device;
    c.page_size = options.page_size;
    // Every sequence may leave a page unfilled, and a fork writes into a copy of its last one.
    c.pages = state ? options.sequences : (tokens + c.page_size - 1) / c.page_size + 2 * options.sequences;
    return CachePool(c);
}

}  // namespace

CachedSequence CachedSequence::fork() const {
    CachedSequence result;
    for (const Cache& cache : caches_) { result.caches_.push_back(cache.fork()); }
    for (const Cache& cache : cross_) { result.cross_.push_back(cache.fork()); }
    result.length_ = length_;
    result.first_position_ = first_position_;
    return result;
}

void CachedSequence::truncate(std::int64_t length) {
    for (Cache& cache : caches_) { cache.truncate(length); }
    length_ = length;
}

Decoding::Decoding(const Model& model, const DecodingOptions& options) : model_(model), options_(options) {
    const ModelConfig& c = model.config();
    if (c.kind == ModelKind::encoder) {
        throw Error("[Decoding] model: expected a decoder or an encoder-decoder, got an encoder");
    }
    if (options.tokens < 1 || options.sequences < 1 || options.page_size < 1) {
        throw Error("[Decoding] options: expected room for 1 token and 1 sequence or more, got less");
    }
    const Stack& stack = detail::Access::state(model)->graph.decoder;
    const Device device = model.device();
    std::vector<CacheConfig> kinds;
    std::vector<std::vector<std::int64_t>> layers;
    for (std::size_t i = 0; i < stack.layers.size(); ++i) {
        const CacheConfig config = stack.layers[i].attention.cache_config(options.rotate_in_cache);
        std::size_t group = 0;
        while (group < kinds.size() && !same_cache(kinds[group], config)) { ++group; }
        if (group == kinds.size()) {
            kinds.push_back(config);
            layers.emplace_back();
        }
        places_.emplace_back(group, static_cast<std::int64_t>(layers[group].size()));
        layers[group].push_back(static_cast<std::int64_t>(i));
    }
    for (std::size_t g = 0; g < kinds.size(); ++g) {
        groups_.push_back({make_pool(kinds[g], options_, options_.tokens, layers[g].size(), device), layers[g]});
    }
    if (c.kind == ModelKind::encoder_decoder) {
        const std::int64_t tokens = options.source_tokens > 0 ? options.source_tokens : options.tokens;
        cross_.push_back(
            make_pool(stack.layers.front().cross.cache_config(), options_, tokens, stack.layers.size(), device));
    }
}

std::int64_t Decoding::free_pages() const {
    std::int64_t least = groups_.front().pool.free_pages();
    for (const Group& group : groups_) { least = std::min(least, group.pool.free_pages()); }
    return least;
}

CachedSequence Decoding::create() const {
    if (model_.config().kind != ModelKind::decoder) {
        throw Error("[Decoding::create] source: expected, for an encoder-decoder, got none");
    }
    CachedSequence sequence;
    for (const Group& group : groups_) { sequence.caches_.push_back(group.pool.create()); }
    return sequence;
}

CachedSequence Decoding::create(Context& context, const View& source) {
    const ModelState& m = *detail::Access::state(model_);
    if (m.config.kind != ModelKind::encoder_decoder) {
        throw Error("[Decoding::create] source: expected none for a decoder, got one");
    }
    if (!source || source.rank() != 1) {
        throw Error("[Decoding::create] source: expected i64 or i32 [tokens], got none");
    }
    const Ids ids =
        read_ids("source", View(source.dtype(), source.data(), {1, source.extent(0)}, {0, source.stride(0)}),
                 m.config.input_vocab());
    Tape tape(context, memory_, {.record = false});
    TapeForward plan;
    plan.kernel = options_.kernel;
    StackRun run{.model = m, .config = m.config.encoder, .stack = m.graph.encoder, .options = plan};
    run.ids = ids.view();
    const Value memory = run_stack(tape, run);
    CachedSequence sequence;
    for (const Group& group : groups_) { sequence.caches_.push_back(group.pool.create()); }
    sequence.cross_.push_back(cross_[0].create());
    for (std::size_t i = 0; i < m.graph.decoder.layers.size(); ++i) {
        const CacheBatch batch{.caches = {&sequence.cross_[0]}, .layer = static_cast<std::int64_t>(i)};
        m.graph.decoder.layers[i].cross.fill_caches(tape, memory, batch);
    }
    return sequence;
}

namespace {

/// The tokens of a step, end to end.
struct Packed {
    Tensor ids;        ///< [1,T]
    Tensor positions;  ///< [1,T]
    std::vector<std::int64_t> counts;
    std::int64_t longest = 0;  ///< new tokens of one sequence
    std::int64_t length = 0;   ///< of the longest sequence behind the step
};

/// The relative bias of every sequence's new tokens, [N,H,T,S].
Value step_bias(Tape& tape, const StackRun& run, const Packed& packed, std::span<const std::int64_t> before) {
    const auto n = static_cast<std::int64_t>(before.size());
    Tensor queries(DType::i64, {n, packed.longest}), keys(DType::i64, {n, packed.length});
    for (std::int64_t b = 0; b < n; ++b) {
        for (std::int64_t t = 0; t < packed.longest; ++t) {
            queries.as<std::int64_t>()[b * packed.longest + t] = before[static_cast<std::size_t>(b)] + t;
        }
        for (std::int64_t s = 0; s < packed.length; ++s) { keys.as<std::int64_t>()[b * packed.length + s] = s; }
    }
    return relative_bias(
        tape, run.stack.relative.on(tape), packed.longest, packed.length,
        {.buckets = run.config.positions.buckets, .query_positions = queries.view(), .key_positions = keys.view()});
}

Tensor last_rows(Context& context, const Value& x, const Packed& packed) {
    const auto n = static_cast<std::int64_t>(packed.counts.size());
    Tensor rows(x.dtype(), {1, n, x.extent(2)}, context.device());
    std::int64_t end = 0;
    for (std::int64_t b = 0; b < n; ++b) {
        end += packed.counts[static_cast<std::size_t>(b)];
        convert(context, x.slice(1, end - 1, end), rows.view().slice(1, b, b + 1));
    }
    return rows;
}

}  // namespace

Tensor Decoding::step(Context& context, const DecodingBatch& batch) {
    const ModelState& m = *detail::Access::state(model_);
    const auto n = static_cast<std::int64_t>(batch.sequences.size());
    const auto total = static_cast<std::int64_t>(batch.tokens.size());
    Packed packed;
    packed.counts = batch.counts.empty() ? std::vector<std::int64_t>(static_cast<std::size_t>(n), 1) : batch.counts;
    const std::int64_t sum = std::accumulate(packed.counts.begin(), packed.counts.end(), std::int64_t{0});
    if (n == 0 || static_cast<std::int64_t>(packed.counts.size()) != n || sum != total ||
        std::ranges::any_of(packed.counts, [](std::int64_t count) { return count < 1; })) {
        throw Error("[Decoding::step] counts: expected 1 or more of each of " + std::to_string(n) +
                    " sequences, in all " + std::to_string(total) + ", got " + std::to_string(sum) + " of " +
                    std::to_string(packed.counts.size()));
    }
    packed.ids = read_ids("tokens", View(batch.tokens.data(), {1, total}), m.config.vocab);
    packed.positions = Tensor(DType::i64, {1, total});
    std::vector<std::int64_t> before;
    std::int64_t at = 0;
    for (std::size_t b = 0; b < batch.sequences.size(); ++b) {
        const CachedSequence& sequence = *batch.sequences[b];
        if (!sequence) { throw Error("[Decoding::step] sequences: expected ones that create made, got an empty one"); }
        before.push_back(sequence.length());
        for (std::int64_t t = 0; t < packed.counts[b]; ++t) {
            packed.positions.as<std::int64_t>()[at++] = sequence.first_position_ + sequence.length() + t;
        }
        packed.longest = std::max(packed.longest, packed.counts[b]);
        packed.length = std::max(packed.length, sequence.length() + packed.counts[b]);
    }

    Tape tape(context, memory_, {.record = false});
    TapeForward plan;
    plan.kernel = options_.kernel;
    StackRun run{.model = m, .config = m.config.decoder, .stack = m.graph.decoder, .options = plan};
    run.ids = packed.ids.view();
    Value x = embed(tape, run, packed.positions.view());

    std::vector<CacheBatch> caches(groups_.size());
    for (std::size_t g = 0; g < groups_.size(); ++g) {
        for (CachedSequence* sequence : batch.sequences) { caches[g].caches.push_back(&sequence->caches_[g]); }
        caches[g].tokens = packed.counts;
        // A token's logits do not depend on who else is in the batch.
        caches[g].share = SharedPrefix::never;
    }
    CacheBatch cross;
    cross.tokens = packed.counts;
    cross.share = SharedPrefix::never;
    for (CachedSequence* sequence : batch.sequences) {
        if (!sequence->cross_.empty()) { cross.caches.push_back(&sequence->cross_[0]); }
    }
    AttentionCall self;
    self.causal = m.config.decoder.causal;
    self.positions = packed.positions.view();
    self.length = packed.length;
    self.rotate_in_cache = options_.rotate_in_cache;
    self.kernel = options_.kernel;
    if (!m.graph.decoder.alibi.empty()) {
        self.alibi = View(m.graph.decoder.alibi.data(), {static_cast<std::int64_t>(m.graph.decoder.alibi.size())});
    }
    if (m.config.decoder.positions.kind == PositionKind::relative) { self.bias = step_bias(tape, run, packed, before); }
    AttentionCall over;
    over.kernel = options_.kernel;
    over.caches = &cross;
    over.append = false;
    try {
        for (std::size_t i = 0; i < m.graph.decoder.layers.size(); ++i) {
            const auto [group, layer] = places_[i];
            caches[group].layer = layer;
            self.caches = &caches[group];
            cross.layer = static_cast<std::int64_t>(i);
            x = m.graph.decoder.layers[i](tape, x, self, m.graph.decoder.layers[i].has_cross ? &over : nullptr);
        }
    } catch (...) {
        // Some layers may have the new tokens: all go back to where they were.
        for (std::size_t b = 0; b < batch.sequences.size(); ++b) {
            for (Cache& cache : batch.sequences[b]->caches_) {
                if (cache.pool().config().kind == CacheKind::attention ||
                    cache.pool().config().kind == CacheKind::latent) {
                    cache.truncate(std::min(before[b], cache.length()));
                }
            }
        }
        throw;
    }
    for (std::size_t b = 0; b < batch.sequences.size(); ++b) { batch.sequences[b]->length_ += packed.counts[b]; }
    if (!batch.all_logits && total > n) {
        Tensor rows = last_rows(context, x, packed);
        x = tape.constant(std::move(rows));
    }
    x = run.stack.final_norm(tape, x);
    const Value logits = model_logits(tape, m, x);
    const Value rows = logits.reshape({logits.extent(1), logits.extent(2)});
    if (!on_host(context)) { return host_copy(context, convert(tape, rows, DType::f32)); }
    Tensor result = Tensor::uninitialised(DType::f32, rows.shape());
    convert(context, rows, result.view());
    return result;
}

}  // namespace heed
