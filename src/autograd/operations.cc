#include <heed/tape_operations.h>

#include <heed/elementwise.h>

#include <array>
#include <utility>

namespace heed {
namespace {

/// A tensor that a way back shares with nobody but itself; closures are copied, tensors are not.
using Kept = std::shared_ptr<Tensor>;

Kept keep(const View& view) { return std::make_shared<Tensor>(Tensor::copy_of(view)); }

DType statistics_type(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

/// Memory for a gradient that the operation writes, wanted or not.
MutableView place_or_spare(SinkMemory& memory, Tensor& spare, const Value& like) {
    if (memory) { return memory.view(); }
    spare = Tensor::uninitialised(like.dtype(), like.shape(), like.view().device());
    return spare.view();
}

Shape with_last(const Shape& shape, std::int64_t last) {
    Shape result = shape;
    result[shape.rank() - 1] = last;
    return result;
}

}  // namespace

Value linear(Tape& tape, const Value& x, const Value& weight, const Value& bias, Activation activation) {
    const bool needs = tape.wants({&x, &weight, &bias});
    const Shape shape = with_last(x.shape(), weight.extent(0));
    Value out = tape.empty(x.dtype(), shape, needs);
    Value before;
    if (needs && activation != Activation::none) { before = tape.empty(x.dtype(), shape); }
    linear(tape.context(), x, weight, out.view(),
           {.bias = bias, .activation = activation, .before_activation = before.view()});
    if (!needs) { return out; }
    tape.record(out, [x, weight, before, activation, dx = Sink(x), dw = Sink(weight), db = Sink(bias)](
                         Tape& back, std::span<const View> g) {
        SinkMemory mx(back, dx), mw(back, dw), mb(back, db);
        // Parameters add by themselves; what cannot say so goes through memory of its own.
        const bool adds = (!mw || mw.accumulate()) && (!mb || mb.accumulate());
        LinearGradients gradients{.dx = mx.place(),
                                  .dweight = adds ? mw.place() : mw.view(),
                                  .dbias = adds ? mb.place() : mb.view(),
                                  .accumulate = adds,
                                  .accumulate_dx = mx && mx.accumulate()};
        const Value room = before ? back.empty(g[0].dtype(), g[0].shape()) : Value();
        linear_backward(back.context(), x, weight, g[0], gradients,
                        {.activation = activation, .before_activation = before, .room = room.view()});
    });
    return out;
}

Value add(Tape& tape, const Value& a, const Value& b, double alpha, double beta) {
    const bool needs = tape.wants({&a, &b});
    Value out = tape.empty(a.dtype(), a.shape(), needs);
    add(tape.context(), a, b, out.view(), {.alpha = alpha, .beta = beta});
    if (!needs) { return out; }
    tape.record(out, [da = Sink(a), db = Sink(b), same = a.shape() == b.shape(), alpha, beta](Tape& back,
                                                                                              std::span<const View> g) {
        Context& context = back.context();
        if (SinkMemory memory(back, da); memory) {
            if (memory.accumulate()) {
                add(context, memory.place(), g[0], memory.place(), {.beta = alpha});
            } else {
                scale(context, g[0], alpha, memory.place());
            }
        }
        if (SinkMemory memory(back, db); memory) {
            if (same && memory.accumulate()) {
                add(context, memory.place(), g[0], memory.place(), {.beta = beta});
            } else if (same) {
                scale(context, g[0], beta, memory.place());
            } else {
                sum_leading(context, g[0], memory.place(), {.factor = beta, .accumulate = memory.accumulate()});
            }
        }
    });
    return out;
}

Value scale(Tape& tape, const Value& x, double factor) {
    const bool needs = tape.wants({&x});
    Value out = tape.empty(x.dtype(), x.shape(), needs);
    scale(tape.context(), x, factor, out.view());
    if (!needs) { return out; }
    tape.record(out, [dx = Sink(x), factor](Tape& back, std::span<const View> g) {
        SinkMemory memory(back, dx);
        scale(back.context(), g[0], factor, memory.view());
    });
    return out;
}

Value convert(Tape& tape, const Value& x, DType dtype) {
    if (x.dtype() == dtype) { return x; }
    const bool needs = tape.wants({&x});
    Value out = tape.empty(dtype, x.shape(), needs);
    convert(tape.context(), x, out.view());
    if (!needs) { return out; }
    tape.record(out, [dx = Sink(x)](Tape& back, std::span<const View> g) {
        SinkMemory memory(back, dx);
        convert(back.context(), g[0], memory.view());
    });
    return out;
}

Value activate(Tape& tape, Activation activation, const Value& x) {
    const bool needs = tape.wants({&x});
    Value out = tape.empty(x.dtype(), x.shape(), needs);
    activate(tape.context(), activation, x, out.view());
    if (!needs) { return out; }
    tape.record(out, [x, dx = Sink(x), activation](Tape& back, std::span<const View> g) {
        SinkMemory memory(back, dx);
        activate_backward(back.context(), activation, x, g[0], memory.view());
    });
    return out;
}

Value gated(Tape& tape, Activation activation, const Value& gate, const Value& up) {
    const bool needs = tape.wants({&gate, &up});
    Value out = tape.empty(gate.dtype(), gate.shape(), needs);
    gated(tape.context(), activation, gate, up, out.view());
    if (!needs) { return out; }
    tape.record(out, [gate, up, dgate = Sink(gate), dup = Sink(up), activation](Tape& back, std::span<const View> g) {
        SinkMemory mg(back, dgate), mu(back, dup);
        gated_backward(back.context(), activation, gate, up, g[0], mg.view(), mu.view());
    });
    return out;
}

Value softcap(Tape& tape, const Value& x, double cap) {
    return scale(tape, activate(tape, Activation::tanh, scale(tape, x, 1 / cap)), cap);
}

Value dropout(Tape& tape, const Value& x, double p, std::uint64_t seed, std::uint32_t offset) {
    if (p == 0) { return x; }
    const bool needs = tape.wants({&x});
    Value out = tape.empty(x.dtype(), x.shape(), needs);
    dropout(tape.context(), x, out.view(), {.p = p, .seed = seed, .offset = offset});
    if (!needs) { return out; }
    tape.record(out, [dx = Sink(x), p, seed, offset](Tape& back, std::span<const View> g) {
        SinkMemory memory(back, dx);
        dropout(back.context(), g[0], memory.view(), {.p = p, .seed = seed, .offset = offset});
    });
    return out;
}

Value norm(Tape& tape, const Value& x, const Value& weight, const Value& bias, const TapeNorm& options) {
    const bool needs = tape.wants({&x, &weight, &bias});
    Value out = tape.empty(x.dtype(), x.shape(), needs);
    const bool layer = options.kind == NormKind::layer_norm;
    const NormOptions forward{
        .eps = options.eps, .weight = weight, .bias = bias, .weight_offset = options.weight_offset};
    layer ? layer_norm(tape.context(), x, out.view(), forward) : rms_norm(tape.context(), x, out.view(), forward);
    if (!needs) { return out; }
    tape.record(out, [x, weight, dx = Sink(x), dw = Sink(weight), db = Sink(bias), options, layer](
                         Tape& back, std::span<const View> g) {
        SinkMemory mx(back, dx), mw(back, dw), mb(back, db);
        const bool adds = (!mw || mw.accumulate()) && (!mb || mb.accumulate());
        const NormGradients gradients{.dx = mx.view(),
                                      .dweight = adds ? mw.place() : mw.view(),
                                      .dbias = adds ? mb.place() : mb.view(),
                                      .accumulate = adds};
        const NormBackwardOptions again{.eps = options.eps, .weight = weight, .weight_offset = options.weight_offset};
        layer ? layer_norm_backward(back.context(), x, g[0], gradients, again)
              : rms_norm_backward(back.context(), x, g[0], gradients, again);
    });
    return out;
}

SummedNorm add_norm(Tape& tape, const Value& x, const Value& residual, const Value& weight, const Value& bias,
                    const TapeNorm& options) {
    const bool needs = tape.wants({&x, &residual, &weight, &bias});
    const std::array<Value, 2> results = {tape.empty(x.dtype(), x.shape(), needs),
                                          tape.empty(x.dtype(), x.shape(), needs)};
    const Value &out = results[0], &sum = results[1];
    const bool layer = options.kind == NormKind::layer_norm;
    const NormOptions forward{.eps = options.eps,
                              .weight = weight,
                              .bias = bias,
                              .weight_offset = options.weight_offset,
                              .residual = residual,
                              .sum = sum.view()};
    layer ? layer_norm(tape.context(), x, out.view(), forward) : rms_norm(tape.context(), x, out.view(), forward);
    if (!needs) { return {out, sum}; }
    // The numbers of the sum without its gradient: that belongs to whoever uses it.
    tape.record(results, [sum, weight, dx = Sink(x), dr = Sink(residual), dw = Sink(weight), db = Sink(bias), options,
                          layer](Tape& back, std::span<const View> g) {
        SinkMemory mx(back, dx), mr(back, dr), mw(back, dw), mb(back, db);
        if (!g[0]) {  // only the sum was used
            if (mx) { convert(back.context(), g[1], mx.view()); }
            if (mr) { convert(back.context(), g[1], mr.view()); }
            for (SinkMemory* unused : {&mw, &mb}) {
                if (*unused && !unused->accumulate()) { fill(back.context(), unused->place(), 0); }
            }
            return;
        }
        const bool adds = (!mw || mw.accumulate()) && (!mb || mb.accumulate());
        // x and the residual have the same gradient: made for one, copied for the other.
        MutableView ds = mx ? mx.view() : mr.view();
        const NormGradients gradients{.dx = ds,
                                      .dweight = adds ? mw.place() : mw.view(),
                                      .dbias = adds ? mb.place() : mb.view(),
                                      .accumulate = adds};
        const NormBackwardOptions again{
            .eps = options.eps, .weight = weight, .weight_offset = options.weight_offset, .dsum = g[1]};
        layer ? layer_norm_backward(back.context(), sum, g[0], gradients, again)
              : rms_norm_backward(back.context(), sum, g[0], gradients, again);
        if (mx && mr) {
            if (mr.accumulate()) {
                add(back.context(), mr.place(), ds, mr.place());
            } else {
                convert(back.context(), ds, mr.place());
            }
        }
    });
    return {out, sum};
}

Value embedding(Tape& tape, const View& ids, const Value& table, const TapeEmbedding& options) {
    const bool needs = tape.wants({&table});
    std::vector<std::int64_t> extents(ids.shape().begin(), ids.shape().end());
    extents.push_back(table.extent(1));
    Value out = tape.empty(options.dtype, Shape(std::span<const std::int64_t>(extents)), needs);
    embedding(tape.context(), ids, table, out.view(), {.scale = options.scale});
    if (!needs) { return out; }
    tape.record(out, [ids = keep(ids), dtable = Sink(table), options](Tape& back, std::span<const View> g) {
        SinkMemory memory(back, dtable);
        embedding_backward(
            back.context(), ids->view(), g[0], memory.place(),
            {.scale = options.scale, .accumulate = memory.accumulate(), .padding_id = options.padding_id});
    });
    return out;
}

Value rope(Tape& tape, const Value& x, const RopeTable& table, const RopeOptions& options, std::int64_t begin) {
    const bool needs = tape.wants({&x});
    const Shape& s = x.shape();
    Value out = tape.empty(x.dtype(), {s[0], s[2], s[1], s[3]}, needs).permute({0, 2, 1, 3});
    const std::int64_t size = s[3];
    if (begin > 0) { convert(tape.context(), x.slice(3, 0, begin), out.slice(3, 0, begin).view()); }
    rope(tape.context(), x.slice(3, begin, size), out.slice(3, begin, size).view(), table, options);
    if (!needs) { return out; }
    Kept positions = options.positions ? keep(options.positions) : nullptr;
    tape.record(
        out, [dx = Sink(x), table, positions, first = options.first, begin, size](Tape& back, std::span<const View> g) {
            SinkMemory memory(back, dx);
            const MutableView place = memory.view();
            const RopeOptions again{.positions = positions ? View(positions->view()) : View(), .first = first};
            // The gradient lies as the result does, [B,T,H,D].
            const View dout = g[0].permute({0, 2, 1, 3});
            if (begin > 0) { convert(back.context(), dout.slice(3, 0, begin), place.slice(3, 0, begin)); }
            rope_backward(back.context(), dout.slice(3, begin, size), place.slice(3, begin, size), table, again);
        });
    return out;
}

// ---- Attention -----------------------------------------------------------------------------------------------------

Value attend(Tape& tape, const Value& q, const Value& k, const Value& v, const AttentionOptions& options,
             const AttentionLearned& learned) {
    const bool needs = tape.wants({&q, &k, &v, &learned.bias, &learned.sinks});
    AttentionOptions all = options;
    if (learned.bias) { all.bias = learned.bias; }
    if (learned.sinks) { all.sinks = learned.sinks; }
    const std::int64_t b = q.extent(0), h = q.extent(1), t = q.extent(2), e = v.extent(3);
    Value out = tape.empty(q.dtype(), {b, t, h, e}, needs);
    const MutableView heads = out.view().permute({0, 2, 1, 3});
    if (!needs) {
        attend(tape.context(), q, k, v, heads, all);
        return out;
    }
    Value lse = tape.empty(statistics_type(q.dtype()), {b, h, t});
    attend(tape.context(), q, k, v, {.out = heads, .lse = lse.view()}, all);
    struct Saved {
        Value q, k, v, out, lse, bias, sinks;
        Sink dq, dk, dv, dbias, dsinks;
        AttentionOptions options;
    };
    auto saved = std::make_shared<Saved>(Saved{q, k, v, out, lse, learned.bias, learned.sinks, Sink(q), Sink(k),
                                               Sink(v), Sink(learned.bias), Sink(learned.sinks), all});
    tape.record(out, [saved = std::move(saved)](Tape& back, std::span<const View> g) {
        Saved& s = *saved;
        SinkMemory mq(back, s.dq), mk(back, s.dk), mv(back, s.dv), mb(back, s.dbias), ms(back, s.dsinks);
        // attend_backward gives all three of them, wanted or not.
        Tensor spare_q, spare_k, spare_v;
        const AttentionGradients gradients{.dq = place_or_spare(mq, spare_q, s.q),
                                           .dk = place_or_spare(mk, spare_k, s.k),
                                           .dv = place_or_spare(mv, spare_v, s.v),
                                           .dbias = mb.view(),
                                           .dsinks = ms.view()};
        attend_backward(back.context(),
                        {.q = s.q,
                         .k = s.k,
                         .v = s.v,
                         .out = s.out.view().permute({0, 2, 1, 3}),
                         .lse = s.lse.view(),
                         .dout = g[0].permute({0, 2, 1, 3})},
                        gradients, s.options);
    });
    return out;
}

Value mla_attend(Tape& tape, const Value& q, const Value& latent, const Value& rotary_key, const Value& up_key,
                 const Value& up_value, const AttentionOptions& options, const AttentionLearned& learned) {
    const bool needs = tape.wants({&q, &latent, &rotary_key, &up_key, &up_value, &learned.bias, &learned.sinks});
    AttentionOptions all = options;
    if (learned.bias) { all.bias = learned.bias; }
    if (learned.sinks) { all.sinks = learned.sinks; }
    const std::int64_t b = q.extent(0), h = q.extent(1), t = q.extent(2), e = up_value.extent(1);
    Value out = tape.empty(q.dtype(), {b, t, h, e}, needs);
    const MutableView heads = out.view().permute({0, 2, 1, 3});
    const MlaWeights weights{.up_key = up_key, .up_value = up_value};
    if (!needs) {
        mla_attend(tape.context(), q, latent, rotary_key, weights, heads, all);
        return out;
    }
    Value lse = tape.empty(statistics_type(q.dtype()), {b, h, t});
    mla_attend(tape.context(), q, latent, rotary_key, weights, {.out = heads, .lse = lse.view()}, all);
    struct Saved {
        Value q, latent, rotary_key, up_key, up_value, out, lse;
        Sink dq, dlatent, drotary_key, dup_key, dup_value, dbias, dsinks;
        AttentionOptions options;
        AttentionLearned learned;
    };
    auto saved = std::make_shared<Saved>(Saved{q, latent, rotary_key, up_key, up_value, out, lse, Sink(q), Sink(latent),
                                               Sink(rotary_key), Sink(up_key), Sink(up_value), Sink(learned.bias),
                                               Sink(learned.sinks), all, learned});
    tape.record(out, [saved = std::move(saved)](Tape& back, std::span<const View> g) {
        Saved& s = *saved;
        SinkMemory mq(back, s.dq), ml(back, s.dlatent), mr(back, s.drotary_key), mk(back, s.dup_key),
            mv(back, s.dup_value), mb(back, s.dbias), ms(back, s.dsinks);
        Tensor spare;
        const MlaGradients gradients{.dq = place_or_spare(mq, spare, s.q),
                                     .dlatent = ml.view(),
                                     .drotary_key = mr.view(),
                                     .dup_key = mk.view(),
                                     .dup_value = mv.view(),
                                     .dbias = mb.view(),
                                     .dsinks = ms.view(),
                                     .dalibi_slopes = {}};
        mla_attend_backward(back.context(),
                            {.q = s.q,
                             .latent = s.latent,
                             .rotary_key = s.rotary_key,
                             .weights = {.up_key = s.up_key, .up_value = s.up_value},
                             .out = s.out.view().permute({0, 2, 1, 3}),
                             .lse = s.lse.view(),
                             .dout = g[0].permute({0, 2, 1, 3})},
                            gradients, s.options);
    });
    return out;
}

Value log_decay(Tape& tape, const Value& x, const Value& rate) {
    const bool needs = tape.wants({&x, &rate});
    Value out = tape.empty(statistics_type(x.dtype()), x.shape(), needs);
    log_decay(tape.context(), x, rate, out.view());
    if (!needs) { return out; }
    tape.record(out, [x, rate, dx = Sink(x), drate = Sink(rate)](Tape& back, std::span<const View> g) {
        SinkMemory mx(back, dx), mr(back, drate);
        log_decay_backward(back.context(), x, rate, g[0], mx.view(), mr.view());
    });
    return out;
}

namespace {

/// [B,H n,T,D], row-major as [B,T,H n,D], with the n of a head as an axis of their own: [n,B,T,H,D].
template <class AnyView>
AnyView copies_apart(const AnyView& x, std::int64_t times) {
    const std::int64_t b = x.extent(0), h = x.extent(1) / times, t = x.extent(2), d = x.extent(3);
    return {x.dtype(), x.data(), Shape{times, b, t, h, d}, Shape{d, t * h * times * d, h * times * d, times * d, 1},
            x.device()};
}

}  // namespace

Value repeat_heads(Tape& tape, const Value& x, std::int64_t times) {
    const std::int64_t b = x.extent(0), h = x.extent(1), t = x.extent(2), d = x.extent(3);
    const bool needs = tape.wants({&x});
    const Value rows = tape.empty(x.dtype(), {b, t, h * times, d}, needs);
    const Value out = rows.permute({0, 2, 1, 3});
    const MutableView& from = x.view();
    convert(tape.context(),
            View(from.dtype(), from.data(), Shape{times, b, t, h, d},
                 Shape{0, from.stride(0), from.stride(2), from.stride(1), from.stride(3)}, from.device()),
            copies_apart(out.view(), times));
    if (!needs) { return out; }
    tape.record(rows, [dx = Sink(x), times](Tape& back, std::span<const View> g) {
        SinkMemory memory(back, dx);
        sum_leading(back.context(), copies_apart(g[0].permute({0, 2, 1, 3}), times),
                    memory.view().permute({0, 2, 1, 3}));
    });
    return out;
}

Value linear_attend(Tape& tape, const Value& q, const Value& k, const Value& v, const LinearAttentionOptions& given,
                    const LinearGates& gates) {
    const bool needs = tape.wants({&q, &k, &v, &gates.log_decay, &gates.beta});
    Value out = tape.empty(q.dtype(), {q.extent(0), q.extent(2), q.extent(1), v.extent(3)}, needs);
    LinearAttentionOptions options = given;
    if (gates.log_decay) { options.log_decay = gates.log_decay; }
    if (gates.beta) { options.beta = gates.beta; }
    linear_attend(tape.context(), q, k, v, out.view().permute({0, 2, 1, 3}), options);
    if (!needs) { return out; }
    struct Saved {
        Value q, k, v;
        LinearGates gates;
        Sink dq, dk, dv, dlog_decay, dbeta;
        LinearAttentionOptions options;
    };
    auto saved = std::make_shared<Saved>(
        Saved{q, k, v, gates, Sink(q), Sink(k), Sink(v), Sink(gates.log_decay), Sink(gates.beta), options});
    tape.record(out, [saved](Tape& back, std::span<const View> g) {
        const Saved& s = *saved;
        SinkMemory mq(back, s.dq), mk(back, s.dk), mv(back, s.dv), ml(back, s.dlog_decay), mb(back, s.dbeta);
        Tensor spare_q, spare_k, spare_v;
        const LinearAttentionGradients gradients{.dq = place_or_spare(mq, spare_q, s.q),
                                                 .dk = place_or_spare(mk, spare_k, s.k),
                                                 .dv = place_or_spare(mv, spare_v, s.v),
                                                 .dlog_decay = ml.view(),
                                                 .dbeta = mb.view()};
        linear_attend_backward(back.context(), {.q = s.q, .k = s.k, .v = s.v, .dout = g[0].permute({0, 2, 1, 3})},
                               gradients, s.options);
    });
    return out;
}

Value infini_attend(Tape& tape, const Value& q, const Value& k, const Value& v, const Value& gates,
                    const InfiniOptions& options, const InfiniMemoryInputs& inputs) {
    const bool needs = tape.wants({&q, &k, &v, &gates, &inputs.q, &inputs.k});
    Value out = tape.empty(q.dtype(), {q.extent(0), q.extent(2), q.extent(1), v.extent(3)}, needs);
    InfiniOptions all = options;
    all.memory_q = inputs.q;
    all.memory_k = inputs.k;
    InfiniMemory memory;
    infini_attend(tape.context(), q, k, v, gates, out.view().permute({0, 2, 1, 3}), memory, all);
    if (!needs) { return out; }
    struct Saved {
        Value q, k, v, gates;
        InfiniMemoryInputs inputs;
        Sink dq, dk, dv, dgates, dmemory_q, dmemory_k;
        InfiniOptions options;
    };
    auto saved = std::make_shared<Saved>(
        Saved{q, k, v, gates, inputs, Sink(q), Sink(k), Sink(v), Sink(gates), Sink(inputs.q), Sink(inputs.k), all});
    tape.record(out, [saved = std::move(saved)](Tape& back, std::span<const View> g) {
        const Saved& s = *saved;
        SinkMemory mq(back, s.dq), mk(back, s.dk), mv(back, s.dv), mg(back, s.dgates);
        SinkMemory mmq(back, s.dmemory_q), mmk(back, s.dmemory_k);
        Tensor spare_q, spare_k, spare_v, spare_mq, spare_mk;
        InfiniGradients gradients;
        gradients.dq = place_or_spare(mq, spare_q, s.q);
        gradients.dk = place_or_spare(mk, spare_k, s.k);
        gradients.dv = place_or_spare(mv, spare_v, s.v);
        if (s.inputs.q) {
            gradients.dmemory_q = place_or_spare(mmq, spare_mq, s.inputs.q);
            gradients.dmemory_k = place_or_spare(mmk, spare_mk, s.inputs.k);
        }
        gradients.dgates = mg.view();
        const InfiniMemory before;
        infini_attend_backward(back.context(),
                               {.q = s.q, .k = s.k, .v = s.v, .gates = s.gates, .dout = g[0].permute({0, 2, 1, 3})},
                               gradients, before, s.options);
    });
    return out;
}

Value relative_bias(Tape& tape, const Value& table, std::int64_t queries, std::int64_t keys,
                    const RelativeBiasOptions& options) {
    const bool needs = tape.wants({&table});
    const std::int64_t batch =
        options.query_positions && options.query_positions.rank() == 2 ? options.query_positions.extent(0) : 1;
    const DType dtype = statistics_type(table.dtype());
    Value out = tape.empty(dtype, {batch, table.extent(1), queries, keys}, needs);
    relative_bias(tape.context(), table, out.view(), options);
    if (!needs) { return out; }
    tape.record(out, [dtable = Sink(table), options](Tape& back, std::span<const View> g) {
        SinkMemory memory(back, dtable);
        relative_bias_backward(back.context(), g[0], memory.view(), options);
    });
    return out;
}

// ---- Losses --------------------------------------------------------------------------------------------------------

namespace {

Value number(Tape& tape, DType dtype, double value, bool needs) {
    Value out = tape.empty(dtype, {1}, needs);
    fill(tape.context(), out.view(), value);
    return out;
}

double read_number(Context& context, const View& view) {
    if (view.device().kind != DeviceKind::cpu) {
        context.synchronise();
        const Tensor here = Tensor::copy_of(view).to(Device{});
        return read_number(context, here.view());
    }
    return view.dtype() == DType::f64 ? view.as<double>()[0] : static_cast<double>(view.as<float>()[0]);
}

}  // namespace

Value cross_entropy(Tape& tape, const Value& logits, const View& targets, const CrossEntropyOptions& options) {
    const bool needs = tape.wants({&logits});
    const CrossEntropy result = cross_entropy(tape.context(), logits, targets, options);
    Value out = number(tape, statistics_type(logits.dtype()), result.loss, needs);
    if (!needs) { return out; }
    tape.record(
        out, [logits, dlogits = Sink(logits), targets = keep(targets), options](Tape& back, std::span<const View> g) {
            SinkMemory memory(back, dlogits);
            CrossEntropyOptions again = options;
            again.dloss = options.dloss * read_number(back.context(), g[0]);
            cross_entropy(back.context(), logits, targets->view(), again, {.dlogits = memory.view()});
        });
    return out;
}

Value linear_cross_entropy(Tape& tape, const Value& hidden, const Value& weight, const Value& bias, const View& targets,
                           const TapeLinearCrossEntropy& options, CrossEntropy* result) {
    const bool needs = tape.wants({&hidden, &weight, &bias});
    Value room;
    if (needs) {
        const auto bytes = static_cast<std::int64_t>(linear_cross_entropy_room(hidden, weight));
        room = tape.empty(DType::u8, {bytes});
    }
    const LinearCrossEntropyOptions both{
        .loss = options.loss, .bias = bias, .softcap = options.softcap, .room = room.view()};
    // With the loss come its gradients: computing the logits again would cost half as much once more.
    Value dhidden, dweight, dbias;
    const auto like = [&](const Value& x, bool parameter) {
        const DType dtype = parameter ? statistics_type(x.dtype()) : x.dtype();
        return needs && x.needs_gradient() ? tape.empty(dtype, x.shape()) : Value();
    };
    dhidden = like(hidden, false);
    dweight = like(weight, true);
    dbias = like(bias, true);
    LinearCrossEntropyGradients gradients;
    gradients.dhidden = dhidden.view();
    gradients.dweight = dweight.view();
    gradients.dbias = dbias.view();
    const CrossEntropy loss = linear_cross_entropy(tape.context(), hidden, weight, targets, both, gradients);
    if (result != nullptr) { *result = loss; }
    Value out = number(tape, statistics_type(hidden.dtype()), loss.loss, needs);
    if (!needs) { return out; }
    struct Part {
        Value gradient;
        Sink sink;
    };
    auto parts = std::make_shared<std::vector<Part>>();
    for (const auto& [gradient, of] : {std::pair{&dhidden, &hidden}, {&dweight, &weight}, {&dbias, &bias}}) {
        if (*gradient) { parts->push_back({*gradient, Sink(*of)}); }
    }
    tape.record(out, [parts](Tape& back, std::span<const View> g) {
        const double factor = read_number(back.context(), g[0]);
        for (Part& part : *parts) {
            SinkMemory memory(back, part.sink);
            if (memory.accumulate()) {
                add(back.context(), memory.place(), part.gradient, memory.place(), {.beta = factor});
            } else {
                scale(back.context(), part.gradient, factor, memory.place());
            }
            part.gradient = Value();
        }
    });
    return out;
}

Value gather_rows(Tape& tape, const Value& x, std::span<const std::int64_t> indices) {
    const View ids(indices.data(), {static_cast<std::int64_t>(indices.size())});
    return embedding(tape, ids, x, {.dtype = x.dtype()});
}

}  // namespace heed
