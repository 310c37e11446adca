#include "model/run.h"

#include <heed/elementwise.h>

#include <algorithm>
#include <cmath>

#include "base/dispatch.h"
#include "ops/host_copy.h"

namespace heed {
namespace {

[[noreturn]] void refuse_input(const char* argument, const std::string& expected, const std::string& got) {
    throw Error("[forward] " + std::string(argument) + ": expected " + expected + ", got " + got);
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

Value run_stack(Tape& tape, const StackRun& run) {
    const PositionConfig& p = run.config.positions;
    const std::int64_t tokens = run.ids.extent(1);
    Tensor made;
    View positions = run.positions;
    if (!positions && run.packed) { positions = run.packed->positions.view(); }
    if (!positions) {
        made = p.skip_padding >= 0 ? positions_without_padding(run.ids, p.skip_padding) : counted(tokens);
        positions = made.view();
    }
    check_head_factors("head_factors", run.head_factors, run.stack, false);
    check_head_factors("head_factors.cross", run.cross_head_factors, run.stack, true);
    Value x = embed(tape, run, positions);
    Context& context = tape.context();
    if (run.hidden != nullptr) { run.hidden->push_back(hidden_for_capture(context, run, x)); }

    // What the calls of all layers see, until the way back is done.
    struct Keep {
        Tensor positions, mask, allow, lengths, by_mask, memory_mask;
        std::vector<double> alibi;
    };
    auto keep = std::make_shared<Keep>();
    tape.keep(keep);
    keep->positions = Tensor::copy_of(positions);
    AttentionCall self;
    self.causal = run.config.causal;
    self.positions = keep->positions.view();
    self.length = longest(keep->positions.view());
    self.kernel = run.options.kernel;
    self.dropout = run.options.dropout;
    if (run.packed) {
        tape.keep(run.packed);
        self.packed = run.packed->rows();
    }
    if (run.mask) {
        keep->mask = Tensor::copy_of(run.mask);
        keep->allow = placed(context, keep->mask.clone());
        self.allow = as_keys(keep->allow.view());
        keep->lengths = lengths_of(keep->mask.view());
        if (keep->lengths) { self.lengths = keep->lengths.view(); }
    }
    if (p.kind == PositionKind::alibi) {
        keep->alibi = run.stack.alibi;
        self.alibi = View(keep->alibi.data(), {static_cast<std::int64_t>(keep->alibi.size())});
        if (run.mask) {
            keep->by_mask = counted_by_mask(keep->mask.view());
            self.alibi_positions = keep->by_mask.view();
        }
    }
    Value relative;
    if (p.kind == PositionKind::relative) {
        const std::int64_t reach = run.packed ? run.packed->longest : tokens;
        relative = relative_bias(tape, run.stack.relative.on(tape), reach, reach, {.buckets = p.buckets});
    }
    std::shared_ptr<const Tensor> kept_bias;
    if (relative && run.inputs != nullptr) { kept_bias = std::make_shared<const Tensor>(host_copy(context, relative)); }
    AttentionCall over;
    over.kernel = run.options.kernel;
    over.dropout = run.options.dropout;
    if (run.memory_mask) {
        keep->memory_mask = placed(context, Tensor::copy_of(run.memory_mask));
        over.allow = as_keys(keep->memory_mask.view());
    }
    const std::uint32_t first_place = &run.config == &run.model.config.encoder ? 16U : 16U + 4096U;
    for (std::size_t i = 0; i < run.stack.layers.size(); ++i) {
        const BlockLayer& layer = run.stack.layers[i];
        self.place = over.place = first_place + 2 * static_cast<std::uint32_t>(i);
        ++over.place;
        self.head_factors = factors_of_layer(run.head_factors, i, layer.attention.config.outputs());
        over.head_factors = factors_of_layer(run.cross_head_factors, i, layer.has_cross ? layer.cross.config.heads : 0);
        const auto block = [&layer, self, over, keep](Tape& on, std::span<const Value> in) {
            AttentionCall mine = self, other = over;
            mine.bias = in.size() > 1 ? in[1] : Value();
            other.memory = in.size() > 2 ? in[2] : Value();
            return layer(on, in[0], mine, layer.has_cross ? &other : nullptr);
        };
        if (run.options.recompute && tape.recording()) {
            const std::vector<Value> inputs = {x, relative, run.memory};
            x = tape.recompute(inputs, block);
        } else {
            Tensor weights, cross_weights;
            AttentionInputs inputs, cross_inputs;
            self.bias = relative;
            over.memory = run.memory;
            if (run.attention != nullptr) { self.weights = &weights; }
            if (run.cross != nullptr) { over.weights = &cross_weights; }
            if (run.inputs != nullptr) { self.inputs = &inputs; }
            if (run.cross_inputs != nullptr) { over.inputs = &cross_inputs; }
            x = layer(tape, x, self, layer.has_cross ? &over : nullptr);
            if (run.attention != nullptr) { run.attention->push_back(std::move(weights)); }
            if (run.cross != nullptr && layer.has_cross) { run.cross->push_back(std::move(cross_weights)); }
            if (inputs && kept_bias) {
                inputs.bias = kept_bias;
                inputs.options.bias = kept_bias->view();
            }
            if (run.inputs != nullptr) { run.inputs->push_back(std::move(inputs)); }
            if (run.cross_inputs != nullptr && layer.has_cross) {
                run.cross_inputs->push_back(std::move(cross_inputs));
            }
        }
        const bool last = i + 1 == run.stack.layers.size();
        if (run.hidden != nullptr && !last) { run.hidden->push_back(hidden_for_capture(context, run, x)); }
    }
    x = run.stack.final_norm(tape, x);
    if (run.hidden != nullptr) { run.hidden->push_back(hidden_for_capture(context, run, x)); }
    return x;
}

Value model_logits(Tape& tape, const ModelState& model, const Value& hidden) {
    if (!model.config.head) {
        throw Error("[logits] model: expected one with a head, got a " + model.config.family + " without");
    }
    const HeadConfig& h = *model.config.head;
    Value x = hidden;
    if (h.transform) { x = model.graph.transform_norm(tape, model.graph.transform(tape, x, h.transform_activation)); }
    if (h.scale != 1) { x = scale(tape, x, h.scale); }
    x = model.graph.head(tape, x);
    return h.softcap > 0 ? softcap(tape, x, h.softcap) : x;
}

}  // namespace heed
