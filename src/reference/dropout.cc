#include "reference/dropout.h"

#include <heed/random.h>

#include "reference/numbers.h"

namespace heed::reference {

void dropout(const DropoutProblem& p, std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
        Row out = numbers(p.x, row, p.shape.columns);
        for (std::size_t c = 0; c < out.size(); ++c) {
            const std::uint32_t word = dropout_word(p.seed, p.offset, static_cast<std::uint32_t>(row >> 32),
                                                    static_cast<std::uint32_t>(row), static_cast<std::uint32_t>(c));
            out[c] = word >= p.threshold ? out[c] * p.scale : 0;
        }
        add(out, 1, numbers(p.residual, row, p.shape.columns));
        put_numbers(p.out, row, out);
    }
}

}  // namespace heed::reference
