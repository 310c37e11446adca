/// Linear attention with a decay per token, and the delta rule.
#include "reference/linear_attention.h"
#include "reference/linear_state.h"

namespace heed::reference {
namespace {

/// A number, or a row of `size`, of token t: [B,N,T] or [B,N,T,size].
Row gate_row(const View& gate, std::int64_t b, std::int64_t n, std::int64_t t, std::int64_t size) {
    Row row(index(size));
    const std::int64_t at = b * gate.stride(0) + n * gate.stride(1) + t * gate.stride(2);
    for (std::int64_t c = 0; c < size; ++c) {
        row[index(c)] = read_number(gate.dtype(), gate.data(), at + (gate.rank() == 4 ? c * gate.stride(3) : 0));
    }
    return row;
}
/// The gradient of gate_row: summed where the gate is a number.
void put_gate_gradient(const MutableView& to, std::int64_t b, std::int64_t n, std::int64_t t, const Row& gradient) {
    if (!to) { return; }
    const std::int64_t at = b * to.stride(0) + n * to.stride(1) + t * to.stride(2);
    double sum = 0;
    for (std::size_t c = 0; c < gradient.size(); ++c) {
        sum += gradient[c];
        if (to.rank() == 4) {
            write_number(to.dtype(), to.data(), at + static_cast<std::int64_t>(c) * to.stride(3), gradient[c]);
        }
    }
    if (to.rank() == 3) { write_number(to.dtype(), to.data(), at, sum); }
}

/// What token t brings to state n.
struct GatedToken {
    Row k, phi_k, v;
    Row decay;  ///< of each row of the state
    Row beta;   ///< of each column; empty without the delta rule

    GatedToken(const LinearAttentionProblem& p, std::int64_t b, std::int64_t n, std::int64_t t)
        : k(row_of(p.k, b, n / p.sharers(), t)),
          phi_k(feature(p, k)),
          v(row_of(p.v, b, n / p.sharers(), t)),
          decay(index(p.feature_size), p.decay(n)) {
        if (p.options.log_decay) {
            decay = gate_row(p.options.log_decay, b, n, t, p.feature_size);
            for (double& x : decay) { x = std::exp(x); }
        }
        if (p.options.rule == UpdateRule::delta) {
            beta = p.options.beta ? gate_row(p.options.beta, b, n, t, p.value_size) : Row(v.size(), 1);
        }
    }

    /// R = decay S, z = decay z
    void fade(LinearStateRows& state) const {
        for (std::size_t f = 0; f < decay.size(); ++f) {
            for (double& x : state.s[f]) { x *= decay[f]; }
            state.z[f] *= decay[f];
        }
    }
    /// v - R^T phi(k)
    Row surprise(const LinearStateRows& faded) const {
        Row e = v;
        add(e, -1, faded.read(phi_k));
        return e;
    }
    /// What is written at phi(k): v, or beta (v - R^T phi(k)).
    Row update(const LinearStateRows& faded) const {
        if (beta.empty()) { return v; }
        Row u = surprise(faded);
        for (std::size_t c = 0; c < u.size(); ++c) { u[c] *= beta[c]; }
        return u;
    }
    void advance(LinearStateRows& state) const {
        fade(state);
        state.add_outer(1, phi_k, update(state), 1);
    }
};

/// A query against the state behind its token.
struct GatedQuery {
    Row x, phi;  ///< phi: scale included
    Row numerator;
    double denominator;

    GatedQuery(const LinearAttentionProblem& p, const LinearStateRows& state, std::int64_t b, std::int64_t h,
               std::int64_t t)
        : x(row_of(p.q, b, h, t)), phi(feature(p, x)) {
        for (double& value : phi) { value *= p.options.scale; }
        numerator = state.read(phi);
        denominator = dot(phi, state.z) + p.options.epsilon;
    }
};

Row quotient(const LinearAttentionProblem& p, Row numerator, double denominator) {
    if (!p.options.normalise) { return numerator; }
    const bool divides = p.divides(denominator);
    for (double& x : numerator) { x = divides ? x / denominator : 0; }
    return numerator;
}

template <class Function>
void each_reader(const LinearAttentionProblem& p, std::int64_t n, Function&& function) {
    for (std::int64_t h = n * p.readers(); h < (n + 1) * p.readers(); ++h) { function(h); }
}

/// Rows at and beyond the length of entry b.
void clear_padding(const LinearAttentionProblem& p, const MutableView& rows, std::int64_t b, std::int64_t n) {
    each_reader(p, n, [&](std::int64_t h) {
        for (std::int64_t t = p.keys_of(b); t < p.queries; ++t) { put_row(rows, b, h, t, Row(index(rows.extent(3)))); }
    });
}

}  // namespace

void gated_linear_attend(const LinearAttentionProblem& p) {
    for (std::int64_t b = 0; b < p.batch; ++b) {
        for (std::int64_t n = 0; n < p.states; ++n) {
            LinearStateRows state(p, p.initial, b, n);
            for (std::int64_t t = 0; t < p.keys_of(b); ++t) {
                GatedToken(p, b, n, t).advance(state);
                each_reader(p, n, [&](std::int64_t h) {
                    const GatedQuery query(p, state, b, h, t);
                    put_row(p.out, b, h, t, quotient(p, query.numerator, query.denominator));
                });
            }
            clear_padding(p, p.out, b, n);
            state.store(p.final, b, n);
        }
    }
}

namespace {

/// All tokens of a state as one matrix. left[f] is what of row f is left at token i of what was there at token j:
/// the product of the decays in between.
struct GatedMatrix {
    const LinearAttentionProblem& p;
    std::vector<GatedToken> tokens;
    std::vector<Row> u;  ///< what each token writes
    LinearStateRows before;

