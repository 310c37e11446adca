#include "reference/linear_attention.h"

#include "reference/linear_state.h"

#include <cmath>

namespace heed::reference {
namespace {

using State = LinearStateRows;

/// Tokens [begin, end) of state n of batch entry b: mapped keys, values, and the powers of the decay.
struct Chunk {
    std::int64_t b, n, g, begin, end;
    double decay;
    std::vector<Row> k, phi_k, v;

    Chunk(const LinearAttentionProblem& p, std::int64_t entry, std::int64_t state, std::int64_t first,
          std::int64_t last)
        : b(entry), n(state), g(state / p.sharers()), begin(first), end(last), decay(p.decay(state)) {
        for (std::int64_t j = begin; j < end; ++j) {
            k.push_back(row_of(p.k, b, g, j));
            phi_k.push_back(feature(p, k.back()));
            v.push_back(row_of(p.v, b, g, j));
        }
    }
    std::int64_t size() const { return end - begin; }
    double power(std::int64_t exponent) const { return std::pow(decay, static_cast<double>(exponent)); }
    /// d power / d decay
    double slope(std::int64_t exponent) const {
        return exponent == 0 ? 0 : static_cast<double>(exponent) * power(exponent - 1);
    }
    /// What the state holds of token j when the chunk is over.
    double left_of(std::int64_t j) const { return power(size() - 1 - j); }

    void advance(State& state) const {
        state.scale(power(size()));
        for (std::int64_t j = 0; j < size(); ++j) {
            state.add_outer(left_of(j), phi_k[index(j)], v[index(j)], left_of(j));
        }
    }
};

/// A query: its row of weights over the chunk, and what it reads.
struct Query {
    Row x, phi;         ///< phi: scale included
    Row weight;         ///< decay^(i-j) phi(q_i).phi(k_j), j <= i; empty where not causal
    double before = 1;  ///< factor of the state before the chunk
    Row numerator;
    double denominator = 0;

    Query(const LinearAttentionProblem& p, const Chunk& c, const State& state, std::int64_t h, std::int64_t t)
        : x(row_of(p.q, c.b, h, t)), phi(feature(p, x)) {
        for (double& value : phi) { value *= p.options.scale; }
        const std::int64_t i = t - c.begin;
        if (p.options.causal) {
            before = c.power(i + 1);
            for (std::int64_t j = 0; j <= i; ++j) { weight.push_back(c.power(i - j) * dot(phi, c.phi_k[index(j)])); }
        }
        numerator = state.read(phi);
        for (double& value : numerator) { value *= before; }
        denominator = before * dot(phi, state.z) + p.options.epsilon;
        for (std::size_t j = 0; j < weight.size(); ++j) {
            add(numerator, weight[j], c.v[j]);
            denominator += weight[j];
        }
    }
};

/// Calls function(b, n, chunk ranges) ... for keys in order.
template <class Function>
void for_each_chunk(std::int64_t length, std::int64_t chunk, Function&& function) {
    for (std::int64_t begin = 0; begin < length; begin += chunk) { function(begin, std::min(length, begin + chunk)); }
}

}  // namespace

void linear_attend(const LinearAttentionProblem& p, std::int64_t chunk) {
    for (std::int64_t b = 0; b < p.batch; ++b) {
        for (std::int64_t n = 0; n < p.states; ++n) {
            State state(p, p.initial, b, n);
            const auto answer = [&](const Chunk& c, std::int64_t t) {
                for (std::int64_t h = n * p.readers(); h < (n + 1) * p.readers(); ++h) {
                    Query query(p, c, state, h, t);
                    if (p.options.normalise) {
                        const bool divides = p.divides(query.denominator);
                        for (double& x : query.numerator) { x = divides ? x / query.denominator : 0; }
                    }
                    put_row(p.out, b, h, t, query.numerator);
                }
            };
            for_each_chunk(p.keys_of(b), chunk, [&](std::int64_t begin, std::int64_t end) {
                const Chunk c(p, b, n, begin, end);
                for (std::int64_t t = begin; p.options.causal && t < end; ++t) { answer(c, t); }
                c.advance(state);
            });
            const Chunk nothing(p, b, n, 0, 0);
            for (std::int64_t t = 0; !p.options.causal && t < p.queries; ++t) { answer(nothing, t); }
            for (std::int64_t t = p.queries_of(b); t < p.queries; ++t) {
                for (std::int64_t h = n * p.readers(); h < (n + 1) * p.readers(); ++h) {
                    put_row(p.out, b, h, t, Row(index(p.value_size), 0));
                }
            }
            state.store(p.final, b, n);
        }
    }
}

namespace {

/// One state's share of the backward pass. dk and dv of a key/value head are summed over its states.
struct Backward {
    const LinearAttentionProblem& p;
    std::int64_t b, n;
    std::vector<Row>& dk;
    std::vector<Row>& dv;
    double ddecay = 0;  ///< each power of the decay times its slope

