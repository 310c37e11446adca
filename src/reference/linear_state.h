#pragma once
/// Feature maps and the state of linear attention as rows of doubles, for its references.

#include "kernel/linear_attention_problem.h"
#include "reference/listed_rows.h"
#include "reference/rows.h"

#include <cmath>

namespace heed::reference {

/// phi(x)
inline Row feature(const LinearAttentionProblem& p, const Row& x) {
    Row y(index(p.feature_size));
    if (p.options.feature == FeatureMap::function) {
        p.options.feature_function.map(x, y);
        return y;
    }
    for (std::size_t n = 0; n < x.size(); ++n) {
        switch (p.options.feature) {
            case FeatureMap::elu_plus_one: y[n] = x[n] > 0 ? x[n] + 1 : std::exp(x[n]); break;
            case FeatureMap::relu: y[n] = x[n] <= 0 ? 0 : x[n]; break;  // NaN stays
            default: y[n] = x[n]; break;
        }
    }
    return y;
}
/// of y = phi(x):  dx = phi'(x) dy
inline Row feature_backward(const LinearAttentionProblem& p, const Row& x, const Row& dy) {
    Row dx(x.size());
    if (p.options.feature == FeatureMap::function) {
        p.options.feature_function.backward(x, dy, dx);
        return dx;
    }
    for (std::size_t n = 0; n < x.size(); ++n) {
        switch (p.options.feature) {
            case FeatureMap::elu_plus_one: dx[n] = x[n] > 0 ? dy[n] : dy[n] * std::exp(x[n]); break;
            case FeatureMap::relu: dx[n] = x[n] <= 0 ? 0 : dy[n]; break;
            default: dx[n] = dy[n]; break;
        }
    }
    return dx;
}

/// S as F rows of E, and z.
struct LinearStateRows {
    std::vector<Row> s;
    Row z;

    explicit LinearStateRows(const LinearAttentionProblem& p)
        : s(index(p.feature_size), Row(index(p.value_size), 0)), z(index(p.feature_size), 0) {}
    LinearStateRows(const LinearAttentionProblem& p, const LinearState& from, std::int64_t b, std::int64_t n)
        : LinearStateRows(p) {
        for (std::size_t f = 0; f < s.size(); ++f) {
            const auto at = static_cast<std::int64_t>(f);
            if (from.s) { s[f] = row_of(from.s, b, n, at); }
            if (from.z) { z[f] = read_number(from.z.dtype(), from.z.data(), z_offset(from.z, b, n, at)); }
        }
    }
    void store(const MutableLinearState& to, std::int64_t b, std::int64_t n) const {
        for (std::size_t f = 0; f < s.size(); ++f) {
            const auto at = static_cast<std::int64_t>(f);
            if (to.s) { put_row(to.s, b, n, at, s[f]); }
            if (to.z) { write_number(to.z.dtype(), to.z.data(), z_offset(to.z, b, n, at), z[f]); }
        }
    }
    /// S = factor S, z = factor z
    void scale(double factor) {
        for (Row& row : s) {
            for (double& x : row) { x *= factor; }
        }
        for (double& x : z) { x *= factor; }
    }
    /// S += factor x y^T, z += z_factor x
    void add_outer(double factor, const Row& x, const Row& y, double z_factor) {
        for (std::size_t f = 0; f < s.size(); ++f) { add(s[f], factor * x[f], y); }
        add(z, z_factor, x);
    }
    /// <S, other S> + z . other z
    double dot_with(const LinearStateRows& other) const {
        double sum = dot(z, other.z);
        for (std::size_t f = 0; f < s.size(); ++f) { sum += dot(s[f], other.s[f]); }
        return sum;
    }
    /// x^T S
    Row read(const Row& x) const {
        Row y(s.empty() ? 0 : s[0].size(), 0);
        for (std::size_t f = 0; f < s.size(); ++f) { add(y, x[f], s[f]); }
        return y;
    }
    /// S y
    Row read_columns(const Row& y) const {
        Row x(s.size());
        for (std::size_t f = 0; f < s.size(); ++f) { x[f] = dot(s[f], y); }
        return x;
    }

private:
    template <class AnyView>
    static std::int64_t z_offset(const AnyView& view, std::int64_t b, std::int64_t n, std::int64_t f) {
        return b * view.stride(0) + n * view.stride(1) + f * view.stride(2);
    }
};

/// What the states of a key/value head add to.
struct KeyGradients {
    std::vector<Row> dk, dv;  ///< [keys]
};

/// The way back state by state: run(b, n, gradients) adds to the gradients of state n's keys and values and returns its
/// ddecay.
template <class Run>
void backward_by_state(const LinearAttentionProblem& p, Run run) {
    Row ddecay(index(p.states), 0);
    for (std::int64_t b = 0; b < p.batch; ++b) {
        for (std::int64_t g = 0; g < p.kv_heads; ++g) {
            KeyGradients keys{std::vector<Row>(index(p.keys), Row(index(p.head_size), 0)),
                              std::vector<Row>(index(p.keys), Row(index(p.value_size), 0))};
            for (std::int64_t n = g * p.sharers(); n < (g + 1) * p.sharers(); ++n) {
                ddecay[index(n)] += run(b, n, keys);
            }
            for (std::int64_t j = 0; j < p.keys; ++j) {
                put_row(p.gradients.dk, b, g, j, keys.dk[index(j)]);
                put_row(p.gradients.dv, b, g, j, keys.dv[index(j)]);
            }
        }
    }
    if (p.gradients.ddecay) { put_all(ddecay, p.gradients.ddecay); }
}

}  // namespace heed::reference
