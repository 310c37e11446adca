#include <heed/model.h>

#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include "array.h"
#include "context.h"
#include "ids.h"
#include "keywords.h"
#include "model_inside.h"
#include "module.h"

namespace heed::python {

namespace {

struct PassInputs {
    PassInputs(const char* function, nb::handle input_ids, nb::handle attention_mask, nb::handle position_ids,
               nb::handle token_type_ids, nb::handle decoder_input_ids, nb::handle decoder_attention_mask)
        : ids(function, "input_ids", input_ids),
          mask(function, "attention_mask", attention_mask),
          positions(function, "position_ids", position_ids),
          types(function, "token_type_ids", token_type_ids),
          decoder_ids(function, "decoder_input_ids", decoder_input_ids),
          decoder_mask(function, "decoder_attention_mask", decoder_attention_mask) {}
    ForwardInputs all() const {
        ForwardInputs inputs;
        inputs.input_ids = ids.view();
        inputs.attention_mask = mask.view();
        inputs.position_ids = positions.view();
        inputs.token_type_ids = types.view();
        inputs.decoder_input_ids = decoder_ids.view();
        inputs.decoder_attention_mask = decoder_mask.view();
        return inputs;
    }
    Ids ids, mask, positions, types, decoder_ids, decoder_mask;
};

nb::dict forward_(const Model& model, nb::handle input_ids, nb::handle attention_mask, nb::handle position_ids,
                  nb::handle token_type_ids, nb::handle decoder_input_ids, const std::vector<std::string>& capture,
                  nb::handle head_factors, std::int64_t hidden_last, const std::string& kernel, nb::handle context,
                  nb::handle decoder_attention_mask) {
    const PassInputs inputs("Model.forward", input_ids, attention_mask, position_ids, token_type_ids, decoder_input_ids,
                            decoder_attention_mask);
    ForwardOptions options;
    read_capture(capture, options);
    if (hidden_last < 0) { refuse("Model.forward", "hidden_last", "0 or more", std::to_string(hidden_last)); }
    options.hidden_last = hidden_last;
    options.kernel = kernel;
    const HeadFactorArrays factors(head_factors);
    options.head_factors = factors.views();
    Context& where = choose_model_context("Model.forward", context, model.device());
    ForwardResult result;
    without_gil([&] { result = model.forward(where, inputs.all(), options); });
    nb::dict named;
    for (const NamedView& each : result.named()) { named[nb::cast(each.name)] = copy_out(each.view, nb::none()); }
    add_attention_inputs(named, result.attention_inputs);
    return named;
}

nb::dict gradients_(const Model& model, nb::handle input_ids, nb::handle labels, nb::handle attention_mask,
                    nb::handle position_ids, nb::handle token_type_ids, nb::handle decoder_input_ids, bool recompute,
                    const std::string& kernel, nb::handle context, nb::handle decoder_attention_mask) {
    const PassInputs inputs("Model.gradients", input_ids, attention_mask, position_ids, token_type_ids,
                            decoder_input_ids, decoder_attention_mask);
    const Ids targets("Model.gradients", "labels", labels.is_none() ? input_ids : labels);
    Context& where = choose_model_context("Model.gradients", context, model.device());
    Tensor loss;
    without_gil([&] {
        const Guard guard({&model.parameters()});
        for (Parameter& parameter : model.parameters().list()) { parameter.gradient = Tensor(); }
        Tape tape(where);
        LossOptions options;
        options.forward.recompute = recompute;
        options.forward.kernel = kernel;
        const Value value = model.loss(tape, inputs.all(), targets.view(), options);
        tape.backward(value);
        where.synchronise();
        loss = Tensor::copy_of(value).to(Device{});
    });
    nb::dict named;
    named["loss"] = copy_out(loss, nb::none());
    for (Parameter& parameter : model.parameters().list()) {
        if (parameter.gradient) {
            named[nb::cast("grad." + parameter.name)] = copy_out(parameter.gradient.to(Device{}), nb::none());
            parameter.gradient = Tensor();
        }
    }
    return named;
}

nb::dict state_dict_(const Model& model) {
    nb::dict result;
    for (const Parameter& parameter : model.parameters().list()) {
        const bool here = parameter.value.device().kind == DeviceKind::cpu;
        const Tensor copy = here ? Tensor() : Tensor::copy_of(parameter.value).to(Device{});
        result[nb::cast(parameter.name)] = copy_out(here ? parameter.value : copy.view(), nb::none());
    }
    return result;
}

void load_state_dict_(const Model& model, const nb::dict& tensors) {
    for (const auto [name, value] : tensors) {
        const std::string text = to_text("Model.load_state_dict", "names of tensors", name);
        const Array array("Model.load_state_dict", "tensors", value);
        model.assign(text, array.view());
    }
}

}  // namespace

void bind_model(nb::module_& m) {
    nb::class_<Model> bound(m, "Model",
                            R"doc(A transformer: encoder, decoder or encoder-decoder, with weights.

Model(config) makes one with fresh weights: config is heed's own, as text or as a dict (see docs/models.md), or the
config.json of a public family. heed.load(folder) loads a checkpoint.

>>> config = {"model_type": "heed", "vocab": 16, "d_model": 8, "decoder": {"layers": 1, "attention": {"heads": 2}}}
>>> model = heed.Model(config, seed=1)
>>> model.forward([[1, 2, 3]])["logits"].shape
(1, 3, 16))doc");
    bound
        .def(
            "__init__",
            [](Model* self, nb::handle config, std::uint64_t seed, nb::handle dtype) {
                const nb::object json = nb::isinstance<nb::str>(config)
                                            ? nb::borrow(config)
                                            : nb::object(nb::module_::import_("json").attr("dumps")(config));
                const std::string text = to_text("Model", "config", json);
                const std::string type = to_text("Model", "dtype", dtype);
                RandomOptions options;
                options.seed = seed;
                bool known = false;
                for (const DType each : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
                    if (type == name_of(each)) {
                        options.dtype = each;
                        known = true;
                    }
                }
                if (!known) { refuse("Model", "dtype", "f32, bf16, f16 or f64", type); }
                new (self) Model(Model::random(read_model_config(text), options));
            },
            nb::arg("config"), nb::arg("seed") = 0, nb::arg("dtype") = "f32",
            nb::sig("def __init__(self, config: str | dict[str, Any], seed: int = 0, dtype: str = 'f32') -> None"))
        .def("forward", forward_, nb::arg("input_ids"), nb::arg("attention_mask") = nb::none(),
             nb::arg("position_ids") = nb::none(), nb::arg("token_type_ids") = nb::none(),
             nb::arg("decoder_input_ids") = nb::none(), nb::arg("capture") = std::vector<std::string>(),
             nb::arg("head_factors") = nb::none(), nb::arg("hidden_last") = 0, nb::arg("kernel") = "",
             nb::arg("context") = nb::none(), nb::arg("decoder_attention_mask") = nb::none(),
             nb::sig("def forward(self, input_ids: Any, attention_mask: Any = None, position_ids: Any = None, "
                     "token_type_ids: Any = None, decoder_input_ids: Any = None, capture: Sequence[str] = (), "
                     "head_factors: Any = None, hidden_last: int = 0, kernel: str = '', context: Any = None, "
                     "decoder_attention_mask: Any = None) -> dict[str, Any]"),
             R"doc(What the model computes, by name: logits [B,T,V] and, with capture, hidden.N and attention.N
(encoder_attention.N, decoder_attention.N and cross_attention.N of an encoder-decoder). hidden.0 is the embedding, the
last one stands behind the final norm. A model without a head gives last_hidden_state.

capture "attention_inputs" keeps queries and keys instead of weights, at any length: attention_inputs.N (encoder_...,
decoder_..., cross_...) is {"q": [B,H,T,D], "k": [B,G,S,D], "options": {...}}, from which attention_weights,
attention_statistics, attention_map and score_parts follow. head_factors [layers, heads] multiplies what each head gives, 0
switches it off; an encoder-decoder takes {"self": ..., "decoder": ..., "cross": ...}. hidden_last: hidden states of so many
tokens at the end alone.

>>> config = {"model_type": "heed", "vocab": 16, "d_model": 8, "decoder": {"layers": 1, "attention": {"heads": 2}}}
>>> model = heed.Model(config)
>>> sorted(model.forward([[1, 2, 3]], capture=("hidden", "attention")))
['attention.0', 'hidden.0', 'hidden.1', 'logits']
>>> kept = model.forward([[1, 2, 3]], capture=("attention_inputs",))["attention_inputs.0"]
>>> heed.attention_weights(kept["q"], kept["k"], heads=[0], rows=[0], **kept["options"])
array([[[[1., 0., 0.]]]], dtype=float32)
>>> off = model.forward([[1, 2, 3]], head_factors=numpy.array([[0.0, 1.0]], "float32"))["logits"]
>>> bool((off == model.forward([[1, 2, 3]])["logits"]).all())
False)doc")
        .def("gradients", gradients_, nb::arg("input_ids"), nb::arg("labels") = nb::none(),
             nb::arg("attention_mask") = nb::none(), nb::arg("position_ids") = nb::none(),
             nb::arg("token_type_ids") = nb::none(), nb::arg("decoder_input_ids") = nb::none(),
             nb::arg("recompute") = false, nb::arg("kernel") = "", nb::arg("context") = nb::none(),
             nb::arg("decoder_attention_mask") = nb::none(),
             nb::sig("def gradients(self, input_ids: Any, labels: Any = None, attention_mask: Any = None, "
                     "position_ids: Any = None, token_type_ids: Any = None, decoder_input_ids: Any = None, "
                     "recompute: bool = False, kernel: str = '', context: Any = None, "
                     "decoder_attention_mask: Any = None) -> dict[str, Any]"),
             R"doc(The mean cross-entropy as "loss" and its gradient of every parameter as "grad.NAME".

labels [B,T], -100 where there is none: of a decoder the inputs themselves (absent: they are; they are shifted by one
inside), of an encoder what stands at each place, of an encoder-decoder the target.

>>> config = {"model_type": "heed", "vocab": 16, "d_model": 8, "decoder": {"layers": 1, "attention": {"heads": 2}}}
>>> heed.Model(config).gradients([[1, 2, 3]])["grad.embedding.weight"].shape
(16, 8))doc")
        .def("state_dict", state_dict_, nb::sig("def state_dict(self) -> dict[str, Any]"),
             "Copies of all parameters by name, as the checkpoint has them.")
        .def("load_state_dict", load_state_dict_, nb::arg("tensors"),
             nb::sig("def load_state_dict(self, tensors: dict[str, Any]) -> None"),
             "New numbers for the parameters named; shapes must agree. What is not named stays.")
        .def(
            "save", [](const Model& model, const std::filesystem::path& folder) { model.save(folder); },
            nb::arg("folder"), nb::sig("def save(self, folder: str | os.PathLike[str]) -> None"),
            "Writes config.json and model.safetensors in the form that the model was loaded from.")
        .def_prop_ro(
            "config", [](const Model& model) { return write_model_config(model.config()); },
            "What the model is, as JSON text in heed's own form.")
        .def_prop_ro(
            "parameters", [](const Model& model) { return model.parameters().elements(); }, "How many numbers it has.")
        .def_prop_ro(
            "weights", [](const Model& model) { return std::string(name_of(model.weights())); },
            "How linear layers hold their weights: stored, f32, bf16, int8 or int4.")
        .def_prop_ro(
            "weight_bytes", [](const Model& model) { return model.weight_bytes(); },
            "Bytes that the linear layers read for a token, all experts included.")
        .def_prop_ro(
            "device", [](const Model& model) { return to_string(model.device()); },
            "Where its parameters are: 'cpu', 'cuda:0'.")
        .def(
            "to",
            [](const Model& model, std::string_view device) {
                const Device where = device_named(device);
                without_gil([&] {
                    const Guard guard({&model.parameters()});
                    model.to(where);
                });
                return model;
            },
            nb::arg("device"), nb::sig("def to(self, device: str) -> Model"),
            R"doc(Moves the parameters to "cpu", "cuda" or "cuda:1", where everything then runs; returns the model.

>>> config = {"model_type": "heed", "vocab": 16, "d_model": 8, "decoder": {"layers": 1, "attention": {"heads": 2}}}
>>> heed.Model(config).to("cpu").device
'cpu')doc")
        .def_prop_ro(
            "unused_tensors", [](const Model& model) { return model.unused_tensors(); },
            "Tensors of the files that the model has no use for.");
    bind_logits(bound);
    m.def(
        "load",
        [](const std::filesystem::path& folder, bool copy, std::string_view weights, std::string_view device) {
            const LoadOptions options{.copy = copy, .weights = weight_storage(weights), .device = device_named(device)};
            std::optional<Model> model;
            without_gil([&] { model = Model::load(folder, options); });
            return *model;
        },
        nb::arg("folder"), nb::arg("copy") = false, nb::arg("weights") = "stored", nb::arg("device") = "cpu",
        nb::sig("def load(folder: str | os.PathLike[str], copy: bool = False, weights: str = 'stored', "
                "device: str = 'cpu') -> Model"),
        R"doc(A model from a folder with config.json and model.safetensors (or its shards), as Hugging Face writes them or as
Model.save does. The files are mapped; copy reads them into memory. weights says how linear layers hold theirs while the
model runs: "stored" (as in the files), "f32", "bf16" (packed for speed), "int8" or "int4" (32 weights share a scale);
in the last four there are no gradients. device "cuda" puts the weights on a GPU, where the model then runs (stored ones).

>>> config = {"model_type": "heed", "vocab": 16, "d_model": 8, "decoder": {"layers": 1, "attention": {"heads": 2}}}
>>> heed.Model(config).save("tiny")
>>> heed.load("tiny").parameters
920
>>> heed.load("tiny", weights="int8").weights
'int8')doc");
    m.def("model_families", model_families, R"doc(model_type names of config.json that heed.load knows.

>>> "llama" in heed.model_families()
True)doc");
}

}  // namespace heed::python