    /// of query i, out = numerator / denominator:  dn = dout / c,  dc = -(dout . numerator) / c^2
    ///   dphi(q_i) = decay^(i+1) (S dn + dc z) + sum_j decay^(i-j) (dn . v_j + dc) phi(k_j)
    /// and its share in dphi(k_j), dv_j and in the gradient of the state before the chunk.
    void query(const Chunk& c, const State& before, State& dbefore, std::vector<Row>& dphi_k, std::int64_t h,
               std::int64_t t) {
        const Query q(p, c, before, h, t);
        Row dn(index(p.value_size), 0);
        if (p.dout) { dn = row_of(p.dout, b, h, t); }
        double dc = 0;
        if (p.options.normalise) {
            const bool divides = p.divides(q.denominator);
            dc = divides ? -dot(dn, q.numerator) / (q.denominator * q.denominator) : 0;
            for (double& x : dn) { x = divides ? x / q.denominator : 0; }
        }
        Row dphi = before.read_columns(dn);
        add(dphi, dc, before.z);
        for (double& x : dphi) { x *= q.before; }
        dbefore.add_outer(q.before, q.phi, dn, q.before * dc);
        const std::int64_t i = t - c.begin;
        if (p.options.causal) { ddecay += c.slope(i + 1) * (dot(before.read(q.phi), dn) + dc * dot(q.phi, before.z)); }
        for (std::size_t j = 0; j < q.weight.size(); ++j) {
            const std::int64_t apart = i - static_cast<std::int64_t>(j);
            const double dweight = dot(dn, c.v[j]) + dc;
            const double dw = c.power(apart) * dweight;
            ddecay += c.slope(apart) * dot(q.phi, c.phi_k[j]) * dweight;
            add(dphi, dw, c.phi_k[j]);
            add(dphi_k[j], dw, q.phi);
            add(dv[index(c.begin) + j], q.weight[j], dn);
        }
        for (double& x : dphi) { x *= p.options.scale; }
        put_row(p.gradients.dq, b, h, t, feature_backward(p, q.x, dphi));
    }

    /// of the state behind the chunk, S' = decay^m S + sum_j decay^(m-1-j) phi(k_j) v_j^T
    void keys(const Chunk& c, const State& dafter, std::vector<Row>& dphi_k) {
        for (std::int64_t j = 0; j < c.size(); ++j) {
            const std::size_t at = index(j);
            ddecay += c.slope(c.size() - 1 - j) *
                      (dot(c.phi_k[at], dafter.read_columns(c.v[at])) + dot(c.phi_k[at], dafter.z));
            add(dphi_k[at], c.left_of(j), dafter.read_columns(c.v[at]));
            add(dphi_k[at], c.left_of(j), dafter.z);
            add(dv[index(c.begin + j)], c.left_of(j), dafter.read(c.phi_k[at]));
            add(dk[index(c.begin + j)], 1, feature_backward(p, c.k[at], dphi_k[at]));
        }
    }

    void run(std::int64_t chunk) {
        const bool causal = p.options.causal;
        const std::int64_t length = p.keys_of(b);
        std::vector<State> before;  // each chunk
        State state(p, p.initial, b, n);
        for_each_chunk(length, chunk, [&](std::int64_t begin, std::int64_t end) {
            if (causal) { before.push_back(state); }
            Chunk(p, b, n, begin, end).advance(state);
        });
        State dstate(p, p.dfinal, b, n);
        const std::int64_t chunks = (length + chunk - 1) / chunk;
        if (!causal) {
            const Chunk nothing(p, b, n, 0, 0);
            std::vector<Row> none;
            for (std::int64_t t = 0; t < p.queries; ++t) { each_head(nothing, state, dstate, none, t); }
        }
        for (std::int64_t at = chunks - 1; at >= 0; --at) {
            const Chunk c(p, b, n, at * chunk, std::min(length, (at + 1) * chunk));
            std::vector<Row> dphi_k(index(c.size()), Row(index(p.feature_size), 0));
            State dbefore(p);
            for (std::int64_t t = c.begin; causal && t < c.end; ++t) {
                each_head(c, before[index(at)], dbefore, dphi_k, t);
            }
            keys(c, dstate, dphi_k);
            if (causal) { ddecay += c.slope(c.size()) * before[index(at)].dot_with(dstate); }
            dstate.scale(c.power(c.size()));
            for (std::size_t f = 0; f < dstate.s.size(); ++f) { add(dstate.s[f], 1, dbefore.s[f]); }
            add(dstate.z, 1, dbefore.z);
        }
        dstate.store(p.gradients.dinitial, b, n);
        for (std::int64_t t = p.queries_of(b); t < p.queries; ++t) {
            for (std::int64_t h = n * p.readers(); h < (n + 1) * p.readers(); ++h) {
                put_row(p.gradients.dq, b, h, t, Row(index(p.head_size), 0));
            }
        }
    }

    void each_head(const Chunk& c, const State& before, State& dbefore, std::vector<Row>& dphi_k, std::int64_t t) {
        for (std::int64_t h = n * p.readers(); h < (n + 1) * p.readers(); ++h) {
            query(c, before, dbefore, dphi_k, h, t);
        }
    }
};

}  // namespace

void linear_attend_backward(const LinearAttentionProblem& p, std::int64_t chunk) {
    backward_by_state(p, [&](std::int64_t b, std::int64_t n, KeyGradients& keys) {
        Backward backward{p, b, n, keys.dk, keys.dv};
        backward.run(chunk);
        return backward.ddecay;
    });
}

namespace {

std::int64_t chunk_of(const LinearAttentionProblem& p) {
    constexpr std::int64_t reference_chunk = 64;
    switch (p.options.form) {
        case LinearForm::recurrent: return 1;
        case LinearForm::quadratic: return std::max<std::int64_t>(1, p.keys);
        default: return p.options.chunk > 0 ? p.options.chunk : reference_chunk;
    }
}

}  // namespace

Kernel<LinearAttentionProblem> linear_attention_kernel() {
    return reference_kernel<LinearAttentionProblem>(
        [](detail::Place&, const LinearAttentionProblem& p) {
            if (!p.gated()) { return linear_attend(p, chunk_of(p)); }
            p.options.form == LinearForm::quadratic ? gated_linear_attend_quadratic(p) : gated_linear_attend(p);
        },
        [](detail::Place&, const LinearAttentionProblem& p) {
            p.gated() ? gated_linear_attend_backward(p) : linear_attend_backward(p, chunk_of(p));
        });
}

}  // namespace heed::reference
