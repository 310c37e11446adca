#include <heed/nn.h>

#include <heed/elementwise.h>
#include <heed/inspect.h>
#include <heed/matmul.h>

#include <cmath>

#include "base/refuse.h"
#include "ops/host_copy.h"

namespace heed {
namespace {

struct Heads {
    Value q, k, v;  ///< [B,H,T,D], [B,G,S,D], [B,G,S,E]
};

/// Heads of a projection [B,T,N], which begin at `rows.begin` and lie `rows.stride` apart.
Value heads_of(const Value& x, const AttentionLayer::Rows& rows, std::int64_t heads, std::int64_t size) {
    const std::int64_t t = x.extent(1), n = x.extent(2);
    return x.seen_as(rows.begin, {x.extent(0), heads, t, size}, {t * n, rows.stride, n, 1});
}

Value heads_of(const Value& x, std::int64_t heads, std::int64_t size) {
    return heads_of(x, {.begin = 0, .stride = size}, heads, size);
}

/// sinks and gates are numbers that attention wants in f32 or f64.
Value wide(Tape& tape, const Value& x) { return !x || x.dtype() == DType::f64 ? x : convert(tape, x, DType::f32); }

bool rope_grows(const AttentionConfig& config) { return config.rope && depends_on_length(config.rope->scaling); }

RopeTable table_for(const AttentionLayer& layer, std::int64_t length) {
    return rope_grows(layer.config) ? rope_table(*layer.config.rope, length) : layer.table;
}

AttentionOptions options_of(const AttentionLayer& layer, const AttentionCall& call) {
    AttentionOptions o;
    o.scale = layer.config.scale;
    o.softcap = layer.config.softcap;
    o.kernel = call.kernel;
    if (!layer.cross) {
        o.causal = call.causal;
        o.window = layer.config.window;
        if (call.causal) { o.window.right = -1; }
        o.alibi_slopes = call.alibi;
        if (call.alibi_positions) { o.query_positions = o.key_positions = call.alibi_positions; }
        o.cu_seqlens_q = o.cu_seqlens_k = call.packed.cu_seqlens;
    }
    o.allow = call.allow;
    o.dropout = {.p = call.dropout.attention,
                 .seed = call.dropout.seed,
                 .offset = call.dropout.offset + 4 * call.place + (layer.cross ? 1U : 0U)};
    return o;
}

Value rotated(Tape& tape, const AttentionLayer& layer, const AttentionCall& call, const Value& x,
              std::int64_t begin = 0) {
    if (!layer.config.rope || layer.cross) { return x; }
    return rope(tape, x, table_for(layer, call.length), {.positions = call.positions}, begin);
}

Value normed(Tape& tape, const NormLayer& norm, QkNorm kind, const Value& x, std::int64_t heads, std::int64_t size) {
    if (kind == QkNorm::whole) { return norm(tape, x); }
    return norm(tape, x.reshape({x.extent(0), x.extent(1), heads, size})).reshape(x.shape());
}

Heads project(Tape& tape, const AttentionLayer& layer, const Value& x, const Value& memory) {
    const AttentionConfig& c = layer.config;
    if (layer.qkv) {
        const Value all = layer.qkv(tape, x);
        return {heads_of(all, layer.q_rows, c.heads, c.head_size), heads_of(all, layer.k_rows, c.kv_heads, c.head_size),
                heads_of(all, layer.v_rows, c.values(), c.value_size)};
    }
    if (layer.joined) {
        const Value all = layer.joined(tape, x);
        const std::int64_t k = c.heads * c.head_size, v = k + c.kv_heads * c.head_size;
        return {heads_of(all, {.begin = 0, .stride = c.head_size}, c.heads, c.head_size),
                heads_of(all, {.begin = k, .stride = c.head_size}, c.kv_heads, c.head_size),
                heads_of(all, {.begin = v, .stride = c.value_size}, c.values(), c.value_size)};
    }
    const Value& source = layer.cross ? memory : x;
    Value q = layer.q(tape, x);
    Value k = source ? layer.k(tape, source) : Value();
    Value v = source ? layer.v(tape, source) : Value();
    if (c.qk_norm != QkNorm::none) {
        q = normed(tape, layer.q_norm, c.qk_norm, q, c.heads, c.head_size);
        if (k) { k = normed(tape, layer.k_norm, c.qk_norm, k, c.kv_heads, c.head_size); }
    }
    Heads heads{heads_of(q, c.heads, c.head_size), {}, {}};
    if (k) {
        heads.k = heads_of(k, c.kv_heads, c.head_size);
        heads.v = heads_of(v, c.values(), c.value_size);
    }
    return heads;
}

/// `out` [B,T,H,E] with a factor on each head.
Value with_factors(Tape& tape, const std::vector<double>& factors, const Value& out) {
    const std::int64_t heads = out.extent(2), size = out.extent(3);
    Tensor wide(DType::f64, {heads, size});
    for (std::int64_t i = 0; i < wide.elements(); ++i) {
        wide.as<double>()[i] = factors[static_cast<std::size_t>(i / size)];
    }
    const Tensor there = placed(tape.context(), std::move(wide));
    const View all(DType::f64, there.data(), out.shape(), {0, 0, size, 1}, there.device());
    Tensor gate = Tensor::uninitialised(out.dtype(), out.shape(), there.device());
    convert(tape.context(), all, gate.view());
    return gated(tape, Activation::none, tape.constant(std::move(gate)), out);
}

/// Heads [B,T,H,E] side by side through the output projection.
Value joined(const AttentionLayer& layer, Tape& tape, const AttentionCall& call, const Value& heads) {
    const Value out = call.head_factors.empty() ? heads : with_factors(tape, call.head_factors, heads);
    return layer.out(tape, out.reshape({out.extent(0), out.extent(1), out.extent(2) * out.extent(3)}));
}

// ---- Softmax -------------------------------------------------------------------------------------------------------

/// Copies of what the options see, in the host's memory; the relative bias is left to who knows that layers share it.
AttentionInputs kept_inputs(Tape& tape, const Value& q, const Value& k, AttentionOptions options) {
    AttentionInputs inputs;
    inputs.q = host_copy(tape.context(), q);
    inputs.k = host_copy(tape.context(), k);
    options.bias = View();
    for (View* view :
         {&options.allow, &options.alibi_slopes, &options.query_positions, &options.key_positions, &options.sinks}) {
        if (!*view) { continue; }
        inputs.kept.push_back(Tensor::copy_of(*view).to(Device{}));
        *view = inputs.kept.back().view();
    }
    inputs.options = std::move(options);
    return inputs;
}

/// What a call asks to see of the weights.
void capture(Tape& tape, const Value& q, const Value& k, AttentionOptions options, const AttentionLearned& learned,
             const AttentionCall& call) {
    if (learned.bias) { options.bias = learned.bias; }
    if (learned.sinks) { options.sinks = learned.sinks; }
    options.dropout = {};
    if (call.inputs != nullptr) { *call.inputs = kept_inputs(tape, q, k, options); }
    if (call.weights == nullptr) { return; }
    *call.weights = Tensor::uninitialised(q.dtype() == DType::f64 ? DType::f64 : DType::f32,
                                          {q.extent(0), q.extent(1), q.extent(2), k.extent(2)});
    if (on_host(tape.context())) {
        attention_weights(tape.context(), q, k, call.weights->view(), {}, options);
        return;
    }
    // Looking at weights is the host's.
    AttentionInputs here = kept_inputs(tape, q, k, options);
    const Tensor bias = options.bias ? host_copy(tape.context(), options.bias) : Tensor();
    if (bias) { here.options.bias = bias.view(); }
    here.options.kernel.clear();
    Context host;
    attention_weights(host, here.q, here.k, call.weights->view(), {}, here.options);
}

bool captures(const AttentionCall& call) { return call.weights != nullptr || call.inputs != nullptr; }

Value softmax_attention(Tape& tape, const AttentionLayer& layer, const Value& x, const AttentionCall& call) {
    Heads h = project(tape, layer, x, call.memory);
    const AttentionLearned learned{.bias = call.bias, .sinks = wide(tape, layer.sinks.on(tape))};
    AttentionOptions options = options_of(layer, call);
    if (call.caches == nullptr) {
        h.q = rotated(tape, layer, call, h.q);
        h.k = rotated(tape, layer, call, h.k);
        if (captures(call)) { capture(tape, h.q, h.k, options, learned, call); }
        return joined(layer, tape, call, attend(tape, h.q, h.k, h.v, options, learned));
    }
    if (!call.rotate_in_cache || !rope_grows(layer.config)) {
        h.q = rotated(tape, layer, call, h.q);
        if (h.k) { h.k = rotated(tape, layer, call, h.k); }
    }
    if (learned.bias) { options.bias = learned.bias; }
    if (learned.sinks) { options.sinks = learned.sinks; }
    const Value out = tape.empty(x.dtype(), {1, x.extent(1), layer.config.heads, layer.config.value_size});
    cached_attend(tape.context(), *call.caches, h.q, h.k, h.v, out.view().permute({0, 2, 1, 3}), options);
    return joined(layer, tape, call, out);
}

// ---- MLA -----------------------------------------------------------------------------------------------------------

/// The keys of all heads, to look at.
Value expanded_keys(Tape& tape, const Value& latent, const Value& rotary, const Value& up_key) {
    const std::int64_t b = latent.extent(0), s = latent.extent(1), r = latent.extent(2);
    const std::int64_t h = up_key.extent(0), n = up_key.extent(1), p = rotary ? rotary.extent(2) : 0;
    const Value keys = tape.empty(latent.dtype(), {b, h, s, n + p});
    const MutableView& all = keys.view();
    matmul(tape.context(), latent.seen_as(0, {b, 1, s, r}, {s * r, s * r, r, 1}),
           View(up_key.dtype(), up_key.view().data(), {1, h, r, n},
                {0, up_key.view().stride(0), up_key.view().stride(2), up_key.view().stride(1)}, up_key.view().device()),
           all.slice(3, 0, n));
    if (p > 0) {
        for (std::int64_t i = 0; i < h; ++i) {
            const MutableView head = all.slice(1, i, i + 1).slice(3, n, n + p);
            convert(tape.context(),
                    View(rotary.dtype(), rotary.view().data(), {b, 1, s, p},
                         {rotary.view().stride(0), 0, rotary.view().stride(1), rotary.view().stride(2)},
                         rotary.view().device()),
                    head);
        }
    }
    return keys;
}

Value latent_attention(Tape& tape, const AttentionLayer& layer, const Value& x, const AttentionCall& call) {
    const LatentAttention& l = *layer.config.latent;
    const std::int64_t b = x.extent(0), t = x.extent(1), r = l.kv_rank, p = l.rope_size;
    Value q = layer.q_down ? layer.q_up(tape, layer.q_latent_norm(tape, layer.q_down(tape, x))) : layer.q(tape, x);
    q = heads_of(q, layer.config.heads, l.nope_size + p);
    const Value down = layer.kv_down(tape, x);
    const Value latent = layer.kv_latent_norm(tape, down.slice(2, 0, r));
    Value rotary;
    const bool in_cache = call.caches != nullptr && call.rotate_in_cache && rope_grows(layer.config);
    if (p > 0) {
        const Value key = heads_of(down, {.begin = r, .stride = p}, 1, p);
        if (in_cache) {
            rotary = down.slice(2, r, r + p);
        } else {
            rotary = rotated(tape, layer, call, key).permute({0, 2, 1, 3}).reshape({b, t, p});
            q = rotated(tape, layer, call, q, l.nope_size);
        }
    }
    const AttentionLearned learned{.bias = call.bias, .sinks = wide(tape, layer.sinks.on(tape))};
    AttentionOptions options = options_of(layer, call);
    // mla_attend wants one type: that of the activations.
    const Value up_key = convert(tape, layer.up_key.on(tape), x.dtype());
    const Value up_value = convert(tape, layer.up_value.on(tape), x.dtype());
    if (call.caches == nullptr) {
        if (captures(call)) { capture(tape, q, expanded_keys(tape, latent, rotary, up_key), options, learned, call); }
        return joined(layer, tape, call, mla_attend(tape, q, latent, rotary, up_key, up_value, options, learned));
    }
    if (learned.sinks) { options.sinks = learned.sinks; }
    const Value rows = tape.empty(x.dtype(), {1, 1, t, r + p});
    convert(tape.context(), latent.reshape({1, 1, t, r}), rows.slice(3, 0, r).view());
    if (p > 0) {
        convert(tape.context(),
                View(rotary.dtype(), rotary.view().data(), {1, 1, t, p}, {0, 0, rotary.view().stride(1), 1},
                     rotary.view().device()),
                rows.slice(3, r, r + p).view());
    }
    const Value out = tape.empty(x.dtype(), {1, t, layer.config.heads, l.value_size});
    cached_mla_attend(tape.context(), *call.caches, q, rows, {.up_key = up_key, .up_value = up_value},
                      out.view().permute({0, 2, 1, 3}), options);
    return joined(layer, tape, call, out);
}

// ---- Linear --------------------------------------------------------------------------------------------------------

void refuse_capture(const AttentionCall& call, const char* core) {
    if (call.weights != nullptr) {
        refuse("forward", "capture", std::string("no attention weights of ") + core + " attention, which has none",
               "a request for them");
    }
}

Value linear_core(Tape& tape, const AttentionLayer& layer, const Value& x, const AttentionCall& call) {
    refuse_capture(call, "linear");
    Heads h = project(tape, layer, x, call.memory);
    h.q = rotated(tape, layer, call, h.q);
    h.k = rotated(tape, layer, call, h.k);
    LinearAttentionOptions options;
    options.feature = layer.config.feature;
    options.causal = call.causal && !layer.cross;
    options.normalise = layer.config.normalise;
    if (!layer.decay.empty() && options.causal) {
        options.decay = View(layer.decay.data(), {static_cast<std::int64_t>(layer.decay.size())});
    }
    if (call.caches != nullptr) {
        const Value out = tape.empty(x.dtype(), {1, x.extent(1), layer.config.heads, layer.config.value_size});
        cached_linear_attend(tape.context(), *call.caches, h.q, h.k, h.v, out.view().permute({0, 2, 1, 3}), options);
        return joined(layer, tape, call, out);
    }
    if (call.allow && !call.lengths) {
        refuse("forward", "attention_mask", "padding at the end for linear attention", "it elsewhere");
    }
    options.key_lengths = call.lengths;
    options.cu_seqlens = call.packed.cu_seqlens;
    return joined(layer, tape, call, linear_attend(tape, h.q, h.k, h.v, options));
}

// ---- Linear with gates ---------------------------------------------------------------------------------------------

/// Rows of length 1: x / sqrt(|x|^2 + 1e-6), times `length`.
Value unit_rows(Tape& tape, const Value& x, double length) {
    const auto size = static_cast<double>(x.extent(3));
    const Value rows = norm(tape, x, {}, {}, {.kind = NormKind::rms_norm, .eps = 1e-6 / size});
    return scale(tape, rows, length / std::sqrt(size));
}

/// Queries, keys and values as the operation takes them: a query and a key for each of the values, where there are more
/// of those. The delta rule takes away what lies along a key, so keys have length 1.
Heads gated_heads(Tape& tape, const AttentionLayer& layer, const Value& x, const AttentionCall& call) {
    const AttentionConfig& c = layer.config;
    Heads h = project(tape, layer, x, call.memory);
    if (c.core != AttentionCore::gated) {
        h.q = unit_rows(tape, h.q, 1);
        h.k = unit_rows(tape, h.k, 1);
    }
    h.q = rotated(tape, layer, call, h.q);
    h.k = rotated(tape, layer, call, h.k);
    if (c.values() > c.kv_heads) {
        h.q = repeat_heads(tape, h.q, c.values() / c.heads);
        h.k = repeat_heads(tape, h.k, c.values() / c.kv_heads);
    }
    return h;
}

LinearGates gates_of(Tape& tape, const AttentionLayer& layer, const Value& x) {
    const std::int64_t b = x.extent(0), t = x.extent(1), n = layer.config.values();
    const auto by_state = [&](const Value& y) { return y.seen_as(0, {b, n, t}, {t * n, 1, n}); };
    LinearGates gates;
    if (layer.decay_gate) {
        const Value decay = log_decay(tape, layer.decay_gate(tape, x), layer.decay_rate.on(tape));
        gates.log_decay = layer.config.decay_rows ? heads_of(decay, n, layer.config.head_size) : by_state(decay);
    }
    if (layer.beta) { gates.beta = by_state(layer.beta(tape, x, Activation::sigmoid)); }
    return gates;
}

/// What the heads gave [B,T,H,E] behind their norm and, where there is one, the gate.
Value gated_output(Tape& tape, const AttentionLayer& layer, const Value& x, const Value& heads) {
    const Value out = layer.output_norm(tape, heads);
    if (!layer.output_gate) { return out; }
    return gated(tape, Activation::silu, layer.output_gate(tape, x).reshape(out.shape()), out);
}

Value gated_core(Tape& tape, const AttentionLayer& layer, const Value& x, const AttentionCall& call) {
    refuse_capture(call, "gated linear");
    const AttentionConfig& c = layer.config;
    const Heads h = gated_heads(tape, layer, x, call);
    const LinearGates gates = gates_of(tape, layer, x);
    LinearAttentionOptions options{.feature = FeatureMap::identity, .normalise = false};
    options.scale = c.scale.value_or(1 / std::sqrt(static_cast<double>(c.head_size)));
    if (c.core != AttentionCore::gated) { options.rule = UpdateRule::delta; }
    if (call.caches != nullptr) {
        if (gates.log_decay) { options.log_decay = gates.log_decay; }
        if (gates.beta) { options.beta = gates.beta; }
        const Value out = tape.empty(x.dtype(), {1, x.extent(1), c.outputs(), c.value_size});
        cached_linear_attend(tape.context(), *call.caches, h.q, h.k, h.v, out.view().permute({0, 2, 1, 3}), options);
        return joined(layer, tape, call, gated_output(tape, layer, x, out));
    }
    if (call.allow && !call.lengths) {
        refuse("forward", "attention_mask", "padding at the end for linear attention", "it elsewhere");
    }
    options.key_lengths = call.lengths;
    options.cu_seqlens = call.packed.cu_seqlens;
    const Value out = linear_attend(tape, h.q, h.k, h.v, options, gates);
    return joined(layer, tape, call, gated_output(tape, layer, x, out));
}

// ---- Infini --------------------------------------------------------------------------------------------------------

Value infini_core(Tape& tape, const AttentionLayer& layer, const Value& x, const AttentionCall& call) {
    refuse_capture(call, "Infini-");
    const Heads plain = project(tape, layer, x, call.memory);
    Heads h = plain;
    h.q = rotated(tape, layer, call, h.q);
    h.k = rotated(tape, layer, call, h.k);
    InfiniOptions options;
    options.segment = layer.config.segment;
    options.update = layer.config.update;
    options.local.scale = layer.config.scale;
    options.local.softcap = layer.config.softcap;
    options.local.window.left = layer.config.window.left;
    options.local.kernel = call.kernel;
    const Value sinks = wide(tape, layer.sinks.on(tape));
    if (sinks) { options.local.sinks = sinks; }
    const Value gates = wide(tape, layer.gates.on(tape));
    // The memory is of all positions alike: it sees queries and keys that have not turned.
    const bool turned = layer.config.rope.has_value();
    if (call.caches != nullptr) {
        const Value out = tape.empty(x.dtype(), {1, x.extent(1), layer.config.heads, layer.config.value_size});
        if (turned) {
            options.memory_q = plain.q;
            options.memory_k = plain.k;
        }
        cached_infini_attend(tape.context(), *call.caches, h.q, h.k, h.v, gates, out.view().permute({0, 2, 1, 3}),
                             options);
        return joined(layer, tape, call, out);
    }
    if (call.allow && !call.lengths) {
        refuse("forward", "attention_mask", "padding at the end for Infini-attention", "it elsewhere");
    }
    const InfiniMemoryInputs memory{.q = turned ? plain.q : Value(), .k = turned ? plain.k : Value()};
    return joined(layer, tape, call, infini_attend(tape, h.q, h.k, h.v, gates, options, memory));
}

/// Infini-attention, and linear attention that is not causal, have no kernel for sequences that lie end to end: each
/// becomes a row of a padded batch.
template <class Core>
Value apart(Tape& tape, const AttentionLayer& layer, const Value& x, const AttentionCall& call, const Core& core) {
    if (!call.packed.cu_seqlens || call.caches != nullptr) { return core(tape, layer, x, call); }
    AttentionCall each = call;
    each.packed = {};
    each.positions = {};
    each.lengths = call.packed.lengths;
    const std::int64_t d = x.extent(2);
    const Value rows = embedding(tape, call.packed.padded, x.reshape({x.extent(1), d}), {.dtype = x.dtype()});
    const Value out = core(tape, layer, rows, each);
    return embedding(tape, call.packed.places, out.reshape({out.extent(0) * out.extent(1), d}), {.dtype = x.dtype()});
}

}  // namespace

std::size_t AttentionInputs::bytes() const {
    std::size_t sum = q.bytes() + k.bytes();
    for (const Tensor& tensor : kept) { sum += tensor.bytes(); }
    return sum;
}

void AttentionLayer::prepare() {
    if (config.rope) { table = rope_table(*config.rope); }
    decay.clear();
    if (config.core == AttentionCore::linear && config.decay) {
        for (std::int64_t h = 0; h < config.heads; ++h) {
            decay.push_back(1 - std::exp2(-5.0 - static_cast<double>(h) * 8 / static_cast<double>(config.heads)));
        }
    }
}

Value AttentionLayer::operator()(Tape& tape, const Value& x, const AttentionCall& call) const {
    if (config.latent) { return latent_attention(tape, *this, x, call); }
    switch (config.core) {
        case AttentionCore::softmax: return softmax_attention(tape, *this, x, call);
        case AttentionCore::linear:
            return call.causal ? linear_core(tape, *this, x, call) : apart(tape, *this, x, call, linear_core);
        case AttentionCore::infini: return apart(tape, *this, x, call, infini_core);
        case AttentionCore::gated:
        case AttentionCore::delta:
        case AttentionCore::gated_delta: return gated_core(tape, *this, x, call);
    }
    return {};
}

void AttentionLayer::fill_caches(Tape& tape, const Value& memory, const CacheBatch& caches) const {
    const Value keys = k(tape, memory), values = v(tape, memory);
    cache_append(tape.context(), caches, heads_of(keys, config.kv_heads, config.head_size),
                 heads_of(values, config.kv_heads, config.value_size));
}

CacheConfig AttentionLayer::cache_config(bool rotate_in_cache) const {
    CacheConfig c;
    c.kv_heads = config.kv_heads;
    c.head_size = config.head_size;
    c.value_size = config.value_size;
    if (!cross && rotate_in_cache && rope_grows(config)) { c.rope = config.rope; }
    if (config.latent) {
        c.kind = CacheKind::latent;
        c.kv_heads = 1;
        c.head_size = config.latent->kv_rank + config.latent->rope_size;
        c.value_size = config.latent->kv_rank;
    } else if (config.core == AttentionCore::linear) {
        c.kind = CacheKind::linear;
        c.states = config.decay ? config.heads : 0;
        c.normalise = config.normalise;
    } else if (config.has_gates()) {
        c.kind = CacheKind::linear;
        c.kv_heads = config.values();
        c.normalise = false;
    } else if (config.core == AttentionCore::infini) {
        c.kind = CacheKind::infini;
        c.segment = config.segment;
        c.memory_keys = config.rope.has_value();
    }
    return c;
}

}  // namespace heed
