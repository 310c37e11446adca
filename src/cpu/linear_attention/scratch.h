#pragma once
#include "cpu/attention/pack.h"
#include "cpu/linear_attention/call.h"

/// Memory of a worker on a chunk of linear attention, and of the states.

namespace heed::cpu {

/// Strides in floats: rows are padded with zeros to whole vectors.
template <class Isa>
struct LinearSizes {
    static constexpr int L = Isa::lanes;
    std::int64_t chunk, features, values, heads;
    HEED_INLINE explicit LinearSizes(const LinearCall& call)
        : chunk(round_up(call.chunk, L)),
          features(round_up(call.feature_size, L)),
          values(round_up(call.value_size, L)),
          heads(round_up(call.head_size, L)) {}
    HEED_INLINE int feature_vectors() const { return static_cast<int>(features / L); }
    HEED_INLINE int value_vectors() const { return static_cast<int>(values / L); }
};

/// S [F][values] and behind it z [features].
template <class Isa>
struct StateSpace {
    float* s;
    float* z;
    static HEED_INLINE std::int64_t floats(const LinearCall& call) {
        const LinearSizes<Isa> size(call);
        return call.feature_size * size.values + size.features;
    }
    static HEED_INLINE StateSpace at(const LinearCall& call, float* memory) {
        return {memory, memory + call.feature_size * LinearSizes<Isa>(call).values};
    }
};

/// Keys and values of a chunk, ready for the products.
struct KeyChunk {
    std::int64_t count;
    float* phi;           ///< [C][features]
    float* transposed;    ///< [F][chunk]: phi of the keys
    float* left;          ///< [C][features]: phi times what is left of it at the end of the chunk; phi without decay
    float* v;             ///< [C][values]
    float* v_transposed;  ///< [E][chunk], backward only
    bool finite_phi, finite_v;
};

struct LinearScratch {
    KeyChunk keys;
    float* left_space;
    float* phi_q;     ///< [C][features]
    float* scaled_q;  ///< [C][features]: times decay^(i+1)
    float* scores;    ///< [C][chunk]
    float* sums;      ///< [C][values]
    float* row_sum;   ///< [C]
    float* staging;   ///< one row of D
    double* space;    ///< for the caller's feature function
    float* power;     ///< [C + 1]
    float* falling;   ///< [C], and zeros behind it for a vector that starts inside
    // backward
    float* dout;              ///< [C][values]
    float* transposed_state;  ///< [E][features]
    float* dphi;              ///< [C][features]
    float* dphi_k;            ///< [C][features], over several states
    float* dv;                ///< [C][values], over several states
    float* running_z;         ///< [features]
    // where the gradient of the decay is wanted
    float* slope;          ///< [C + 1]: derivatives of power
    float* slope_falling;  ///< those of falling
    float* plain_scores;   ///< [C][chunk]: phi(q_i).phi(k_j), without the decay

    template <class Isa>
    static std::size_t layout(const LinearCall& call, bool backward, char* memory, LinearScratch* to) {
        const LinearSizes<Isa> z(call);
        Arena arena{memory};
        const auto floats = [&](std::int64_t n) { return arena.take<float>(static_cast<std::size_t>(n)); };
        LinearScratch s;
        const std::int64_t C = call.chunk;
        s.keys.phi = floats(C * z.features);
        s.keys.transposed = floats(call.feature_size * z.chunk);
        s.left_space = floats(call.decays ? C * z.features : 0);
        s.keys.left = s.keys.phi;
        s.keys.v = floats(C * z.values);
        s.phi_q = floats(C * z.features);
        s.scores = floats(C * z.chunk);
        s.sums = floats(C * z.values);
        s.row_sum = floats(C);
        s.staging = floats(larger(z.heads, z.features));
        s.space = arena.take<double>(static_cast<std::size_t>(2 * call.head_size + call.feature_size));
        s.power = floats(C + 1);
        s.falling = floats(C + most_lanes);
        if (backward) {
            s.keys.v_transposed = floats(call.value_size * z.chunk);
            s.scaled_q = floats(call.decays ? C * z.features : 0);
            s.dout = floats(C * z.values);
            s.transposed_state = floats(call.value_size * z.features);
            s.dphi = floats(C * z.features);
            s.dphi_k = floats(C * z.features);
            s.dv = floats(C * z.values);
            s.running_z = floats(z.features);
            const std::int64_t wanted = call.ddecay != nullptr ? 1 : 0;
            s.slope = floats(wanted * (C + 1));
            s.slope_falling = floats(wanted * (C + most_lanes));
            s.plain_scores = floats(wanted * C * z.chunk);
        }
        if (to != nullptr) { *to = s; }
        return arena.used;
    }
};

}  // namespace heed::cpu
