#include "conformance/mirror.h"
#include "conformance/run.h"

#include <cstring>

namespace heed::conformance {
/// Memory on the GPU with these bytes in it.
void* Mirror::memory(const std::vector<std::byte>& bytes) {
    Tensor host(DType::u8, {static_cast<std::int64_t>(bytes.size())});
    std::memcpy(host.data(), bytes.data(), bytes.size());
    tensors_.push_back(host.to(device));
    return tensors_.back().data();
}

View Mirror::input(const Placed& placed) {
    if (!placed.view()) { return {}; }
    return placed.view_in(memory(placed.memory()), device);
}

View Mirror::input(const View& view) {
    if (!view) { return {}; }
    std::int64_t low = 0;
    std::int64_t high = 0;
    bool empty = false;
    for (int axis = 0; axis < view.rank(); ++axis) {
        empty = empty || view.extent(axis) == 0;
        const std::int64_t reach = (view.extent(axis) - 1) * view.stride(axis);
        (reach < 0 ? low : high) += reach;
    }
    const auto size = static_cast<std::int64_t>(size_of(view.dtype()));
    std::vector<std::byte> bytes;
    if (!empty) {
        const auto* first = static_cast<const std::byte*>(view.data()) + low * size;
        bytes.assign(first, first + (high - low + 1) * size);
    } else {
        low = 0;
    }
    return View(view.dtype(), static_cast<std::byte*>(memory(bytes)) - low * size, view.shape(), view.strides(),
                device);
}

MutableView Mirror::output(Placed& placed) {
    if (!placed.view()) { return {}; }
    void* there = memory(placed.memory());
    outputs_.push_back({&placed, &tensors_.back()});
    return placed.view_in(there, device);
}

void Mirror::bring_back() const {
    for (const auto& [placed, tensor] : outputs_) {
        const Tensor host = tensor->to(Device{});
        std::memcpy(placed->overwrite(), host.data(), placed->memory().size());
    }
}

std::unique_ptr<Outputs> run_on_gpu(const Problem& p, const std::string& kernel) {
    static Context context(Mirror::device);
    auto outputs = std::make_unique<Outputs>(p);
    Mirror mirror;
    AttentionOptions options = p.options;
    options.kernel = kernel;
    options.allow = mirror.input(options.allow);
    options.bias = mirror.input(options.bias);
    options.dropout.keep = mirror.input(options.dropout.keep);
    const View q = mirror.input(p.q), k = mirror.input(p.k), v = mirror.input(p.v);
    const MutableView out = mirror.output(outputs->out), lse = mirror.output(outputs->lse);
    const auto declined = [](const Error& error) {
        return std::string(error.what()).find("a kernel that fits") != std::string::npos;
    };
    try {
        attend(context, q, k, v, {.out = out, .lse = lse}, options);
    } catch (const Error& error) {
        if (declined(error)) { return nullptr; }
        throw;
    }
    if (!forward_only()) {
        AttentionGradients gradients{.dq = mirror.output(outputs->dq),
                                     .dk = mirror.output(outputs->dk),
                                     .dv = mirror.output(outputs->dv),
                                     .dbias = mirror.output(outputs->dbias),
                                     .dsinks = mirror.output(outputs->dsinks),
                                     .dalibi_slopes = mirror.output(outputs->dslopes)};
        const View dout = mirror.input(p.dout), dlse = mirror.input(p.dlse);
        AttentionOptions backward = options;
        if (kernel.ends_with("/decode")) { backward.kernel = "cuda-any"; }  // a forward pass alone
        attend_backward(context, {.q = q, .k = k, .v = v, .out = out, .lse = lse, .dout = dout, .dlse = dlse},
                        gradients, backward);
    }
    if (out_without_lse(p)) { attend(context, q, k, v, out, options); }
    context.synchronise();
    mirror.bring_back();
    return outputs;
}

}  // namespace heed::conformance
