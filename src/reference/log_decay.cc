#include "reference/log_decay.h"

#include <algorithm>
#include <cmath>

#include "reference/numbers.h"

namespace heed::reference {
namespace {

/// log(1 + exp(x)), without overflow.
double softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x))); }
/// Its derivative.
double logistic(double x) {
    const double e = std::exp(-std::fabs(x));
    return (x >= 0 ? 1 : e) / (1 + e);
}

double speed(const LogDecayProblem& p, std::int64_t state) { return -std::exp(number(p.rate, 0, state)); }

/// That of every column.
Row speeds(const LogDecayProblem& p) {
    const std::int64_t each = p.shape.columns / p.states;
    Row result(index(p.shape.columns));
    for (std::int64_t c = 0; c < p.shape.columns; ++c) {
        result[index(c)] = c % each == 0 ? speed(p, c / each) : result[index(c - 1)];
    }
    return result;
}

}  // namespace

void log_decay(const LogDecayProblem& p, std::int64_t begin, std::int64_t end) {
    const Row factors = speeds(p);
    for (std::int64_t row = begin; row < end; ++row) {
        Row out = numbers(p.x, row, p.shape.columns);
        for (std::size_t c = 0; c < out.size(); ++c) { out[c] = factors[c] * softplus(out[c]); }
        put_numbers(p.out, row, out);
    }
}

void log_decay_backward(const LogDecayProblem& p, std::int64_t begin, std::int64_t end) {
    const Row factors = speeds(p);
    for (std::int64_t row = begin; row < end; ++row) {
        const Row x = numbers(p.x, row, p.shape.columns);
        Row dx = numbers(p.dout, row, p.shape.columns);
        for (std::size_t c = 0; c < dx.size(); ++c) { dx[c] *= factors[c] * logistic(x[c]); }
        put_numbers(p.dx, row, dx);
    }
}

void log_decay_rate_backward(const LogDecayProblem& p, std::int64_t state) {
    const std::int64_t each = p.shape.columns / p.states;
    double sum = 0;
    for (std::int64_t row = 0; row < p.shape.rows; ++row) {
        for (std::int64_t c = state * each; c < (state + 1) * each; ++c) {
            // d out / d rate is out itself.
            sum += number(p.dout, row, c) * softplus(number(p.x, row, c));
        }
    }
    put(p.drate, 0, state, speed(p, state) * sum);
}

}  // namespace heed::reference
