#include "reference/rotate.h"

#include "reference/rows.h"

#include <cmath>

namespace heed::reference {
namespace {

/// x [D] rotated by row t of the tables.
Row rotated(const RotateProblem& p, Row x, std::int64_t b, std::int64_t t) {
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

/// Positions [T] or [B,T] of an axis at token t.
double position_of(const View& positions, std::int64_t b, std::int64_t t) {
    const bool shared = positions.rank() == 1;
    const std::int64_t at = shared ? t * positions.stride(0) : b * positions.stride(0) + t * positions.stride(1);
    const DType type = positions.dtype();
    return type == DType::i64 || type == DType::i32 ? static_cast<double>(read_integer(type, positions.data(), at))
                                                    : read_number(type, positions.data(), at);
}

/// What xPos multiplies pair `pair` by, at a position of the first axis.
double xpos_factor(const Xpos& xpos, std::int64_t pair, std::int64_t pairs, double position) {
    const double z = (static_cast<double>(pair) / static_cast<double>(pairs) + xpos.gamma) / (1 + xpos.gamma);
    const double power = (position - xpos.centre) / xpos.scale_base;
    return std::pow(z, xpos.keys ? -power : power);
}

}  // namespace

void rotary_tables(const RotaryTablesProblem& p) {
    const std::int64_t pairs = p.cosine.extent(2);
    const auto put = [](const MutableView& to, std::int64_t b, std::int64_t t, std::int64_t pair, double value) {
        write_number(to.dtype(), to.data(), b * to.stride(0) + t * to.stride(1) + pair * to.stride(2), value);
    };
    for (std::int64_t b = 0; b < p.cosine.extent(0); ++b) {
        for (std::int64_t t = 0; t < p.cosine.extent(1); ++t) {
            const double first = position_of(p.axes.front().positions, b, t);
            std::int64_t pair = 0;
            for (const RotaryAxis& axis : p.axes) {
                const double position = position_of(axis.positions, b, t);
                for (const double frequency : axis.table.frequencies) {
                    double size = axis.table.attention_factor;
                    if (p.xpos) { size *= xpos_factor(*p.xpos, pair, pairs, first); }
                    put(p.cosine, b, t, pair, size * std::cos(position * frequency));
                    put(p.sine, b, t, pair, size * std::sin(position * frequency));
                    ++pair;
                }
            }
        }
    }
}

void rotate(const RotateProblem& p) {
    for (std::int64_t b = 0; b < p.x.extent(0); ++b) {
        for (std::int64_t h = 0; h < p.x.extent(1); ++h) {
            for (std::int64_t t = 0; t < p.x.extent(2); ++t) {
                put_row(p.out, b, h, t, rotated(p, row_of(p.x, b, h, t), b, t));
            }
        }
    }
}

}  // namespace heed::reference
