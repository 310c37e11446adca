#include "print/peak.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include <heed/error.h>
#include <heed/matmul.h>
#include <heed/sizes.h>
#include <heed/tensor.h>

namespace heed::cli {

double product_peak(Context& context, DType dtype) {
    using Clock = std::chrono::steady_clock;
    // A GPU is full with a larger one.
    const std::int64_t size = context.device().kind == DeviceKind::cpu ? 512 : 4096;
    const Tensor a(dtype, {size, size}, context.device()), b(dtype, {size, size}, context.device());
    Tensor out(dtype, {size, size}, context.device());
    double best = 0;
    const Clock::time_point end = Clock::now() + std::chrono::milliseconds(100);
    for (int calls = 0; calls < 5 || Clock::now() < end;
         ++calls) {  // the first ones find cold caches and threads asleep
        const Clock::time_point begin = Clock::now();
        matmul(context, a.view(), b.view(), out.view());
        context.synchronise();
        const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
        best = std::max(best, 2 * std::pow(static_cast<double>(size), 3) / seconds);
    }
    return best;
}

double training_operations(const ModelConfig& model, std::int64_t tokens) {
    try {
        return static_cast<double>(training_flops_per_token(shape_of(checked(model)), tokens).total);
    } catch (const Error&) { return 0; }
}

}  // namespace heed::cli
