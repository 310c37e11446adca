#include "torch_functions.h"

#include <dlfcn.h>

#include <cstdint>
#include <string>

#include "libraries.h"

namespace heed::python {

namespace {

/// PyTorch's numbers for its types, as in saved models; -1 for types that came later.
std::int32_t torch_number(DType dtype) {
    switch (dtype) {
        case DType::u8: return 0;
        case DType::i8: return 1;
        case DType::i16: return 2;
        case DType::i32: return 3;
        case DType::i64: return 4;
        case DType::f16: return 5;
        case DType::f32: return 6;
        case DType::f64: return 7;
        case DType::boolean: return 11;
        case DType::bf16: return 15;
        case DType::u16:
        case DType::u32:
        case DType::u64: return -1;
    }
    return -1;
}

/// What PyTorch offers to compiled models (its shim.h): 0 is success, a handle is a pointer to a tensor.
struct TensorFunctions {
    int (*empty)(std::int64_t rank, const std::int64_t* shape, const std::int64_t* strides, std::int32_t dtype,
                 std::int32_t device_type, std::int32_t device, void** handle) = nullptr;
    int (*data)(void* handle, void** data) = nullptr;
    int (*release)(void* handle) = nullptr;
    /// The Python object of the tensor behind a handle.
    PyObject* (*wrap)(void* handle) = nullptr;

    explicit operator bool() const { return empty != nullptr; }
};

/// Null where torch is not a library of this process.
void* torch_library() {
    const nb::object file = nb::module_::import_("torch._C").attr("__file__");
    return dlopen(nb::cast<std::string>(file).c_str(), RTLD_NOW | RTLD_NOLOAD);
}

template <typename Function>
bool find(void* library, const char* name, Function*& function) {
    function = library == nullptr ? nullptr : reinterpret_cast<Function*>(dlsym(library, name));
    return function != nullptr;
}

NewArray make_tensor(const TensorFunctions& torch, DType dtype, const Shape& shape) {
    constexpr std::int32_t cpu = 0, any = -1;
    Shape extents = shape, strides = shape.row_major();
    void* handle = nullptr;
    if (torch.empty(shape.rank(), &extents[0], &strides[0], torch_number(dtype), cpu, any, &handle) != 0) { return {}; }
    NewArray made;
    torch.data(handle, &made.data);
    made.object = nb::steal(torch.wrap(handle));
    torch.release(handle);
    if (!made.object) { throw nb::python_error(); }
    return made;
}

/// All of them, or none: where one is missing, the first tensor is not what it should be, or the version is not 2, of
/// which their meaning is known.
TensorFunctions find_tensor_functions() {
    TensorFunctions torch;
    const nb::object module = nb::module_::import_("torch");
    if (nb::cast<std::string>(nb::str(module.attr("__version__"))).rfind("2.", 0) != 0) { return {}; }
    void* library = torch_library();
    // THPVariable_Wrap of a tensor that it may take, or of one that it shares: the handle is released either way.
    const bool found = find(library, "aoti_torch_get_data_ptr", torch.data) &&
                       find(library, "aoti_torch_delete_tensor_object", torch.release) &&
                       (find(library, "_Z16THPVariable_WrapON2at10TensorBaseE", torch.wrap) ||
                        find(library, "_Z16THPVariable_WrapRKN2at10TensorBaseE", torch.wrap)) &&
                       find(library, "aoti_torch_empty_strided", torch.empty);
    if (!found) { return {}; }
    const NewArray made = make_tensor(torch, DType::bf16, {2, 3});
    const bool is_as_asked =
        made.object && made.object.type().is(module.attr("Tensor")) &&
        nb::object(made.object.attr("dtype")).is(module.attr("bfloat16")) &&
        nb::cast<std::uintptr_t>(made.object.attr("data_ptr")()) == reinterpret_cast<std::uintptr_t>(made.data) &&
        nb::tuple(made.object.attr("shape")).equal(nb::make_tuple(2, 3)) &&
        nb::cast<bool>(made.object.attr("is_contiguous")());
    return is_as_asked ? torch : TensorFunctions();
}

NewArray ask_for_tensor(DType dtype, const Shape& shape, nb::handle device = nb::none()) {
    const nb::module_ torch = nb::module_::import_("torch");
    nb::list extents;
    for (int axis = 0; axis < shape.rank(); ++axis) { extents.append(shape[axis]); }
    return {
        torch.attr("empty")(extents, nb::arg("dtype") = torch.attr(library_name(dtype)), nb::arg("device") = device),
        nullptr};
}

bool ask_for_autocast() { return nb::cast<bool>(nb::module_::import_("torch").attr("is_autocast_enabled")("cpu")); }

}  // namespace

NewArray new_torch_tensor(DType dtype, const Shape& shape) {
    // Beyond that the call is nothing, and torch.empty says in an exception what these functions print.
    constexpr std::int64_t most_elements = std::int64_t{1} << 28;
    static const TensorFunctions torch = find_tensor_functions();
    const bool fits = shape.rank() > 0 && shape.elements() > 0 && shape.elements() <= most_elements;
    if (torch && fits && torch_number(dtype) >= 0) {
        NewArray made = make_tensor(torch, dtype, shape);
        if (made.object) { return made; }
    }
    return ask_for_tensor(dtype, shape);
}

NewArray new_torch_tensor_like(nb::handle like, DType dtype, const Shape& shape) {
    return ask_for_tensor(dtype, shape, like.attr("device"));
}

bool is_autocast() {
    // at::autocast::is_autocast_enabled(c10::DeviceType), whose numbers are bytes: 0 is the CPU.
    using Function = bool(std::int8_t);
    static Function* const function = [] {
        Function* found = nullptr;
        find(torch_library(), "_ZN2at8autocast19is_autocast_enabledEN3c1010DeviceTypeE", found);
        return found;
    }();
    return function != nullptr ? function(0) : ask_for_autocast();
}

}  // namespace heed::python
