#include <heed/inspect.h>

#include "base/overlap.h"
#include "base/place.h"
#include "cpu/entropy.h"
#include "ops/attention_checks.h"
#include "ops/attention_kernels.h"
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

/// Computes the weights of blocks of rows and calls
///     visit(n-th batch, n-th head, first row's place in `rows`, weights pointer, number of rows, keys)
/// with `weights` in the kernel's own precision, row r at weights + r * keys. `whole_heads`: one thread sees all blocks
/// of a head, in order.
template <class Visit>
void for_each_row_block(Context& context, const AttentionProblem& problem, const AttentionKernel& kernel,
                        const std::vector<std::int64_t>& batches, const std::vector<std::int64_t>& heads,
                        const std::vector<std::int64_t>& rows, bool whole_heads, Visit visit) {
    const std::int64_t blocks = (count(rows) + rows_at_once - 1) / rows_at_once;
    const std::int64_t planes = count(batches) * count(heads);
    const std::int64_t stride = std::max<std::int64_t>(problem.keys, 1);
    const auto lock = detail::pool_of(context).lock();
    const auto block_of = [&](std::int64_t plane, std::int64_t block, std::vector<double>& memory,
                              detail::Scratch& scratch) {
        const std::int64_t b = batches[static_cast<std::size_t>(plane / count(heads))];
        const std::int64_t h = heads[static_cast<std::size_t>(plane % count(heads))];
        const std::int64_t begin = block * rows_at_once;
        const std::int64_t size = std::min(rows_at_once, count(rows) - begin);
        memory.resize(static_cast<std::size_t>(rows_at_once * stride));
        const std::int64_t keys = problem.sequence(b).keys;
        if (kernel.wide_weights != nullptr) {
            kernel.wide_weights(problem, b, h, rows.data() + begin, size, stride, memory.data());
            visit(plane, begin, size, keys, stride, memory.data());
        } else {
            float* narrow = reinterpret_cast<float*>(memory.data());
            kernel.weights(problem, scratch, b, h, rows.data() + begin, size, stride, narrow);
            visit(plane, begin, size, keys, stride, narrow);
        }
    };
    std::vector<std::vector<double>> memory(static_cast<std::size_t>(detail::pool_of(context).threads()));
    const std::int64_t tasks = whole_heads ? planes : planes * blocks;
    detail::parallel(detail::pool_of(context), tasks, true, [&](std::int64_t task, int worker) {
        detail::Scratch& scratch = detail::pool_of(context).scratch(worker);
        std::vector<double>& own = memory[static_cast<std::size_t>(worker)];
        if (!whole_heads) {
            block_of(task / blocks, task % blocks, own, scratch);
            return;
        }
        for (std::int64_t block = 0; block < blocks; ++block) { block_of(task, block, own, scratch); }
    });
}

std::int64_t offset_of(const View& view, std::int64_t a, std::int64_t b, std::int64_t c) {
    return a * view.stride(0) + b * view.stride(1) + c * view.stride(2);
}

/// A row of floats into a row of floats, at once; false where either is something else.
template <class Weight>
bool copied(const Weight* row, std::int64_t keys, const MutableView& to, std::int64_t at, std::int64_t all) {
    if constexpr (std::is_same_v<Weight, float>) {
        if (to.dtype() == DType::f32 && to.stride(3) == 1) {
            float* target = to.as<float>() + at;
            std::fill(std::copy_n(row, keys, target), target + all, 0.0F);
            return true;
        }
    }
    return false;
}

struct Summary {
    double entropy = 0, max_weight = 0, window_mass = 0, first_mass = 0;
    std::int64_t argmax = -1;
};

template <class Weight>
Summary summarise(const AttentionProblem& problem, const Sequence& s, const Window& window, std::int64_t i,
                  const Weight* weight) {
    Summary summary;
    if (i >= s.queries) { return summary; }
    summary.entropy = cpu::entropy(weight, s.keys);
    for (std::int64_t j = 0; j < s.keys; ++j) {
        if (weight[j] > summary.max_weight) {
            summary.max_weight = weight[j];
            summary.argmax = j;
        }
    }
    const std::int64_t p = problem.query_position(s, i);
    const auto in_window = [&](std::int64_t at) {
        return (window.left < 0 || at >= p - window.left) && (window.right < 0 || at <= p + window.right);
    };
    if (problem.options.key_positions) {
        for (std::int64_t j = 0; j < s.keys; ++j) {
            if (in_window(problem.key_position(s, j))) { summary.window_mass += weight[j]; }
        }
    } else {  // positions are indices: one run of keys
        const std::int64_t begin = window.left < 0 ? 0 : std::clamp<std::int64_t>(p - window.left, 0, s.keys);
        const std::int64_t end = window.right < 0 ? s.keys : std::clamp<std::int64_t>(p + window.right + 1, 0, s.keys);
        for (std::int64_t j = begin; j < end; ++j) { summary.window_mass += weight[j]; }
    }
    if (s.keys > 0) { summary.first_mass = weight[0]; }
    return summary;
}

}  // namespace

