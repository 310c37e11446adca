// The truth that every software's result is held against before it is timed: plain loops in float64, on a sample of
// rows, written from the definition and sharing nothing with the library but the dropout generator.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <heed/random.h>

#include "problem.h"

namespace heed::bench {
namespace {

constexpr std::int64_t sampled_rows = 24;

/// Row `row` of a row-major [.., .., rows, D] tensor, with `row` counted over all leading axes.
std::vector<double> row_of(const View& view, std::int64_t row) {
    const std::int64_t size = view.extent(3);
    std::vector<double> result(static_cast<std::size_t>(size));
    for (std::int64_t d = 0; d < size; ++d) {
        const std::int64_t at = row * size + d;
        auto& value = result[static_cast<std::size_t>(d)];
        switch (view.dtype()) {
            case DType::f32: value = static_cast<double>(view.as<float>()[at]); break;
            case DType::bf16: value = static_cast<double>(view.as<bf16>()[at]); break;
            case DType::f16: value = static_cast<double>(view.as<f16>()[at]); break;
            default: value = std::numeric_limits<double>::quiet_NaN();
        }
    }
    return result;
}

double dot(const std::vector<double>& a, const std::vector<double>& b) {
    double sum = 0;
    for (std::size_t d = 0; d < a.size(); ++d) { sum += a[d] * b[d]; }
    return sum;
}

/// Largest difference and largest true value seen so far.
class Error {
public:
    void add(const std::vector<double>& truth, const std::vector<double>& got) {
        for (std::size_t d = 0; d < truth.size(); ++d) {
            const double difference = std::abs(truth[d] - got[d]);
            // A NaN must not pass for a small difference.
            difference_ = difference >= 0 ? std::max(difference_, difference) : std::numeric_limits<double>::infinity();
            largest_ = std::max(largest_, std::abs(truth[d]));
        }
    }
    double relative() const { return largest_ > 0 ? difference_ / largest_ : difference_; }

private:
    double difference_ = 0;
    double largest_ = 0;
};

struct Score {
    double value = -std::numeric_limits<double>::infinity();
    double slope = 1;  ///< derivative by the scaled dot product: that of the soft-cap
};

Score score(const Problem& problem, std::int64_t h, std::int64_t i, std::int64_t j, const std::vector<double>& q,
            const std::vector<double>& k) {
    if (!problem.visible(i, j)) { return {}; }
    const Spec& spec = problem.spec();
    Score result{problem.scale() * dot(q, k), 1};
    if (spec.softcap > 0) {
        const double tanh = std::tanh(result.value / spec.softcap);
        result = {spec.softcap * tanh, 1 - tanh * tanh};
    }
    if (problem.bias) {
        const std::int64_t plane = problem.bias.shape()[1] == 1 ? 0 : h;
        result.value += static_cast<double>(problem.bias.as<float>()[(plane * spec.queries + i) * spec.keys + j]);
    }
    if (problem.slopes) {
        const auto distance = static_cast<double>(std::abs(i + spec.keys - spec.queries - j));
        result.value -= static_cast<double>(problem.slopes.as<float>()[h]) * distance;
    }
    return result;
}

double dropout_factor(const Problem& problem, std::int64_t plane, std::int64_t i, std::int64_t j) {
    const AttentionDropout& dropout = problem.options().dropout;
    if (dropout.p == 0) { return 1; }
    const std::uint32_t word = dropout_word(dropout.seed.value_or(0), dropout.offset, static_cast<std::uint32_t>(plane),
                                            static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(j));
    return word >= dropout_threshold(dropout.p) ? 1 / (1 - dropout.p) : 0;
}

/// Rows spread over all of them, the first and the last among them.
std::vector<std::int64_t> sample(std::int64_t rows) {
    std::vector<std::int64_t> result;
    const std::int64_t count = std::min(rows, sampled_rows);
    for (std::int64_t n = 0; n < count; ++n) { result.push_back(count == 1 ? 0 : n * (rows - 1) / (count - 1)); }
    return result;
}

struct Indices {
    std::int64_t plane, b, h, i, kv_plane;
};
Indices indices(const Spec& spec, std::int64_t row) {
    const std::int64_t plane = row / spec.queries;
    const std::int64_t h = plane % spec.heads;
    const std::int64_t b = plane / spec.heads;
    return {plane, b, h, row % spec.queries, b * spec.kv_heads + h / (spec.heads / spec.kv_heads)};
}

/// Weights of one query over all keys, before dropout, and the soft-cap's derivative beside each.
std::vector<Score> weights_of(const Problem& problem, const Indices& at, const std::vector<double>& q) {
    const std::int64_t keys = problem.spec().keys;
    std::vector<Score> row(static_cast<std::size_t>(keys));
    double largest = -std::numeric_limits<double>::infinity();
    for (std::int64_t j = 0; j < keys; ++j) {
        if (!problem.visible(at.i, j)) { continue; }
        Score& x = row[static_cast<std::size_t>(j)];
        x = score(problem, at.h, at.i, j, q, row_of(problem.k[0], at.kv_plane * keys + j));
        largest = std::max(largest, x.value);
    }
    double sum = 0;
    for (Score& x : row) { sum += x.value = std::isinf(x.value) ? 0 : std::exp(x.value - largest); }
    for (Score& x : row) { x.value = sum > 0 ? x.value / sum : 0; }
    return row;
}

}  // namespace

double forward_error(const Problem& problem, const View& out) {
    const Spec& spec = problem.spec();
    Error error;
    for (const std::int64_t row : sample(spec.batch * spec.heads * spec.queries)) {
        const Indices at = indices(spec, row);
        const std::vector<Score> weights = weights_of(problem, at, row_of(problem.q, row));
        std::vector<double> truth(static_cast<std::size_t>(spec.head_size));
        for (std::int64_t j = 0; j < spec.keys; ++j) {
            const double w = weights[static_cast<std::size_t>(j)].value * dropout_factor(problem, at.plane, at.i, j);
            if (w == 0) { continue; }
            const std::vector<double> v = row_of(problem.v[0], at.kv_plane * spec.keys + j);
            for (std::size_t d = 0; d < truth.size(); ++d) { truth[d] += w * v[d]; }
        }
        error.add(truth, row_of(out, row));
    }
    return error.relative();
}

double backward_error(const Problem& problem, const View& dq, const View& dk, const View& dv) {
    const Spec& spec = problem.spec();
    const double scale = problem.scale();
    Error dq_error;
    for (const std::int64_t row : sample(spec.batch * spec.heads * spec.queries)) {
        const Indices at = indices(spec, row);
        const std::vector<Score> weights = weights_of(problem, at, row_of(problem.q, row));
        const std::vector<double> dout = row_of(problem.dout, row);
        // dP = dO V^T (through dropout), delta = sum_j P dP, dS = P (dP - delta)
        std::vector<double> dp(weights.size());
        double delta = 0;
        for (std::int64_t j = 0; j < spec.keys; ++j) {
            const auto n = static_cast<std::size_t>(j);
            if (weights[n].value == 0) { continue; }
            dp[n] = dot(dout, row_of(problem.v[0], at.kv_plane * spec.keys + j)) *
                    dropout_factor(problem, at.plane, at.i, j);
            delta += weights[n].value * dp[n];
        }
        std::vector<double> truth(dout.size());
        for (std::int64_t j = 0; j < spec.keys; ++j) {
            const auto n = static_cast<std::size_t>(j);
            if (weights[n].value == 0) { continue; }
            const double ds = weights[n].value * (dp[n] - delta) * weights[n].slope * scale;
            const std::vector<double> k = row_of(problem.k[0], at.kv_plane * spec.keys + j);
            for (std::size_t d = 0; d < truth.size(); ++d) { truth[d] += ds * k[d]; }
        }
        dq_error.add(truth, row_of(dq, row));
    }

    // A key's gradients gather from every query of its group; lse and delta come from the forward result, which
    // forward_error has been over.
    Error dk_error;
    Error dv_error;
    const std::int64_t group = spec.heads / spec.kv_heads;
    for (const std::int64_t key_row : sample(spec.batch * spec.kv_heads * spec.keys)) {
        const std::int64_t j = key_row % spec.keys;
        const std::int64_t kv_plane = key_row / spec.keys;
        const std::vector<double> k = row_of(problem.k[0], key_row);
        const std::vector<double> v = row_of(problem.v[0], key_row);
        std::vector<double> true_dk(k.size());
        std::vector<double> true_dv(v.size());
        for (std::int64_t member = 0; member < group; ++member) {
            const std::int64_t h = kv_plane % spec.kv_heads * group + member;
            const std::int64_t plane = kv_plane / spec.kv_heads * spec.heads + h;
            for (std::int64_t i = 0; i < spec.queries; ++i) {
                if (!problem.visible(i, j)) { continue; }
                const std::int64_t row = plane * spec.queries + i;
                const std::vector<double> q = row_of(problem.q, row);
                const std::vector<double> dout = row_of(problem.dout, row);
                const Score x = score(problem, h, i, j, q, k);
                const double p = std::exp(x.value - static_cast<double>(problem.lse.as<float>()[row]));
                const double factor = dropout_factor(problem, plane, i, j);
                const double delta = dot(dout, row_of(problem.out, row));
                const double ds = p * (dot(dout, v) * factor - delta) * x.slope * scale;
                for (std::size_t d = 0; d < k.size(); ++d) {
                    true_dk[d] += ds * q[d];
                    true_dv[d] += p * factor * dout[d];
                }
            }
        }
        dk_error.add(true_dk, row_of(dk, key_row));
        dv_error.add(true_dv, row_of(dv, key_row));
    }
    return std::max({dq_error.relative(), dk_error.relative(), dv_error.relative()});
}

}  // namespace heed::bench
