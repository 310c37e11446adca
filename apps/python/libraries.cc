#include "libraries.h"

#include <algorithm>
#include <string>
#include <unordered_map>

#include <heed/device.h>
#include <heed/error.h>

namespace heed::python {

namespace {

/// Attributes and functions of NumPy and PyTorch, looked up on first use and kept for good: modules outlive every call,
/// and at exit nobody may touch a Python object any more.
PyObject* keep(nb::object object) { return object.release().ptr(); }

bool inherits(nb::handle python_type, const char* module, const char* name) {
    for (const nb::handle base : nb::object(python_type.attr("__mro__"))) {
        if (nb::str(base.attr("__name__")).equal(nb::str(name)) &&
            nb::str(base.attr("__module__")).equal(nb::str(module))) {
            return true;
        }
    }
    return false;
}

/// Does the object itself say what NumPy says of it?
bool has_fields(nb::handle object) {
    if (!inherits(object.type(), "numpy", "ndarray")) { return false; }
    const Py_ssize_t size = Py_TYPE(object.ptr())->tp_basicsize;
    if (size < static_cast<Py_ssize_t>(sizeof(NumpyArray))) { return false; }
    const nb::object capsule = object.attr("__array_struct__");
    const auto* told = static_cast<const ArrayInterface*>(PyCapsule_GetPointer(capsule.ptr(), nullptr));
    if (told == nullptr) { throw nb::python_error(); }
    const auto* array = reinterpret_cast<const NumpyArray*>(object.ptr());
    constexpr int flags = ArrayInterface::aligned | ArrayInterface::writeable;
    const bool same_head = array->data == told->data && array->rank == told->rank &&
                           (array->flags & flags) == (told->flags & flags) &&
                           nb::object(object.attr("dtype")).is(nb::handle(array->dtype));
    const auto count = static_cast<std::size_t>(same_head ? told->rank : 0);
    return same_head && std::equal(told->shape, told->shape + count, array->shape) &&
           std::equal(told->strides, told->strides + count, array->strides);
}

/// Has the class a __torch_dispatch__ of its own?
bool decides_itself(nb::handle python_type) {
    const nb::object tensor = nb::module_::import_("torch").attr("Tensor");
    if (!nb::hasattr(python_type, "__torch_dispatch__")) { return false; }
    return !nb::object(python_type.attr("__torch_dispatch__")).is(nb::object(tensor.attr("__torch_dispatch__")));
}

ArrayType inspect(nb::handle object) {
    ArrayType type;
    const nb::handle python_type = object.type();
    type.is_torch = inherits(python_type, "torch", "Tensor");
    if (type.is_torch && decides_itself(python_type)) {
        type.protocol = Protocol::opaque;
        return type;
    }
    if (nb::hasattr(python_type, "__dlpack_c_exchange_api__")) {
        const nb::object capsule = python_type.attr("__dlpack_c_exchange_api__");
        if (PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api") != 0) {
            const auto* table =
                static_cast<const DlExchange*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
            while (table != nullptr && table->version.major != 1) { table = table->previous; }
            if (table != nullptr && table->tensor_from_object != nullptr) {
                type.exchange = table;
                type.protocol = Protocol::exchange;
                return type;
            }
        }
    }
    if (nb::hasattr(python_type, "__array_struct__")) {
        type.protocol = has_fields(object) ? Protocol::fields : Protocol::interface;
    } else if (nb::hasattr(python_type, "__dlpack__")) {
        type.protocol = Protocol::dlpack;
    } else if (PyObject_CheckBuffer(object.ptr()) != 0) {
        type.protocol = Protocol::buffer;
    } else if (PyList_Check(object.ptr()) != 0 || PyTuple_Check(object.ptr()) != 0) {
        type.protocol = Protocol::numbers;
    }
    return type;
}

constexpr std::size_t dtypes = static_cast<std::size_t>(DType::boolean) + 1;

PyObject* numpy_dtype(const char* function, DType dtype) {
    static PyObject* known[dtypes] = {};
    PyObject*& slot = known[static_cast<std::size_t>(dtype)];
    if (slot == nullptr) {
        if (dtype == DType::bf16) {
            try {
                slot = keep(
                    nb::module_::import_("numpy").attr("dtype")(nb::module_::import_("ml_dtypes").attr("bfloat16")));
            } catch (nb::python_error& error) {
                if (!error.matches(PyExc_ImportError)) { throw; }
                throw Error("[" + std::string(function) +
                            "] NumPy has no bfloat16: install ml_dtypes, use PyTorch tensors, or give out=");
            }
        } else {
            slot = keep(nb::module_::import_("numpy").attr("dtype")(library_name(dtype)));
        }
    }
    return slot;
}

constexpr DType numpy_types[] = {DType::f32, DType::f64, DType::f16, DType::boolean, DType::i64, DType::i32,
                                 DType::u8,  DType::i16, DType::i8,  DType::u64,     DType::u32, DType::u16};

nb::tuple shape_tuple(const Shape& shape) {
    nb::object tuple = nb::steal(PyTuple_New(shape.rank()));
    for (int axis = 0; axis < shape.rank(); ++axis) {
        PyTuple_SET_ITEM(tuple.ptr(), axis, PyLong_FromLongLong(shape[axis]));
    }
    return nb::borrow<nb::tuple>(tuple);
}

nb::object new_numpy(const char* function, DType dtype, const Shape& shape) {
    static PyObject* const empty = keep(nb::module_::import_("numpy").attr("empty"));
    const nb::tuple extents = shape_tuple(shape);
    PyObject* arguments[] = {extents.ptr(), numpy_dtype(function, dtype)};
    PyObject* array = PyObject_Vectorcall(empty, arguments, 2, nullptr);
    if (array == nullptr) { throw nb::python_error(); }
    return nb::steal(array);
}

}  // namespace

const char* library_name(DType dtype) {
    switch (dtype) {
        case DType::f32: return "float32";
        case DType::f16: return "float16";
        case DType::bf16: return "bfloat16";
        case DType::f64: return "float64";
        case DType::i64: return "int64";
        case DType::i32: return "int32";
        case DType::i16: return "int16";
        case DType::i8: return "int8";
        case DType::u64: return "uint64";
        case DType::u32: return "uint32";
        case DType::u16: return "uint16";
        case DType::u8: return "uint8";
        case DType::boolean: return "bool";
    }
    return "";
}

const ArrayType& array_type(nb::handle object) {
    // Keyed by the type, which is kept alive for good, so that no other can take its address.
    static auto& known = *new std::unordered_map<PyTypeObject*, ArrayType>;
    const auto found = known.find(Py_TYPE(object.ptr()));
    if (found != known.end()) { return found->second; }
    const ArrayType type = inspect(object);
    nb::borrow(object.type()).release();
    return known.emplace(Py_TYPE(object.ptr()), type).first->second;
}

bool requires_gradient(nb::handle tensor) {
    static PyObject* const name = PyUnicode_InternFromString("requires_grad");
    const nb::object flag = nb::steal(PyObject_GetAttr(tensor.ptr(), name));
    if (!flag) { throw nb::python_error(); }
    if (!flag.is(nb::handle(Py_True))) { return false; }
    static PyObject* const is_enabled = keep(nb::module_::import_("torch").attr("is_grad_enabled"));
    return nb::cast<bool>(nb::handle(is_enabled)());
}

bool is_negated(nb::handle tensor) {
    static PyObject* const name = PyUnicode_InternFromString("is_neg");
    const nb::object flag = nb::steal(PyObject_CallMethodNoArgs(tensor.ptr(), name));
    if (!flag) { throw nb::python_error(); }
    return flag.is(nb::handle(Py_True));
}

bool find_numpy_dtype(PyObject* dtype, DType& found) {
    for (const DType type : numpy_types) {
        if (numpy_dtype("array", type) == dtype) {
            found = type;
            return true;
        }
    }
    return false;
}

nb::object dlpack_capsule(nb::handle object) {
    const nb::object method = object.attr("__dlpack__");
    try {
        return method(nb::arg("max_version") = nb::make_tuple(1, 0));
    } catch (nb::python_error& error) {
        if (!error.matches(PyExc_TypeError)) { throw; }  // before DLPack 1.0 there was no such argument
    }
    return method();
}

bool has_gpu() {
    static const bool found = devices().size() > 1;
    return found;
}

bool is_on_gpu(nb::handle object) {
    return has_gpu() && object && !object.is_none() && array_type(object).is_torch &&
           nb::cast<bool>(object.attr("is_cuda"));
}

NewArray new_array(const char* function, nb::handle like, DType dtype, const Shape& shape) {
    const ArrayType& type = array_type(like);
    if (!type.is_torch) { return {new_numpy(function, dtype, shape), nullptr}; }
    if (is_on_gpu(like)) { return new_torch_tensor_like(like, dtype, shape); }
    return new_torch_tensor(dtype, shape);
}

}  // namespace heed::python