void attention_weights(Context& context, const View& q, const View& k, const MutableView& weights,
                       const AttentionSelection& selection, const AttentionOptions& options) {
    const Caller function("attention_weights", context);
    const AttentionProblem problem = checked(function, q, k, options);
    const auto batches = chosen(function, "selection.batches", selection.batches, problem.batch);
    const auto heads = chosen(function, "selection.heads", selection.heads, problem.heads);
    const auto rows = chosen(function, "selection.rows", selection.rows, problem.queries);
    check_result(function, "weights", weights, {count(batches), count(heads), count(rows), problem.keys}, problem,
                 {DType::f32, DType::f64});
    if (only_explains(detail::place_of(context), attention_kernel_list(), {function, options.kernel}, problem)) {
        return;
    }
    const AttentionKernel& kernel = choose_attention_kernel(context, function, problem);
    for_each_row_block(context, problem, kernel, batches, heads, rows, false,
                       [&](std::int64_t plane, std::int64_t begin, std::int64_t size, std::int64_t keys,
                           std::int64_t stride, const auto* block) {
                           for (std::int64_t r = 0; r < size; ++r) {
                               const std::int64_t at =
                                   offset_of(weights, plane / count(heads), plane % count(heads), begin + r);
                               if (copied(block + r * stride, keys, weights, at, problem.keys)) { continue; }
                               for (std::int64_t j = 0; j < problem.keys; ++j) {
                                   write_number(weights.dtype(), weights.data(), at + j * weights.stride(3),
                                                j < keys ? block[r * stride + j] : 0);
                               }
                           }
                       });
}

