#pragma once
#include <heed/inspect.h>

#include "kernel/attention_problem.h"

#include <vector>

/// What is made of rows of attention weights, one row at a time. Weight is float or double.

namespace heed::cpu {

/// weights[0, keys) to element `at` of `to` and those behind it along the last axis; 0 from there to its end.
template <class Weight>
void store_weights(const Weight* weights, std::int64_t keys, const MutableView& to, std::int64_t at);

struct RowSummary {
    double entropy = 0, max_weight = 0, window_mass = 0, first_mass = 0;
    std::int64_t argmax = -1;
};
/// Of row i of a sequence; zeros where it is past the queries.
template <class Weight>
RowSummary summarise(const AttentionProblem& problem, const Sequence& s, const Window& window, std::int64_t i,
                     const Weight* weights);

/// A map of [queries, keys] weights in few cells: cell n of N over E entries is
/// [floor(n * E / N), ceil((n + 1) * E / N)), so that neighbours may share one.
class PooledMap {
public:
    struct Sizes {
        std::int64_t height = 0, width = 0, queries = 0, keys = 0;
    };
    PooledMap(Pooling pooling, const Sizes& sizes);

    /// Row i, of which keys [0, count) are given and the others 0.
    template <class Weight>
    void add_row(std::int64_t i, const Weight* weights, std::int64_t count);
    double value(std::int64_t y, std::int64_t x) const;

private:
    double pooled(double so_far, double value) const;

    Pooling pooling_;
    Sizes z_;
    std::vector<double> cells_, row_;
};

}  // namespace heed::cpu
