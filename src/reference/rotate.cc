#include "reference/rotate.h"

#include "reference/rows.h"

namespace heed::reference {
namespace {

/// x [D] turned by row t of the tables.
Row turned(const RotateProblem& p, Row x, std::int64_t b, std::int64_t t) {
    const std::int64_t cosines = p.row(p.cosine, b, t);
    const std::int64_t sines = p.row(p.sine, b, t);
    for (std::int64_t i = 0; i < p.pairs(); ++i) {
        const double c = read_number(p.cosine.dtype(), p.cosine.data(), cosines + i * p.cosine.stride(2));
        const double s = read_number(p.sine.dtype(), p.sine.data(), sines + i * p.sine.stride(2));
        const double sine = p.back ? -s : s;
        double& first = x[index(p.pairing == Pairing::interleaved ? 2 * i : i)];
        double& second = x[index(p.pairing == Pairing::interleaved ? 2 * i + 1 : i + p.pairs())];
        const double a = first;
        const double y = second;
        first = a * c - y * sine;
        second = a * sine + y * c;
    }
    return x;
}

}  // namespace

void rotate(const RotateProblem& p) {
    for (std::int64_t b = 0; b < p.x.extent(0); ++b) {
        for (std::int64_t h = 0; h < p.x.extent(1); ++h) {
            for (std::int64_t t = 0; t < p.x.extent(2); ++t) {
                put_row(p.out, b, h, t, turned(p, row_of(p.x, b, h, t), b, t));
            }
        }
    }
}

}  // namespace heed::reference
