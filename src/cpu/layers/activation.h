#pragma once
#include "cpu/layers/rows.h"
#include "kernel/activation_problem.h"

namespace heed::cpu {

template <class Isa, Activation A>
struct ActivationFunction {
    static constexpr int L = Isa::lanes;
    using S = Simd<Isa, L>;
    using M = Math<Isa, L>;
    using V = F<L>;

    /// gelu_tanh: x/2 (1 + tanh u) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3)
    static HEED_INLINE V twice_inner(V x) {
        return x * (S::all(1.5957691216057308F) + S::all(0.0713548162726009F) * x * x);
    }

    static HEED_INLINE V value(V x) {
        if constexpr (A == Activation::relu) { return x < S::all(0.0F) ? S::all(0.0F) : x; }
        if constexpr (A == Activation::gelu) { return x * M::normal(x).below; }
        if constexpr (A == Activation::gelu_tanh) { return x * M::sigmoid(twice_inner(x)); }
        if constexpr (A == Activation::quick_gelu) { return x * M::sigmoid(S::all(1.702F) * x); }
        if constexpr (A == Activation::silu) { return x * M::sigmoid(x); }
        if constexpr (A == Activation::tanh) { return M::tanh(x); }
        if constexpr (A == Activation::sigmoid) { return M::sigmoid(x); }
        return x;
    }

    struct Both {
        V value, slope;
    };
    /// x s(g(x)) for a sigmoid s, with g' = dg.
    static HEED_INLINE Both swish(V x, V g, V dg) {
        const V s = M::sigmoid(g);
        // Far from 0, x g' may be infinite where s (1 - s) is 0.
        const V rest = s * (S::all(1.0F) - s);
        return {x * s, s + (rest == S::all(0.0F) ? rest : x * dg * rest)};
    }
    static HEED_INLINE Both both(V x) {
        const V one = S::all(1.0F), zero = S::all(0.0F);
        if constexpr (A == Activation::relu) { return {x < zero ? zero : x, x > zero ? one : (x <= zero ? zero : x)}; }
        if constexpr (A == Activation::gelu) {
            const auto [below, at] = M::normal(x);
            return {x * below, below + (at == zero ? at : x * at)};
        }
        if constexpr (A == Activation::gelu_tanh) {
            return swish(x, twice_inner(x), S::all(1.5957691216057308F) + S::all(0.2140644488178027F) * x * x);
        }
        if constexpr (A == Activation::quick_gelu) { return swish(x, S::all(1.702F) * x, S::all(1.702F)); }
        if constexpr (A == Activation::silu) { return swish(x, x, one); }
        if constexpr (A == Activation::tanh) {
            const V t = M::tanh(x);
            return {t, one - t * t};
        }
        if constexpr (A == Activation::sigmoid) {
            const V s = M::sigmoid(x);
            return {s, s * (one - s)};
        }
        return {x, one};
    }
};

/// Calls f.template operator()<A>() for the run-time activation.
template <class Function>
HEED_INLINE void with_activation(Activation activation, Function&& f) {
    switch (activation) {
        case Activation::none: f.template operator()<Activation::none>(); break;
        case Activation::relu: f.template operator()<Activation::relu>(); break;
        case Activation::gelu: f.template operator()<Activation::gelu>(); break;
        case Activation::gelu_tanh: f.template operator()<Activation::gelu_tanh>(); break;
        case Activation::quick_gelu: f.template operator()<Activation::quick_gelu>(); break;
        case Activation::silu: f.template operator()<Activation::silu>(); break;
        case Activation::tanh: f.template operator()<Activation::tanh>(); break;
        case Activation::sigmoid: f.template operator()<Activation::sigmoid>(); break;
    }
}

/// out = f(gate) * up for `count` numbers; up may be null; out may be either.
template <class Isa, Activation A>
HEED_NOINLINE void activate_numbers(const float* gate, const float* up, std::int64_t count, float* out) {
    constexpr int L = Isa::lanes;
    for (std::int64_t c = 0; c < count; c += L) {
        const std::int64_t left = count - c;
        F<L> y = ActivationFunction<Isa, A>::value(load_some<Isa, L>(gate + c, left));
        if (up != nullptr) { y *= load_some<Isa, L>(up + c, left); }
        store_some<Isa, L>(out + c, y, left);
    }
}

struct ActivationGradient {
    const float* gate;
    const float* up;  ///< may be null
    const float* dout;
    float* dgate;
    float* dup;
};
template <class Isa, Activation A>
HEED_NOINLINE void activate_backward_numbers(const ActivationGradient& g, std::int64_t count) {
    constexpr int L = Isa::lanes;
    for (std::int64_t c = 0; c < count; c += L) {
        const std::int64_t left = count - c;
        const auto [value, slope] = ActivationFunction<Isa, A>::both(load_some<Isa, L>(g.gate + c, left));
        const F<L> dout = load_some<Isa, L>(g.dout + c, left);
        F<L> dgate = dout * slope;
        if (g.up != nullptr) { dgate *= load_some<Isa, L>(g.up + c, left); }
        store_some<Isa, L>(g.dgate + c, dgate, left);
        if (g.up != nullptr) { store_some<Isa, L>(g.dup + c, dout * value, left); }
    }
}

template <class Isa>
void activation_rows(const ActivationProblem& p, std::int64_t begin, std::int64_t end) {
    float of_gate[layer_chunk], of_up[layer_chunk], of_out[layer_chunk];
    for (std::int64_t row = begin; row < end; ++row) {
        for_chunks(0, p.shape.columns, [&](std::int64_t c, std::int64_t count) {
            const float* gate = numbers_in<Isa>(p.gate, row, c, count, of_gate);
            const float* up = numbers_in<Isa>(p.up, row, c, count, of_up);
            const NumbersOut out = numbers_out<Isa>(p.out, row, c, of_out);
            with_activation(p.activation, [&]<Activation A>() { activate_numbers<Isa, A>(gate, up, count, out.data); });
            end_numbers<Isa>(p.out, row, c, count, out);
        });
    }
}

template <class Isa>
void activation_backward_rows(const ActivationProblem& p, std::int64_t begin, std::int64_t end) {
    float of_gate[layer_chunk], of_up[layer_chunk], of_dout[layer_chunk], of_dgate[layer_chunk], of_dup[layer_chunk];
    for (std::int64_t row = begin; row < end; ++row) {
        for_chunks(0, p.shape.columns, [&](std::int64_t c, std::int64_t count) {
            const NumbersOut dgate = numbers_out<Isa>(p.dgate, row, c, of_dgate);
            const NumbersOut dup = numbers_out<Isa>(p.dup, row, c, of_dup);
            const ActivationGradient gradient{numbers_in<Isa>(p.gate, row, c, count, of_gate),
                                              numbers_in<Isa>(p.up, row, c, count, of_up),
                                              numbers_in<Isa>(p.dout, row, c, count, of_dout), dgate.data, dup.data};
            with_activation(p.activation, [&]<Activation A>() { activate_backward_numbers<Isa, A>(gradient, count); });
            end_numbers<Isa>(p.dgate, row, c, count, dgate);
            end_numbers<Isa>(p.dup, row, c, count, dup);
        });
    }
}

}  // namespace heed::cpu
