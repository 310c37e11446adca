#include <heed/sizes.h>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include "fields.h"
#include "keywords.h"
#include "module.h"

namespace heed::python {

namespace {

template <class Data>
void counts(nb::class_<Data>& c, std::initializer_list<std::pair<const char*, std::int64_t Data::*>> members) {
    for (const auto& [name, member] : members) { c.def_rw(name, member); }
}

constexpr std::pair<const char*, ModelKind> model_kinds[] = {
    {"encoder", ModelKind::encoder}, {"decoder", ModelKind::decoder}, {"encoder_decoder", ModelKind::encoder_decoder}};
constexpr std::pair<const char*, NormKind> norm_kinds[] = {{"layer_norm", NormKind::layer_norm},
                                                           {"rms_norm", NormKind::rms_norm}};
constexpr std::pair<const char*, AttentionKind> attention_kinds[] = {
    {"mha", AttentionKind::mha}, {"gqa", AttentionKind::gqa}, {"mqa", AttentionKind::mqa}, {"mla", AttentionKind::mla}};

void bind_shapes(nb::module_& m) {
    fields<LatentAttention>(m, "LatentAttention", "Ranks and sizes of multi-head latent attention.")
        .def_rw("query_rank", &LatentAttention::query_rank)
        .def_rw("kv_rank", &LatentAttention::kv_rank)
        .def_rw("nope_size", &LatentAttention::nope_size)
        .def_rw("rope_size", &LatentAttention::rope_size)
        .def_rw("value_size", &LatentAttention::value_size);
    fields<Experts>(m, "Experts", "Gated feed-forward experts in place of the feed-forward layer.")
        .def_rw("routed", &Experts::routed)
        .def_rw("active", &Experts::active)
        .def_rw("shared", &Experts::shared)
        .def_rw("d_ff", &Experts::d_ff)
        .def_rw("dense_layers", &Experts::dense_layers)
        .def_rw("correction_bias", &Experts::correction_bias);
    fields<ModelShape>(
        m, "ModelShape",
        R"doc(The shape of a transformer, as far as its size depends on it. Fields by name; 0 unless given.

>>> heed.ModelShape(layers=2, d_model=8, heads=2, kv_heads=2, head_size=4, value_size=4, d_ff=16, vocab=10).heads
2)doc")
        .def_rw("name", &ModelShape::name)
        .def_prop_rw(
            "kind", [](const ModelShape& self) { return word(self.kind, model_kinds); },
            [](ModelShape& self, nb::handle value) { self.kind = choose("ModelShape", "kind", value, model_kinds); },
            nb::for_getter(nb::sig("def kind(self) -> Literal['encoder', 'decoder', 'encoder_decoder']")),
            nb::for_setter(
                nb::sig("def kind(self, value: Literal['encoder', 'decoder', 'encoder_decoder'], /) -> None")))
        .def_rw("layers", &ModelShape::layers)
        .def_rw("encoder_layers", &ModelShape::encoder_layers)
        .def_rw("d_model", &ModelShape::d_model)
        .def_rw("heads", &ModelShape::heads)
        .def_rw("kv_heads", &ModelShape::kv_heads)
        .def_rw("head_size", &ModelShape::head_size)
        .def_rw("value_size", &ModelShape::value_size)
        .def_rw("latent", &ModelShape::latent, nb::arg().none())
        .def_rw("d_ff", &ModelShape::d_ff)
        .def_rw("encoder_d_ff", &ModelShape::encoder_d_ff)
        .def_rw("gated", &ModelShape::gated)
        .def_rw("experts", &ModelShape::experts, nb::arg().none())
        .def_rw("vocab", &ModelShape::vocab)
        .def_rw("positions", &ModelShape::positions)
        .def_rw("position_rows", &ModelShape::position_rows)
        .def_rw("relative_buckets", &ModelShape::relative_buckets)
        .def_rw("token_types", &ModelShape::token_types)
        .def_rw("qkv_bias", &ModelShape::qkv_bias)
        .def_rw("output_bias", &ModelShape::output_bias)
        .def_rw("ffn_bias", &ModelShape::ffn_bias)
        .def_prop_rw(
            "norm", [](const ModelShape& self) { return word(self.norm, norm_kinds); },
            [](ModelShape& self, nb::handle value) { self.norm = choose("ModelShape", "norm", value, norm_kinds); },
            nb::for_getter(nb::sig("def norm(self) -> Literal['layer_norm', 'rms_norm']")),
            nb::for_setter(nb::sig("def norm(self, value: Literal['layer_norm', 'rms_norm'], /) -> None")))
        .def_rw("norms_per_sublayer", &ModelShape::norms_per_sublayer)
        .def_rw("embedding_norm", &ModelShape::embedding_norm)
        .def_rw("final_norm", &ModelShape::final_norm)
        .def_rw("qk_norm", &ModelShape::qk_norm)
        .def_rw("head", &ModelShape::head)
        .def_rw("tied", &ModelShape::tied)
        .def_rw("head_bias", &ModelShape::head_bias)
        .def_rw("head_transform", &ModelShape::head_transform)
        .def_rw("pooler", &ModelShape::pooler)
        .def_rw("classes", &ModelShape::classes);
}

void bind_counts(nb::module_& m) {
    nb::class_<ParameterCount> p =
        fields<ParameterCount>(m, "ParameterCount", "Trained numbers; the first six add up to total.");
    counts(p, {{"embedding", &ParameterCount::embedding},
               {"positions", &ParameterCount::positions},
               {"attention", &ParameterCount::attention},
               {"ffn", &ParameterCount::ffn},
               {"norms", &ParameterCount::norms},
               {"head", &ParameterCount::head},
               {"total", &ParameterCount::total},
               {"attention_layer", &ParameterCount::attention_layer},
               {"ffn_layer", &ParameterCount::ffn_layer},
               {"expert_ffn_layer", &ParameterCount::expert_ffn_layer},
               {"active", &ParameterCount::active},
               {"active_without_lookup", &ParameterCount::active_without_lookup}});
    nb::class_<Flops> f = fields<Flops>(m, "Flops", "Operations of one token; a multiply-add counts 2.");
    counts(f, {{"projections", &Flops::projections},
               {"scores", &Flops::scores},
               {"ffn", &Flops::ffn},
               {"head", &Flops::head},
               {"total", &Flops::total}});
    nb::class_<AttentionCost> a = fields<AttentionCost>(m, "AttentionCost", "One self-attention layer on a batch.");
    counts(a, {{"input_numbers", &AttentionCost::input_numbers},
               {"score_numbers", &AttentionCost::score_numbers},
               {"weight_numbers", &AttentionCost::weight_numbers},
               {"projection_flops", &AttentionCost::projection_flops},
               {"score_flops", &AttentionCost::score_flops}});
}

ModelShape with_attention_(const ModelShape& model, nb::handle kind, std::int64_t groups,
                           std::optional<LatentAttention> latent) {
    return with_attention(model, choose("with_attention", "kind", kind, attention_kinds), {groups, std::move(latent)});
}

std::int64_t attention_flops_per_key_(const ModelShape& model, nb::handle form) {
    return attention_flops_per_key(
        model, choose<LatentForm>("attention_flops_per_key", "form", form,
                                  {{"expanded", LatentForm::expanded}, {"absorbed", LatentForm::absorbed}}));
}

}  // namespace

void bind_sizes(nb::module_& m) {
    bind_shapes(m);
    bind_counts(m);
    using nb::arg;
    m.def("model_presets", &model_presets, R"doc(Names that model_preset knows.

>>> "llama-3-8b" in heed.model_presets()
True)doc");
    m.def("model_preset", &model_preset, arg("name"), R"doc(A published model by name.

>>> heed.model_preset("llama-3-8b").layers
32)doc");
    m.def("model_from_config", &model_from_config, arg("json"),
          R"doc(The shape that the text of a Hugging Face config.json describes.

>>> sizes = '"n_embd": 8, "n_layer": 1, "n_head": 2, "vocab_size": 9, "n_positions": 5'
>>> heed.model_from_config('{"model_type": "gpt2", ' + sizes + '}').heads
2)doc");
    m.def(
        "attention_kind", [](const ModelShape& model) { return word(attention_kind(model), attention_kinds); },
        arg("model"), nb::sig("def attention_kind(model: ModelShape) -> Literal['mha', 'gqa', 'mqa', 'mla']"),
        R"doc(Which kind of attention a model has, by its key/value heads.

>>> heed.attention_kind(heed.model_preset("llama-3-8b"))
'gqa')doc");
    m.def("with_attention", with_attention_, arg("model"), arg("kind"), arg("groups") = 0, arg("latent") = nb::none(),
          nb::sig("def with_attention(model: ModelShape, kind: Literal['mha', 'gqa', 'mqa', 'mla'], groups: int = 0, "
                  "latent: LatentAttention | None = None) -> ModelShape"),
          R"doc(The same model with another kind of attention in every layer, all else equal.

>>> heed.with_attention(heed.model_preset("llama-3-8b"), "mqa").kv_heads
1)doc");
    m.def("parameters", &parameters, arg("model"), R"doc(Trained numbers of a model.

>>> heed.parameters(heed.model_preset("llama-3-8b")).total
8030261248)doc");
    m.def("flops_per_token", &flops_per_token, arg("model"), arg("keys"),
          R"doc(Operations forward, of a token that sees `keys` keys in every layer.

>>> heed.flops_per_token(heed.model_preset("llama-3-8b"), 1).total > 0
True)doc");
    m.def("training_flops_per_token", &training_flops_per_token, arg("model"), arg("context"),
          R"doc(Operations forward and backward, the mean over a sequence of `context` tokens.

>>> heed.training_flops_per_token(heed.model_preset("llama-3-8b"), 8192).total > 0
True)doc");
    m.def("attention_flops_per_key", attention_flops_per_key_, arg("model"), arg("form") = "expanded",
          nb::sig("def attention_flops_per_key(model: ModelShape, form: Literal['expanded', 'absorbed'] = 'expanded') "
                  "-> int"),
          R"doc(Scores and values of one query token against one key, all heads of one layer.

>>> heed.attention_flops_per_key(heed.model_preset("llama-3-8b"))
16384)doc");
    m.def("kv_bytes_per_token", &kv_bytes_per_token, arg("model"), arg("bytes_per_number"),
          R"doc(Bytes that decoding keeps per token, all layers.

>>> heed.kv_bytes_per_token(heed.model_preset("llama-3-8b"), 2)
131072)doc");
    m.def("cross_kv_bytes_per_token", &cross_kv_bytes_per_token, arg("model"), arg("bytes_per_number"),
          R"doc(Bytes that the cross-attention of an encoder-decoder keeps per source token.

>>> heed.cross_kv_bytes_per_token(heed.model_preset("llama-3-8b"), 2)
0)doc");
    m.def("kv_cache_bytes", &kv_cache_bytes, arg("model"), arg("bytes_per_number"), arg("context"), arg("batch"),
          R"doc(Bytes of the whole cache of `batch` sequences of `context` tokens.

>>> heed.kv_cache_bytes(heed.model_preset("llama-3-8b"), 2, 8192, 1) == 2**30
True)doc");
    m.def("weight_bytes", &weight_bytes, arg("model"), arg("bytes_per_number"), R"doc(Bytes of the parameters alone.

>>> heed.weight_bytes(heed.model_preset("llama-3-8b"), 2)
16060522496)doc");
    m.def("attention_cost", &attention_cost, arg("model"), arg("batch"), arg("tokens"),
          R"doc(One self-attention layer on a batch, every token seeing every token.

>>> heed.attention_cost(heed.model_preset("llama-3-8b"), 1, 2).score_numbers
128)doc");
}

}  // namespace heed::python
