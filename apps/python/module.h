#pragma once
/// One function for each public header: it adds that header's names to the module.

#include <nanobind/nanobind.h>

namespace heed::python {

namespace nb = nanobind;

void bind_attention(nb::module_& m);
void bind_cache(nb::module_& m);
void bind_chat(nb::module_& m);
void bind_context(nb::module_& m);
void bind_convert_heads(nb::module_& m);
void bind_error(nb::module_& m);
void bind_generate(nb::module_& m);
void bind_infini_attention(nb::module_& m);
void bind_inspect(nb::module_& m);
void bind_linear_attention(nb::module_& m);
void bind_layers(nb::module_& m);
void bind_matmul(nb::module_& m);
void bind_merge(nb::module_& m);
void bind_mla(nb::module_& m);
void bind_pattern(nb::module_& m);
void bind_positions(nb::module_& m);
void bind_rotary(nb::module_& m);
void bind_random(nb::module_& m);
void bind_safetensors(nb::module_& m);
void bind_model(nb::module_& m);
void bind_train(nb::module_& m);
void bind_sizes(nb::module_& m);
void bind_tokenizer(nb::module_& m);
void bind_walkthrough(nb::module_& m);

/// A class of heed._results, the named tuples that functions return.
inline nb::object result_type(const char* name) { return nb::module_::import_("heed._results").attr(name); }

}  // namespace heed::python
