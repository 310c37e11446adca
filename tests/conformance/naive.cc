#include "conformance/naive.h"

#include "base/dispatch.h"
#include "conformance/tolerance.h"

#include <cmath>
#include <concepts>
#include <limits>

namespace heed::conformance {

std::vector<double>& Results::operator[](int n) {
    std::vector<double>* const all[] = {&out, &lse, &dq, &dk, &dv, &dbias, &dsinks, &dslopes};
    return *all[n];
}

namespace {

template <class Real>
Real round_to(DType dtype, Real value) {
    if constexpr (std::same_as<Real, double>) {
        return value;
    } else {
        switch (dtype) {
            case DType::bf16: return static_cast<float>(bf16(value));
            case DType::f16: return static_cast<float>(f16(value));
            default: return value;
        }
    }
}

template <class Real>
class Method {
public:
    explicit Method(const Problem& problem)
        : p_(problem), weights_(tolerance_of(problem.dtype).weights_rounded ? problem.dtype : DType::f32) {
        q_ = convert(p_.clean_q);
        k_ = convert(p_.clean_k);
        v_ = convert(p_.clean_v);
        dout_ = convert(p_.clean_dout);
        for (Results* r : {&naive_.results, &naive_.magnitude}) {
            r->out.assign(size(p_.B * p_.H * p_.T * p_.E), 0);
            r->lse.assign(size(p_.B * p_.H * p_.T), r == &naive_.results ? -infinity : 1);
            r->dq.assign(size(p_.B * p_.H * p_.T * p_.D), 0);
            r->dk.assign(size(p_.B * p_.G * p_.S * p_.D), 0);
            r->dv.assign(size(p_.B * p_.G * p_.S * p_.E), 0);
            if (p_.options.bias) { r->dbias.assign(size(p_.options.bias.shape().elements()), 0); }
            if (p_.options.sinks) { r->dsinks.assign(size(p_.H), 0); }
            if (p_.options.alibi_slopes) { r->dslopes.assign(size(p_.options.alibi_slopes.shape().elements()), 0); }
        }
        dk_.assign(naive_.results.dk.size(), 0);
        dv_.assign(naive_.results.dv.size(), 0);
        dbias_.assign(naive_.results.dbias.size(), 0);
        dsinks_.assign(naive_.results.dsinks.size(), 0);
        dslopes_.assign(naive_.results.dslopes.size(), 0);
    }

    Naive compute() {
        for (std::int64_t n = 0; n < p_.N; ++n) {
            for (std::int64_t h = 0; h < p_.H; ++h) {
                for (std::int64_t i = 0; i < p_.pieces[size(n)].queries; ++i) { row(n, h, i); }
            }
        }
        store(dk_, naive_.results.dk, p_.out_dtype);
        store(dv_, naive_.results.dv, p_.out_dtype);
        store(dbias_, naive_.results.dbias, DType::f32);
        store(dsinks_, naive_.results.dsinks, DType::f32);
        store(dslopes_, naive_.results.dslopes, DType::f32);
        return std::move(naive_);
    }

private:
    static constexpr double infinity = std::numeric_limits<double>::infinity();
    static std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }
    static std::vector<Real> convert(const std::vector<double>& values) {
        std::vector<Real> result;
        result.reserve(values.size());
        for (const double value : values) { result.push_back(static_cast<Real>(value)); }
        return result;
    }
    static void store(const std::vector<Real>& from, std::vector<double>& to, DType dtype) {
        for (std::size_t n = 0; n < from.size(); ++n) { to[n] = static_cast<double>(round_to(dtype, from[n])); }
    }

    /// Row-major place of (n, h, i, j) in the bias, broadcast axes at 0.
    std::size_t bias_index(std::int64_t n, std::int64_t h, std::int64_t i, std::int64_t j) const {
        const Shape& shape = p_.options.bias.shape();
        const std::int64_t index[4] = {n, h, i, j};
        std::int64_t at = 0;
        for (int axis = 0; axis < 4; ++axis) { at = at * shape[axis] + (shape[axis] == 1 ? 0 : index[axis]); }
        return size(at);
    }

