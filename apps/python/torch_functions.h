#pragma once
/// PyTorch's own functions, found in the running process where its version has them: nothing of PyTorch's is linked or
/// included. What is missing is asked for in Python, which gives the same and takes 0.5 to 3 us more with cold caches.

#include <heed/view.h>
#include <nanobind/nanobind.h>

namespace heed::python {

namespace nb = nanobind;

/// Row-major. `data` is null where the array itself has to be asked.
struct NewArray {
    nb::object object;
    void* data = nullptr;
};

/// A tensor, not initialised.
NewArray new_torch_tensor(DType dtype, const Shape& shape);

/// The same on the device of another tensor.
NewArray new_torch_tensor_like(nb::handle like, DType dtype, const Shape& shape);

/// Does PyTorch choose the types of what it computes on the CPU?
bool is_autocast();

}  // namespace heed::python
