#pragma once
#include <heed/infini_attention.h>

namespace heed {

/// A checked call: every size agrees.
struct InfiniProblem {
    std::int64_t batch = 0, heads = 0, kv_heads = 0, tokens = 0, head_size = 0, value_size = 0;
    DType wide = DType::f32;  ///< of sums and of the memory
    View q, k, v, memory_q, memory_k, gates;
    bool own_memory_q = false, own_memory_k = false;  ///< given apart from q and k
    InfiniOptions options;
    AttentionOptions local;  ///< with the causal mask

    Shape memory_shape() const { return {batch, kv_heads, head_size, value_size}; }
    Shape normaliser_shape() const { return {batch, kv_heads, head_size}; }
};

/// The edge: throws Error, naming `function` and the argument.
InfiniProblem checked_infini_forward(const char* function, const View& q, const View& k, const View& v,
                                     const View& gates, const MutableView& out, const InfiniMemory& memory,
                                     const InfiniOptions& options);
InfiniProblem checked_infini_backward(const char* function, const View& q, const View& k, const View& v,
                                      const View& gates, const View& dout, const InfiniGradients& gradients,
                                      const InfiniMemory& before, const InfiniOptions& options,
                                      const InfiniMemoryGradient& after);

}  // namespace heed
