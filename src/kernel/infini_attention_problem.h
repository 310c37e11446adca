#pragma once
#include <heed/infini_attention.h>

#include "base/dispatch.h"

#include <algorithm>
#include <cmath>

namespace heed {

/// A checked call: every size agrees. Kernels trust it.
struct InfiniProblem {
    std::int64_t batch = 0, heads = 0, kv_heads = 0, tokens = 0, head_size = 0, value_size = 0;
    DType wide = DType::f32;  ///< of sums and of the memory
    bool by_reference = false;
    View q, k, v, memory_q, memory_k, gates;
    bool own_memory_q = false, own_memory_k = false;  ///< given apart from q and k
    InfiniOptions options;
    AttentionOptions local;  ///< with the causal mask

    std::int64_t group() const { return heads / kv_heads; }
    std::int64_t segments() const { return (tokens + options.segment - 1) / options.segment; }
    Shape memory_shape() const { return {batch, kv_heads, head_size, value_size}; }
    Shape normaliser_shape() const { return {batch, kv_heads, head_size}; }

    /// sigmoid(gate) and 1 - sigmoid(gate), each exact where it is small.
    double gate(std::int64_t h) const { return 1 / (1 + std::exp(-beta(h))); }
    double rest(std::int64_t h) const { return 1 / (1 + std::exp(beta(h))); }

    /// Rows of segment s of a tensor [B,X,T,C].
    template <class AnyView>
    AnyView part(const AnyView& x, std::int64_t s) const {
        return x.slice(2, s * options.segment, std::min(tokens, (s + 1) * options.segment));
    }

private:
    double beta(std::int64_t h) const { return read_number(gates.dtype(), gates.data(), h * gates.stride(0)); }
};

/// Tokens of a call that lie in one segment: n queries, and the keys of the segment up to the last of them.
struct InfiniPiece {
    View q, memory_q;                ///< [B,H,n,D]
    View keys, memory_keys, values;  ///< [B,G,m,D], [B,G,m,E], m >= n
    MutableView out;                 ///< [B,H,n,E]
    bool complete = false;           ///< the segment ends here
};

}  // namespace heed
