#include "reference/positions.h"

#include "base/dispatch.h"

#include <cmath>

namespace heed::reference {

void sinusoid_row(const MutableView& out, std::int64_t t, std::int64_t position, const SinusoidOptions& options) {
    const std::int64_t size = out.extent(1);
    const std::int64_t n = size / 2;
    const auto steps = static_cast<double>(options.reach_base ? (n > 1 ? n - 1 : 1) : n);
    const auto write = [&](std::int64_t c, double value) {
        write_number(out.dtype(), out.data(), t * out.stride(0) + c * out.stride(1), value);
    };
    const bool interleaved = options.layout == Pairing::interleaved;
    for (std::int64_t i = 0; i < n; ++i) {
        const double angle = static_cast<double>(position) * std::pow(options.base, -static_cast<double>(i) / steps);
        write(interleaved ? 2 * i : i, std::sin(angle));
        write(interleaved ? 2 * i + 1 : i + n, std::cos(angle));
    }
    if (size % 2 != 0) { write(size - 1, 0); }
}

void learned_row(const View& table, std::int64_t row, const MutableView& out, std::int64_t b, std::int64_t t,
                 bool add) {
    for (std::int64_t c = 0; c < table.extent(1); ++c) {
        const std::int64_t to = b * out.stride(0) + t * out.stride(1) + c * out.stride(2);
        const double value = read_number(table.dtype(), table.data(), row * table.stride(0) + c * table.stride(1));
        write_number(out.dtype(), out.data(), to, value + (add ? read_number(out.dtype(), out.data(), to) : 0));
    }
}

void learned_row_backward(const View& dout, const std::int64_t* tokens, std::int64_t count, const MutableView& dtable,
                          std::int64_t row, bool add) {
    const std::int64_t length = dout.extent(1);
    for (std::int64_t c = 0; c < dtable.extent(1); ++c) {
        const std::int64_t to = row * dtable.stride(0) + c * dtable.stride(1);
        double sum = add ? read_number(dtable.dtype(), dtable.data(), to) : 0;
        for (std::int64_t n = 0; n < count; ++n) {
            const std::int64_t b = tokens[n] / length;
            const std::int64_t t = tokens[n] % length;
            sum += read_number(dout.dtype(), dout.data(), b * dout.stride(0) + t * dout.stride(1) + c * dout.stride(2));
        }
        write_number(dtable.dtype(), dtable.data(), to, sum);
    }
}

void relative_bias_row(const View& table, const MutableView& bias, std::int64_t b, std::int64_t h, std::int64_t i,
                       const std::int64_t* bucket) {
    const std::int64_t row = b * bias.stride(0) + h * bias.stride(1) + i * bias.stride(2);
    for (std::int64_t j = 0; j < bias.extent(3); ++j) {
        write_number(bias.dtype(), bias.data(), row + j * bias.stride(3),
                     read_number(table.dtype(), table.data(), bucket[j] * table.stride(0) + h * table.stride(1)));
    }
}

void relative_bias_row_backward(const View& dbias, std::int64_t b, std::int64_t h, std::int64_t i,
                                const std::int64_t* bucket, double* sum) {
    const std::int64_t row = b * dbias.stride(0) + h * dbias.stride(1) + i * dbias.stride(2);
    for (std::int64_t j = 0; j < dbias.extent(3); ++j) {
        sum[bucket[j]] += read_number(dbias.dtype(), dbias.data(), row + j * dbias.stride(3));
    }
}

}  // namespace heed::reference
