#include "cpu/inspect.h"

#include "base/dispatch.h"
#include "cpu/entropy.h"

#include <algorithm>
#include <type_traits>

namespace heed::cpu {
namespace {

std::int64_t first_of_cell(std::int64_t n, std::int64_t extent, std::int64_t cells) { return n * extent / cells; }
std::int64_t behind_cell(std::int64_t n, std::int64_t extent, std::int64_t cells) {
    return ((n + 1) * extent + cells - 1) / cells;
}

template <class Weight>
double window_mass(const AttentionProblem& problem, const Sequence& s, const Window& window, std::int64_t i,
                   const Weight* weights) {
    double mass = 0;
    const std::int64_t p = problem.query_position(s, i);
    if (problem.options.key_positions) {
        for (std::int64_t j = 0; j < s.keys; ++j) {
            const std::int64_t at = problem.key_position(s, j);
            const bool inside =
                (window.left < 0 || at >= p - window.left) && (window.right < 0 || at <= p + window.right);
            if (inside) { mass += weights[j]; }
        }
        return mass;
    }
    // Positions are indices: one run of keys.
    const std::int64_t begin = window.left < 0 ? 0 : std::clamp<std::int64_t>(p - window.left, 0, s.keys);
    const std::int64_t end = window.right < 0 ? s.keys : std::clamp<std::int64_t>(p + window.right + 1, 0, s.keys);
    for (std::int64_t j = begin; j < end; ++j) { mass += weights[j]; }
    return mass;
}

}  // namespace

template <class Weight>
void store_weights(const Weight* weights, std::int64_t keys, const MutableView& to, std::int64_t at) {
    const std::int64_t all = to.extent(to.rank() - 1), stride = to.stride(to.rank() - 1);
    if constexpr (std::is_same_v<Weight, float>) {
        if (to.dtype() == DType::f32 && stride == 1) {
            float* target = to.as<float>() + at;
            std::fill(std::copy_n(weights, keys, target), target + all, 0.0F);
            return;
        }
    }
    for (std::int64_t j = 0; j < all; ++j) {
        write_number(to.dtype(), to.data(), at + j * stride, j < keys ? weights[j] : 0);
    }
}

template <class Weight>
RowSummary summarise(const AttentionProblem& problem, const Sequence& s, const Window& window, std::int64_t i,
                     const Weight* weights) {
    RowSummary summary;
    if (i >= s.queries) { return summary; }
    summary.entropy = entropy(weights, s.keys);
    for (std::int64_t j = 0; j < s.keys; ++j) {
        if (weights[j] > summary.max_weight) {
            summary.max_weight = weights[j];
            summary.argmax = j;
        }
    }
    summary.window_mass = window_mass(problem, s, window, i, weights);
    if (s.keys > 0) { summary.first_mass = weights[0]; }
    return summary;
}

PooledMap::PooledMap(Pooling pooling, const Sizes& sizes)
    : pooling_(pooling),
      z_(sizes),
      cells_(static_cast<std::size_t>(z_.height * z_.width), 0),
      row_(static_cast<std::size_t>(z_.width), 0) {}

double PooledMap::pooled(double so_far, double value) const {
    return pooling_ == Pooling::mean ? so_far + value : std::max(so_far, value);
}

template <class Weight>
void PooledMap::add_row(std::int64_t i, const Weight* weights, std::int64_t count) {
    for (std::int64_t x = 0; x < z_.width; ++x) {
        double value = 0;
        const std::int64_t end = std::min(count, behind_cell(x, z_.keys, z_.width));
        for (std::int64_t j = first_of_cell(x, z_.keys, z_.width); j < end; ++j) { value = pooled(value, weights[j]); }
        row_[static_cast<std::size_t>(x)] = value;
    }
    // The cells of row i: those whose range holds it.
    const std::int64_t end = std::min(behind_cell(i, z_.height, z_.queries), z_.height);
    for (std::int64_t y = first_of_cell(i, z_.height, z_.queries); y < end; ++y) {
        for (std::int64_t x = 0; x < z_.width; ++x) {
            double& cell = cells_[static_cast<std::size_t>(y * z_.width + x)];
            cell = pooled(cell, row_[static_cast<std::size_t>(x)]);
        }
    }
}

double PooledMap::value(std::int64_t y, std::int64_t x) const {
    const double sum = cells_[static_cast<std::size_t>(y * z_.width + x)];
    const auto size = [](std::int64_t n, std::int64_t extent, std::int64_t cells) {
        return behind_cell(n, extent, cells) - first_of_cell(n, extent, cells);
    };
    const std::int64_t area = size(y, z_.queries, z_.height) * size(x, z_.keys, z_.width);
    return pooling_ == Pooling::mean && area > 0 ? sum / static_cast<double>(area) : sum;
}

template void store_weights(const float*, std::int64_t, const MutableView&, std::int64_t);
template void store_weights(const double*, std::int64_t, const MutableView&, std::int64_t);
template RowSummary summarise(const AttentionProblem&, const Sequence&, const Window&, std::int64_t, const float*);
template RowSummary summarise(const AttentionProblem&, const Sequence&, const Window&, std::int64_t, const double*);
template void PooledMap::add_row(std::int64_t, const float*, std::int64_t);
template void PooledMap::add_row(std::int64_t, const double*, std::int64_t);

}  // namespace heed::cpu
