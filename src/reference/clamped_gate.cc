#include "reference/clamped_gate.h"

#include "reference/numbers.h"

#include <algorithm>
#include <cmath>

namespace heed::reference {
namespace {

double sigmoid_of(double x) { return 1 / (1 + std::exp(-x)); }

}  // namespace

void clamped_gate(const ClampedGateProblem& p, std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
        const Row gate = numbers(p.gate, row, p.shape.columns);
        Row out = numbers(p.up, row, p.shape.columns);
        for (std::size_t c = 0; c < out.size(); ++c) {
            const double a = std::min(gate[c], p.limit);
            out[c] = (std::clamp(out[c], -p.limit, p.limit) + 1) * a * sigmoid_of(p.alpha * a);
        }
        put_numbers(p.out, row, out);
    }
}

void clamped_gate_backward(const ClampedGateProblem& p, std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
        Row gate = numbers(p.gate, row, p.shape.columns), up = numbers(p.up, row, p.shape.columns);
        const Row dout = numbers(p.dout, row, p.shape.columns);
        for (std::size_t c = 0; c < dout.size(); ++c) {
            const double a = std::min(gate[c], p.limit), b = std::clamp(up[c], -p.limit, p.limit);
            const double s = sigmoid_of(p.alpha * a);
            up[c] = std::abs(up[c]) <= p.limit ? a * s * dout[c] : 0;
            gate[c] = gate[c] <= p.limit ? (b + 1) * (s + p.alpha * a * s * (1 - s)) * dout[c] : 0;
        }
        put_numbers(p.dgate, row, gate);
        put_numbers(p.dup, row, up);
    }
}

}  // namespace heed::reference
