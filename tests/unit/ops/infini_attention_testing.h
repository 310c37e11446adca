#pragma once
#include <heed/infini_attention.h>

#include "unit/ops/linear_attention_testing.h"

namespace heed::testing_infini {

using testing_linear::random;

struct InfiniInputs {
    std::int64_t B = 2, H = 4, G = 2, T = 23, D = 3, E = 5;
    Tensor q{}, k{}, v{}, memory_q{}, memory_k{}, gates{}, dout{}, dm{}, dz{};

    void fill(unsigned seed = 1) {
        q = random({B, H, T, D}, seed);
        k = random({B, G, T, D}, seed + 1);
        v = random({B, G, T, E}, seed + 2);
        memory_q = random({B, H, T, D}, seed + 3);
        memory_k = random({B, G, T, D}, seed + 4);
        gates = random({H}, seed + 5, -2, 2);
        dout = random({B, H, T, E}, seed + 6);
        dm = random({B, G, D, E}, seed + 7);
        dz = random({B, G, D}, seed + 8);
    }
    void narrow(DType dtype) {
        for (Tensor* x : {&q, &k, &v, &memory_q, &memory_k, &dout}) { *x = x->to(dtype); }
        const DType wide = dtype == DType::f64 ? DType::f64 : DType::f32;
        for (Tensor* x : {&gates, &dm, &dz}) { *x = x->to(wide); }
    }
    Tensor out_like(DType dtype) const { return Tensor(dtype, {B, H, T, E}); }
};
inline InfiniInputs filled(InfiniInputs in = {}) {
    in.fill();
    return in;
}

/// All ways of setting the options that have a few values.
inline std::vector<InfiniOptions> option_list(const InfiniInputs& in, std::int64_t segment) {
    std::vector<InfiniOptions> list;
    for (int bits = 0; bits < 8; ++bits) {
        InfiniOptions o{.segment = segment,
                        .update = (bits & 1) != 0 ? MemoryUpdate::delta : MemoryUpdate::linear,
                        .first_segment = (bits & 2) != 0 ? FirstSegment::gated : FirstSegment::local_only};
        if ((bits & 4) != 0) {
            o.memory_q = in.memory_q;
            o.memory_k = in.memory_k;
        }
        list.push_back(o);
    }
    return list;
}

/// The tokens in calls of these lengths, the last taking what is left.
inline Tensor in_calls(Context& context, const InfiniInputs& in, const InfiniOptions& options,
                       const std::vector<std::int64_t>& lengths, InfiniMemory& memory) {
    Tensor out = in.out_like(in.q.dtype());
    std::int64_t begin = 0;
    for (std::size_t n = 0; n <= lengths.size(); ++n) {
        const std::int64_t end = n < lengths.size() ? begin + lengths[n] : in.T;
        const auto part = [&](const auto& x) { return x.slice(2, begin, end); };
        InfiniOptions o = options;
        if (o.memory_q) { o.memory_q = part(o.memory_q); }
        if (o.memory_k) { o.memory_k = part(o.memory_k); }
        infini_attend(context, part(in.q.view()), part(in.k.view()), part(in.v.view()), in.gates, part(out.view()),
                      memory, o);
        begin = end;
    }
    return out;
}

}  // namespace heed::testing_infini
