#pragma once
/// What heed knows of other libraries' arrays: how to ask them for their memory, and how to make new ones.

#include <heed/view.h>
#include <nanobind/nanobind.h>

#include "protocols.h"
#include "torch_functions.h"

namespace heed::python {

namespace nb = nanobind;

/// Ways to an array's memory, quickest first.
enum class Protocol : std::uint8_t {
    exchange,   ///< DLPack's table of C functions (PyTorch 2.10 and later): 0.1 us an array
    fields,     ///< a NumPy array whose object lies in memory as NumpyArray says (seen on the first of its type)
    interface,  ///< __array_struct__ (NumPy): 0.1 us
    dlpack,     ///< the method __dlpack__, often Python code: microseconds
    buffer,     ///< Python's own
    numbers,    ///< a list or tuple
    opaque,     ///< a class of PyTorch's tensors that decides itself what they hold: there may be no memory behind one
    none,
};

struct ArrayType {
    Protocol protocol = Protocol::none;
    bool is_torch = false;
    const DlExchange* exchange = nullptr;
};

/// "float32": as NumPy and PyTorch call it.
const char* library_name(DType dtype);

/// Looked up once for each type of object.
const ArrayType& array_type(nb::handle object);

/// Is this a PyTorch tensor whose gradients are being recorded?
bool requires_gradient(nb::handle tensor);

/// Is this a PyTorch tensor that stands for minus what lies in its memory (the imaginary part of a conjugate)?
bool is_negated(nb::handle tensor);

/// What object.__dlpack__ gives, newest version first.
nb::object dlpack_capsule(nb::handle object);

/// Which of heed's types NumPy's own dtype object is; false for all others, which the interface describes.
bool find_numpy_dtype(PyObject* dtype, DType& found);

/// Can this process use a GPU? Asked of the driver once.
bool has_gpu();
/// A PyTorch tensor of a GPU that heed can use.
bool is_on_gpu(nb::handle object);

/// Not initialised; PyTorch's where `like` is, otherwise NumPy's.
NewArray new_array(const char* function, nb::handle like, DType dtype, const Shape& shape);

}  // namespace heed::python
