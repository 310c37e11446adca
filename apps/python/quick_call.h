#pragma once
/// A shorter way into a bound function, without nanobind's dispatch and its dict of keywords: what a call costs is the
/// number of cache lines it touches (docs/python.md has the figures).

#include <nanobind/nanobind.h>

#include "keywords.h"

namespace heed::python {

/// Calls of module.name with `Count` arguments by position go straight to `Function(handle..., const Keywords&)`. All
/// others, and those in which it throws, go the ordinary way, which then says what is wrong: so `Function` must leave
/// everything as it was when it throws, and be what the ordinary binding calls.
template <auto Function, std::size_t... Arguments>
void quick_call(nb::module_& module, const char* name, std::index_sequence<Arguments...>) {
    static vectorcallfunc ordinary = nullptr;
    const nb::object function = module.attr(name);
    const Py_ssize_t offset = Py_TYPE(function.ptr())->tp_vectorcall_offset;
    if (offset <= 0) { return; }
    auto* slot = reinterpret_cast<vectorcallfunc*>(reinterpret_cast<char*>(function.ptr()) + offset);
    ordinary = *slot;
    *slot = [](PyObject* self, PyObject* const* values, std::size_t flags, PyObject* names) -> PyObject* {
        if (PyVectorcall_NARGS(flags) == sizeof...(Arguments)) {
            try {
                return Function(nb::handle(values[Arguments])..., Keywords(names, values + sizeof...(Arguments)))
                    .release()
                    .ptr();
            } catch (...) { PyErr_Clear(); }
        }
        return ordinary(self, values, flags, names);
    };
}

}  // namespace heed::python