    void row(std::int64_t n, std::int64_t h, std::int64_t i) {
        const Piece& piece = p_.pieces[size(n)];
        const std::int64_t g = h / (p_.H / p_.G);
        const std::int64_t query = (piece.batch * p_.H + h) * p_.T + piece.query_begin + i;
        const std::int64_t first_key = (piece.batch * p_.G + g) * p_.S + piece.key_begin;
        const Real* q = q_.data() + query * p_.D;
        const Real* dout = dout_.data() + query * p_.E;
        seen_.clear();
        for (std::int64_t j = 0; j < piece.keys; ++j) {
            if (p_.visible(n, h, i, j)) { seen_.push_back(j); }
        }
        const std::size_t count = seen_.size();
        const auto scale = static_cast<Real>(p_.scale);
        const auto cap = static_cast<Real>(p_.options.softcap);

        // scores
        score_.assign(count, 0);
        slope_of_cap_.assign(count, 1);
        distance_.assign(count, 0);
        const auto sink = static_cast<Real>(p_.sink(h));
        Real top = sink;
        for (std::size_t s = 0; s < count; ++s) {
            const std::int64_t j = seen_[s];
            const Real* k = k_.data() + (first_key + j) * p_.D;
            Real dot = 0;
            double absolute = 0;
            for (std::int64_t d = 0; d < p_.D; ++d) {
                dot += q[d] * k[d];
                absolute += std::abs(static_cast<double>(q[d] * k[d]));
            }
            Real x = scale * dot;
            if (cap > 0) {
                const Real t = std::tanh(x / cap);
                slope_of_cap_[s] = 1 - t * t;
                x = cap * t;
            }
            const double bias = p_.bias(n, h, i, j);
            distance_[s] = std::abs(static_cast<double>(piece.query_positions[size(i)] - piece.key_positions[size(j)]));
            const double alibi = p_.slope(n, h) * distance_[s];
            x = x + static_cast<Real>(bias) - static_cast<Real>(alibi);
            score_[s] = x;
            top = std::isnan(x) || std::isnan(top) ? std::numeric_limits<Real>::quiet_NaN() : std::max(top, x);
            const double size_of_score = std::abs(p_.scale) * absolute + std::abs(bias) + std::abs(alibi);
            if (std::isfinite(size_of_score)) { naive_.largest_score = std::max(naive_.largest_score, size_of_score); }
        }
        if (top == -std::numeric_limits<Real>::infinity()) { return; }  // sees nothing, no sink

        // softmax
        weight_.assign(count, 0);
        Real sum = std::exp(sink - top);
        const Real sink_part = sum;
        for (std::size_t s = 0; s < count; ++s) { sum += weight_[s] = std::exp(score_[s] - top); }
        for (Real& w : weight_) { w /= sum; }
        const Real sink_weight = sink_part / sum;
        const Real lse = top + std::log(sum);
        naive_.results.lse[size(query)] = static_cast<double>(lse);
        if (std::isfinite(lse)) { naive_.largest_score = std::max(naive_.largest_score, std::abs(double{lse})); }

        // dropout, values
        const Real r = static_cast<Real>(1 / (1 - p_.options.dropout.p));
        factor_.assign(count, 1);
        dropped_.assign(count, 0);
        for (std::size_t s = 0; s < count; ++s) {
            factor_[s] = p_.keeps(n, h, i, seen_[s]) ? r : 0;
            dropped_[s] = round_to(weights_, factor_[s] * weight_[s]);
        }
        out_.assign(size(p_.E), 0);
        double* out_size = naive_.magnitude.out.data() + query * p_.E;
        for (std::size_t s = 0; s < count; ++s) {
            const Real* v = v_.data() + (first_key + seen_[s]) * p_.E;
            for (std::int64_t e = 0; e < p_.E; ++e) {
                out_[size(e)] += dropped_[s] * v[e];
                out_size[e] += std::abs(static_cast<double>(dropped_[s] * v[e]));
            }
        }
        for (std::int64_t e = 0; e < p_.E; ++e) {
            out_[size(e)] = round_to(p_.out_dtype, out_[size(e)]);
            naive_.results.out[size(query * p_.E + e)] = static_cast<double>(out_[size(e)]);
        }
        backward(n, h, i, query, first_key, q, dout, sink_weight);
    }

