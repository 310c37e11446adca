#include "ops/host_copy.h"

#include <heed/elementwise.h>

#include <utility>

namespace heed {

Tensor host_copy(Context& context, const View& x) {
    Tensor copy = Tensor::uninitialised(x.dtype() == DType::f64 ? DType::f64 : DType::f32, x.shape(), context.device());
    convert(context, x, copy.view());
    if (on_host(context)) { return copy; }
    context.synchronise();
    return copy.to(Device{});
}

MutableView StepMemory::view(Context& context, detail::KeptMemory slot, DType dtype, const Shape& shape) {
    if (on_host(context)) {
        memory_ = Tensor::uninitialised(dtype, shape);
        return memory_.view();
    }
    detail::Place& place = detail::place_of(context);
    const auto lock = place.pool->lock();
    const auto bytes = static_cast<std::size_t>(shape.elements()) * size_of(dtype);
    return MutableView(dtype, detail::kept_on(*place.queue, slot, bytes), shape, context.device());
}

Tensor placed(const Context& context, Tensor tensor) {
    return on_host(context) ? std::move(tensor) : tensor.to(context.device());
}

}  // namespace heed
