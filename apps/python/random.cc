#include <heed/random.h>

#include <nanobind/stl/array.h>

#include "module.h"

namespace heed::python {

void bind_random(nb::module_& m) {
    m.def(
        "philox4x32", [](std::array<std::uint32_t, 4> counter, std::uint64_t key) { return philox4x32(counter, key); },
        nb::arg("counter"), nb::arg("key"), nb::sig("def philox4x32(counter: Sequence[int], key: int) -> list[int]"),
        R"doc(Philox4x32-10: four random words from a counter of four words and a 64-bit key.

>>> hex(heed.philox4x32([0, 0, 0, 0], 0)[0])
'0x6627e8d5')doc");
    m.def("dropout_word", &dropout_word, nb::arg("seed"), nb::arg("offset"), nb::arg("plane"), nb::arg("row"),
          nb::arg("column"),
          R"doc(The random word of attention-dropout element (row, column) of plane b*H + h.

>>> heed.dropout_word(0, 0, 0, 0, 0) >= heed.dropout_threshold(0.1)  # is it kept?
True)doc");
    m.def("dropout_threshold", &dropout_threshold, nb::arg("probability"),
          R"doc(An element is kept when its word is at least this: round(p * 2^32).

>>> heed.dropout_threshold(0.5) == 2**31
True)doc");
}

}  // namespace heed::python