    void backward(std::int64_t n, std::int64_t h, std::int64_t i, std::int64_t query, std::int64_t first_key,
                  const Real* q, const Real* dout, Real sink_weight) {
        Real delta = 0;
        double delta_size = 0;
        for (std::int64_t e = 0; e < p_.E && !seen_.empty(); ++e) {
            delta += dout[e] * out_[size(e)];
            delta_size += std::abs(static_cast<double>(dout[e])) * naive_.magnitude.out[size(query * p_.E + e)];
        }
        if (!p_.clean_dlse.empty()) {
            delta -= static_cast<Real>(p_.clean_dlse[size(query)]);
            delta_size += std::abs(p_.clean_dlse[size(query)]);
        }
        if (!dsinks_.empty()) {
            dsinks_[size(h)] -= sink_weight * delta;
            naive_.magnitude.dsinks[size(h)] += static_cast<double>(sink_weight) * delta_size;
        }
        dq_.assign(size(p_.D), 0);
        for (std::size_t s = 0; s < seen_.size(); ++s) {
            const std::int64_t key = first_key + seen_[s];
            const Real* v = v_.data() + key * p_.E;
            const Real* k = k_.data() + key * p_.D;
            Real dot = 0;
            double dot_size = 0;
            for (std::int64_t e = 0; e < p_.E; ++e) {
                dot += dout[e] * v[e];
                dot_size += std::abs(static_cast<double>(dout[e] * v[e]));
                dv_[size(key * p_.E + e)] += dropped_[s] * dout[e];
                naive_.magnitude.dv[size(key * p_.E + e)] += std::abs(static_cast<double>(dropped_[s] * dout[e]));
            }
            Real ds = weight_[s] * (factor_[s] * dot - delta);
            const double ds_size =
                static_cast<double>(weight_[s]) * (static_cast<double>(factor_[s]) * dot_size + delta_size);
            if (!dbias_.empty()) {
                const std::size_t at = bias_index(n, h, i, seen_[s]);
                dbias_[at] += ds;
                naive_.magnitude.dbias[at] += ds_size;
            }
            if (!dslopes_.empty()) {
                const std::size_t at = size(p_.options.alibi_slopes.rank() == 2 ? n * p_.H + h : h);
                dslopes_[at] -= ds * static_cast<Real>(distance_[s]);
                naive_.magnitude.dslopes[at] += ds_size * distance_[s];
            }
            ds = round_to(weights_, ds * slope_of_cap_[s]);
            for (std::int64_t d = 0; d < p_.D; ++d) {
                const auto scale = static_cast<Real>(p_.scale);
                dq_[size(d)] += scale * ds * k[d];
                dk_[size(key * p_.D + d)] += scale * ds * q[d];
                const double both = std::abs(p_.scale) * ds_size;
                naive_.magnitude.dq[size(query * p_.D + d)] += both * std::abs(static_cast<double>(k[d]));
                naive_.magnitude.dk[size(key * p_.D + d)] += both * std::abs(static_cast<double>(q[d]));
            }
        }
        for (std::int64_t d = 0; d < p_.D; ++d) {
            naive_.results.dq[size(query * p_.D + d)] = static_cast<double>(round_to(p_.out_dtype, dq_[size(d)]));
        }
    }

    const Problem& p_;
    DType weights_;
    std::vector<Real> q_, k_, v_, dout_, dk_, dv_, dbias_, dsinks_, dslopes_;
    Naive naive_;
    // of one row
    std::vector<std::int64_t> seen_;
    std::vector<Real> score_, slope_of_cap_, weight_, factor_, dropped_, out_, dq_;
    std::vector<double> distance_;
};

}  // namespace

Naive naive_double(const Problem& problem) { return Method<double>(problem).compute(); }
Naive naive_float(const Problem& problem) { return Method<float>(problem).compute(); }

}  // namespace heed::conformance