    /// x read from the state behind token i-1, faded by token i's decay, and, where `own`, what token i writes.
    Row read(const Row& x, std::size_t i, bool own, double* denominator) const {
        Row result(u.empty() ? Row(index(p.value_size), 0) : Row(u[0].size(), 0));
        Row left(x.size(), 1);
        double sum = 0;
        for (std::size_t j = i + 1; j-- > 0;) {
            if (own || j < i) {
                double weight = 0;
                for (std::size_t f = 0; f < x.size(); ++f) { weight += x[f] * left[f] * tokens[j].phi_k[f]; }
                add(result, weight, u[j]);
                sum += weight;
            }
            for (std::size_t f = 0; f < x.size(); ++f) { left[f] *= tokens[j].decay[f]; }
        }
        for (std::size_t f = 0; f < x.size(); ++f) {
            add(result, x[f] * left[f], before.s[f]);
            sum += x[f] * left[f] * before.z[f];
        }
        if (denominator != nullptr) { *denominator = sum; }
        return result;
    }
    /// u_i = beta_i (v_i - what is read at phi(k_i)): row i of a triangular system, solved from the first on.
    void solve() {
        for (std::size_t i = 0; i < tokens.size(); ++i) {
            u.emplace_back(tokens[i].v.size(), 0);
            const GatedToken& token = tokens[i];
            Row row = token.v;
            if (!token.beta.empty()) {
                add(row, -1, read(token.phi_k, i, false, nullptr));
                for (std::size_t c = 0; c < row.size(); ++c) { row[c] *= token.beta[c]; }
            }
            u[i] = row;
        }
    }
    LinearStateRows after() const {
        LinearStateRows state(p);
        Row left(index(p.feature_size), 1);
        for (std::size_t j = tokens.size(); j-- > 0;) {
            Row x = tokens[j].phi_k;
            for (std::size_t f = 0; f < x.size(); ++f) { x[f] *= left[f]; }
            state.add_outer(1, x, u[j], 1);
            for (std::size_t f = 0; f < x.size(); ++f) { left[f] *= tokens[j].decay[f]; }
        }
        for (std::size_t f = 0; f < left.size(); ++f) {
            add(state.s[f], left[f], before.s[f]);
            state.z[f] += left[f] * before.z[f];
        }
        return state;
    }
};

}  // namespace

void gated_linear_attend_quadratic(const LinearAttentionProblem& p) {
    for (std::int64_t b = 0; b < p.batch; ++b) {
        for (std::int64_t n = 0; n < p.states; ++n) {
            GatedMatrix matrix{p, {}, {}, LinearStateRows(p, p.initial, b, n)};
            for (std::int64_t t = 0; t < p.keys_of(b); ++t) { matrix.tokens.emplace_back(p, b, n, t); }
            matrix.solve();
            for (std::int64_t t = 0; t < p.keys_of(b); ++t) {
                each_reader(p, n, [&](std::int64_t h) {
                    Row phi = feature(p, row_of(p.q, b, h, t));
                    for (double& x : phi) { x *= p.options.scale; }
                    double denominator = 0;
                    const Row numerator = matrix.read(phi, index(t), true, &denominator);
                    put_row(p.out, b, h, t, quotient(p, numerator, denominator + p.options.epsilon));
                });
            }
            clear_padding(p, p.out, b, n);
            matrix.after().store(p.final, b, n);
        }
    }
}

namespace {

/// One state's share of the backward pass, from the last token to the first. dk and dv of a key/value head are summed
/// over its states.
struct GatedBackward {
    const LinearAttentionProblem& p;
    std::int64_t b, n;
    std::vector<Row>& dk;
    std::vector<Row>& dv;
    double ddecay = 0;  ///< of a constant decay

