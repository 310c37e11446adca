#pragma once
/// Plain data of the library as Python classes.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <string>
#include <string_view>
#include <utility>

namespace heed::python {

namespace nb = nanobind;

/// The values of an object's fields, in the order in which they were bound.
template <class Data>
nb::dict fields_of(nb::handle self, std::string_view derived) {
    nb::dict values;
    const nb::object members = nb::borrow(nb::type<Data>().attr("__dict__"));
    for (const nb::handle name : members) {
        if (PyObject_TypeCheck(nb::object(members[name]).ptr(), &PyProperty_Type) == 0) { continue; }
        if (nb::cast<std::string_view>(name) != derived) { values[name] = self.attr(nb::str(name)); }
    }
    return values;
}

/// A value, by its fields alone: repr shows them, copies and pickles carry them. The constructor takes them by name;
/// `derived` is a member that it does not take.
template <class Data>
void as_value(nb::class_<Data>& c, const char* derived = "") {
    c.def("__repr__", [derived](nb::handle self) {
        std::string text;
        for (const auto [name, value] : fields_of<Data>(self, derived)) {
            text += (text.empty() ? "" : ", ") + nb::cast<std::string>(name) + "=";
            text += nb::cast<std::string>(nb::repr(value));
        }
        return "heed." + nb::cast<std::string>(nb::object(self.type().attr("__name__"))) + "(" + text + ")";
    });
    c.def(
        "__reduce__",
        [derived](nb::handle self) {
            const nb::object partial = nb::module_::import_("functools").attr("partial");
            return nb::make_tuple(partial(self.type(), **fields_of<Data>(self, derived)), nb::tuple());
        },
        nb::sig("def __reduce__(self) -> tuple[Any, ...]"));
}

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
    as_value(c);
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
