#pragma once
/// Between the memory of a context's device and the host's, for those who put results together or look at them.

#include <heed/context.h>
#include <heed/tensor.h>

#include "base/device_api.h"

namespace heed {

inline bool on_host(const Context& context) { return context.device().kind == DeviceKind::cpu; }

/// A row-major copy in the host's memory, of any strides, in f32 (f64 where x is). Waits for the queue.
Tensor host_copy(Context& context, const View& x);

/// Memory for what an operation hands from one kernel to another: a tensor of its own on the host, of the queue on a
/// GPU, where whoever has the same slot gets it next.
class StepMemory {
public:
    MutableView view(Context& context, detail::KeptMemory slot, DType dtype, const Shape& shape);

private:
    Tensor memory_;
};

/// Numbers of the host where the context computes; moved where that is the host itself.
Tensor placed(const Context& context, Tensor tensor);

}  // namespace heed