    /// of out = numerator / denominator:  dn = dout / c,  dc = -(dout . numerator) / c^2
    ///   dphi(q) = S dn + dc z,  dS += phi(q) dn^T,  dz += dc phi(q)
    void query(const LinearStateRows& state, LinearStateRows& dstate, std::int64_t h, std::int64_t t) const {
        const GatedQuery q(p, state, b, h, t);
        Row dn = row_of(p.dout, b, h, t);
        double dc = 0;
        if (p.options.normalise) {
            const bool divides = p.divides(q.denominator);
            dc = divides ? -dot(dn, q.numerator) / (q.denominator * q.denominator) : 0;
            for (double& x : dn) { x = divides ? x / q.denominator : 0; }
        }
        Row dphi = state.read_columns(dn);
        add(dphi, dc, state.z);
        for (double& x : dphi) { x *= p.options.scale; }
        dstate.add_outer(1, q.phi, dn, dc);
        put_row(p.gradients.dq, b, h, t, feature_backward(p, q.x, dphi));
    }

    /// of S = R + phi(k) u^T, u = v or beta (v - R^T phi(k)), R = decay `before`. dstate is that of S and becomes that
    /// of `before`.
    void token(const LinearStateRows& before, LinearStateRows& dstate, std::int64_t t) {
        const GatedToken token(p, b, n, t);
        LinearStateRows faded = before;
        token.fade(faded);
        Row dphi = dstate.read_columns(token.update(faded));
        if (p.options.normalise) { add(dphi, 1, dstate.z); }
        Row de = dstate.read(token.phi_k);
        if (!token.beta.empty()) {
            Row dbeta = token.surprise(faded);
            for (std::size_t c = 0; c < de.size(); ++c) {
                dbeta[c] *= de[c];
                de[c] *= token.beta[c];
            }
            put_gate_gradient(p.gradients.dbeta, b, n, t, dbeta);
            add(dphi, -1, faded.read_columns(de));
            dstate.add_outer(-1, token.phi_k, de, 0);
        }
        add(dv[index(t)], 1, de);
        add(dk[index(t)], 1, feature_backward(p, token.k, dphi));
        Row slope(token.decay.size());  // of the decay of each row
        for (std::size_t f = 0; f < slope.size(); ++f) {
            slope[f] = dot(dstate.s[f], before.s[f]) + dstate.z[f] * before.z[f];
            ddecay += slope[f];
            slope[f] *= token.decay[f];
        }
        put_gate_gradient(p.gradients.dlog_decay, b, n, t, slope);
        token.fade(dstate);
    }

    void run() {
        // The state before every stretch is kept, those within are computed again.
        constexpr std::int64_t stretch = 64;
        const std::int64_t length = p.keys_of(b);
        std::vector<LinearStateRows> saved;
        LinearStateRows state(p, p.initial, b, n);
        for (std::int64_t t = 0; t < length; ++t) {
            if (t % stretch == 0) { saved.push_back(state); }
            GatedToken(p, b, n, t).advance(state);
        }
        LinearStateRows dstate(p, p.dfinal, b, n);
        for (std::int64_t begin = (length - 1) / stretch * stretch; length > 0 && begin >= 0; begin -= stretch) {
            std::vector<LinearStateRows> states = {saved[index(begin / stretch)]};
            const std::int64_t end = std::min(length, begin + stretch);
            for (std::int64_t t = begin; t < end; ++t) {
                states.push_back(states.back());
                GatedToken(p, b, n, t).advance(states.back());
            }
            for (std::int64_t t = end - 1; t >= begin; --t) {
                each_reader(p, n, [&](std::int64_t h) { query(states[index(t - begin + 1)], dstate, h, t); });
                token(states[index(t - begin)], dstate, t);
            }
        }
        dstate.store(p.gradients.dinitial, b, n);
        clear_padding(p, p.gradients.dq, b, n);
        for (std::int64_t t = length; t < p.queries; ++t) {
            put_gate_gradient(p.gradients.dlog_decay, b, n, t, Row(index(p.feature_size), 0));
            put_gate_gradient(p.gradients.dbeta, b, n, t, Row(index(p.value_size), 0));
        }
    }
};

}  // namespace

void gated_linear_attend_backward(const LinearAttentionProblem& p) {
    backward_by_state(p, [&](std::int64_t b, std::int64_t n, KeyGradients& keys) {
        GatedBackward backward{p, b, n, keys.dk, keys.dv};
        backward.run();
        return backward.ddecay;
    });
}

}  // namespace heed::reference
