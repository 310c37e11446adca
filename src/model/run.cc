#include "model/run.h"

#include <heed/elementwise.h>

#include <algorithm>
#include <cmath>

#include "base/dispatch.h"
#include "base/refuse.h"
#include "ops/host_copy.h"

namespace heed {
namespace {

[[noreturn]] void refuse_input(const char* argument, const std::string& expected, const std::string& got) {
    refuse("forward", std::string(argument), expected, got);
}

std::int64_t offset_of(const View& view, std::int64_t i, std::int64_t j) {
    return i * view.stride(0) + j * view.stride(1);
}

/// Of all tokens, or of the last ones.
Tensor hidden_for_capture(Context& context, const StackRun& run, const Value& x) {
    const std::int64_t tokens = x.extent(1), last = run.options.hidden_last;
    return host_copy(context, last > 0 && last < tokens ? x.slice(1, tokens - last, tokens) : x);
}

void check_head_factors(const char* argument, const View& factors, const Stack& stack, bool cross) {
    if (!factors) { return; }
    std::int64_t heads = 0;
    for (const BlockLayer& layer : stack.layers) {
        const std::int64_t own = layer.has_cross ? layer.cross.config.heads : 0;
        heads = std::max(heads, cross ? own : layer.attention.config.outputs());
    }
    const Shape wanted{static_cast<std::int64_t>(stack.layers.size()), heads};
    if ((factors.dtype() != DType::f32 && factors.dtype() != DType::f64) || !(factors.shape() == wanted)) {
        refuse_input(argument, "f32 or f64 [layers, heads] " + to_string(wanted),
                     std::string(name_of(factors.dtype())) + " " + to_string(factors.shape()));
    }
}

/// Those of one layer; none where all are 1.
std::vector<double> factors_of_layer(const View& factors, std::size_t layer, std::int64_t heads) {
    std::vector<double> result;
    if (!factors) { return result; }
    for (std::int64_t h = 0; h < heads; ++h) {
        result.push_back(
            read_number(factors.dtype(), factors.data(), offset_of(factors, static_cast<std::int64_t>(layer), h)));
    }
    if (std::ranges::all_of(result, [](double factor) { return factor == 1; })) { result.clear(); }
    return result;
}

/// RoBERTa's: tokens that are no padding count from padding + 1, padding itself is at padding.
Tensor positions_without_padding(const View& ids, std::int64_t padding) {
    Tensor result(DType::i64, ids.shape());
    for (std::int64_t b = 0; b < ids.extent(0); ++b) {
        std::int64_t count = 0;
        for (std::int64_t t = 0; t < ids.extent(1); ++t) {
            const bool there = ids.as<std::int64_t>()[offset_of(ids, b, t)] != padding;
            count += there ? 1 : 0;
            result.as<std::int64_t>()[b * ids.extent(1) + t] = there ? count + padding : padding;
        }
    }
    return result;
}

Tensor counted(std::int64_t tokens) {
    Tensor result(DType::i64, {1, tokens});
    for (std::int64_t t = 0; t < tokens; ++t) { result.as<std::int64_t>()[t] = t; }
    return result;
}

/// Learned rows or sinusoids of each token, [B,T,d] or [T,d].
Value position_embedding(Tape& tape, const StackRun& run, const View& positions) {
    const PositionConfig& p = run.config.positions;
    const std::int64_t batch = positions.extent(0), tokens = positions.extent(1);
    if (p.kind == PositionKind::learned) {
        Tensor rows = Tensor::copy_of(positions);
        for (std::int64_t i = 0; i < rows.elements(); ++i) {
            std::int64_t& row = rows.as<std::int64_t>()[i];
            if (row < 0 || row + p.offset >= p.rows) {
                refuse_input("position_ids", "0 to " + std::to_string(p.rows - p.offset - 1) + ", what the model has",
                             std::to_string(row));
            }
            row += p.offset;
        }
        const View ids = batch == 1 ? View(rows.as<std::int64_t>(), {tokens}) : View(rows.view());
        return embedding(tape, ids, run.stack.positions.on(tape),
                         {.padding_id = p.skip_padding, .dtype = run.options.dtype});
    }
    const Tensor flat = Tensor::copy_of(positions);
    Tensor waves = Tensor::uninitialised(run.options.dtype, {batch * tokens, run.model.config.d_model});
    const SinusoidOptions where{.layout = p.layout, .positions = View(flat.as<std::int64_t>(), {batch * tokens})};
    if (on_host(tape.context())) {
        sinusoids(tape.context(), waves.view(), where);
    } else {
        Context host;
        sinusoids(host, waves.view(), where);
    }
    const Value all = tape.constant(placed(tape.context(), std::move(waves)));
    return batch == 1 ? all : all.reshape({batch, tokens, run.model.config.d_model});
}

/// Keys at the end are missing: their number in each row. Absent where a gap is elsewhere.
Tensor lengths_of(const View& mask) {
    Tensor lengths(DType::i64, {mask.extent(0)});
    for (std::int64_t b = 0; b < mask.extent(0); ++b) {
        std::int64_t length = 0;
        for (std::int64_t t = 0; t < mask.extent(1); ++t) {
            if (mask.as<std::uint8_t>()[offset_of(mask, b, t)] == 0) { continue; }
            if (length != t) { return {}; }
            ++length;
        }
        lengths.as<std::int64_t>()[b] = length;
    }
    return lengths;
}

/// A row-major mask [B,S] as attention sees it.
View as_keys(const View& mask) {
    return View(DType::u8, mask.data(), {mask.extent(0), 1, 1, mask.extent(1)}, mask.device());
}

/// ALiBi counts the tokens that are there.
Tensor counted_by_mask(const View& mask) {
    Tensor result(DType::i64, mask.shape());
    for (std::int64_t b = 0; b < mask.extent(0); ++b) {
        std::int64_t count = 0;
        for (std::int64_t t = 0; t < mask.extent(1); ++t) {
            count += mask.as<std::uint8_t>()[offset_of(mask, b, t)] != 0 ? 1 : 0;
            result.as<std::int64_t>()[b * mask.extent(1) + t] = std::max<std::int64_t>(count - 1, 0);
        }
    }
    return result;
}

std::int64_t longest(const View& positions) {
    std::int64_t most = 0;
    for (std::int64_t b = 0; b < positions.extent(0); ++b) {
        for (std::int64_t t = 0; t < positions.extent(1); ++t) {
            most = std::max(most, positions.as<std::int64_t>()[offset_of(positions, b, t)] + 1);
        }
    }
    return most;
}

}  // namespace

Ids read_ids(const char* argument, const View& view, std::int64_t most) {
    if (!view || view.rank() != 2) {
        refuse_input(argument, "i64 or i32 [batch, tokens]", view ? "shape " + to_string(view.shape()) : "none");
    }
    if (view.dtype() != DType::i64 && view.dtype() != DType::i32) {
        refuse_input(argument, "i64 or i32", std::string(name_of(view.dtype())));
    }
    Tensor ids = Tensor::copy_of(view);
    if (ids.dtype() == DType::i32) {
        Tensor wide(DType::i64, view.shape());
        std::copy_n(ids.as<std::int32_t>(), ids.elements(), wide.as<std::int64_t>());
        ids = std::move(wide);
    }
    for (std::int64_t i = 0; i < ids.elements(); ++i) {
        const std::int64_t id = ids.as<std::int64_t>()[i];
        if (id < 0 || id >= most) { refuse_input(argument, "0 to " + std::to_string(most - 1), std::to_string(id)); }
    }
    return ids;
}

Tensor read_mask(const char* argument, const View& view, const Shape& shape) {
    if (!view) { return {}; }
    if (!(view.shape() == shape)) {
        refuse_input(argument, "the shape of the ids, " + to_string(shape), to_string(view.shape()));
    }
    Tensor mask(DType::u8, shape);
    bool gaps = false;
    for (std::int64_t b = 0; b < shape[0]; ++b) {
        for (std::int64_t t = 0; t < shape[1]; ++t) {
            const bool there = read_number(view.dtype(), view.data(), offset_of(view, b, t)) != 0;
            mask.as<std::uint8_t>()[b * shape[1] + t] = there ? 1 : 0;
            gaps = gaps || !there;
        }
    }
    if (!gaps) { return {}; }
    return mask;
}

Value embed(Tape& tape, const StackRun& run, const View& positions) {
    const ModelConfig& c = run.model.config;
    const ModelGraph& g = run.model.graph;
    const bool own = g.source_embedding && &run.config == &c.encoder;
    const Weight& table = own ? g.source_embedding : g.embedding;
    const std::int64_t padding = c.padding_row < (own ? c.source_vocab : c.vocab) ? c.padding_row : -1;
    Value x = embedding(tape, run.ids, table.on(tape),
                        {.scale = c.embedding_scale, .padding_id = padding, .dtype = run.options.dtype});
    if (c.token_types > 0 && &run.config == &c.first()) {
        const Tensor zeros = run.token_types ? Tensor() : Tensor(DType::i64, run.ids.shape());
        x = add(tape, x,
                embedding(tape, run.token_types ? run.token_types : View(zeros.view()), g.token_types.on(tape),
                          {.dtype = run.options.dtype}));
    }
    const PositionKind kind = run.config.positions.kind;
    if (kind == PositionKind::learned || kind == PositionKind::sinusoidal) {
        x = add(tape, x, position_embedding(tape, run, positions));
    }
    x = run.stack.embedding_norm(tape, x);
    const DropoutPlan& plan = run.options.dropout;
    // Places below 64 belong to what is not a layer.
    return dropout(tape, x, plan.p, plan.seed, plan.offset + (&run.config == &c.encoder ? 0U : 1U));
}

namespace {

/// What the calls of all layers see, until the way back is done.
struct SharedInputs {
    Tensor positions, mask, allow, lengths, by_mask, memory_mask;
    std::vector<double> alibi;
};

/// The calls of a stack's layers, with what they share filled in.
struct StackCalls {
    std::shared_ptr<SharedInputs> shared = std::make_shared<SharedInputs>();
    AttentionCall self, over;
    Value relative;                           ///< may be absent
    std::shared_ptr<const Tensor> kept_bias;  ///< on the host, where inputs are captured
};

Tensor made_positions(const StackRun& run) {
    const std::int64_t padding = run.config.positions.skip_padding;
    return padding >= 0 ? positions_without_padding(run.ids, padding) : counted(run.ids.extent(1));
}

void set_mask(Context& context, const StackRun& run, StackCalls& calls) {
    if (!run.mask) { return; }
    SharedInputs& shared = *calls.shared;
    shared.mask = Tensor::copy_of(run.mask);
    shared.allow = placed(context, shared.mask.clone());
    calls.self.allow = as_keys(shared.allow.view());
    shared.lengths = lengths_of(shared.mask.view());
    if (shared.lengths) { calls.self.lengths = shared.lengths.view(); }
}

/// ALiBi or a relative bias.
void set_bias(Tape& tape, const StackRun& run, StackCalls& calls) {
    const PositionConfig& p = run.config.positions;
    SharedInputs& shared = *calls.shared;
    if (p.kind == PositionKind::alibi) {
        shared.alibi = run.stack.alibi;
        calls.self.alibi = View(shared.alibi.data(), {static_cast<std::int64_t>(shared.alibi.size())});
        if (run.mask) {
            shared.by_mask = counted_by_mask(shared.mask.view());
            calls.self.alibi_positions = shared.by_mask.view();
        }
    }
    if (p.kind != PositionKind::relative) { return; }
    const std::int64_t reach = run.packed ? run.packed->longest : run.ids.extent(1);
    calls.relative = relative_bias(tape, run.stack.relative.on(tape), reach, reach, {.buckets = p.buckets});
    if (run.inputs != nullptr) {
        calls.kept_bias = std::make_shared<const Tensor>(host_copy(tape.context(), calls.relative));
    }
}

StackCalls stack_calls(Tape& tape, const StackRun& run, const View& positions) {
    StackCalls calls;
    tape.keep(calls.shared);
    SharedInputs& shared = *calls.shared;
    shared.positions = Tensor::copy_of(positions);
    AttentionCall& self = calls.self;
    self.causal = run.config.causal;
    self.positions = shared.positions.view();
    self.length = longest(shared.positions.view());
    self.kernel = run.options.kernel;
    self.dropout = run.options.dropout;
    if (run.packed) {
        tape.keep(run.packed);
        self.packed = run.packed->rows();
    }
    set_mask(tape.context(), run, calls);
    set_bias(tape, run, calls);
    AttentionCall& over = calls.over;
    over.kernel = run.options.kernel;
    over.dropout = run.options.dropout;
    if (run.memory_mask) {
        shared.memory_mask = placed(tape.context(), Tensor::copy_of(run.memory_mask));
        over.allow = as_keys(shared.memory_mask.view());
    }
    return calls;
}

/// One whose inner results are computed anew on the way back.
Value recomputed_layer(Tape& tape, const StackRun& run, const StackCalls& calls, const BlockLayer& layer,
                       const Value& x) {
    const auto block = [&layer, self = calls.self, over = calls.over, keep = calls.shared](Tape& on,
                                                                                           std::span<const Value> in) {
        AttentionCall mine = self, other = over;
        mine.bias = in.size() > 1 ? in[1] : Value();
        other.memory = in.size() > 2 ? in[2] : Value();
        return layer(on, in[0], mine, layer.has_cross ? &other : nullptr);
    };
    const std::vector<Value> inputs = {x, calls.relative, run.memory};
    return tape.recompute(inputs, block);
}

/// One that also hands out what the run asks to see of it.
Value captured_layer(Tape& tape, const StackRun& run, StackCalls& calls, const BlockLayer& layer, const Value& x) {
    Tensor weights, cross_weights;
    AttentionInputs inputs, cross_inputs;
    AttentionCall &self = calls.self, &over = calls.over;
    self.bias = calls.relative;
    over.memory = run.memory;
    if (run.attention != nullptr) { self.weights = &weights; }
    if (run.cross != nullptr) { over.weights = &cross_weights; }
    if (run.inputs != nullptr) { self.inputs = &inputs; }
    if (run.cross_inputs != nullptr) { over.inputs = &cross_inputs; }
    const Value out = layer(tape, x, self, layer.has_cross ? &over : nullptr);
    if (run.attention != nullptr) { run.attention->push_back(std::move(weights)); }
    if (run.cross != nullptr && layer.has_cross) { run.cross->push_back(std::move(cross_weights)); }
    if (inputs && calls.kept_bias) {
        inputs.bias = calls.kept_bias;
        inputs.options.bias = calls.kept_bias->view();
    }
    if (run.inputs != nullptr) { run.inputs->push_back(std::move(inputs)); }
    if (run.cross_inputs != nullptr && layer.has_cross) { run.cross_inputs->push_back(std::move(cross_inputs)); }
    return out;
}

}  // namespace

Value run_stack(Tape& tape, const StackRun& run) {
    Tensor made;
    View positions = run.positions;
    if (!positions && run.packed) { positions = run.packed->positions.view(); }
    if (!positions) {
        made = made_positions(run);
        positions = made.view();
    }
    check_head_factors("head_factors", run.head_factors, run.stack, false);
    check_head_factors("head_factors.cross", run.cross_head_factors, run.stack, true);
    Value x = embed(tape, run, positions);
    const auto capture = [&] {
        if (run.hidden != nullptr) { run.hidden->push_back(hidden_for_capture(tape.context(), run, x)); }
    };
    capture();
    StackCalls calls = stack_calls(tape, run, positions);
    const std::uint32_t first_place = &run.config == &run.model.config.encoder ? 16U : 16U + 4096U;
    for (std::size_t i = 0; i < run.stack.layers.size(); ++i) {
        const BlockLayer& layer = run.stack.layers[i];
        calls.self.place = first_place + 2 * static_cast<std::uint32_t>(i);
        calls.over.place = calls.self.place + 1;
        calls.self.head_factors = factors_of_layer(run.head_factors, i, layer.attention.config.outputs());
        calls.over.head_factors =
            factors_of_layer(run.cross_head_factors, i, layer.has_cross ? layer.cross.config.heads : 0);
        x = run.options.recompute && tape.recording() ? recomputed_layer(tape, run, calls, layer, x)
                                                      : captured_layer(tape, run, calls, layer, x);
        if (i + 1 < run.stack.layers.size()) { capture(); }
    }
    x = run.stack.final_norm(tape, x);
    capture();
    return x;
}

Value model_logits(Tape& tape, const ModelState& model, const Value& hidden) {
    if (!model.config.head) { refuse("logits", "model", "one with a head", "a " + model.config.family + " without"); }
    const HeadConfig& h = *model.config.head;
    Value x = hidden;
    if (h.transform) { x = model.graph.transform_norm(tape, model.graph.transform(tape, x, h.transform_activation)); }
    if (h.scale != 1) { x = scale(tape, x, h.scale); }
    x = model.graph.head(tape, x);
    return h.softcap > 0 ? softcap(tape, x, h.softcap) : x;
}

}  // namespace heed
