#include "reference/attention_steps.h"

#include "reference/attention.h"
#include "reference/rows.h"

#include <algorithm>
#include <cmath>

namespace heed::reference {
namespace {

void row_steps(const AttentionProblem& p, std::int64_t b, std::int64_t h, std::int64_t i, AttentionSteps& to) {
    const Sequence s = p.sequence(b);
    SoftmaxRow row;
    if (i < s.queries) { row.compute(p, s, b, h, i); }
    for (std::int64_t j = 0; j < p.keys; ++j) {
        const std::int64_t n = (h * p.queries + i) * p.keys + j;
        const Score score = score_of(p, s, b, h, i, j);
        const bool visible = sees(p, s, b, h, i, j);
        const double weight = visible ? row.weight[index(j)] : 0;
        const double factor = dropout_factor(p, b, h, i, j);
        to.dot.as<double>()[n] = score.dot;
        to.scaled.as<double>()[n] = score.scaled;
        to.capped.as<double>()[n] = score.capped;
        to.biased.as<double>()[n] = score.biased;
        to.masked.as<double>()[n] = visible ? score.biased : -infinity;
        to.weights.as<double>()[n] = weight;
        to.dropped.as<double>()[n] = weight * factor;
        to.visible.as<std::uint8_t>()[n] = visible ? 1 : 0;
        to.kept.as<std::uint8_t>()[n] = factor != 0 ? 1 : 0;
    }
    if (i < s.queries) {
        std::ranges::copy(mixed_values(p, s, b, h, i, row), to.mixed.as<double>() + (h * p.queries + i) * p.value_size);
    }
}

}  // namespace

AttentionSteps attention_steps(const AttentionProblem& p, std::int64_t b) {
    const Shape square{p.heads, p.queries, p.keys};
    AttentionSteps steps;
    for (Tensor* t :
         {&steps.dot, &steps.scaled, &steps.capped, &steps.biased, &steps.masked, &steps.weights, &steps.dropped}) {
        *t = Tensor(DType::f64, square);
    }
    steps.visible = Tensor(DType::u8, square);
    steps.kept = Tensor(DType::u8, square);
    steps.mixed = Tensor(DType::f64, {p.heads, p.queries, p.value_size});
    for (std::int64_t h = 0; h < p.heads; ++h) {
        for (std::int64_t i = 0; i < p.queries; ++i) { row_steps(p, b, h, i, steps); }
    }
    return steps;
}

double largest_difference(const Tensor& a, const Tensor& b) {
    double largest = 0;
    for (std::int64_t n = 0; n < a.elements(); ++n) {
        const double difference = std::abs(a.as<double>()[n] - b.as<double>()[n]);
        if (!(difference <= largest)) { largest = difference; }  // NaN counts
    }
    return largest;
}

}  // namespace heed::reference
