#include <heed/inspect.h>

#include "base/overlap.h"
#include "base/place.h"
#include "cpu/inspect.h"
#include "ops/attention_checks.h"
#include "ops/attention_kernels.h"
#include "ops/host_copy.h"
#include "reference/attention.h"

#include <algorithm>
#include <numeric>
#include <type_traits>

namespace heed {
namespace {

/// Rows handed to a kernel at once: enough to fill its tiles, few enough that rows * S stays small.
constexpr std::int64_t rows_at_once = 32;

AttentionProblem checked(Caller function, const View& q, const View& k, const AttentionOptions& options) {
    AttentionProblem problem = checked_scores(function, q, k, options);
    if (problem.packed) { refuse(function, "cu_seqlens_q", "none: ask for one sequence at a time", "a tensor"); }
    return problem;
}

void check_result(Caller function, const char* name, const View& result, const Shape& shape,
                  const AttentionProblem& problem, std::initializer_list<DType> dtypes) {
    check_output(function, name, result, shape, dtypes);
    for (const View& input : {problem.q, problem.k, problem.options.bias, problem.options.allow}) {
        if (overlaps(result, input)) { refuse(function, name, "memory apart from the inputs", "an overlap"); }
    }
}

/// A chosen list, or all of 0..extent.
std::vector<std::int64_t> chosen(Caller function, const char* name, const std::vector<std::int64_t>& list,
                                 std::int64_t extent) {
    std::vector<std::int64_t> result = list;
    if (list.empty()) {
        result.resize(static_cast<std::size_t>(extent));
        std::iota(result.begin(), result.end(), std::int64_t{0});
    }
    for (const std::int64_t index : result) {
        if (index < 0 || index >= extent) {
            refuse(function, name, "indices from 0 to " + std::to_string(extent - 1), std::to_string(index));
        }
    }
    return result;
}

std::int64_t count(const std::vector<std::int64_t>& list) { return static_cast<std::int64_t>(list.size()); }

/// What a call looks at.
struct Chosen {
    std::vector<std::int64_t> batches, heads, rows;

    Chosen(Caller function, const AttentionSelection& selection, const AttentionProblem& problem)
        : batches(chosen(function, "selection.batches", selection.batches, problem.batch)),
          heads(chosen(function, "selection.heads", selection.heads, problem.heads)),
          rows(chosen(function, "selection.rows", selection.rows, problem.queries)) {}

    std::int64_t planes() const { return count(batches) * count(heads); }
    /// Places of a plane's batch entry and head in the lists.
    std::int64_t batch_place(std::int64_t plane) const { return plane / count(heads); }
    std::int64_t head_place(std::int64_t plane) const { return plane % count(heads); }
    std::int64_t batch(std::int64_t plane) const { return batches[static_cast<std::size_t>(batch_place(plane))]; }
    std::int64_t head(std::int64_t plane) const { return heads[static_cast<std::size_t>(head_place(plane))]; }
    Shape shape(std::int64_t keys) const { return {count(batches), count(heads), count(rows), keys}; }
};

/// Rows of weights in the kernel's own precision: row r is the (begin + r)-th of the chosen ones, at data + r * stride.
template <class Weight>
struct WeightBlock {
    std::int64_t plane, begin, size, keys, stride;
    const Weight* data;

