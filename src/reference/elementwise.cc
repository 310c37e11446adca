#include "reference/elementwise.h"

#include "reference/numbers.h"

namespace heed::reference {

void elementwise(const ElementwiseProblem& p, std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
        Row out = numbers(p.a, row, p.shape.columns, 1);
        const Row b = numbers(p.b, row, p.shape.columns);
        for (std::size_t c = 0; c < out.size(); ++c) {
            out[c] = p.product ? out[c] * b[c] : p.b.present ? p.alpha * out[c] + p.beta * b[c] : p.alpha * out[c];
        }
        put_numbers(p.out, row, out);
    }
}

void sum_leading(const SumProblem& p, std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
        Row sum(index(p.shape.columns), 0);
        for (std::int64_t n = 0; n < p.repeats; ++n) {
            add(sum, 1, numbers(p.x, row + n * p.shape.rows, p.shape.columns));
        }
        Row out = numbers(p.accumulate ? p.out : TensorRows{}, row, p.shape.columns);
        add(out, p.factor, sum);
        put_numbers(p.out, row, out);
    }
}

double sum(const TensorRows& x, std::int64_t row, std::int64_t columns) {
    double result = 0;
    for (const double number : numbers(x, row, columns)) { result += number; }
    return result;
}

double sum_of_squares(const TensorRows& x, std::int64_t begin, std::int64_t end) {
    double result = 0;
    for (std::int64_t c = begin; c < end; ++c) {
        const double value = number(x, 0, c);
        result += value * value;
    }
    return result;
}

}  // namespace heed::reference
