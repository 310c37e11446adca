#include "rope_types.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include "fields.h"
#include "keywords.h"

namespace heed::python {

namespace {

using nb::arg;

const char* pairing_name(Pairing pairing) { return pairing == Pairing::halves ? "halves" : "interleaved"; }

Pairing to_pairing(const char* function, nb::handle value) {
    return choose<Pairing>(function, "pairing", value,
                           {{"halves", Pairing::halves}, {"interleaved", Pairing::interleaved}});
}

void bind_scalings(nb::module_& m) {
    using namespace rope_scaling;
    nb::class_<Linear> linear(m, "RopeLinear", "Position interpolation: every frequency / factor.");
    as_value(linear);
    linear
        .def(
            "__init__", [](Linear* self, double factor) { new (self) Linear{factor}; }, arg("factor"))
        .def_rw("factor", &Linear::factor);
    nb::class_<Ntk> ntk(m, "RopeNtk", "theta * factor^(size/(size-2)).");
    as_value(ntk);
    ntk.def(
           "__init__", [](Ntk* self, double factor) { new (self) Ntk{factor}; }, arg("factor"))
        .def_rw("factor", &Ntk::factor);
    nb::class_<DynamicNtk> dynamic_ntk(m, "RopeDynamicNtk", "Ntk with the factor that the length in use asks for.");
    as_value(dynamic_ntk);
    dynamic_ntk
        .def(
            "__init__",
            [](DynamicNtk* self, double factor, std::int64_t trained) {
                new (self) DynamicNtk{factor, trained};
            },
            arg("factor"), arg("trained"))
        .def_rw("factor", &DynamicNtk::factor)
        .def_rw("trained", &DynamicNtk::trained);
    nb::class_<Yarn> yarn(m, "RopeYarn", "YaRN: fast pairs stay, slow ones are interpolated, a ramp between.");
    as_value(yarn);
    yarn.def(
            "__init__",
            [](Yarn* self, double factor, std::int64_t trained, double beta_fast, double beta_slow, bool truncate,
               std::optional<double> attention_factor, double mscale, double mscale_all_dim) {
                new (self)
                    Yarn{factor, trained, beta_fast, beta_slow, truncate, attention_factor, mscale, mscale_all_dim};
            },
            arg("factor"), arg("trained"), arg("beta_fast") = 32.0, arg("beta_slow") = 1.0, arg("truncate") = true,
            arg("attention_factor") = nb::none(), arg("mscale") = 0.0, arg("mscale_all_dim") = 0.0)
        .def_rw("factor", &Yarn::factor)
        .def_rw("trained", &Yarn::trained)
        .def_rw("beta_fast", &Yarn::beta_fast)
        .def_rw("beta_slow", &Yarn::beta_slow)
        .def_rw("truncate", &Yarn::truncate)
        .def_rw("attention_factor", &Yarn::attention_factor)
        .def_rw("mscale", &Yarn::mscale)
        .def_rw("mscale_all_dim", &Yarn::mscale_all_dim);
    nb::class_<Llama3> llama3(m, "RopeLlama3",
                              "Llama 3: short wavelengths stay, long ones are stretched, blended between.");
    as_value(llama3);
    llama3
        .def(
            "__init__",
            [](Llama3* self, double factor, std::int64_t trained, double low, double high) {
                new (self) Llama3{factor, trained, low, high};
            },
            arg("factor") = 8.0, arg("trained") = 8192, arg("low_freq_factor") = 1.0, arg("high_freq_factor") = 4.0)
        .def_rw("factor", &Llama3::factor)
        .def_rw("trained", &Llama3::trained)
        .def_rw("low_freq_factor", &Llama3::low_freq_factor)
        .def_rw("high_freq_factor", &Llama3::high_freq_factor);
    nb::class_<LongRope> long_rope(m, "RopeLongRope",
                                   "LongRoPE: a factor for each pair, one list up to `trained`, one beyond.");
    as_value(long_rope);
    long_rope
        .def(
            "__init__",
            [](LongRope* self, std::int64_t trained, std::vector<double> short_factors,
               std::vector<double> long_factors, double factor, std::optional<double> attention_factor) {
                new (self)
                    LongRope{factor, trained, std::move(short_factors), std::move(long_factors), attention_factor};
            },
            arg("trained"), arg("short_factors"), arg("long_factors"), arg("factor") = 1.0,
            arg("attention_factor") = nb::none())
        .def_rw("factor", &LongRope::factor)
        .def_rw("trained", &LongRope::trained)
        .def_rw("short_factors", &LongRope::short_factors)
        .def_rw("long_factors", &LongRope::long_factors)
        .def_rw("attention_factor", &LongRope::attention_factor);
    nb::class_<Proportional> proportional(m, "RopeProportional", "Only the first `share` of the pairs turn.");
    as_value(proportional);
    proportional
        .def(
            "__init__",
            [](Proportional* self, double share, double factor) {
                new (self) Proportional{share, factor};
            },
            arg("share"), arg("factor") = 1.0)
        .def_rw("share", &Proportional::share)
        .def_rw("factor", &Proportional::factor);
}

/// Python's None stands for rope_scaling::None.
using Scaling =
    std::optional<std::variant<rope_scaling::Linear, rope_scaling::Ntk, rope_scaling::DynamicNtk, rope_scaling::Yarn,
                               rope_scaling::Llama3, rope_scaling::LongRope, rope_scaling::Proportional>>;

RopeScaling to_scaling(const Scaling& scaling) {
    if (!scaling) { return rope_scaling::None{}; }
    return std::visit([](const auto& kind) { return RopeScaling(kind); }, *scaling);
}

Scaling from_scaling(const RopeScaling& scaling) {
    return std::visit(
        [](const auto& kind) -> Scaling {
            if constexpr (std::is_same_v<std::decay_t<decltype(kind)>, rope_scaling::None>) {
                return std::nullopt;
            } else {
                return kind;
            }
        },
        scaling);
}

#define HEED_PAIRING "Literal['halves', 'interleaved']"
#define HEED_SCALING \
    "RopeLinear | RopeNtk | RopeDynamicNtk | RopeYarn | RopeLlama3 | RopeLongRope | RopeProportional | None"

void bind_rope(nb::module_& m) {
    nb::class_<Rope> rope(m, "Rope", "How a model rotates: `size` numbers of a head, in pairs, at base theta.");
    as_value(rope, "depends_on_length");
    rope.def(
            "__init__",
            [](Rope* self, std::int64_t size, double theta, nb::handle pairing, const Scaling& scaling) {
                new (self) Rope{size, theta, to_pairing("Rope", pairing), to_scaling(scaling)};
            },
            arg("size"), arg("theta") = 10000.0, arg("pairing") = "halves", arg("scaling") = nb::none(),
            nb::sig("def __init__(self, size: int, theta: float = 10000.0, pairing: " HEED_PAIRING
                    " = 'halves', scaling: " HEED_SCALING " = None) -> None"))
        .def_ro("size", &Rope::size, "Numbers rotated, even; the rest of a head passes through.")
        .def_ro("theta", &Rope::theta)
        .def_prop_ro(
            "pairing", [](const Rope& self) { return pairing_name(self.pairing); },
            nb::sig("def pairing(self) -> " HEED_PAIRING))
        .def_prop_ro(
            "scaling", [](const Rope& self) { return from_scaling(self.scaling); },
            nb::sig("def scaling(self) -> " HEED_SCALING))
        .def_prop_ro(
            "depends_on_length", [](const Rope& self) { return depends_on_length(self.scaling); },
            "Does the table change with the length of the sequence? (dynamic NTK, LongRoPE)");
    nb::class_<RopeTable> table(
        m, "RopeTable", "Frequencies in use: pair i turns by position * frequencies[i], times attention_factor.");
    as_value(table);
    table
        .def(
            "__init__",
            [](RopeTable* self, std::vector<double> frequencies, double attention_factor, nb::handle pairing) {
                new (self) RopeTable{std::move(frequencies), attention_factor, to_pairing("RopeTable", pairing)};
            },
            arg("frequencies"), arg("attention_factor") = 1.0, arg("pairing") = "halves",
            nb::sig(
                "def __init__(self, frequencies: Sequence[float], attention_factor: float = 1.0, pairing: " HEED_PAIRING
                " = 'halves') -> None"))
        .def_ro("frequencies", &RopeTable::frequencies)
        .def_ro("attention_factor", &RopeTable::attention_factor)
        .def_prop_ro(
            "pairing", [](const RopeTable& self) { return pairing_name(self.pairing); },
            nb::sig("def pairing(self) -> " HEED_PAIRING))
        .def(
            "__eq__", [](const RopeTable& a, const RopeTable& b) { return a == b; }, nb::is_operator(),
            nb::sig("def __eq__(self, other: object) -> bool"));
    fields<LayerRope>(m, "LayerRope", "RoPE of the layers of one kind; an empty name stands for every layer.")
        .def_rw("layer_type", &LayerRope::layer_type)
        .def_rw("rope", &LayerRope::rope);
    fields<RopeConfig>(m, "RopeConfig", "What a config.json says of RoPE.")
        .def_rw("kinds", &RopeConfig::kinds, "At least one LayerRope.")
        .def_rw("layer_types", &RopeConfig::layer_types, "Of each layer, where the file lists them.")
        .def_rw("head_size", &RopeConfig::head_size)
        .def_rw("max_positions", &RopeConfig::max_positions, "0: not said.");
    m.def("rope_table", &rope_table, arg("rope"), arg("length") = 0,
          R"doc(The frequencies for sequences of up to `length` tokens; 0: for the trained length.

>>> heed.rope_table(heed.Rope(4)).frequencies
[1.0, 0.01])doc");
    m.def("rope_from_config", &rope_from_config, arg("json"),
          R"doc(RoPE of a Hugging Face config.json, in old and new spellings.

>>> heed.rope_from_config('{"head_dim": 64, "rope_theta": 500000.0}').kinds[0].rope.theta
500000.0)doc");
}

}  // namespace

void bind_rope_types(nb::module_& m) {
    bind_scalings(m);
    bind_rope(m);
}

}  // namespace heed::python
