#pragma once
#include <cstddef>
#include <memory>

#include <heed/context.h>
#include <heed/view.h>

namespace heed {

/// Owns row-major memory aligned to 64 bytes, on any device. Moves; `clone()` copies.
class HEED_API Tensor {
public:
    Tensor() = default;
    /// Zeros.
    Tensor(DType dtype, Shape shape, Device device = {});
    static Tensor uninitialised(DType dtype, Shape shape, Device device = {});
    Tensor(Tensor&&) noexcept = default;
    Tensor& operator=(Tensor&&) noexcept = default;
    Tensor clone() const;
    /// The same numbers in another type; floats round to nearest even. On the CPU.
    Tensor to(DType dtype) const;
    /// A copy on another device, or on the same. Returns when it is there.
    Tensor to(Device device) const;
    /// A row-major copy of any view, on its device; a view of a GPU's memory must be row-major itself.
    static Tensor copy_of(const View& view);

    DType dtype() const { return dtype_; }
    Device device() const { return data_.get_deleter().device; }
    const Shape& shape() const { return shape_; }
    std::int64_t elements() const { return shape_.elements(); }
    std::size_t bytes() const { return static_cast<std::size_t>(elements()) * size_of(dtype_); }
    template <Element T>
    T* as() {
        return reinterpret_cast<T*>(data_.get());
    }
    template <Element T>
    const T* as() const {
        return reinterpret_cast<const T*>(data_.get());
    }
    void* data() { return data_.get(); }
    const void* data() const { return data_.get(); }

    View view() const { return View(dtype_, data_.get(), shape_, device()); }
    MutableView view() { return MutableView(dtype_, data_.get(), shape_, device()); }
    operator View() const { return view(); }
    operator MutableView() { return view(); }
    explicit operator bool() const { return data_ != nullptr; }

private:
    struct Free {
        Free() : Free(Device()) {}
        explicit Free(Device where) : device(where) {}
        Device device;
        void operator()(std::byte* memory) const;
    };
    DType dtype_ = DType::f32;
    Shape shape_;
    std::unique_ptr<std::byte[], Free> data_;
};

/// to = from: the same shape and type, from one device to another or on one. `context` is that of the GPU where there
/// is one, and the copy is queued there (host memory must stay as it is until the context is synchronised); between two
/// views of host memory any strides are taken, otherwise both are row-major. An overlap is refused.
HEED_API void copy(Context& context, const View& from, const MutableView& to);

}  // namespace heed
