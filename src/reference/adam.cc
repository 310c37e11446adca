#include "reference/adam.h"

#include "base/dispatch.h"

#include <cmath>

namespace heed::reference {
namespace {

double adam_number(const Numbers& x, std::int64_t n) { return read_number(x.dtype, x.data, n); }
void put_adam_number(const Numbers& x, std::int64_t n, double value) { write_number(x.dtype, x.data, n, value); }

}  // namespace

void adam(const AdamProblem& p, std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) {
        double value = adam_number(p.value, n);
        const double gradient = p.gradient_scale * adam_number(p.gradient, n) + p.decay * value;
        const double first = p.beta1 * adam_number(p.first, n) + (1 - p.beta1) * gradient;
        const double second = p.beta2 * adam_number(p.second, n) + (1 - p.beta2) * gradient * gradient;
        value = p.keep * value - p.rate * first / (std::sqrt(second) * p.root + p.eps);
        put_adam_number(p.first, n, first);
        put_adam_number(p.second, n, second);
        put_adam_number(p.value, n, value);
        if (p.rounded.data != nullptr) { put_adam_number(p.rounded, n, adam_number(p.value, n)); }
    }
}

}  // namespace heed::reference
