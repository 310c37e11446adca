#include <heed/error.h>
#include <heed/tensor.h>

#include "base/device_api.h"
#include "base/dispatch.h"
#include "base/overlap.h"
#include "base/refuse.h"

#include <cstring>
#include <new>

namespace heed {
namespace {

constexpr std::align_val_t alignment{64};

/// to = from, element by element, any strides.
void copy_elements(const View& from, const MutableView& to) {
    const std::int64_t total = from.shape().elements();
    const auto size = static_cast<std::int64_t>(size_of(from.dtype()));
    const auto* source = static_cast<const char*>(from.data());
    auto* target = static_cast<char*>(to.data());
    std::int64_t index[Shape::max_rank] = {};
    std::int64_t read = 0, write = 0;
    for (std::int64_t n = 0; n < total; ++n) {
        std::memcpy(target + write * size, source + read * size, static_cast<std::size_t>(size));
        for (int axis = from.rank() - 1; axis >= 0; --axis) {
            read += from.stride(axis);
            write += to.stride(axis);
            if (++index[axis] < from.extent(axis)) { break; }
            read -= index[axis] * from.stride(axis);
            write -= index[axis] * to.stride(axis);
            index[axis] = 0;
        }
    }
}

template <class AnyView>
bool is_row_major(const AnyView& view) {
    return view.strides() == view.shape().row_major();
}

template <class AnyView>
std::size_t bytes_of(const AnyView& view) {
    return static_cast<std::size_t>(view.shape().elements()) * size_of(view.dtype());
}

void copy_row_major(const View& from, const MutableView& to, detail::Queue* queue) {
    const std::size_t bytes = bytes_of(from);
    if (bytes == 0) { return; }
    if (from.device().kind == DeviceKind::cpu && to.device().kind == DeviceKind::cpu) {
        std::memcpy(to.data(), from.data(), bytes);
    } else {
        detail::copy_on({to.data(), to.device(), from.data(), from.device(), bytes}, queue);
    }
}

[[noreturn]] void refuse_copy(const char* argument, const std::string& expected, const std::string& got) {
    refuse("copy", std::string(argument), expected, got);
}

void check_copy(const Context& context, const View& from, const View& to) {
    const auto check = [](const char* name, const View& view) {
        if (!view) { refuse_copy(name, "a tensor", "none"); }
        if (view.data() == nullptr && view.shape().elements() > 0) { refuse_copy(name, "memory", "a null pointer"); }
    };
    check("from", from);
    check("to", to);
    if (!(to.shape() == from.shape())) { refuse_copy("to", to_string(from.shape()), to_string(to.shape())); }
    if (to.dtype() != from.dtype()) {
        refuse_copy("to", std::string(name_of(from.dtype())), std::string(name_of(to.dtype())));
    }
    const bool host = from.device().kind == DeviceKind::cpu && to.device().kind == DeviceKind::cpu;
    const Device where = from.device().kind == DeviceKind::cpu ? to.device() : from.device();
    if (!(context.device() == where)) {
        refuse_copy("context", "one on " + to_string(where) + ", where the memory is",
                    "one on " + to_string(context.device()));
    }
    if (!host && !is_row_major(from)) {
        refuse_copy("from", "a row-major tensor, as a GPU takes part", "strides " + to_string(from.strides()));
    }
    if (!host && !is_row_major(to)) {
        refuse_copy("to", "a row-major tensor, as a GPU takes part", "strides " + to_string(to.strides()));
    }
    if (overlaps_itself(to)) {
        refuse_copy("to", "strides that give every element a place of its own", to_string(to.strides()));
    }
    if (from.device() == to.device() && overlaps(to, from)) {
        refuse_copy("to", "memory apart from from", "an overlap");
    }
}

}  // namespace

void Tensor::Free::operator()(std::byte* memory) const {
    if (device.kind == DeviceKind::cpu) {
        ::operator delete[](memory, alignment);
    } else {
        detail::free_on(device, memory);
    }
}

Tensor Tensor::uninitialised(DType dtype, Shape shape, Device device) {
    Tensor tensor;
    tensor.dtype_ = dtype;
    tensor.shape_ = shape;
    std::int64_t bytes = 0;
    if (__builtin_mul_overflow(shape.elements(), static_cast<std::int64_t>(size_of(dtype)), &bytes)) {
        refuse("Tensor", "shape", "fewer than 2^63 bytes", to_string(shape) + " of " + std::string(name_of(dtype)));
    }
    const auto size = static_cast<std::size_t>(bytes);
    void* memory = device.kind == DeviceKind::cpu ? ::operator new[](size, alignment)
                                                  : detail::allocate_on("Tensor", device, size);
    tensor.data_ = {static_cast<std::byte*>(memory), Free{device}};
    return tensor;
}

Tensor::Tensor(DType dtype, Shape shape, Device device) : Tensor(uninitialised(dtype, shape, device)) {
    if (device.kind == DeviceKind::cpu) {
        std::memset(data(), 0, bytes());
    } else {
        detail::clear_on(device, data(), bytes());
    }
}

Tensor Tensor::clone() const { return copy_of(view()); }

Tensor Tensor::copy_of(const View& view) {
    Tensor copy = uninitialised(view.dtype(), view.shape(), view.device());
    if (is_row_major(view)) {
        copy_row_major(view, copy, nullptr);
    } else if (view.device().kind == DeviceKind::cpu) {
        copy_elements(view, copy);
    } else {
        refuse("Tensor::copy_of", "view", "row-major memory on a GPU", "strides " + to_string(view.strides()));
    }
    return copy;
}

Tensor Tensor::to(Device device) const {
    Tensor copy = uninitialised(dtype_, shape_, device);
    copy_row_major(view(), copy, nullptr);
    return copy;
}

void copy(Context& context, const View& from, const MutableView& to) {
    check_copy(context, from, to);
    detail::Place& place = detail::place_of(context);
    const auto lock = place.pool->lock();
    if (is_row_major(from) && is_row_major(to)) {
        copy_row_major(from, to, place.queue);
    } else {
        copy_elements(from, to);
    }
}

Tensor Tensor::to(DType dtype) const {
    if (dtype == dtype_) { return clone(); }
    if (device().kind != DeviceKind::cpu) {
        refuse("Tensor::to", "dtype", "a tensor of the CPU to convert", "one on " + to_string(device()));
    }
    Tensor result = uninitialised(dtype, shape_);
    const std::int64_t total = elements();
    const bool integers = !is_floating(dtype) && (dtype_ == DType::i64 || dtype_ == DType::i32);
    for (std::int64_t n = 0; n < total; ++n) {
        if (integers && dtype == DType::i64) {  // past 2^53 a double would round
            result.as<std::int64_t>()[n] = read_integer(dtype_, data(), n);
        } else {
            write_number(dtype, result.data(), n, read_number(dtype_, data(), n));
        }
    }
    return result;
}

}  // namespace heed
