#include "ops/checks.h"

#include "base/overlap.h"

namespace heed {

void refuse(const char* function, const std::string& argument, const std::string& expected, const std::string& got) {
    throw Error("[" + std::string(function) + "] " + argument + ": expected " + expected + ", got " + got);
}

void check_dtype(const char* function, const char* argument, const View& view, std::initializer_list<DType> allowed) {
    std::string names;
    for (const DType dtype : allowed) {
        if (view.dtype() == dtype) { return; }
        if (names == name_of(dtype)) { continue; }
        names += (names.empty() ? "" : " or ") + std::string(name_of(dtype));
    }
    refuse(function, argument, names, std::string(name_of(view.dtype())));
}

void check_memory(const char* function, const char* argument, const View& view) {
    if (view.data() == nullptr && view.shape().elements() > 0) {
        refuse(function, argument, "memory", "a null pointer");
    }
}

void check_output(const char* function, const char* argument, const View& output, const Shape& shape,
                  std::initializer_list<DType> allowed) {
    if (!output) { refuse(function, argument, "a tensor of shape " + to_string(shape), "none"); }
    if (!(output.shape() == shape)) { refuse(function, argument, to_string(shape), to_string(output.shape())); }
    check_dtype(function, argument, output, allowed);
    check_memory(function, argument, output);
    if (overlaps_itself(output)) {
        refuse(function, argument, "strides that give every element a place of its own", to_string(output.strides()));
    }
}

}  // namespace heed
