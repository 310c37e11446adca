#include "cpu/layers/layers.h"

#include "cpu/instruction_sets.h"

#include <algorithm>
#include <vector>

namespace heed::cpu {
namespace {

constexpr std::int64_t numbers_per_task = 16384;

/// Calls piece(begin, end, worker) for all rows.
template <class Piece>
void in_rows(detail::Pool& pool, const RowsShape& shape, double operations, Piece&& piece) {
    if (shape.rows == 0 || shape.columns == 0) { return; }
    const std::int64_t step = std::max<std::int64_t>(1, numbers_per_task / shape.columns);
    const std::int64_t tasks = (shape.rows + step - 1) / step;
    const double all = operations * static_cast<double>(shape.rows) * static_cast<double>(shape.columns);
    detail::parallel(pool, tasks, detail::effort_for(all), [&](std::int64_t task, int worker) {
        piece(task * step, std::min(shape.rows, (task + 1) * step), worker);
    });
}

/// Calls piece(row, begin, end) for pieces of rows, several where rows are long and few.
template <class Piece>
void in_pieces(detail::Pool& pool, const RowsShape& shape, std::int64_t piece_columns, double operations,
               Piece&& piece) {
    if (shape.rows == 0 || shape.columns == 0) { return; }
    const std::int64_t pieces = (shape.columns + piece_columns - 1) / piece_columns;
    const std::int64_t step = std::max<std::int64_t>(1, numbers_per_task / shape.columns);
    const std::int64_t tasks = (shape.rows + step - 1) / step * pieces;
    const double all = operations * static_cast<double>(shape.rows) * static_cast<double>(shape.columns);
    detail::parallel(pool, tasks, detail::effort_for(all), [&](std::int64_t task, int) {
        const std::int64_t first = task / pieces * step;
        const std::int64_t begin = task % pieces * piece_columns;
        for (std::int64_t row = first; row < std::min(shape.rows, first + step); ++row) {
            piece(row, begin, std::min(shape.columns, begin + piece_columns));
        }
    });
}

float* floats(detail::Pool& pool, int worker, std::int64_t count) {
    return static_cast<float*>(pool.scratch(worker).at_least(static_cast<std::size_t>(count) * sizeof(float)));
}

TensorRows one_row(float* data) {
    TensorRows rows;
    rows.present = true;
    rows.data = reinterpret_cast<char*>(data);
    return rows;
}

}  // namespace

void norm(detail::Pool& pool, const LayerKernels& kernels, const NormProblem& p) {
    in_rows(pool, p.shape, 8, [&](std::int64_t begin, std::int64_t end, int worker) {
        kernels.norm(p, begin, end, floats(pool, worker, 4 * p.shape.columns));
    });
}

void norm_backward(detail::Pool& pool, const LayerKernels& kernels, const NormProblem& p) {
    const std::int64_t columns = p.shape.columns;
    if (columns == 0) { return; }
    constexpr std::int64_t block = 64;  // rows that one partial sum of dweight and dbias is of
    const std::int64_t blocks = (p.shape.rows + block - 1) / block;
    const bool sums = p.dweight.present || p.dbias.present;
    float* partial = nullptr;
    if (sums) {
        const auto bytes = static_cast<std::size_t>(std::max<std::int64_t>(1, 2 * blocks * columns)) * sizeof(float);
        partial = static_cast<float*>(pool.shared().at_least(bytes));
    }
    const double all = 12.0 * static_cast<double>(p.shape.rows) * static_cast<double>(columns);
    detail::parallel(pool, blocks, detail::effort_for(all), [&](std::int64_t n, int worker) {
        float* share = sums ? partial + n * columns : nullptr;
        kernels.norm_backward(p, n * block, std::min(p.shape.rows, (n + 1) * block), floats(pool, worker, 4 * columns),
                              p.dweight.present ? share : nullptr,
                              p.dbias.present ? share + blocks * columns : nullptr);
    });
    const auto add_up = [&](const TensorRows& out, float* of) {
        if (!out.present) { return; }
        SumProblem sum;
        sum.shape = {1, columns};
        sum.repeats = blocks;
        sum.accumulate = p.accumulate;
        sum.x = one_row(of);
        sum.x.axes = 1;
        sum.x.extent[0] = blocks;
        sum.x.step[0] = columns;
        sum.out = out;
        sum_leading(pool, kernels, sum);
    };
    add_up(p.dweight, partial);
    add_up(p.dbias, sums ? partial + blocks * columns : nullptr);
}

void activation(detail::Pool& pool, const LayerKernels& kernels, const ActivationProblem& p) {
    in_rows(pool, p.shape, 30, [&](std::int64_t begin, std::int64_t end, int) { kernels.activation(p, begin, end); });
}
void activation_backward(detail::Pool& pool, const LayerKernels& kernels, const ActivationProblem& p) {
    in_rows(pool, p.shape, 40,
            [&](std::int64_t begin, std::int64_t end, int) { kernels.activation_backward(p, begin, end); });
}

void elementwise(detail::Pool& pool, const LayerKernels& kernels, const ElementwiseProblem& p) {
    in_pieces(pool, p.shape, numbers_per_task, 8,
              [&](std::int64_t row, std::int64_t begin, std::int64_t end) { kernels.elementwise(p, row, begin, end); });
}

void sum_leading(detail::Pool& pool, const LayerKernels& kernels, const SumProblem& p) {
    constexpr std::int64_t piece = 256;
    const double operations = 8.0 * static_cast<double>(std::max<std::int64_t>(1, p.repeats));
    in_pieces(pool, p.shape, piece, operations,
              [&](std::int64_t row, std::int64_t begin, std::int64_t end) { kernels.sum_leading(p, row, begin, end); });
}

void cross_entropy(detail::Pool& pool, const LayerKernels& kernels, const CrossEntropyProblem& p) {
    in_rows(pool, p.shape, 60,
            [&](std::int64_t begin, std::int64_t end, int) { kernels.cross_entropy(p, begin, end); });
}

void dropout(detail::Pool& pool, const LayerKernels& kernels, const DropoutProblem& p) {
    in_rows(pool, p.shape, 40, [&](std::int64_t begin, std::int64_t end, int) { kernels.dropout(p, begin, end); });
}

void embedding(detail::Pool& pool, const LayerKernels& kernels, const EmbeddingProblem& p) {
    const auto rows = static_cast<std::int64_t>(p.ids.size());
    in_rows(pool, {rows, p.columns}, 8, [&](std::int64_t begin, std::int64_t end, int) {
        for (std::int64_t row = begin; row < end; ++row) {
            ElementwiseProblem copy;
            copy.alpha = p.scale;
            copy.a = p.table;
            copy.a.data = p.table.row(p.ids[static_cast<std::size_t>(row)]);
            copy.a.axes = 0;
            copy.out = p.out;
            copy.out.data = p.out.row(row);
            copy.out.axes = 0;
            kernels.elementwise(copy, 0, 0, p.columns);
        }
    });
}

void embedding_backward(detail::Pool& pool, const LayerKernels& kernels, const EmbeddingProblem& p) {
    // Places sorted by id, the order of places kept within each: what is added up does not depend on who adds it.
    std::vector<std::int64_t> first(static_cast<std::size_t>(p.classes + 1), 0), places(p.ids.size());
    for (const std::int64_t id : p.ids) { ++first[static_cast<std::size_t>(id + 1)]; }
    for (std::size_t id = 1; id < first.size(); ++id) { first[id] += first[id - 1]; }
    std::vector<std::int64_t> next(first.begin(), first.end() - 1);
    for (std::size_t place = 0; place < p.ids.size(); ++place) {
        places[static_cast<std::size_t>(next[static_cast<std::size_t>(p.ids[place])]++)] =
            static_cast<std::int64_t>(place);
    }
    const RowsShape shape{p.classes, p.columns};
    const auto share = static_cast<double>(p.ids.size()) / static_cast<double>(std::max<std::int64_t>(1, p.classes));
    in_rows(pool, shape, 8 * (1 + share), [&](std::int64_t begin, std::int64_t end, int worker) {
        float* sum = floats(pool, worker, p.columns);
        for (std::int64_t id = begin; id < end; ++id) {
            const std::int64_t from = first[static_cast<std::size_t>(id)], to = first[static_cast<std::size_t>(id + 1)];
            if ((from == to || id == p.padding_id) && p.accumulate) { continue; }
            std::fill_n(sum, p.columns, 0.0F);
            ElementwiseProblem add;
            add.beta = 1;
            add.a = add.out = one_row(sum);
            for (std::int64_t n = from; n < to && id != p.padding_id; ++n) {
                add.b = p.dout;
                add.b.data = p.dout.row(places[static_cast<std::size_t>(n)]);
                add.b.axes = 0;
                kernels.elementwise(add, 0, 0, p.columns);
            }
            ElementwiseProblem write;
            write.alpha = p.scale;
            write.a = one_row(sum);
            write.out = p.dtable;
            write.out.data = p.dtable.row(id);
            write.out.axes = 0;
            if (p.accumulate) {
                write.b = write.out;
                write.beta = 1;
            }
            kernels.elementwise(write, 0, 0, p.columns);
        }
    });
}

namespace {

/// Calls piece(tensor, piece, begin, end) for all pieces of several tensors.
template <class CountOf, class Piece>
void in_number_pieces(detail::Pool& pool, std::size_t tensors, double operations, CountOf&& count_of, Piece&& piece) {
    std::vector<std::int64_t> first(tensors + 1, 0);
    double numbers = 0;
    for (std::size_t n = 0; n < tensors; ++n) {
        first[n + 1] = first[n] + NumberPieces::count(count_of(n));
        numbers += static_cast<double>(count_of(n));
    }
    detail::parallel(pool, first.back(), detail::effort_for(numbers * operations), [&](std::int64_t task, int) {
        const auto after = std::upper_bound(first.begin(), first.end(), task);
        const auto n = static_cast<std::size_t>(after - first.begin() - 1);
        const std::int64_t begin = (task - first[n]) * NumberPieces::size;
        piece(n, task, begin, std::min(count_of(n), begin + NumberPieces::size));
    });
}

void adam(detail::Pool& pool, const LayerKernels& kernels, const AdamStep& step) {
    in_number_pieces(
        pool, step.parameters.size(), 80, [&](std::size_t n) { return step.parameters[n].count; },
        [&](std::size_t n, std::int64_t, std::int64_t begin, std::int64_t end) {
            kernels.adam(step.parameters[n], begin, end);
        });
}

void squares(detail::Pool& pool, const LayerKernels& kernels, const SquaresProblem& p) {
    in_number_pieces(
        pool, p.tensors.size(), 10, [&](std::size_t n) { return p.tensors[n].count; },
        [&](std::size_t n, std::int64_t piece, std::int64_t begin, std::int64_t end) {
            p.sums[piece] = kernels.sum_of_squares(p.tensors[n].numbers, begin, end);
        });
}

template <class P, auto Forward, auto Backward = nullptr>
std::vector<Kernel<P>> layer_rows() {
    return rows_of_sets<Kernel<P>>("rows with vectors", []<const Kernels & kernels>(Kernel<P>& row) {
        row.declines = [](const P& p) -> const char* { return p.wide() ? "float64 is for the reference" : nullptr; };
        row.forward = [](detail::Place& place, const P& p) { Forward(*place.pool, layers_of(kernels), p); };
        if constexpr (Backward != nullptr) {
            row.backward = [](detail::Place& place, const P& p) { Backward(*place.pool, layers_of(kernels), p); };
        }
    });
}

}  // namespace

std::vector<Kernel<NormProblem>> norm_kernels() { return layer_rows<NormProblem, norm, norm_backward>(); }
std::vector<Kernel<ActivationProblem>> activation_kernels() {
    return layer_rows<ActivationProblem, activation, activation_backward>();
}
std::vector<Kernel<ElementwiseProblem>> elementwise_kernels() { return layer_rows<ElementwiseProblem, elementwise>(); }
std::vector<Kernel<SumProblem>> sum_leading_kernels() { return layer_rows<SumProblem, sum_leading>(); }
std::vector<Kernel<CrossEntropyProblem>> cross_entropy_kernels() {
    return layer_rows<CrossEntropyProblem, cross_entropy>();
}
std::vector<Kernel<DropoutProblem>> dropout_kernels() { return layer_rows<DropoutProblem, dropout>(); }
std::vector<Kernel<EmbeddingProblem>> embedding_kernels() {
    return layer_rows<EmbeddingProblem, embedding, embedding_backward>();
}
std::vector<Kernel<AdamStep>> adam_kernels() { return layer_rows<AdamStep, adam>(); }
std::vector<Kernel<SquaresProblem>> squares_kernels() { return layer_rows<SquaresProblem, squares>(); }

}  // namespace heed::cpu
