#include <heed/error.h>

#include <exception>
#include <typeinfo>

#include "module.h"

namespace heed::python {

void bind_error(nb::module_& m) {
    // A RuntimeError too: what PyTorch raises for the same mistakes.
    nb::exception<Error>(m, "Error", nb::make_tuple(nb::handle(PyExc_ValueError), nb::handle(PyExc_RuntimeError)))
        .doc() =
        "A call that cannot be carried out as asked: `[function] argument: expected what, got what`.\n\n"
        "A ValueError, and a RuntimeError as PyTorch's own.";
    nb::exception<FileError>(m, "FileError", PyExc_OSError).doc() =
        "A file that could not be read or written, or whose bytes break its format.";
    nb::exception<DeviceError>(m, "DeviceError", PyExc_RuntimeError).doc() =
        "What a device other than the CPU reported: a lost GPU, no memory left there, a kernel that failed.";
    // What nanobind's own conversions throw, such as for a path that is no UTF-8.
    nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
        try {
            std::rethrow_exception(thrown);
        } catch (const std::bad_cast&) {
            PyErr_SetString(PyExc_TypeError, "an argument of another type was expected, or text that is valid UTF-8");
        }
    });
}

}  // namespace heed::python
