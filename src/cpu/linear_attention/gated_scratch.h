#pragma once
#include "cpu/linear_attention/chunk.h"
#include "cpu/linear_attention/gated_call.h"

namespace heed::cpu {

/// Memory of a worker on a chunk of C tokens. Rows of F are [features], rows of E [values], rows of tokens [chunk].
struct GatedScratch {
    LinearScratch rows;  ///< what reading and mapping rows needs
    float* k;            ///< [C] rows of F
    float* v;            ///< [C] rows of E
    float* a;            ///< decays: [C] rows of F, or [C]
    float* beta;         ///< [C]
    float* between;      ///< one decay a token: [C] rows of tokens, what is left of token j at token i; 0 ahead of i
    float* from;         ///< the same: [C], what is left at token i of the state before the chunk
    float* total;        ///< [F]: what the chunk leaves of the state
    float* left;         ///< [C] rows of F: keys, as far as they are left behind the chunk
    float* transposed;   ///< [F] rows of tokens: keys
    float* block;        ///< [gated_block] rows of F
    float* x;            ///< [C] rows of F: queries
    float* faded;        ///< [C] rows of F: queries or keys times what is left of the state before the chunk
    float* scores;       ///< [C] rows of tokens
    float* minus_p;      ///< [C] rows of tokens: minus what token i reads of what token j wrote (delta rule)
    float* e;            ///< [C] rows of E: what the state lacks
    float* u;            ///< [C] rows of E: what is written
    float* sums;         ///< [C] rows of E
    float* state;        ///< [F] rows of E
    // backward
    float* dscores;         ///< [C] rows of tokens
    float* dout;            ///< [C] rows of E
    float* du;              ///< [C] rows of E
    float* u_columns;       ///< [E] rows of tokens
    float* state_columns;   ///< [E] rows of F: the state before the chunk
    float* dstate_columns;  ///< [E] rows of F
    float* dx;              ///< [C] rows of F
    float* dk;              ///< [C] rows of F: of keys as what is read
    float* keys;            ///< [C] rows of F
    float* slope;           ///< [C] rows of F, or [C]: of the decays, before they are summed
    float* dbeta;           ///< [C]
    float* dk_sum;          ///< [C] rows of F: over the states of a key/value head
    float* dv_sum;          ///< [C] rows of E
    float* dstates;         ///< [sharers][F] rows of E
    float* saved;           ///< [sharers][chunks][F] rows of E: states before the chunks

    template <class Isa>
    static std::size_t layout(const GatedCall& call, bool backward, char* memory, GatedScratch* to) {
        const LinearSizes<Isa> z(call);
        Arena arena{memory};
        const auto floats = [&](std::int64_t n) { return arena.take<float>(static_cast<std::size_t>(n)); };
        GatedScratch s{};
        const std::int64_t C = call.chunk;
        const std::int64_t state = call.feature_size * z.values;
        s.rows.staging = floats(larger(z.heads, z.features));
        s.rows.space = arena.take<double>(static_cast<std::size_t>(2 * call.head_size + call.feature_size));
        s.k = floats(C * z.features);
        s.v = floats(C * z.values);
        s.a = floats(call.each_row ? C * z.features : C);
        s.beta = floats(C);
        s.between = floats(call.each_row ? 0 : C * z.chunk);
        s.from = floats(C);
        s.total = floats(z.features);
        s.left = floats(C * z.features);
        s.transposed = floats(call.feature_size * z.chunk);
        s.block = floats(gated_block * z.features);
        s.x = floats(C * z.features);
        s.faded = floats(C * z.features);
        s.scores = floats(C * z.chunk);
        s.minus_p = floats(call.delta ? C * z.chunk : 0);
        s.e = floats(call.delta ? C * z.values : 0);
        s.u = call.delta ? floats(C * z.values) : s.v;
        s.sums = floats(C * z.values);
        s.state = floats(state);
        if (backward) {
            s.dscores = floats(C * z.chunk);
            s.dout = floats(C * z.values);
            s.du = floats(C * z.values);
            s.u_columns = floats(call.value_size * z.chunk);
            s.state_columns = floats(call.value_size * z.features);
            s.dstate_columns = floats(call.value_size * z.features);
            s.dx = floats(C * z.features);
            s.dk = floats(C * z.features);
            s.keys = floats(C * z.features);
            s.slope = floats(C * z.features);
            s.dbeta = floats(C);
            s.dk_sum = floats(C * z.features);
            s.dv_sum = floats(C * z.values);
            s.dstates = floats(call.sharers * state);
            s.saved = floats(call.sharers * ((call.keys + C - 1) / C) * state);
        }
        if (to != nullptr) { *to = s; }
        return arena.used;
    }
};

}  // namespace heed::cpu
