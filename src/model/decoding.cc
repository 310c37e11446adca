#include <heed/elementwise.h>
#include <heed/model.h>

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "base/access.h"
#include "base/refuse.h"
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
    if (c.kind == ModelKind::encoder) { refuse("Decoding", "model", "a decoder or an encoder-decoder", "an encoder"); }
    if (options.tokens < 1 || options.sequences < 1 || options.page_size < 1) {
        refuse("Decoding", "options", "room for 1 token and 1 sequence or more", "less");
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
        refuse("Decoding::create", "source", "a tensor, for an encoder-decoder", "none");
    }
    CachedSequence sequence;
    for (const Group& group : groups_) { sequence.caches_.push_back(group.pool.create()); }
    return sequence;
}

CachedSequence Decoding::create(Context& context, const View& source) {
    const ModelState& m = *detail::Access::state(model_);
    if (m.config.kind != ModelKind::encoder_decoder) {
        refuse("Decoding::create", "source", "none for a decoder", "one");
    }
    if (!source || source.rank() != 1) { refuse("Decoding::create", "source", "i64 or i32 [tokens]", "none"); }
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
    std::int64_t longest = 0;          ///< new tokens of one sequence
    std::int64_t length = 0;           ///< of the longest sequence behind the step
    std::vector<std::int64_t> before;  ///< lengths of the sequences
};

/// The relative bias of every sequence's new tokens, [N,H,T,S].
Value step_bias(Tape& tape, const StackRun& run, const Packed& packed) {
    const auto n = static_cast<std::int64_t>(packed.before.size());
    Tensor queries(DType::i64, {n, packed.longest}), keys(DType::i64, {n, packed.length});
    for (std::int64_t b = 0; b < n; ++b) {
        for (std::int64_t t = 0; t < packed.longest; ++t) {
            queries.as<std::int64_t>()[b * packed.longest + t] = packed.before[static_cast<std::size_t>(b)] + t;
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

std::vector<std::int64_t> checked_counts(const DecodingBatch& batch) {
    const std::size_t n = batch.sequences.size();
    const auto total = static_cast<std::int64_t>(batch.tokens.size());
    std::vector<std::int64_t> counts = batch.counts.empty() ? std::vector<std::int64_t>(n, 1) : batch.counts;
    const std::int64_t sum = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
    if (n == 0 || counts.size() != n || sum != total ||
        std::ranges::any_of(counts, [](std::int64_t count) { return count < 1; })) {
        refuse("Decoding::step", "counts",
               "1 or more of each of " + std::to_string(n) + " sequences, in all " + std::to_string(total),
               std::to_string(sum) + " of " + std::to_string(counts.size()));
    }
    return counts;
}

/// Some layers may have the new tokens: all go back to where they were.
void take_back(std::vector<Cache>& caches, std::int64_t length) {
    for (Cache& cache : caches) {
        const CacheKind kind = cache.pool().config().kind;
        if (kind == CacheKind::attention || kind == CacheKind::latent) {
            cache.truncate(std::min(length, cache.length()));
        }
    }
}

Tensor logits_on_host(Context& context, Tape& tape, const Value& logits) {
    const Value rows = logits.reshape({logits.extent(1), logits.extent(2)});
    if (!on_host(context)) { return host_copy(context, convert(tape, rows, DType::f32)); }
    Tensor result = Tensor::uninitialised(DType::f32, rows.shape());
    convert(context, rows, result.view());
    return result;
}

/// The caches of a step: those of each group of layers, and those of the encoder's output.
struct StepCaches {
    std::vector<CacheBatch> groups;
    CacheBatch cross;

    void begin(const std::vector<std::int64_t>& counts) {
        const auto one = [&](CacheBatch& caches) {
            caches.tokens = counts;
            // A token's logits do not depend on who else is in the batch.
            caches.share = SharedPrefix::never;
        };
        for (CacheBatch& caches : groups) { one(caches); }
        one(cross);
    }
};

/// places: the group of each layer, and its number there.
Value run_layers(Tape& tape, const Stack& stack, std::span<const std::pair<std::size_t, std::int64_t>> places,
                 AttentionCall self, StepCaches& caches, Value x) {
    AttentionCall over;
    over.kernel = self.kernel;
    over.caches = &caches.cross;
    over.append = false;
    for (std::size_t i = 0; i < stack.layers.size(); ++i) {
        const auto [group, number] = places[i];
        const BlockLayer& layer = stack.layers[i];
        caches.groups[group].layer = number;
        self.caches = &caches.groups[group];
        caches.cross.layer = static_cast<std::int64_t>(i);
        x = layer(tape, x, self, layer.has_cross ? &over : nullptr);
    }
    return x;
}

}  // namespace

Tensor Decoding::step(Context& context, const DecodingBatch& batch) {
    const ModelState& m = *detail::Access::state(model_);
    const auto total = static_cast<std::int64_t>(batch.tokens.size());
    Packed packed;
    packed.counts = checked_counts(batch);
    packed.ids = read_ids("tokens", View(batch.tokens.data(), {1, total}), m.config.vocab);
    packed.positions = Tensor(DType::i64, {1, total});
    std::int64_t at = 0;
    for (std::size_t b = 0; b < batch.sequences.size(); ++b) {
        const CachedSequence& sequence = *batch.sequences[b];
        if (!sequence) { refuse("Decoding::step", "sequences", "ones that create made", "an empty one"); }
        packed.before.push_back(sequence.length());
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
    AttentionCall call;
    call.causal = m.config.decoder.causal;
    call.positions = packed.positions.view();
    call.length = packed.length;
    call.rotate_in_cache = options_.rotate_in_cache;
    call.kernel = options_.kernel;
    const std::vector<double>& alibi = m.graph.decoder.alibi;
    if (!alibi.empty()) { call.alibi = View(alibi.data(), {static_cast<std::int64_t>(alibi.size())}); }
    if (m.config.decoder.positions.kind == PositionKind::relative) { call.bias = step_bias(tape, run, packed); }
    StepCaches caches{.groups = std::vector<CacheBatch>(groups_.size()), .cross = {}};
    for (CachedSequence* sequence : batch.sequences) {
        for (std::size_t g = 0; g < groups_.size(); ++g) { caches.groups[g].caches.push_back(&sequence->caches_[g]); }
        if (!sequence->cross_.empty()) { caches.cross.caches.push_back(&sequence->cross_[0]); }
    }
    caches.begin(packed.counts);
    try {
        x = run_layers(tape, m.graph.decoder, places_, call, caches, x);
    } catch (...) {
        for (std::size_t b = 0; b < batch.sequences.size(); ++b) {
            take_back(batch.sequences[b]->caches_, packed.before[b]);
        }
        throw;
    }
    for (std::size_t b = 0; b < batch.sequences.size(); ++b) { batch.sequences[b]->length_ += packed.counts[b]; }
    if (!batch.all_logits && total > static_cast<std::int64_t>(batch.sequences.size())) {
        x = tape.constant(last_rows(context, x, packed));
    }
    return logits_on_host(context, tape, model_logits(tape, m, run.stack.final_norm(tape, x)));
}

}  // namespace heed
