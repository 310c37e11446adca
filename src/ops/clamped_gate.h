#pragma once
/// What experts with a limit have between their products (kernel/clamped_gate_problem.h), of checked tensors [..., N].

#include <heed/context.h>
#include <heed/view.h>

namespace heed {

struct ClampedGate {
    double limit = 0, alpha = 1;
};

void clamped_gate(Context& context, const ClampedGate& options, const View& gate, const View& up,
                  const MutableView& out);
/// dgate and dup may be absent.
void clamped_gate_backward(Context& context, const ClampedGate& options, const View& gate, const View& up,
                           const View& dout, const MutableView& dgate, const MutableView& dup);

}  // namespace heed
