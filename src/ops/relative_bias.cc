#include <heed/embedding.h>
#include <heed/positions.h>

#include "base/dispatch.h"
#include "ops/attention_checks.h"
#include "ops/host_copy.h"
#include "ops/positions_checks.h"
#include "reference/positions.h"

#include <algorithm>
#include <limits>

namespace heed {
namespace {

void check_buckets(Caller function, const RelativeBuckets& buckets) {
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

RelativeBiasProblem checked(Caller function, const char* name, const View& bias, const char* table_name,
                            const View& table, const RelativeBiasOptions& options) {
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
    RelativeBiasProblem grid;
    grid.batch = bias.extent(0);
    grid.heads = bias.extent(1);
    grid.queries = bias.extent(2);
    grid.keys = bias.extent(3);
    grid.align = options.align;
    grid.buckets = options.buckets;
    grid.query_positions =
        checked_positions(function, "query_positions", options.query_positions, grid.batch, grid.queries);
    grid.key_positions = checked_positions(function, "key_positions", options.key_positions, grid.batch, grid.keys);
    return grid;
}

std::span<const Kernel<RelativeBiasProblem>> relative_bias_kernels() {
    static const std::vector<Kernel<RelativeBiasProblem>> list = {reference::relative_bias_kernel()};
    return list;
}

/// On a GPU the bias is rows of the table by bucket, which the host counts.
Shape grid_shape(const RelativeBiasProblem& grid) { return {grid.batch, grid.queries, grid.keys}; }

std::vector<std::int64_t> buckets_of(const RelativeBiasProblem& grid) {
    std::vector<std::int64_t> ids;
    ids.reserve(static_cast<std::size_t>(grid_shape(grid).elements()));
    for (std::int64_t b = 0; b < grid.batch; ++b) {
        for (std::int64_t t = 0; t < grid.queries; ++t) {
            for (std::int64_t s = 0; s < grid.keys; ++s) {
                ids.push_back(reference::bucket_of(grid.key(b, s) - grid.query(b, t), grid.buckets));
            }
        }
    }
    return ids;
}

}  // namespace

std::int64_t relative_bucket(std::int64_t distance, const RelativeBuckets& buckets) {
    check_buckets("relative_bucket", buckets);
    return reference::bucket_of(std::max(distance, -std::numeric_limits<std::int64_t>::max()), buckets);
}

void relative_bias(Context& context, const View& table, const MutableView& bias, const RelativeBiasOptions& options) {
    const Caller function("relative_bias", context);
    RelativeBiasProblem grid = checked(function, "bias", bias, "table", table, options);
    check_output(function, "bias", bias, bias.shape(), float_types);
    check_disjoint(function, "bias", bias, "table", table);
    check_disjoint(function, "bias", bias, "query_positions", options.query_positions);
    check_disjoint(function, "bias", bias, "key_positions", options.key_positions);
    if (bias.shape().elements() == 0) { return; }
    if (!on_host(context)) {
        const std::vector<std::int64_t> ids = buckets_of(grid);
        embedding(context, View(ids.data(), grid_shape(grid)), table, bias.permute({0, 2, 3, 1}));
        return;
    }
    grid.table = table;
    grid.bias = bias;
    run_forward(context, relative_bias_kernels(), {function}, grid);
}

void relative_bias_backward(Context& context, const View& dbias, const MutableView& dtable,
                            const RelativeBiasOptions& options) {
    const Caller function("relative_bias_backward", context);
    RelativeBiasProblem grid = checked(function, "dbias", dbias, "dtable", dtable, options);
    check_output(function, "dtable", dtable, dtable.shape(), {DType::f32, DType::f64});
    check_disjoint(function, "dtable", dtable, "dbias", dbias);
    check_disjoint(function, "dtable", dtable, "query_positions", options.query_positions);
    check_disjoint(function, "dtable", dtable, "key_positions", options.key_positions);
    if (!on_host(context)) {
        const std::vector<std::int64_t> ids = buckets_of(grid);
        embedding_backward(context, View(ids.data(), grid_shape(grid)), dbias.permute({0, 2, 3, 1}), dtable);
        return;
    }
    grid.dbias = dbias;
    grid.dtable = dtable;
    run_backward(context, relative_bias_kernels(), {function}, grid);
}

}  // namespace heed
