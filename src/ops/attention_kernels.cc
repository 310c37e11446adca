#include "ops/attention_kernels.h"

#include "cpu/attention/attention.h"
#include "cuda/attention.h"
#include "reference/attention.h"

#include <vector>

namespace heed {

std::span<const AttentionKernel> attention_kernel_list() {
    static const std::vector<AttentionKernel> list = [] {
        std::vector<AttentionKernel> kernels = cuda::attention_kernels();
        for (AttentionKernel& row : cpu::attention_kernels()) { kernels.push_back(std::move(row)); }
        kernels.push_back(reference::attention_kernel());
        return kernels;
    }();
    return list;
}

const AttentionKernel& choose_attention_kernel(const Context& context, const char* function,
                                               const AttentionProblem& problem, Pass pass) {
    return choose(attention_kernel_list(), detail::place_of(context), {function, problem.options.kernel, pass},
                  problem);
}

}  // namespace heed
