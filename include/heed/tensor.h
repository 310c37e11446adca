#pragma once
#include <cstddef>
#include <memory>

#include <heed/view.h>

namespace heed {

/// Owns row-major memory aligned to 64 bytes. Moves; `clone()` copies.
class HEED_API Tensor {
public:
    Tensor() = default;
    /// Zeros.
    Tensor(DType dtype, Shape shape);
    static Tensor uninitialised(DType dtype, Shape shape);
    Tensor(Tensor&&) noexcept = default;
    Tensor& operator=(Tensor&&) noexcept = default;
    Tensor clone() const;
    /// The same numbers in another type; floats round to nearest even.
    Tensor to(DType dtype) const;
    /// A row-major copy of any view.
    static Tensor copy_of(const View& view);

    DType dtype() const { return dtype_; }
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

    View view() const { return View(dtype_, data_.get(), shape_); }
    MutableView view() { return MutableView(dtype_, data_.get(), shape_); }
    operator View() const { return view(); }
    operator MutableView() { return view(); }
    explicit operator bool() const { return data_ != nullptr; }

private:
    struct Free {
        void operator()(std::byte* memory) const;
    };
    DType dtype_ = DType::f32;
    Shape shape_;
    std::unique_ptr<std::byte[], Free> data_;
};

}  // namespace heed
