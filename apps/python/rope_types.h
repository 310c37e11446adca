#pragma once
#include <heed/positions.h>
#include <nanobind/nanobind.h>

namespace heed::python {

/// The classes of RoPE: scalings, Rope, RopeTable, RopeConfig (positions.h has too much for one file).
void bind_rope_types(nanobind::module_& m);

}  // namespace heed::python
