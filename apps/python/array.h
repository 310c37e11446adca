#pragma once
/// Arrays of any Python library as heed's views, without a copy, and results in the library that the inputs came from.

#include <heed/tensor.h>
#include <heed/view.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "protocols.h"

namespace heed::python {

namespace nb = nanobind;

enum class Access : std::uint8_t {
    read,
    write,
    read_detached,  ///< what is known to need no gradient, and not asked again
};

/// Whose memory an argument may be in. `anywhere` is for functions whose operation looks at the device itself.
enum class Where : std::uint8_t { cpu, anywhere };

/// Throws heed::Error with the text that the library's own checks have.
[[noreturn]] void refuse(const char* function, const char* argument, const std::string& expected,
                         const std::string& got);

/// One array argument, for the length of a call: what it holds keeps the description of the memory valid; the memory
/// itself is kept by the caller, who holds the object. NumPy arrays, PyTorch tensors, whatever has DLPack or the buffer
/// protocol, and (to be read) a list of numbers, which is one axis of i64 or f64.
class Array {
public:
    /// Absent.
    Array() = default;
    /// None is absent too.
    Array(const char* function, const char* argument, nb::handle object, Access access = Access::read,
          Where where = Where::cpu);

    /// Memory of the CPU known to be row-major.
    Array(DType dtype, void* data, const Shape& shape)
        : present_(true), dtype_(dtype), data_(data), shape_(shape), strides_(shape.row_major()) {}

    explicit operator bool() const { return present_; }
    DType dtype() const { return dtype_; }
    const Shape& shape() const { return shape_; }
    std::int64_t extent(int axis) const { return axis >= 0 && axis < shape_.rank() ? shape_[axis] : 0; }
    int rank() const { return shape_.rank(); }

    Device device() const { return device_; }

    View view() const { return present_ ? View(dtype_, data_, shape_, strides_, device_) : View(); }
    MutableView mutable_view() const {
        return present_ ? MutableView(dtype_, data_, shape_, strides_, device_) : MutableView();
    }
    operator View() const { return view(); }

private:
    struct Release {
        void operator()(Py_buffer* buffer) const;
        void operator()(DlManaged* tensor) const;
        void operator()(DlManagedVersioned* tensor) const;
    };

    void take(const DlTensor& tensor);
    void take_exchange(nb::handle object, const DlExchange& exchange);
    void take_fields(nb::handle object);
    void take_interface(nb::handle object);
    void take_capsule(nb::handle object);
    void take_buffer(nb::handle object);
    void take_numbers(nb::handle object);
    /// Byte strides of the two older protocols.
    void take_strided(const Py_ssize_t* shape, const Py_ssize_t* strides, int rank, void* data);
    void refuse_read_only(int flags) const;
    [[noreturn]] void refuse(const std::string& expected, const std::string& got) const;

    const char* function_ = "";
    const char* argument_ = "";
    Access access_ = Access::read;
    Where where_ = Where::cpu;
    bool present_ = false;
    Device device_{};
    DType dtype_ = DType::f32;
    void* data_ = nullptr;
    Shape shape_;
    Shape strides_;
    std::unique_ptr<Py_buffer, Release> buffer_;
    std::unique_ptr<DlManaged, Release> managed_;
    std::unique_ptr<DlManagedVersioned, Release> versioned_;
    std::unique_ptr<std::int64_t[]> integers_;
    std::unique_ptr<double[]> numbers_;
};

/// Several of them: merge takes lists of arrays.
using Arrays = std::vector<Array>;

/// An array to be written, given by the caller or made here, and the Python object to hand back.
struct Result {
    nb::object object;
    Array array;

    MutableView view() const { return array.mutable_view(); }
    explicit operator bool() const { return static_cast<bool>(array); }
};

/// out, or (out, lse) where lse was asked for.
inline nb::object with_lse(const Result& out, const Result& lse) {
    return lse ? nb::make_tuple(out.object, lse.object) : out.object;
}

/// `given` where the caller gave one (the library checks its shape and type); otherwise a new array in the library of
/// `like`: PyTorch's for its tensors, NumPy's for everything else.
Result make_result(const char* function, const char* argument, nb::handle given, nb::handle like, DType dtype,
                   const Shape& shape);

/// For outputs on request: False and None ask for nothing, True for a new array, an array for itself to be filled.
Result make_requested(const char* function, const char* argument, nb::handle request, nb::handle like, DType dtype,
                      const Shape& shape);

/// A new array in the library of `like` with what the view holds.
nb::object copy_out(const View& view, nb::handle like);
/// The same as a NumPy array, of a tensor of any device; None for a tensor that is not there.
inline nb::object to_array(const Tensor& tensor) {
    if (!tensor) { return nb::none(); }
    return tensor.device().kind == DeviceKind::cpu ? copy_out(tensor, nb::none())
                                                   : copy_out(tensor.to(Device{}), nb::none());
}

/// f64 for f64, otherwise f32: what lse, statistics and small gradients have.
inline DType wide(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

}  // namespace heed::python
