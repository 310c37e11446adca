/// Slices of reference/positions.cc, shared out among threads.

#include "reference/positions.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace heed::reference {

std::int64_t bucket_of(std::int64_t distance, const RelativeBuckets& buckets) {
    const std::int64_t n = buckets.bidirectional ? buckets.count / 2 : buckets.count;
    const std::int64_t exact = n / 2;
    const std::int64_t base = buckets.bidirectional && distance > 0 ? n : 0;
    const std::int64_t away = buckets.bidirectional && distance > 0 ? distance : std::max<std::int64_t>(-distance, 0);
    if (away < exact) { return base + away; }
    if (away >= buckets.max_distance) { return base + n - 1; }
    // In float32, because the models were trained with what it rounds to.
    const auto whole = static_cast<float>(exact);
    const auto span =
        static_cast<float>(std::log(static_cast<double>(buckets.max_distance) / static_cast<double>(exact)));
    const float share = std::log(static_cast<float>(away) / whole) / span * static_cast<float>(n - exact);
    return base + std::min(n - 1, exact + static_cast<std::int64_t>(share));
}

namespace {

/// Waking threads costs more than so many numbers.
constexpr std::int64_t positions_worth_sharing = std::int64_t{1} << 14;

/// The buckets of near distances, looked up; logarithms are for the far ones.
class BucketTable {
public:
    explicit BucketTable(const RelativeBuckets& rule) : rule_(rule) {
        reach_ = std::min(rule.max_distance, std::int64_t{4096});
        for (std::int64_t d = -reach_; d <= reach_; ++d) { near_.push_back(bucket_of(d, rule)); }
    }
    std::int64_t operator()(std::int64_t distance) const {
        if (distance < -reach_ || distance > reach_) { return bucket_of(distance, rule_); }
        return near_[static_cast<std::size_t>(distance + reach_)];
    }

private:
    RelativeBuckets rule_;
    std::int64_t reach_ = 0;
    std::vector<std::int64_t> near_;
};

/// bucket[j] of query i against every key.
void buckets_of(const RelativeBiasProblem& p, std::int64_t b, std::int64_t i, const BucketTable& rule,
                std::int64_t* bucket) {
    const std::int64_t from = p.query(b, i);
    for (std::int64_t j = 0; j < p.keys; ++j) { bucket[j] = rule(p.key(b, j) - from); }
}

void sinusoids(detail::Place& place, const SinusoidProblem& p) {
    const bool large = p.out.shape().elements() >= positions_worth_sharing;
    detail::parallel(*place.pool, p.out.extent(0), large,
                     [&](std::int64_t t, int) { sinusoid_row(p.out, t, p.position(t), p.options); });
}

void learned(detail::Place& place, const LearnedProblem& p) {
    const std::int64_t length = p.out.extent(1);
    const bool large = p.out.shape().elements() >= positions_worth_sharing;
    detail::parallel(*place.pool, static_cast<std::int64_t>(p.rows.size()), large, [&](std::int64_t token, int) {
        learned_row(p.table, p.rows[static_cast<std::size_t>(token)], p.out, token / length, token % length, p.add);
    });
}

void learned_backward(detail::Place& place, const LearnedProblem& p) {
    // Tokens in the order of the rows they read: every row is one sum, in one order, whoever computes it.
    std::vector<std::int64_t> begin(static_cast<std::size_t>(p.dtable.extent(0)) + 1);
    for (const std::int64_t row : p.rows) { ++begin[static_cast<std::size_t>(row) + 1]; }
    std::partial_sum(begin.begin(), begin.end(), begin.begin());
    std::vector<std::int64_t> next(begin.begin(), begin.end() - 1);
    std::vector<std::int64_t> tokens(p.rows.size());
    for (std::size_t token = 0; token < p.rows.size(); ++token) {
        tokens[static_cast<std::size_t>(next[static_cast<std::size_t>(p.rows[token])]++)] =
            static_cast<std::int64_t>(token);
    }
    const bool large =
        p.dout.shape().elements() >= positions_worth_sharing || p.dtable.shape().elements() >= positions_worth_sharing;
    detail::parallel(*place.pool, p.dtable.extent(0), large, [&](std::int64_t row, int) {
        const std::int64_t from = begin[static_cast<std::size_t>(row)];
        const std::int64_t count = begin[static_cast<std::size_t>(row) + 1] - from;
        if (count == 0 && p.add) { return; }
        learned_row_backward(p.dout, tokens.data() + from, count, p.dtable, row, p.add);
    });
}

/// Waking threads costs more than so many entries of a bias.
constexpr std::int64_t bias_worth_sharing = std::int64_t{1} << 14;

void relative_bias(detail::Place& place, const RelativeBiasProblem& p) {
    const BucketTable rule(p.buckets);
    const bool large = p.bias.shape().elements() >= bias_worth_sharing;
    detail::parallel(*place.pool, p.batch * p.queries, large, [&](std::int64_t row, int worker) {
        const std::int64_t b = row / p.queries;
        const std::int64_t i = row % p.queries;
        auto* bucket = static_cast<std::int64_t*>(
            place.pool->scratch(worker).at_least(static_cast<std::size_t>(p.keys) * sizeof(std::int64_t)));
        buckets_of(p, b, i, rule, bucket);
        for (std::int64_t h = 0; h < p.heads; ++h) { relative_bias_row(p.table, p.bias, b, h, i, bucket); }
    });
}

void relative_bias_backward(detail::Place& place, const RelativeBiasProblem& p) {
    const BucketTable rule(p.buckets);
    // One head a task: its sums are made in one order, whoever makes them.
    const auto count = static_cast<std::size_t>(p.buckets.count);
    const bool large = p.dbias.shape().elements() >= bias_worth_sharing;
    detail::parallel(*place.pool, p.heads, large, [&](std::int64_t h, int worker) {
        auto* sum = static_cast<double*>(place.pool->scratch(worker).at_least(
            count * sizeof(double) + static_cast<std::size_t>(p.keys) * sizeof(std::int64_t)));
        auto* bucket = reinterpret_cast<std::int64_t*>(sum + count);
        std::fill_n(sum, count, 0.0);
        for (std::int64_t b = 0; b < p.batch; ++b) {
            for (std::int64_t i = 0; i < p.queries; ++i) {
                buckets_of(p, b, i, rule, bucket);
                relative_bias_row_backward(p.dbias, b, h, i, bucket, sum);
            }
        }
        for (std::size_t n = 0; n < count; ++n) {
            write_number(p.dtable.dtype(), p.dtable.data(),
                         static_cast<std::int64_t>(n) * p.dtable.stride(0) + h * p.dtable.stride(1), sum[n]);
        }
    });
}

}  // namespace

Kernel<SinusoidProblem> sinusoid_kernel() { return reference_kernel<SinusoidProblem>(sinusoids); }

Kernel<LearnedProblem> learned_kernel() { return reference_kernel<LearnedProblem>(learned, learned_backward); }

Kernel<RelativeBiasProblem> relative_bias_kernel() {
    return reference_kernel<RelativeBiasProblem>(relative_bias, relative_bias_backward);
}

}  // namespace heed::reference
