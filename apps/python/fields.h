#pragma once
/// Plain data of the library as Python classes.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>
#include <utility>

namespace heed::python {

namespace nb = nanobind;

/// Plain data with a constructor that takes every field by its name.
template <class Data>
nb::class_<Data> fields(nb::module_& m, const char* name, const char* doc) {
    nb::class_<Data> c(m, name, doc);
    c.def(
        "__init__",
        [](nb::pointer_and_handle<Data> self, const nb::kwargs& given) {
            new (self.p) Data{};
            nb::inst_mark_ready(self.h);
            for (const auto [key, value] : given) {
                if (!nb::hasattr(self.h, key)) {
                    const auto text = nb::cast<std::string>(key);
                    throw nb::type_error(("there is no field '" + text + "'").c_str());
                }
                nb::setattr(self.h, key, value);
            }
        },
        nb::sig("def __init__(self, **fields: Any) -> None"));
    return c;
}

/// The name of an enumeration's value, from the list that `choose` takes.
template <class Enum, std::size_t Count>
const char* word(Enum value, const std::pair<const char*, Enum> (&choices)[Count]) {
    for (const auto& [name, choice] : choices) {
        if (choice == value) { return name; }
    }
    return "";
}

}  // namespace heed::python
