#include "reference/rope.h"

#include <cmath>
#include <vector>

namespace heed::reference {
namespace {

template <class AnyView>
std::int64_t row_offset(const AnyView& view, std::int64_t b, std::int64_t h, std::int64_t t) {
    return b * view.stride(0) + h * view.stride(1) + t * view.stride(2);
}

}  // namespace

void rope(const RopeProblem& p) {
    const std::int64_t pairs = p.pairs();
    const bool interleaved = p.pairing == Pairing::interleaved;
    std::vector<double> cosine(p.frequencies.size());
    std::vector<double> sine(p.frequencies.size());
    for (std::int64_t b = 0; b < p.x.extent(0); ++b) {
        for (std::int64_t t = 0; t < p.x.extent(2); ++t) {
            const auto position = static_cast<double>(p.position(b, t));
            for (std::size_t i = 0; i < p.frequencies.size(); ++i) {
                cosine[i] = p.factor * std::cos(position * p.frequencies[i]);
                sine[i] = p.factor * std::sin(position * p.frequencies[i]);
            }
            for (std::int64_t h = 0; h < p.x.extent(1); ++h) {
                const std::int64_t from = row_offset(p.x, b, h, t);
                const std::int64_t to = row_offset(p.out, b, h, t);
                const auto read = [&](std::int64_t c) {
                    return read_number(p.x.dtype(), p.x.data(), from + c * p.x.stride(3));
                };
                const auto write = [&](std::int64_t c, double value) {
                    write_number(p.out.dtype(), p.out.data(), to + c * p.out.stride(3), value);
                };
                for (std::int64_t i = 0; i < pairs; ++i) {
                    const std::int64_t first = interleaved ? 2 * i : i;
                    const std::int64_t second = interleaved ? 2 * i + 1 : i + pairs;
                    const double x = read(first);
                    const double y = read(second);
                    const auto pair = static_cast<std::size_t>(i);
                    write(first, x * cosine[pair] - y * sine[pair]);
                    write(second, x * sine[pair] + y * cosine[pair]);
                }
                for (std::int64_t c = 2 * pairs; c < p.x.extent(3) && !p.in_place; ++c) { write(c, read(c)); }
            }
        }
    }
}

}  // namespace heed::reference
