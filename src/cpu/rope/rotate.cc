#include "cpu/rope/rotate.h"

#include <algorithm>

namespace heed::cpu {
namespace {

/// Memory of a worker: cosines and sines of a token, and one row.
struct RotateSpace {
    float* cosine;
    float* sine;
    float* row;
};

/// A row of a table as float32; the other way round where `minus`.
void load_table(const View& table, std::int64_t row, std::int64_t count, bool minus, float* to) {
    dispatch_float(table.dtype(), [&]<class T>() {
        const T* from = static_cast<const T*>(table.data()) + row;
        const std::int64_t stride = table.stride(2);
        for (std::int64_t i = 0; i < count; ++i) { to[i] = static_cast<float>(from[i * stride]); }
    });
    for (std::int64_t i = 0; minus && i < count; ++i) { to[i] = -to[i]; }
}

/// The row in `space`, rotated where it lies.
void turn_row(const RotateSpace& space, std::int64_t pairs, bool interleaved) {
    float* row = space.row;
    for (std::int64_t i = 0; interleaved && i < pairs; ++i) {
        const float a = row[2 * i];
        const float b = row[2 * i + 1];
        row[2 * i] = a * space.cosine[i] - b * space.sine[i];
        row[2 * i + 1] = a * space.sine[i] + b * space.cosine[i];
    }
    for (std::int64_t i = 0; !interleaved && i < pairs; ++i) {
        const float a = row[i];
        const float b = row[i + pairs];
        row[i] = a * space.cosine[i] - b * space.sine[i];
        row[i + pairs] = a * space.sine[i] + b * space.cosine[i];
    }
}

/// All heads of token t.
template <class From, class To>
void turn_token(const RotateProblem& p, std::int64_t b, std::int64_t t, const RotateSpace& space) {
    const std::int64_t size = p.in_place ? 2 * p.pairs() : p.x.extent(3);
    for (std::int64_t h = 0; h < p.x.extent(1); ++h) {
        const From* from =
            static_cast<const From*>(p.x.data()) + b * p.x.stride(0) + h * p.x.stride(1) + t * p.x.stride(2);
        To* to = static_cast<To*>(p.out.data()) + b * p.out.stride(0) + h * p.out.stride(1) + t * p.out.stride(2);
        const std::int64_t from_stride = p.x.stride(3);
        const std::int64_t to_stride = p.out.stride(3);
        for (std::int64_t c = 0; c < size; ++c) { space.row[c] = static_cast<float>(from[c * from_stride]); }
        turn_row(space, p.pairs(), p.pairing == Pairing::interleaved);
        for (std::int64_t c = 0; c < size; ++c) { to[c * to_stride] = static_cast<To>(space.row[c]); }
    }
}

void rotate(detail::Place& place, const RotateProblem& p) {
    const std::int64_t tokens = p.x.extent(2);
    constexpr std::int64_t block = 16;
    const std::int64_t blocks = (tokens + block - 1) / block;
    constexpr std::int64_t worth_sharing = std::int64_t{1} << 16;
    const auto bytes = static_cast<std::size_t>(2 * p.pairs() + p.x.extent(3)) * sizeof(float);
    detail::parallel(*place.pool, p.x.extent(0) * blocks, p.x.shape().elements() >= worth_sharing,
                     [&](std::int64_t task, int worker) {
                         float* memory = static_cast<float*>(place.pool->scratch(worker).at_least(bytes));
                         const RotateSpace space{memory, memory + p.pairs(), memory + 2 * p.pairs()};
                         const std::int64_t b = task / blocks;
                         const std::int64_t begin = task % blocks * block;
                         for (std::int64_t t = begin; t < std::min(tokens, begin + block); ++t) {
                             load_table(p.cosine, p.row(p.cosine, b, t), p.pairs(), false, space.cosine);
                             load_table(p.sine, p.row(p.sine, b, t), p.pairs(), p.back, space.sine);
                             dispatch_float(p.x.dtype(), [&]<class From>() {
                                 if (p.out.dtype() == p.x.dtype()) {
                                     turn_token<From, From>(p, b, t, space);
                                 } else {
                                     turn_token<From, float>(p, b, t, space);
                                 }
                             });
                         }
                     });
}

}  // namespace

Kernel<RotateProblem> rotate_kernel() {
    return {
        .name = "cpu",
        .what = "rows in float32, any CPU",
        .declines =
            [](const RotateProblem& p) { return p.x.dtype() == DType::f64 ? "float64 is for the reference" : nullptr; },
        .forward = rotate};
}

}  // namespace heed::cpu
