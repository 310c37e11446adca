#include <heed/positions.h>

#include "base/dispatch.h"
#include "base/pool.h"
#include "ops/attention_checks.h"
#include "ops/positions_checks.h"
#include "reference/positions.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace heed {
namespace {

void check_buckets(const char* function, const RelativeBuckets& buckets) {
    constexpr std::int64_t most = std::int64_t{1} << 30;
    const std::int64_t least = buckets.bidirectional ? 4 : 2;
    if (buckets.count < least || buckets.count > most || (buckets.bidirectional && buckets.count % 2 != 0)) {
        refuse(function, "buckets.count", buckets.bidirectional ? "an even number from 4 to 2^30" : "2 to 2^30",
               std::to_string(buckets.count));
    }
    const std::int64_t exact = buckets.count / (buckets.bidirectional ? 4 : 2);
    if (buckets.max_distance <= exact || buckets.max_distance > most) {
        refuse(function, "buckets.max_distance",
               "more than the " + std::to_string(exact) + " distances with a bucket each, up to 2^30",
               std::to_string(buckets.max_distance));
    }
}

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

/// A checked bias and where its queries and keys stand.
struct Grid {
    std::int64_t batch, heads, queries, keys;
    View query_positions, key_positions;
    Align align;

    static std::int64_t at(const View& view, std::int64_t b, std::int64_t n) {
        const std::int64_t row = view.extent(0) == 1 ? 0 : b;
        return read_integer(view.dtype(), view.data(), row * view.stride(0) + n * view.stride(1));
    }
    std::int64_t query(std::int64_t b, std::int64_t i) const {
        if (query_positions) { return at(query_positions, b, i); }
        return align == Align::bottom_right ? i + keys - queries : i;
    }
    std::int64_t key(std::int64_t b, std::int64_t j) const { return key_positions ? at(key_positions, b, j) : j; }

    /// bucket[j] of query i against every key.
    void buckets(std::int64_t b, std::int64_t i, const BucketTable& rule, std::int64_t* bucket) const {
        const std::int64_t p = query(b, i);
        for (std::int64_t j = 0; j < keys; ++j) { bucket[j] = rule(key(b, j) - p); }
    }
};

Grid checked(const char* function, const char* name, const View& bias, const char* table_name, const View& table,
             const RelativeBiasOptions& options) {
    const auto tensor = [&](const char* argument, const View& view, int rank, const char* axes) {
        if (!view || view.rank() != rank) { refuse(function, argument, axes, view ? to_string(view.shape()) : "none"); }
        check_dtype(function, argument, view, float_types);
        check_memory(function, argument, view);
    };
    tensor(name, bias, 4, "4 axes [B,H,T,S]");
    tensor(table_name, table, 2, "2 axes [buckets,H]");
    check_buckets(function, options.buckets);
    if (options.align != Align::bottom_right && options.align != Align::top_left) {
        refuse(function, "align", "bottom_right or top_left", std::to_string(static_cast<int>(options.align)));
    }
    const Shape expected{options.buckets.count, bias.extent(1)};
    if (!(table.shape() == expected)) { refuse(function, table_name, to_string(expected), to_string(table.shape())); }
    Grid grid{bias.extent(0), bias.extent(1), bias.extent(2), bias.extent(3), {}, {}, options.align};
    grid.query_positions =
        checked_positions(function, "query_positions", options.query_positions, grid.batch, grid.queries);
    grid.key_positions = checked_positions(function, "key_positions", options.key_positions, grid.batch, grid.keys);
    return grid;
}

}  // namespace

std::int64_t relative_bucket(std::int64_t distance, const RelativeBuckets& buckets) {
    check_buckets("relative_bucket", buckets);
    return bucket_of(std::max(distance, -std::numeric_limits<std::int64_t>::max()), buckets);
}

void relative_bias(Context& context, const View& table, const MutableView& bias, const RelativeBiasOptions& options) {
    constexpr const char* function = "relative_bias";
    const Grid grid = checked(function, "bias", bias, "table", table, options);
    check_output(function, "bias", bias, bias.shape(), float_types);
    check_apart(function, "bias", bias, "table", table);
    check_apart(function, "bias", bias, "query_positions", options.query_positions);
    check_apart(function, "bias", bias, "key_positions", options.key_positions);
    if (bias.shape().elements() == 0) { return; }
    const BucketTable rule(options.buckets);
    detail::Pool& pool = context.pool();
    const auto lock = pool.lock();
    const bool large = bias.shape().elements() >= std::int64_t{1} << 14;
    detail::parallel(pool, grid.batch * grid.queries, large, [&](std::int64_t row, int worker) {
        const std::int64_t b = row / grid.queries;
        const std::int64_t i = row % grid.queries;
        auto* bucket = static_cast<std::int64_t*>(
            pool.scratch(worker).at_least(static_cast<std::size_t>(grid.keys) * sizeof(std::int64_t)));
        grid.buckets(b, i, rule, bucket);
        for (std::int64_t h = 0; h < grid.heads; ++h) { reference::relative_bias_row(table, bias, b, h, i, bucket); }
    });
}

void relative_bias_backward(Context& context, const View& dbias, const MutableView& dtable,
                            const RelativeBiasOptions& options) {
    constexpr const char* function = "relative_bias_backward";
    const Grid grid = checked(function, "dbias", dbias, "dtable", dtable, options);
    check_output(function, "dtable", dtable, dtable.shape(), {DType::f32, DType::f64});
    check_apart(function, "dtable", dtable, "dbias", dbias);
    check_apart(function, "dtable", dtable, "query_positions", options.query_positions);
    check_apart(function, "dtable", dtable, "key_positions", options.key_positions);
    detail::Pool& pool = context.pool();
    const auto lock = pool.lock();
    const BucketTable rule(options.buckets);
    // One head a task: its sums are made in one order, whoever makes them.
    const auto count = static_cast<std::size_t>(options.buckets.count);
    detail::parallel(
        pool, grid.heads, dbias.shape().elements() >= std::int64_t{1} << 14, [&](std::int64_t h, int worker) {
            auto* sum = static_cast<double*>(pool.scratch(worker).at_least(
                count * sizeof(double) + static_cast<std::size_t>(grid.keys) * sizeof(std::int64_t)));
            auto* bucket = reinterpret_cast<std::int64_t*>(sum + count);
            std::fill_n(sum, count, 0.0);
            for (std::int64_t b = 0; b < grid.batch; ++b) {
                for (std::int64_t i = 0; i < grid.queries; ++i) {
                    grid.buckets(b, i, rule, bucket);
                    reference::relative_bias_row_backward(dbias, b, h, i, bucket, sum);
                }
            }
            for (std::size_t n = 0; n < count; ++n) {
                write_number(dtable.dtype(), dtable.data(),
                             static_cast<std::int64_t>(n) * dtable.stride(0) + h * dtable.stride(1), sum[n]);
            }
        });
}

}  // namespace heed
