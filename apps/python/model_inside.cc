#include "model_inside.h"

#include <heed/pattern.h>
#include <heed/tape.h>

#include "context.h"

namespace heed::python {
namespace {

nb::dict options_of(const AttentionOptions& o) {
    nb::dict named;
    if (o.causal) { named["causal"] = true; }
    if (o.align != Align::bottom_right) { named["align"] = "top_left"; }
    if (o.window.left >= 0 || o.window.right >= 0) { named["window"] = nb::make_tuple(o.window.left, o.window.right); }
    if (o.scale) { named["scale"] = *o.scale; }
    if (o.softcap > 0) { named["softcap"] = o.softcap; }
    if (o.pattern) { named["pattern"] = nb::str(o.pattern.text().c_str()); }
    const std::pair<const char*, const View*> arrays[] = {
        {"allow", &o.allow},
        {"bias", &o.bias},
        {"alibi_slopes", &o.alibi_slopes},
        {"sinks", &o.sinks},
        {"query_lengths", &o.query_lengths},
        {"key_lengths", &o.key_lengths},
        {"query_positions", &o.query_positions},
        {"key_positions", &o.key_positions},
    };
    for (const auto& [name, view] : arrays) {
        if (*view) { named[name] = copy_out(*view, nb::none()); }
    }
    return named;
}

void add_layers(nb::dict& named, const std::string& prefix, const std::vector<AttentionInputs>& layers) {
    for (std::size_t n = 0; n < layers.size(); ++n) {
        if (!layers[n]) { continue; }  // a layer without weights, as of linear attention
        nb::dict one;
        one["q"] = copy_out(layers[n].q, nb::none());
        one["k"] = copy_out(layers[n].k, nb::none());
        one["options"] = options_of(layers[n].options);
        named[nb::cast(prefix + std::to_string(n))] = one;
    }
}

using LogitsFunction = Value (Model::*)(Tape&, const Value&) const;

nb::object logits_of(const Model& model, const char* function, LogitsFunction logits, nb::handle hidden,
                     nb::handle context) {
    const Array states(function, "hidden", hidden);
    const std::int64_t d = model.config().d_model;
    if (states.rank() != 3 || states.extent(2) != d || (states.dtype() != DType::f32 && states.dtype() != DType::f64)) {
        refuse(function, "hidden", "f32 or f64 [batch, tokens, " + std::to_string(d) + "]",
               to_string(states.shape()) + " of " + std::string(name_of(states.dtype())));
    }
    Context& where = choose_model_context(function, context, model.device());
    Tensor result;
    without_gil([&] {
        Tape tape(where, {.record = false});
        const Tensor there = Tensor::copy_of(states.view()).to(where.device());
        const Value value = (model.*logits)(tape, tape.constant(there.view()));
        where.synchronise();
        result = Tensor::copy_of(value).to(Device{});
    });
    return copy_out(result, hidden);
}

}  // namespace

void read_capture(const std::vector<std::string>& capture, ForwardOptions& options) {
    for (const std::string& each : capture) {
        if (each == "hidden") {
            options.hidden = true;
        } else if (each == "attention") {
            options.attention = true;
        } else if (each == "attention_inputs") {
            options.attention_inputs = true;
        } else {
            refuse("Model.forward", "capture", "\"hidden\", \"attention\" or \"attention_inputs\"", "\"" + each + "\"");
        }
    }
}

HeadFactorArrays::HeadFactorArrays(nb::handle value) {
    constexpr const char* f = "Model.forward";
    if (value.is_none()) { return; }
    if (!nb::isinstance<nb::dict>(value)) {
        self_ = Array(f, "head_factors", value);
        return;
    }
    for (const auto [name, array] : nb::borrow<nb::dict>(value)) {
        const std::string text = nb::cast<std::string>(nb::str(name));
        if (text == "self") {
            self_ = Array(f, "head_factors", array);
        } else if (text == "decoder") {
            decoder_ = Array(f, "head_factors", array);
        } else if (text == "cross") {
            cross_ = Array(f, "head_factors", array);
        } else {
            refuse(f, "head_factors", "self, decoder or cross", "\"" + text + "\"");
        }
    }
}

void add_attention_inputs(nb::dict& named, const CapturedInputs& inputs) {
    add_layers(named, "attention_inputs.", inputs.self);
    add_layers(named, "encoder_attention_inputs.", inputs.encoder);
    add_layers(named, "decoder_attention_inputs.", inputs.decoder);
    add_layers(named, "cross_attention_inputs.", inputs.cross);
}

void bind_logits(nb::class_<Model>& model) {
    model
        .def(
            "logits",
            [](const Model& self, nb::handle hidden, nb::handle context) {
                return logits_of(self, "Model.logits", &Model::logits, hidden, context);
            },
            nb::arg("hidden"), nb::arg("context") = nb::none(),
            nb::sig("def logits(self, hidden: Any, context: Any = None) -> Any"),
            R"doc(Logits [B,T,V] of hidden states [B,T,d] that stand behind the final norm, as the last of capture=("hidden",).

>>> config = {"model_type": "heed", "vocab": 16, "d_model": 8, "decoder": {"layers": 1, "attention": {"heads": 2}}}
>>> model = heed.Model(config)
>>> result = model.forward([[1, 2, 3]], capture=("hidden",))
>>> bool((model.logits(result["hidden.1"]) == result["logits"]).all())
True)doc")
        .def(
            "early_logits",
            [](const Model& self, nb::handle hidden, nb::handle context) {
                return logits_of(self, "Model.early_logits", &Model::early_logits, hidden, context);
            },
            nb::arg("hidden"), nb::arg("context") = nb::none(),
            nb::sig("def early_logits(self, hidden: Any, context: Any = None) -> Any"),
            R"doc(The logit lens: logits [B,T,V] of hidden states [B,T,d] from before the last layer's end, sent through the
final norm and the head as if no layer came behind them. hidden.0 is the embedding.

>>> config = {"model_type": "heed", "vocab": 16, "d_model": 8, "decoder": {"layers": 2, "attention": {"heads": 2}}}
>>> model = heed.Model(config)
>>> model.early_logits(model.forward([[1, 2, 3]], capture=("hidden",))["hidden.1"]).shape
(1, 3, 16))doc");
}

}  // namespace heed::python
