#include "reference/cross_entropy.h"

#include "reference/numbers.h"

#include <algorithm>
#include <cmath>

namespace heed::reference {
namespace {

void capped(double softcap, Row& z) {
    if (softcap == 0) { return; }
    for (double& number : z) { number = softcap * std::tanh(number / softcap); }
}

}  // namespace

void cross_entropy(const CrossEntropyProblem& p, std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
        const std::int64_t target = p.targets[row];
        p.losses[row] = p.nlls[row] = 0;
        if (target == p.ignore) {
            put_numbers(p.dlogits, row, Row(index(p.shape.columns), 0));
            continue;
        }
        Row z = numbers(p.logits, row, p.shape.columns);
        capped(p.softcap, z);
        double largest = -infinity, denominator = 0, expected = 0;
        for (const double number : z) { largest = std::max(largest, number); }
        for (const double number : z) { denominator += std::exp(number - largest); }
        // All relative to the largest, so that the digits of large logits do not cancel. Without smoothing nothing is
        // multiplied by 0, which a logit of -infinity would not survive.
        const double log_sum = std::log(denominator);
        expected = (p.target - p.base) * (z[index(target)] - largest);
        if (p.base != 0) {
            for (const double number : z) { expected += p.base * (number - largest); }
        }
        p.losses[row] = log_sum - expected;
        p.nlls[row] = log_sum - (z[index(target)] - largest);
        Row dz(z.size());
        for (std::int64_t v = 0; v < p.shape.columns; ++v) {
            const double q = v == target ? p.target : p.base;
            const double inside = p.softcap == 0 ? 0 : z[index(v)] / p.softcap;
            dz[index(v)] = p.gradient * (std::exp(z[index(v)] - largest - log_sum) - q) * (1 - inside * inside);
        }
        put_numbers(p.dlogits, row, dz);
    }
}

}  // namespace heed::reference
