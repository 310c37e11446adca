#include "array.h"

#include <cstring>

#include <heed/error.h>
#include <heed/tensor.h>

#include "libraries.h"

namespace heed::python {

namespace {

std::string name_of_type(nb::handle object) {
    return nb::cast<std::string>(nb::object(object.type().attr("__name__")));
}

/// What `got` says where a type of element has no counterpart in heed.
std::string attribute_text(nb::handle object, const char* attribute) {
    const nb::object value = object.attr(attribute);
    return nb::cast<std::string>(nb::str(nb::handle(value)));
}

std::string dtype_text(nb::handle object) {
    return nb::hasattr(object, "dtype") ? attribute_text(object, "dtype") : name_of_type(object);
}

constexpr const char* by_strides = "a tensor with its numbers in memory, by strides";
constexpr const char* known_types = "elements of a type that heed knows (f32, bf16, f16, f64, integers, bool)";

bool find_dtype(char kind, int size, DType& dtype) {
    switch (kind) {
        case 'f':
            dtype = size == 4 ? DType::f32 : size == 8 ? DType::f64 : DType::f16;
            return size == 2 || size == 4 || size == 8;
        case 'i':
            dtype = size == 8 ? DType::i64 : size == 4 ? DType::i32 : size == 2 ? DType::i16 : DType::i8;
            return size <= 8;
        case 'u':
            dtype = size == 8 ? DType::u64 : size == 4 ? DType::u32 : size == 2 ? DType::u16 : DType::u8;
            return size <= 8;
        case 'b': dtype = DType::boolean; return size == 1;
        default: return false;
    }
}

/// A character of Python's struct module, native sizes.
bool find_format(const char* format, DType& dtype) {
    if (format == nullptr) {
        dtype = DType::u8;
        return true;
    }
    if (*format == '@' || *format == '=' || *format == '<') { ++format; }
    if (*format == '\0' || format[1] != '\0') { return false; }
    switch (*format) {
        case 'f': dtype = DType::f32; return true;
        case 'd': dtype = DType::f64; return true;
        case 'e': dtype = DType::f16; return true;
        case 'l':
        case 'q': dtype = DType::i64; return true;
        case 'i': dtype = DType::i32; return true;
        case 'h': dtype = DType::i16; return true;
        case 'b': dtype = DType::i8; return true;
        case 'L':
        case 'Q': dtype = DType::u64; return true;
        case 'I': dtype = DType::u32; return true;
        case 'H': dtype = DType::u16; return true;
        case 'B': dtype = DType::u8; return true;
        case '?': dtype = DType::boolean; return true;
        default: return false;
    }
}

bool find_dtype(const DlType& type, DType& dtype) {
    if (type.lanes != 1) { return false; }
    switch (type.code) {
        case dl::floating: return find_dtype('f', type.bits / 8, dtype);
        case dl::integer: return find_dtype('i', type.bits / 8, dtype);
        case dl::unsigned_integer: return find_dtype('u', type.bits / 8, dtype);
        case dl::boolean: return find_dtype('b', type.bits / 8, dtype);
        case dl::bfloat: dtype = DType::bf16; return type.bits == 16;
        default: return false;
    }
}

/// Asking PyTorch takes as long as everything else about a tensor. Lazy negations are imaginary parts of conjugates, or
/// views of them: every other number in memory.
bool may_be_negated(const Shape& shape, const Shape& strides) {
    for (int axis = 0; axis < shape.rank(); ++axis) {
        if (shape[axis] > 1 && strides[axis] % 2 != 0) { return false; }
    }
    return true;
}

}  // namespace

void refuse(const char* function, const char* argument, const std::string& expected, const std::string& got) {
    throw Error("[" + std::string(function) + "] " + argument + ": expected " + expected + ", got " + got);
}

void Array::refuse(const std::string& expected, const std::string& got) const {
    python::refuse(function_, argument_, expected, got);
}

Array::Array(const char* function, const char* argument, nb::handle object, Access access, Where where)
    : function_(function), argument_(argument), access_(access), where_(where) {
    if (object.is_none()) { return; }
    const ArrayType& type = array_type(object);
    if (type.is_torch && type.protocol != Protocol::opaque && access != Access::read_detached &&
        requires_gradient(object)) {
        refuse("a tensor that needs no gradient (the functions of heed.torch pass gradients on; detach() cuts them)",
               "requires_grad=True");
    }
    switch (type.protocol) {
        case Protocol::exchange:
            take_exchange(object, *type.exchange);
            if (type.is_torch && may_be_negated(shape_, strides_) && is_negated(object)) {
                refuse("a tensor whose numbers lie in memory as they are (resolve_neg() makes one)", "a lazy negation");
            }
            break;
        case Protocol::fields: take_fields(object); break;
        case Protocol::interface: take_interface(object); break;
        case Protocol::dlpack:
            // Older PyTorch: its __dlpack__ refuses what needs a gradient, whether or not that is being recorded.
            take_capsule(type.is_torch ? nb::object(object.attr("detach")()) : nb::borrow(object));
            break;
        case Protocol::buffer: take_buffer(object); break;
        case Protocol::numbers: take_numbers(object); break;
        case Protocol::opaque:
            refuse("a tensor with numbers in memory (the functions of heed.torch take some others)",
                   name_of_type(object));
        case Protocol::none:
            throw nb::type_error(
                ("[" + std::string(function) + "] " + argument + ": expected an array, got " + name_of_type(object))
                    .c_str());
    }
    present_ = true;
    if (reinterpret_cast<std::uintptr_t>(data_) % size_of(dtype_) != 0) {
        refuse("memory on a multiple of the element size", "an unaligned array");
    }
}

void Array::take(const DlTensor& tensor) {
    const std::int32_t type = tensor.device.type;
    if ((type == dl::cuda || type == dl::cuda_managed) && where_ == Where::anywhere && has_gpu()) {
        device_ = {DeviceKind::cuda, static_cast<std::int16_t>(tensor.device.id)};
    } else if (type != dl::cpu && type != dl::cuda_host && type != dl::rocm_host) {
        refuse("an array in the CPU's memory", "one on another device");
    }
    if (tensor.rank > Shape::max_rank) { refuse("at most 8 axes", std::to_string(tensor.rank)); }
    const auto rank = static_cast<std::size_t>(tensor.rank);
    shape_ = Shape(std::span(tensor.shape, rank));
    strides_ = tensor.strides == nullptr ? shape_.row_major() : Shape(std::span(tensor.strides, rank));
    data_ = static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
}

void Array::take_exchange(nb::handle object, const DlExchange& exchange) {
    DlTensor tensor{};
    if (exchange.tensor_from_object(object.ptr(), &tensor) != 0) {
        if (!array_type(object).is_torch) { throw nb::python_error(); }
        PyErr_Clear();
        if (nb::cast<bool>(object.attr("is_nested"))) {
            refuse(by_strides, "a nested one (heed.torch takes those of layout torch.jagged)");
        }
        const std::string layout = attribute_text(object, "layout"), device = attribute_text(object, "device");
        refuse(by_strides, "one of layout " + layout + " on device " + device);
    }
    if (!find_dtype(tensor.dtype, dtype_)) { refuse(known_types, dtype_text(object)); }
    take(tensor);
}

void Array::take_capsule(nb::handle object) {
    const nb::object capsule = dlpack_capsule(object);
    if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned") != 0) {
        versioned_.reset(static_cast<DlManagedVersioned*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned")));
        PyCapsule_SetName(capsule.ptr(), "used_dltensor_versioned");
        if (access_ == Access::write && (versioned_->flags & dl::read_only) != 0) {
            refuse("an array that may be written", "a read-only one");
        }
    } else if (PyCapsule_IsValid(capsule.ptr(), "dltensor") != 0) {
        managed_.reset(static_cast<DlManaged*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor")));
        PyCapsule_SetName(capsule.ptr(), "used_dltensor");
    } else {
        refuse("a DLPack capsule from __dlpack__", name_of_type(capsule));
    }
    const DlTensor& tensor = versioned_ ? versioned_->tensor : managed_->tensor;
    if (!find_dtype(tensor.dtype, dtype_)) { refuse(known_types, dtype_text(object)); }
    take(tensor);
}

void Array::take_fields(nb::handle object) {
    const auto* array = reinterpret_cast<const NumpyArray*>(object.ptr());
    if (!find_numpy_dtype(array->dtype, dtype_)) { return take_interface(object); }
    refuse_read_only(array->flags);
    take_strided(array->shape, array->strides, array->rank, array->data);
}

void Array::refuse_read_only(int flags) const {
    if (access_ == Access::write && (flags & ArrayInterface::writeable) == 0) {
        refuse("an array that may be written", "a read-only one");
    }
}

void Array::take_interface(nb::handle object) {
    const nb::object capsule = object.attr("__array_struct__");
    const auto* array = static_cast<const ArrayInterface*>(PyCapsule_GetPointer(capsule.ptr(), nullptr));
    if (array == nullptr) { throw nb::python_error(); }
    if (!find_dtype(array->kind, array->item_size, dtype_)) {
        // NumPy has no bfloat16 of its own; ml_dtypes adds one, which the protocol calls two opaque bytes.
        if (array->kind != 'V' || array->item_size != 2 || dtype_text(object) != "bfloat16") {
            refuse(known_types, dtype_text(object));
        }
        dtype_ = DType::bf16;
    }
    if ((array->flags & ArrayInterface::native_order) == 0) {
        refuse("elements in this machine's byte order", dtype_text(object));
    }
    refuse_read_only(array->flags);
    take_strided(array->shape, array->strides, array->rank, array->data);
}

void Array::take_buffer(nb::handle object) {
    const int flags = PyBUF_FORMAT | PyBUF_STRIDES | (access_ == Access::write ? PyBUF_WRITABLE : 0);
    auto buffer = std::make_unique<Py_buffer>();
    if (PyObject_GetBuffer(object.ptr(), buffer.get(), flags) != 0) {
        if (access_ == Access::write && PyErr_ExceptionMatches(PyExc_BufferError)) {
            PyErr_Clear();
            refuse("an array that may be written", "a read-only one");
        }
        throw nb::python_error();
    }
    buffer_.reset(buffer.release());
    if (!find_format(buffer_->format, dtype_)) { refuse(known_types, "format '" + std::string(buffer_->format) + "'"); }
    take_strided(buffer_->shape, buffer_->strides, buffer_->ndim, buffer_->buf);
}

void Array::take_strided(const Py_ssize_t* shape, const Py_ssize_t* strides, int rank, void* data) {
    if (rank > Shape::max_rank) { refuse("at most 8 axes", std::to_string(rank)); }
    shape_ = Shape(std::span(shape, static_cast<std::size_t>(rank)));
    strides_ = shape_.row_major();
    const auto size = static_cast<Py_ssize_t>(size_of(dtype_));
    for (int axis = 0; strides != nullptr && axis < rank; ++axis) {
        if (strides[axis] % size != 0 && shape[axis] > 1) {
            refuse("strides of whole elements", std::to_string(strides[axis]) + " bytes on axis " +
                                                    std::to_string(axis) + " of elements of " + std::to_string(size));
        }
        strides_[axis] = strides[axis] / size;
    }
    data_ = data;
}

void Array::take_numbers(nb::handle object) {
    if (access_ == Access::write) { refuse("an array", "a list"); }
    const nb::sequence list = nb::borrow<nb::sequence>(object);
    const std::size_t count = nb::len(list);
    shape_ = Shape{static_cast<std::int64_t>(count)};
    strides_ = Shape{1};
    bool whole = true;
    for (std::size_t n = 0; n < count; ++n) {
        const nb::object item = list[n];
        const bool is_int = PyLong_Check(item.ptr()) != 0;
        if (!is_int && PyFloat_Check(item.ptr()) == 0) { refuse("an array or a list of numbers", name_of_type(item)); }
        whole = whole && is_int;
    }
    if (whole) {
        integers_ = std::make_unique<std::int64_t[]>(count + 1);
        for (std::size_t n = 0; n < count; ++n) {
            const nb::object item = list[n];
            int overflow = 0;
            integers_[n] = PyLong_AsLongLongAndOverflow(item.ptr(), &overflow);
            if (overflow != 0) { refuse("whole numbers of 64 bits", nb::cast<std::string>(nb::repr(item))); }
        }
        dtype_ = DType::i64;
        data_ = integers_.get();
    } else {
        numbers_ = std::make_unique<double[]>(count + 1);
        for (std::size_t n = 0; n < count; ++n) { numbers_[n] = nb::cast<double>(nb::object(list[n])); }
        dtype_ = DType::f64;
        data_ = numbers_.get();
    }
}

void Array::Release::operator()(Py_buffer* buffer) const {
    PyBuffer_Release(buffer);
    delete buffer;
}

void Array::Release::operator()(DlManaged* tensor) const {
    if (tensor->deleter != nullptr) { tensor->deleter(tensor); }
}

void Array::Release::operator()(DlManagedVersioned* tensor) const {
    if (tensor->deleter != nullptr) { tensor->deleter(tensor); }
}

Result make_result(const char* function, const char* argument, nb::handle given, nb::handle like, DType dtype,
                   const Shape& shape) {
    // A function that does not know of GPUs has refused `like` already.
    const Where where = is_on_gpu(like) ? Where::anywhere : Where::cpu;
    if (given && !given.is_none()) {
        return {nb::borrow(given), Array(function, argument, given, Access::write, where)};
    }
    NewArray made = new_array(function, like, dtype, shape);
    Array array = made.data != nullptr ? Array(dtype, made.data, shape)
                                       : Array(function, argument, made.object, Access::write, where);
    return {std::move(made.object), std::move(array)};
}

Result make_requested(const char* function, const char* argument, nb::handle request, nb::handle like, DType dtype,
                      const Shape& shape) {
    if (!request || request.is_none() || request.is(nb::handle(Py_False))) { return {nb::none(), {}}; }
    return make_result(function, argument, request.is(nb::handle(Py_True)) ? nb::handle() : request, like, dtype,
                       shape);
}

nb::object copy_out(const View& view, nb::handle like) {
    Result result = make_result("copy", "out", {}, like, view.dtype(), view.shape());
    const auto bytes = static_cast<std::size_t>(view.shape().elements()) * size_of(view.dtype());
    if (bytes == 0) { return result.object; }
    const bool row_major = view.strides() == view.shape().row_major();
    const Tensor rows = row_major ? Tensor() : Tensor::copy_of(view);
    std::memcpy(result.view().data(), row_major ? view.data() : rows.data(), bytes);
    return result.object;
}

}  // namespace heed::python
