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

namespace {

/// Of a view's elements, in elements from its first.
struct Span {
    std::int64_t low = 0, count = 0;

    explicit Span(const View& view) {
        std::int64_t high = 0;
        for (int axis = 0; axis < view.rank(); ++axis) {
            const std::int64_t reach = (view.extent(axis) - 1) * view.stride(axis);
            (reach < 0 ? low : high) += reach;
        }
        if (view.shape().elements() > 0) { count = high - low + 1; }
    }
};

}  // namespace

HostMirror::HostMirror(Context& there) {
    there.synchronise();
    detail::place_of(here_).explained = detail::place_of(there).explained;
}

View HostMirror::copied(const View& view) {
    const Span span(view);
    const auto size = static_cast<std::int64_t>(size_of(view.dtype()));
    Tensor bytes = Tensor::uninitialised(DType::u8, {span.count * size});
    const auto* first = static_cast<const std::byte*>(view.data()) + span.low * size;
    detail::copy_on({bytes.data(), Device{}, first, view.device(), bytes.bytes()}, nullptr);
    read_.push_back(std::move(bytes));
    const auto* begin = static_cast<const std::byte*>(read_.back().data());
    return View(view.dtype(), begin - span.low * size, view.shape(), view.strides());
}

View HostMirror::input(const View& view) {
    return !view || view.device().kind == DeviceKind::cpu ? view : copied(view);
}

MutableView HostMirror::output(const MutableView& view) {
    if (!view) { return view; }
    const View here = copied(view);
    const std::int64_t first = Span(view).low * static_cast<std::int64_t>(size_of(view.dtype()));
    written_.push_back({std::move(read_.back()), static_cast<std::byte*>(view.data()) + first, view.device()});
    read_.pop_back();
    return MutableView(here.dtype(), const_cast<void*>(here.data()), here.shape(), here.strides());
}

AttentionOptions HostMirror::input(const AttentionOptions& options) {
    AttentionOptions here = options;
    for (View* view :
         {&here.allow, &here.bias, &here.alibi_slopes, &here.sinks, &here.query_lengths, &here.key_lengths,
          &here.cu_seqlens_q, &here.cu_seqlens_k, &here.query_positions, &here.key_positions, &here.dropout.keep}) {
        *view = input(*view);
    }
    if (here.kernel.starts_with("cuda")) { here.kernel.clear(); }
    return here;
}

void HostMirror::bring_back() const {
    for (const Copy& copy : written_) {
        detail::copy_on({copy.there, copy.device, copy.bytes.data(), Device{}, copy.bytes.bytes()}, nullptr);
    }
}

Tensor placed(const Context& context, Tensor tensor) {
    return on_host(context) ? std::move(tensor) : tensor.to(context.device());
}

}  // namespace heed