void visit_attention_weights(Context& context, const View& q, const View& k,
                             const std::function<void(const AttentionRows&)>& visit,
                             const AttentionSelection& selection, const AttentionOptions& options) {
    const Caller function("visit_attention_weights", context);
    if (!visit) { refuse(function, "visit", "a function", "none"); }
    const AttentionProblem problem = checked(function, q, k, options);
    const auto batches = chosen(function, "selection.batches", selection.batches, problem.batch);
    const auto heads = chosen(function, "selection.heads", selection.heads, problem.heads);
    const auto rows = chosen(function, "selection.rows", selection.rows, problem.queries);
    if (only_explains(detail::place_of(context), attention_kernel_list(), {function, options.kernel}, problem)) {
        return;
    }
    const AttentionKernel& kernel = choose_attention_kernel(context, function, problem);
    for_each_row_block(context, problem, kernel, batches, heads, rows, false,
                       [&](std::int64_t plane, std::int64_t begin, std::int64_t size, std::int64_t keys,
                           std::int64_t stride, const auto* block) {
                           AttentionRows part{.batch = batches[static_cast<std::size_t>(plane / count(heads))],
                                              .head = heads[static_cast<std::size_t>(plane % count(heads))],
                                              .rows = std::span(rows).subspan(static_cast<std::size_t>(begin),
                                                                              static_cast<std::size_t>(size)),
                                              .stride = stride,
                                              .keys = keys};
                           if constexpr (std::is_same_v<decltype(block), const float*>) {
                               part.weights = block;
                               visit(part);
                           } else {
                               const std::vector<float> narrow(block, block + size * stride);
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
    if (context.device().kind != DeviceKind::cpu) {
        refuse(function, "context", "the CPU for scores before their softmax", to_string(context.device()));
    }
    const AttentionProblem problem = checked(function, q, k, options);
    const auto batches = chosen(function, "selection.batches", selection.batches, problem.batch);
    const auto heads = chosen(function, "selection.heads", selection.heads, problem.heads);
    const auto rows = chosen(function, "selection.rows", selection.rows, problem.queries);
    check_result(function, "scores", scores, {count(batches), count(heads), count(rows), problem.keys}, problem,
                 {DType::f32, DType::f64});
    if (detail::place_of(context).explained != nullptr) { return; }  // no kernels to choose from
    const std::int64_t tasks = count(batches) * count(heads) * count(rows);
    const auto lock = detail::pool_of(context).lock();
    detail::parallel(detail::pool_of(context), tasks, true, [&](std::int64_t task, int) {
        const std::int64_t r = task % count(rows);
        const std::int64_t plane = task / count(rows);
        const std::int64_t b = batches[static_cast<std::size_t>(plane / count(heads))];
        const std::int64_t h = heads[static_cast<std::size_t>(plane % count(heads))];
        std::vector<double> row;
        reference::score_row(problem, problem.sequence(b), b, h, rows[static_cast<std::size_t>(r)], stage, row);
        const std::int64_t at = offset_of(scores, plane / count(heads), plane % count(heads), r);
        for (std::int64_t j = 0; j < problem.keys; ++j) {
            write_number(scores.dtype(), scores.data(), at + j * scores.stride(3), row[static_cast<std::size_t>(j)]);
        }
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
    const auto batches = chosen(function, "batches", {}, problem.batch);
    const auto heads = chosen(function, "heads", {}, problem.heads);
    const auto rows = chosen(function, "rows", {}, problem.queries);
    if (only_explains(detail::place_of(context), attention_kernel_list(), {function, options.kernel}, problem)) {
        return;
    }
    const AttentionKernel& kernel = choose_attention_kernel(context, function, problem);
    for_each_row_block(context, problem, kernel, batches, heads, rows, false,
                       [&](std::int64_t plane, std::int64_t begin, std::int64_t size, std::int64_t, std::int64_t stride,
                           const auto* block) {
                           const std::int64_t b = plane / problem.heads;
                           const std::int64_t h = plane % problem.heads;
                           const Sequence s = problem.sequence(b);
                           for (std::int64_t r = 0; r < size; ++r) {
                               const Summary summary =
                                   summarise(problem, s, statistics.window, begin + r, block + r * stride);
                               const auto put = [&](const MutableView& view, double value) {
                                   if (view) {
                                       write_number(view.dtype(), view.data(), offset_of(view, b, h, begin + r), value);
                                   }
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
    const auto batches = chosen(function, "selection.batches", selection.batches, problem.batch);
    const auto heads = chosen(function, "selection.heads", selection.heads, problem.heads);
    if (!selection.rows.empty()) { refuse(function, "selection.rows", "an empty list", "a list of rows"); }
    if (!map || map.rank() != 4) {
        refuse(function, "map", "4 axes [batches, heads, rows, columns]", map ? to_string(map.shape()) : "none");
    }
    const std::int64_t height = map.extent(2);
    const std::int64_t width = map.extent(3);
    check_result(function, "map", map, {count(batches), count(heads), height, width}, problem,
                 {DType::f32, DType::f64});
    const auto all_rows = chosen(function, "rows", {}, problem.queries);
    if (only_explains(detail::place_of(context), attention_kernel_list(), {function, options.kernel}, problem)) {
        return;
    }
    const AttentionKernel& kernel = choose_attention_kernel(context, function, problem);
    // Cell n of `cells` over `extent` entries: [floor(n*extent/cells), ceil((n+1)*extent/cells)).
    const auto first = [](std::int64_t n, std::int64_t extent, std::int64_t cells) { return n * extent / cells; };
    const auto last = [](std::int64_t n, std::int64_t extent, std::int64_t cells) {
        return ((n + 1) * extent + cells - 1) / cells;
    };
    std::vector<std::vector<double>> cells(static_cast<std::size_t>(count(batches) * count(heads)));
    for_each_row_block(context, problem, kernel, batches, heads, all_rows, true,
                       [&](std::int64_t plane, std::int64_t begin, std::int64_t size, std::int64_t keys,
                           std::int64_t stride, const auto* block) {
                           std::vector<double>& cell = cells[static_cast<std::size_t>(plane)];
                           if (cell.empty()) { cell.assign(static_cast<std::size_t>(height * width), 0); }
                           std::vector<double> pooled(static_cast<std::size_t>(width));
                           for (std::int64_t r = 0; r < size; ++r) {
                               for (std::int64_t c = 0; c < width; ++c) {
                                   double value = 0;
                                   const std::int64_t end = std::min(keys, last(c, problem.keys, width));
                                   for (std::int64_t j = first(c, problem.keys, width); j < end; ++j) {
                                       const double w = block[r * stride + j];
                                       value = pooling == Pooling::mean ? value + w : std::max(value, w);
                                   }
                                   pooled[static_cast<std::size_t>(c)] = value;
                               }
                               const std::int64_t i = begin + r;
                               // The cells of row i: those whose range holds it.
                               const std::int64_t from = i * height / problem.queries;
                               const std::int64_t to = ((i + 1) * height + problem.queries - 1) / problem.queries;
                               for (std::int64_t y = from; y < std::min(to, height); ++y) {
                                   for (std::int64_t c = 0; c < width; ++c) {
                                       double& target = cell[static_cast<std::size_t>(y * width + c)];
                                       const double value = pooled[static_cast<std::size_t>(c)];
                                       target = pooling == Pooling::mean ? target + value : std::max(target, value);
                                   }
                               }
                           }
                       });
    for (std::size_t plane = 0; plane < cells.size(); ++plane) {
        const auto n = static_cast<std::int64_t>(plane);
        for (std::int64_t y = 0; y < height; ++y) {
            for (std::int64_t c = 0; c < width; ++c) {
                double value = cells[plane].empty() ? 0 : cells[plane][static_cast<std::size_t>(y * width + c)];
                const std::int64_t area = (last(y, problem.queries, height) - first(y, problem.queries, height)) *
                                          (last(c, problem.keys, width) - first(c, problem.keys, width));
                if (pooling == Pooling::mean && area > 0) { value /= static_cast<double>(area); }
                write_number(map.dtype(), map.data(),
                             offset_of(map, n / count(heads), n % count(heads), y) + c * map.stride(3), value);
            }
        }
    }
}

}  // namespace heed
