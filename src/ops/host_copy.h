#pragma once
/// Between the memory of a context's device and the host's, for those who put results together or look at them.

#include <heed/attention.h>
#include <heed/context.h>
#include <heed/tensor.h>

#include <vector>

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

/// For what the host alone does, of tensors on a GPU: copies of the memory that a call reads and writes, with the same
/// types and strides, and a context of the host. Waits.
class HostMirror {
public:
    explicit HostMirror(Context& there);

    /// What lies on the host already stays there.
    View input(const View& view);
    MutableView output(const MutableView& view);
    /// Every tensor among the options.
    AttentionOptions input(const AttentionOptions& options);
    /// Behind the call: what it wrote goes back.
    void bring_back() const;
    Context& context() { return here_; }

private:
    struct Copy {
        Tensor bytes;
        void* there;
        Device device;
    };
    View copied(const View& view);
    Context here_;
    std::vector<Tensor> read_;
    std::vector<Copy> written_;
};

/// Numbers of the host where the context computes; moved where that is the host itself.
Tensor placed(const Context& context, Tensor tensor);

}  // namespace heed
