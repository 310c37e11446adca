#include "reference/norm.h"

#include "reference/numbers.h"

#include <cmath>

namespace heed::reference {
namespace {

double mean_of(const Row& x) {
    double sum = 0;
    for (const double number : x) { sum += number; }
    return sum / static_cast<double>(x.size());
}

/// (s - mean) * rstd, or s * rstd: the row before weight and bias.
struct Normalised {
    Row row;
    double rstd = 0;

    Normalised(const NormProblem& p, Row s) : row(std::move(s)) {
        if (p.centred) {
            const double mean = mean_of(row);
            for (double& number : row) { number -= mean; }
        }
        rstd = 1 / std::sqrt(dot(row, row) / static_cast<double>(row.size()) + p.eps);
        for (double& number : row) { number *= rstd; }
    }
};

double weight_at(const NormProblem& p, std::int64_t column) {
    return p.weight.present ? p.weight_offset + number(p.weight, 0, column) : 1;
}

}  // namespace

void norm(const NormProblem& p, std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
        Row s = numbers(p.x, row, p.shape.columns);
        add(s, 1, numbers(p.residual, row, p.shape.columns));
        Row out = Normalised(p, s).row;
        for (std::int64_t c = 0; c < p.shape.columns; ++c) {
            out[index(c)] = weight_at(p, c) * out[index(c)] + (p.bias.present ? number(p.bias, 0, c) : 0);
        }
        put_numbers(p.sum, row, s);
        put_numbers(p.out, row, out);
    }
}

// With y the normalised row and h = w dout: ds = rstd (h - mean(h) - y mean(h y)), without mean(h) in RMS norm.
void norm_backward(const NormProblem& p, std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
        const Normalised y(p, numbers(p.x, row, p.shape.columns));
        Row h = numbers(p.dout, row, p.shape.columns);
        for (std::int64_t c = 0; c < p.shape.columns; ++c) { h[index(c)] *= weight_at(p, c); }
        const double mean = p.centred ? mean_of(h) : 0;
        const double along = dot(h, y.row) / static_cast<double>(p.shape.columns);
        Row ds = numbers(p.dsum, row, p.shape.columns);
        for (std::size_t c = 0; c < ds.size(); ++c) { ds[c] += y.rstd * (h[c] - mean - y.row[c] * along); }
        put_numbers(p.dx, row, ds);
    }
}

void norm_backward_weight(const NormProblem& p) {
    Row dweight = numbers(p.accumulate ? p.dweight : TensorRows{}, 0, p.shape.columns);
    Row dbias = numbers(p.accumulate ? p.dbias : TensorRows{}, 0, p.shape.columns);
    for (std::int64_t row = 0; row < p.shape.rows; ++row) {
        const Normalised y(p, numbers(p.x, row, p.shape.columns));
        const Row dout = numbers(p.dout, row, p.shape.columns);
        for (std::size_t c = 0; c < dout.size(); ++c) {
            dweight[c] += dout[c] * y.row[c];
            dbias[c] += dout[c];
        }
    }
    put_numbers(p.dweight, 0, dweight);
    put_numbers(p.dbias, 0, dbias);
}

}  // namespace heed::reference
