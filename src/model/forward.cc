#include <heed/elementwise.h>
#include <heed/model.h>

#include <algorithm>

#include "base/refuse.h"
#include "model/run.h"
#include "ops/host_copy.h"

namespace heed {
namespace {

/// Checked copies of what a pass is given.
struct Inputs {
    Ids ids;
    Tensor mask, positions, token_types;
    Ids decoder_ids;
    Tensor decoder_mask;
    std::shared_ptr<const PackedSequences> packed;
};

std::shared_ptr<const PackedSequences> packed_inputs(const ModelConfig& c, const ForwardInputs& in, const Shape& ids) {
    if (!in.cu_seqlens) { return nullptr; }
    const auto none = [](const char* argument, bool given) {
        if (given) { refuse("forward", std::string(argument), "none where sequences are packed (cu_seqlens)", "some"); }
    };
    none("attention_mask", static_cast<bool>(in.attention_mask));
    none("position_ids", static_cast<bool>(in.position_ids));
    if (c.kind == ModelKind::encoder_decoder) {
        refuse("forward", "cu_seqlens", "none for a model with encoder and decoder", "some");
    }
    const std::int64_t padding = c.first().positions.skip_padding;  // RoBERTa's positions count from behind it
    return std::make_shared<PackedSequences>(
        read_packed(in.cu_seqlens, ids[0], ids[1], padding >= 0 ? padding + 1 : 0));
}

Inputs read_inputs(const ModelConfig& c, const ForwardInputs& in) {
    Inputs r;
    r.ids = read_ids("input_ids", in.input_ids, c.input_vocab());
    if (r.ids.elements() == 0) { refuse("forward", "input_ids", "at least one token", "none"); }
    r.packed = packed_inputs(c, in, r.ids.shape());
    r.mask = read_mask("attention_mask", in.attention_mask, r.ids.shape());
    if (in.position_ids) {
        r.positions = read_ids("position_ids", in.position_ids, std::int64_t{1} << 40);
        const Shape& s = r.positions.shape();
        if ((s[0] != 1 && s[0] != r.ids.shape()[0]) || s[1] != r.ids.shape()[1]) {
            refuse("forward", "position_ids", "the shape of input_ids " + to_string(r.ids.shape()) + " or one row",
                   to_string(s));
        }
    }
    if (in.token_type_ids) {
        if (c.token_types == 0) { refuse("forward", "token_type_ids", "none for this model", "some"); }
        r.token_types = read_ids("token_type_ids", in.token_type_ids, c.token_types);
        if (!(r.token_types.shape() == r.ids.shape())) {
            refuse("forward", "token_type_ids", "the shape of input_ids " + to_string(r.ids.shape()),
                   to_string(r.token_types.shape()));
        }
    }
    if (c.kind != ModelKind::encoder_decoder) {
        if (in.decoder_input_ids) {
            refuse("forward", "decoder_input_ids", "none for a model without encoder and decoder", "some");
        }
        return r;
    }
    r.decoder_ids = read_ids("decoder_input_ids", in.decoder_input_ids, c.vocab);
    if (r.decoder_ids.shape()[0] != r.ids.shape()[0] || r.decoder_ids.elements() == 0) {
        refuse("forward", "decoder_input_ids", "as many rows as input_ids, " + std::to_string(r.ids.shape()[0]),
               "shape " + to_string(r.decoder_ids.shape()));
    }
    r.decoder_mask = read_mask("decoder_attention_mask", in.decoder_attention_mask, r.decoder_ids.shape());
    return r;
}

View seen(const Tensor& tensor) { return tensor ? tensor.view() : View(); }

StackRun first_stack(const ModelState& m, const TapeForward& options, const Inputs& in) {
    const bool decoder = m.config.kind == ModelKind::decoder;
    StackRun run{.model = m,
                 .config = decoder ? m.config.decoder : m.config.encoder,
                 .stack = decoder ? m.graph.decoder : m.graph.encoder,
                 .options = options};
    run.ids = in.ids.view();
    run.mask = seen(in.mask);
    run.positions = seen(in.positions);
    run.token_types = seen(in.token_types);
    run.packed = in.packed;
    return run;
}

void refuse_second_stack(const HeadFactors& factors) {
    if (factors.decoder || factors.cross) {
        refuse("forward", "head_factors", "those of self for a model without encoder and decoder", "more");
    }
}

Value run_model(Tape& tape, const ModelState& m, const Inputs& in, const TapeForward& options) {
    ForwardResult* result = options.capture;
    StackRun first = first_stack(m, options, in);
    const bool hidden = result != nullptr && options.hidden, attention = result != nullptr && options.attention;
    const bool inputs = result != nullptr && options.attention_inputs;
    first.head_factors = options.head_factors.self;
    if (m.config.kind != ModelKind::encoder_decoder) {
        refuse_second_stack(options.head_factors);
        if (hidden) { first.hidden = &result->hidden; }
        if (attention) { first.attention = &result->attention; }
        if (inputs) { first.inputs = &result->attention_inputs.self; }
        return run_stack(tape, first);
    }
    if (attention) { first.attention = &result->encoder_attention; }
    if (inputs) { first.inputs = &result->attention_inputs.encoder; }
    const Value memory = run_stack(tape, first);
    if (result != nullptr) { result->encoder_last_hidden_state = host_copy(tape.context(), memory); }
    StackRun second{.model = m, .config = m.config.decoder, .stack = m.graph.decoder, .options = options};
    second.ids = in.decoder_ids.view();
    second.mask = seen(in.decoder_mask);
    second.memory = memory;
    second.memory_mask = seen(in.mask);
    second.head_factors = options.head_factors.decoder;
    second.cross_head_factors = options.head_factors.cross;
    if (hidden) { second.hidden = &result->hidden; }
    if (inputs) {
        second.inputs = &result->attention_inputs.decoder;
        second.cross_inputs = &result->attention_inputs.cross;
    }
    if (attention) {
        second.attention = &result->decoder_attention;
        second.cross = &result->cross_attention;
    }
    return run_stack(tape, second);
}

DType activation_type(const ModelState& m, DType asked) {
    const auto& list = m.parameters.list();
    const bool f64 = std::ranges::any_of(list, [](const Parameter& p) { return p.value.dtype() == DType::f64; });
    return f64 ? DType::f64 : asked;
}

/// [B,1,d] of [B,T,d], or [N,1,d] of N packed sequences.
Value first_tokens(Tape& tape, const Value& x, const Inputs& in) {
    if (!in.packed) { return x.slice(1, 0, 1); }
    const std::int64_t count = in.packed->lengths.elements();
    const View starts(in.packed->cu_seqlens.as<std::int64_t>(), {count, 1});
    return embedding(tape, starts, x.reshape({x.extent(1), x.extent(2)}), {.dtype = x.dtype()});
}

// ---- Labels --------------------------------------------------------------------------------------------------------

Tensor read_labels(const View& labels, const Shape& shape, std::int64_t vocab, std::int64_t ignore) {
    if (!labels || labels.rank() != 2 || (labels.dtype() != DType::i64 && labels.dtype() != DType::i32)) {
        refuse("loss", "labels", "i64 or i32 [batch, tokens]",
               (labels ? std::string(name_of(labels.dtype())) + " " + to_string(labels.shape()) : "none"));
    }
    if (!(labels.shape() == shape)) {
        refuse("loss", "labels", "shape " + to_string(shape), to_string(labels.shape()));
    }
    Tensor result(DType::i64, shape);
    for (std::int64_t b = 0; b < shape[0]; ++b) {
        for (std::int64_t t = 0; t < shape[1]; ++t) {
            const std::int64_t at = b * labels.stride(0) + t * labels.stride(1);
            const std::int64_t id =
                labels.dtype() == DType::i64 ? labels.as<std::int64_t>()[at] : labels.as<std::int32_t>()[at];
            if (id != ignore && (id < 0 || id >= vocab)) {
                refuse("loss", "labels", "0 to " + std::to_string(vocab - 1) + " or " + std::to_string(ignore),
                       std::to_string(id));
            }
            result.as<std::int64_t>()[b * shape[1] + t] = id;
        }
    }
    return result;
}

/// What comes next: label t + 1 at t, nothing at the end.
Tensor shifted_left(const Tensor& labels, std::int64_t ignore) {
    Tensor result(DType::i64, labels.shape());
    const std::int64_t tokens = labels.shape()[1];
    for (std::int64_t i = 0; i < labels.elements(); ++i) {
        result.as<std::int64_t>()[i] = (i + 1) % tokens == 0 ? ignore : labels.as<std::int64_t>()[i + 1];
    }
    return result;
}

/// A decoder's input from its target: the start token, then all but the last; ignored places become padding.
Tensor shifted_right(const Tensor& labels, const ModelConfig& c, std::int64_t ignore) {
    if (!c.decoder_start) { refuse("loss", "decoder_input_ids", "one, as the model names no start token", "none"); }
    Tensor result(DType::i64, labels.shape());
    const std::int64_t tokens = labels.shape()[1];
    for (std::int64_t i = 0; i < labels.elements(); ++i) {
        const std::int64_t id = i % tokens == 0 ? *c.decoder_start : labels.as<std::int64_t>()[i - 1];
        result.as<std::int64_t>()[i] = id == ignore ? c.pad.value_or(0) : id;
    }
    return result;
}

}  // namespace

std::vector<NamedView> ForwardResult::named() const {
    std::vector<NamedView> result;
    const auto one = [&](const std::string& name, const Tensor& tensor) {
        if (tensor) { result.push_back({name, tensor.view()}); }
    };
    const auto list = [&](const std::string& name, const std::vector<Tensor>& tensors) {
        for (std::size_t i = 0; i < tensors.size(); ++i) { one(name + "." + std::to_string(i), tensors[i]); }
    };
    one("logits", logits);
    list("hidden", hidden);
    list("attention", attention);
    list("encoder_attention", encoder_attention);
    list("decoder_attention", decoder_attention);
    list("cross_attention", cross_attention);
    one("encoder_last_hidden_state", encoder_last_hidden_state);
    one("last_hidden_state", last_hidden_state);
    one("pooler_output", pooled);
    return result;
}

ForwardResult Model::forward(Context& context, const ForwardInputs& inputs, const ForwardOptions& options) const {
    if (options.hidden_last < 0) {
        refuse("forward", "hidden_last", "0 (all) or more", std::to_string(options.hidden_last));
    }
    ForwardResult result;
    Tape tape(context, {.record = false});
    TapeForward plan;
    plan.dtype = activation_type(*state_, options.dtype);
    plan.kernel = options.kernel;
    plan.capture = &result;
    plan.hidden = options.hidden;
    plan.hidden_last = options.hidden_last;
    plan.attention = options.attention;
    plan.attention_inputs = options.attention_inputs;
    plan.head_factors = options.head_factors;
    const Inputs in = read_inputs(state_->config, inputs);
    const Value last = run_model(tape, *state_, in, plan);
    if (state_->config.head && options.logits) {
        result.logits = host_copy(context, model_logits(tape, *state_, last));
    } else if (!state_->config.head) {
        result.last_hidden_state = host_copy(context, last);
    }
    if (state_->graph.pooler) {
        const Value first = first_tokens(tape, last, in);
        result.pooled = host_copy(
            context, state_->graph.pooler(tape, first, Activation::tanh).reshape({first.extent(0), first.extent(2)}));
    }
    return result;
}

Value Model::hidden(Tape& tape, const ForwardInputs& inputs, const TapeForward& options) const {
    TapeForward plan = options;
    plan.dtype = activation_type(*state_, options.dtype);
    return run_model(tape, *state_, read_inputs(state_->config, inputs), plan);
}

Value Model::logits(Tape& tape, const Value& hidden) const { return model_logits(tape, *state_, hidden); }

Value Model::early_logits(Tape& tape, const Value& hidden) const {
    const bool encoder = state_->config.kind == ModelKind::encoder;
    const Stack& stack = encoder ? state_->graph.encoder : state_->graph.decoder;
    return model_logits(tape, *state_, stack.final_norm(tape, hidden));
}

Value Model::loss(Tape& tape, const ForwardInputs& inputs, const View& labels, const LossOptions& options,
                  CrossEntropy* result) const {
    const ModelConfig& c = state_->config;
    if (!c.head) { refuse("loss", "model", "one with a head", "a " + c.family + " without"); }
    if (state_->weights != WeightStorage::stored) {
        refuse("loss", "model", "stored weights", "a prepared form (set_weights)");
    }
    if (!labels) { refuse("loss", "labels", "i64 or i32 [batch, tokens]", "none"); }
    const std::int64_t ignore = options.cross_entropy.ignore;
    ForwardInputs all = inputs;
    Tensor targets, decoder_ids;
    if (c.kind == ModelKind::encoder_decoder) {
        targets = read_labels(labels, inputs.decoder_input_ids ? inputs.decoder_input_ids.shape() : labels.shape(),
                              c.vocab, ignore);
        if (!all.decoder_input_ids) {
            decoder_ids = shifted_right(targets, c, ignore);
            all.decoder_input_ids = decoder_ids.view();
        }
    } else {
        targets = read_labels(labels, inputs.input_ids ? inputs.input_ids.shape() : labels.shape(), c.vocab, ignore);
        if (c.kind == ModelKind::decoder) { targets = shifted_left(targets, ignore); }
    }
    Value x = hidden(tape, all, options.forward);
    const HeadConfig& h = *c.head;
    const ModelGraph& g = state_->graph;
    if (h.transform) { x = g.transform_norm(tape, g.transform(tape, x, h.transform_activation)); }
    if (h.scale != 1) { x = scale(tape, x, h.scale); }
    return linear_cross_entropy(tape, x, g.head.weight.on(tape), g.head.bias.on(tape), targets.view(),
                                {.loss = options.cross_entropy, .softcap = h.softcap}, result);
}

}  // namespace heed
