#include "reference/embedding.h"

#include "reference/numbers.h"

namespace heed::reference {

void embedding(const EmbeddingProblem& p, std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
        Row out = numbers(p.table, p.ids[index(row)], p.columns);
        for (double& number : out) { number *= p.scale; }
        put_numbers(p.out, row, out);
    }
}

void embedding_backward(const EmbeddingProblem& p) {
    std::vector<double> sums(index(p.classes * p.columns), 0);
    for (std::size_t place = 0; place < p.ids.size(); ++place) {
        const std::int64_t id = p.ids[place];
        if (id == p.padding_id) { continue; }
        const Row dout = numbers(p.dout, static_cast<std::int64_t>(place), p.columns);
        for (std::size_t c = 0; c < dout.size(); ++c) { sums[index(id * p.columns) + c] += dout[c]; }
    }
    for (std::int64_t id = 0; id < p.classes; ++id) {
        Row row = numbers(p.accumulate ? p.dtable : TensorRows{}, id, p.columns);
        for (std::size_t c = 0; c < row.size(); ++c) { row[c] += p.scale * sums[index(id * p.columns) + c]; }
        put_numbers(p.dtable, id, row);
    }
}

}  // namespace heed::reference
