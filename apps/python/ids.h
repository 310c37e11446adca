#pragma once
#include "array.h"

namespace heed::python {

/// Ids as heed takes them, for the length of a call. A list of numbers, or one axis, is one row.
class Ids {
public:
    Ids(const char* function, const char* argument, nb::handle object) {
        if (object.is_none()) { return; }
        if (nb::isinstance<nb::list>(object) || nb::isinstance<nb::tuple>(object)) {
            // Lists of lists are for NumPy to understand.
            array_object_ = nb::module_::import_("numpy").attr("asarray")(object);
            object = array_object_;
        }
        array_ = Array(function, argument, object);
    }
    View view() const {
        const View seen = array_.view();
        return seen && seen.rank() == 1 ? View(seen.dtype(), seen.data(), {1, seen.extent(0)}, {0, seen.stride(0)})
                                        : seen;
    }

private:
    nb::object array_object_;
    Array array_;
};

}  // namespace heed::python