    const Weight* row(std::int64_t r) const { return data + r * stride; }
};

/// Storing, summing up and pooling are no operations with kernels of their own: they take rows of weights out of a
/// kernel's tile, one block after another, so that T x S weights never exist in memory for a kernel to be given. Who
/// computes the weights is chosen from attention's list; what is made of a row is cpu/inspect.h.
///
/// Calls visit(WeightBlock) for blocks of all chosen rows. `whole_heads`: one thread sees all blocks of a head, in
/// order.
template <class Visit>
void for_each_row_block(Context& context, const AttentionProblem& problem, const AttentionKernel& kernel,
                        const Chosen& chosen, bool whole_heads, Visit visit) {
    const std::int64_t all_rows = count(chosen.rows);
    const std::int64_t blocks = (all_rows + rows_at_once - 1) / rows_at_once;
    const std::int64_t stride = std::max<std::int64_t>(problem.keys, 1);
    detail::Pool& pool = detail::pool_of(context);
    const auto lock = pool.lock();
    std::vector<std::vector<double>> memory(static_cast<std::size_t>(pool.threads()));
    const auto visit_block = [&](std::int64_t plane, std::int64_t block, int worker) {
        const std::int64_t b = chosen.batch(plane), h = chosen.head(plane);
        const std::int64_t begin = block * rows_at_once;
        const std::int64_t size = std::min(rows_at_once, all_rows - begin);
        const std::int64_t keys = problem.sequence(b).keys;
        std::vector<double>& own = memory[static_cast<std::size_t>(worker)];
        own.resize(static_cast<std::size_t>(rows_at_once * stride));
        if (kernel.wide_weights != nullptr) {
            kernel.wide_weights(problem, b, h, chosen.rows.data() + begin, size, stride, own.data());
            visit(WeightBlock<double>{plane, begin, size, keys, stride, own.data()});
        } else {
            float* narrow = reinterpret_cast<float*>(own.data());
            kernel.weights(problem, pool.scratch(worker), b, h, chosen.rows.data() + begin, size, stride, narrow);
            visit(WeightBlock<float>{plane, begin, size, keys, stride, narrow});
        }
    };
    const std::int64_t tasks = whole_heads ? chosen.planes() : chosen.planes() * blocks;
    detail::parallel(pool, tasks, true, [&](std::int64_t task, int worker) {
        if (!whole_heads) { return visit_block(task / blocks, task % blocks, worker); }
        for (std::int64_t block = 0; block < blocks; ++block) { visit_block(task, block, worker); }
    });
}

std::int64_t offset_of(const View& view, std::int64_t a, std::int64_t b, std::int64_t c) {
    return a * view.stride(0) + b * view.stride(1) + c * view.stride(2);
}

/// The kernel that looks inside; null where the context only wants to know which.
const AttentionKernel* chosen_kernel(Context& context, Caller function, const AttentionProblem& problem) {
    const Asking asking{function, problem.options.kernel};
    if (only_explains(detail::place_of(context), attention_kernel_list(), asking, problem)) { return nullptr; }
    return &choose_attention_kernel(context, function, problem);
}

}  // namespace

void attention_weights(Context& context, const View& q, const View& k, const MutableView& weights,
                       const AttentionSelection& selection, const AttentionOptions& options) {
    const Caller function("attention_weights", context);
    const AttentionProblem problem = checked(function, q, k, options);
    const Chosen chosen(function, selection, problem);
    check_result(function, "weights", weights, chosen.shape(problem.keys), problem, {DType::f32, DType::f64});
    if (!on_host(context)) {
        HostMirror mirror(context);
        attention_weights(mirror.context(), mirror.input(q), mirror.input(k), mirror.output(weights), selection,
                          mirror.input(options));
        return mirror.bring_back();
    }
    const AttentionKernel* kernel = chosen_kernel(context, function, problem);
    if (kernel == nullptr) { return; }
    for_each_row_block(context, problem, *kernel, chosen, false, [&](const auto& block) {
        for (std::int64_t r = 0; r < block.size; ++r) {
            const std::int64_t at =
                offset_of(weights, chosen.batch_place(block.plane), chosen.head_place(block.plane), block.begin + r);
            cpu::store_weights(block.row(r), block.keys, weights, at);
        }
    });
}

void visit_attention_weights(Context& context, const View& q, const View& k,
                             const std::function<void(const AttentionRows&)>& visit,
                             const AttentionSelection& selection, const AttentionOptions& options) {
    const Caller function("visit_attention_weights", context);
    if (!visit) { refuse(function, "visit", "a function", "none"); }
    const AttentionProblem problem = checked(function, q, k, options);
    const Chosen chosen(function, selection, problem);
    if (!on_host(context)) {
        HostMirror mirror(context);
        return visit_attention_weights(mirror.context(), mirror.input(q), mirror.input(k), visit, selection,
                                       mirror.input(options));
    }
    const AttentionKernel* kernel = chosen_kernel(context, function, problem);
    if (kernel == nullptr) { return; }
    for_each_row_block(context, problem, *kernel, chosen, false, [&]<class Weight>(const WeightBlock<Weight>& block) {
        AttentionRows part{
            .batch = chosen.batch(block.plane),
            .head = chosen.head(block.plane),
            .rows = std::span(chosen.rows)
                        .subspan(static_cast<std::size_t>(block.begin), static_cast<std::size_t>(block.size)),
            .stride = block.stride,
            .keys = block.keys};
        if constexpr (std::is_same_v<Weight, float>) {
            part.weights = block.data;
            visit(part);
        } else {
            const std::vector<float> narrow(block.data, block.data + block.size * block.stride);
            part.weights = narrow.data();
            visit(part);
        }
    });
}

void attention_scores(Context& context, const View& q, const View& k, const MutableView& scores, ScoreStage stage,
                      const AttentionSelection& selection, const AttentionOptions& options) {
    if (stage == ScoreStage::weight) { return attention_weights(context, q, k, scores, selection, options); }
    const Caller function("attention_scores", context);
    if (stage > ScoreStage::weight) {
        refuse(function, "stage", "product, capped, biased or weight", std::to_string(static_cast<int>(stage)));
    }
    const AttentionProblem problem = checked(function, q, k, options);
    const Chosen chosen(function, selection, problem);
    check_result(function, "scores", scores, chosen.shape(problem.keys), problem, {DType::f32, DType::f64});
    if (!on_host(context)) {
        HostMirror mirror(context);
        attention_scores(mirror.context(), mirror.input(q), mirror.input(k), mirror.output(scores), stage, selection,
                         mirror.input(options));
        return mirror.bring_back();
    }
    if (detail::place_of(context).explained != nullptr) { return; }  // no kernels to choose from
    const std::int64_t rows = count(chosen.rows);
    const auto lock = detail::pool_of(context).lock();
    detail::parallel(detail::pool_of(context), chosen.planes() * rows, true, [&](std::int64_t task, int) {
        const std::int64_t plane = task / rows, r = task % rows;
        const std::int64_t b = chosen.batch(plane);
        std::vector<double> row;
        reference::score_row(problem, problem.sequence(b), b, chosen.head(plane),
                             chosen.rows[static_cast<std::size_t>(r)], stage, row);
        cpu::store_weights(row.data(), problem.keys, scores,
                           offset_of(scores, chosen.batch_place(plane), chosen.head_place(plane), r));
    });
}

void attention_statistics(Context& context, const View& q, const View& k, const AttentionStatistics& statistics,
                          const AttentionOptions& options) {
    const Caller function("attention_statistics", context);
    const AttentionProblem problem = checked(function, q, k, options);
    const Shape shape{problem.batch, problem.heads, problem.queries};
    const auto check = [&](const char* name, const MutableView& view, std::initializer_list<DType> dtypes) {
        if (view) { check_result(function, name, view, shape, problem, dtypes); }
    };
    check("entropy", statistics.entropy, {DType::f32, DType::f64});
    check("max_weight", statistics.max_weight, {DType::f32, DType::f64});
    check("argmax", statistics.argmax, {DType::i64});
    check("window_mass", statistics.window_mass, {DType::f32, DType::f64});
    check("first_mass", statistics.first_mass, {DType::f32, DType::f64});
    for (const auto& [name, side] :
         {std::pair{"window.left", statistics.window.left}, std::pair{"window.right", statistics.window.right}}) {
        if (side < -1) { refuse(function, name, "-1 (unlimited) or more", std::to_string(side)); }
    }
    if (!on_host(context)) {
        HostMirror mirror(context);
        AttentionStatistics here = statistics;
        for (MutableView* view : {&here.entropy, &here.max_weight, &here.argmax, &here.window_mass, &here.first_mass}) {
            *view = mirror.output(*view);
        }
        attention_statistics(mirror.context(), mirror.input(q), mirror.input(k), here, mirror.input(options));
        return mirror.bring_back();
    }
    const Chosen all(function, {}, problem);
    const AttentionKernel* kernel = chosen_kernel(context, function, problem);
    if (kernel == nullptr) { return; }
    for_each_row_block(context, problem, *kernel, all, false, [&](const auto& block) {
        const std::int64_t b = all.batch(block.plane), h = all.head(block.plane);
        const Sequence s = problem.sequence(b);
        for (std::int64_t r = 0; r < block.size; ++r) {
            const std::int64_t i = block.begin + r;
            const cpu::RowSummary summary = cpu::summarise(problem, s, statistics.window, i, block.row(r));
            const auto put = [&](const MutableView& view, double value) {
                if (view) { write_number(view.dtype(), view.data(), offset_of(view, b, h, i), value); }
            };
            put(statistics.entropy, summary.entropy);
            put(statistics.max_weight, summary.max_weight);
            put(statistics.argmax, static_cast<double>(summary.argmax));
            put(statistics.window_mass, summary.window_mass);
            put(statistics.first_mass, summary.first_mass);
        }
    });
}

void attention_map(Context& context, const View& q, const View& k, const MutableView& map, Pooling pooling,
                   const AttentionSelection& selection, const AttentionOptions& options) {
    const Caller function("attention_map", context);
    const AttentionProblem problem = checked(function, q, k, options);
    if (!selection.rows.empty()) { refuse(function, "selection.rows", "an empty list", "a list of rows"); }
    const Chosen chosen(function, selection, problem);
    if (!map || map.rank() != 4) {
        refuse(function, "map", "4 axes [batches, heads, rows, columns]", map ? to_string(map.shape()) : "none");
    }
    const cpu::PooledMap::Sizes sizes{map.extent(2), map.extent(3), problem.queries, problem.keys};
    check_result(function, "map", map, {count(chosen.batches), count(chosen.heads), sizes.height, sizes.width}, problem,
                 {DType::f32, DType::f64});
    if (!on_host(context)) {
        HostMirror mirror(context);
        attention_map(mirror.context(), mirror.input(q), mirror.input(k), mirror.output(map), pooling, selection,
                      mirror.input(options));
        return mirror.bring_back();
    }
    const AttentionKernel* kernel = chosen_kernel(context, function, problem);
    if (kernel == nullptr) { return; }
    std::vector<cpu::PooledMap> maps(static_cast<std::size_t>(chosen.planes()), cpu::PooledMap(pooling, sizes));
    for_each_row_block(context, problem, *kernel, chosen, true, [&](const auto& block) {
        cpu::PooledMap& pooled = maps[static_cast<std::size_t>(block.plane)];
        for (std::int64_t r = 0; r < block.size; ++r) { pooled.add_row(block.begin + r, block.row(r), block.keys); }
    });
    for (std::int64_t plane = 0; plane < chosen.planes(); ++plane) {
        const cpu::PooledMap& pooled = maps[static_cast<std::size_t>(plane)];
        for (std::int64_t y = 0; y < sizes.height; ++y) {
            const std::int64_t row = offset_of(map, chosen.batch_place(plane), chosen.head_place(plane), y);
            for (std::int64_t x = 0; x < sizes.width; ++x) {
                write_number(map.dtype(), map.data(), row + x * map.stride(3), pooled.value(y, x));
            }
        }
    }
}

}  // namespace heed
