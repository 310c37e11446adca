#include <heed/error.h>

#include "module.h"

namespace heed::python {

void bind_error(nb::module_& m) {
    nb::exception<Error>(m, "Error", PyExc_ValueError).doc() =
        "A call that cannot be carried out as asked: `[function] argument: what was expected, what came`.";
    nb::exception<FileError>(m, "FileError", PyExc_OSError).doc() =
        "A file that could not be read or written, or whose bytes break its format.";
}

}  // namespace heed::python
