#include "cuda/training.h"

#include "cuda/any_rows.h"
#include "cuda/training_any.h"

#include <algorithm>
#include <numeric>

namespace heed::cuda {
namespace {

/// Places by id: the sum of a row of the table is in the order of the places, whoever computes it.
struct SortedPlaces {
    std::vector<std::int64_t> numbers;  ///< ids, then starts, then places
    std::int64_t listed = 0;

    explicit SortedPlaces(const EmbeddingProblem& p) {
        std::vector<std::int64_t> places;
        for (std::size_t n = 0; n < p.ids.size(); ++n) {
            if (p.ids[n] != p.padding_id) { places.push_back(static_cast<std::int64_t>(n)); }
        }
        const auto id_of = [&](std::int64_t place) { return p.ids[static_cast<std::size_t>(place)]; };
        std::ranges::stable_sort(places, {}, id_of);
        std::vector<std::int64_t> starts;
        for (std::size_t n = 0; n < places.size(); ++n) {
            if (n > 0 && id_of(places[n]) == id_of(places[n - 1])) { continue; }
            numbers.push_back(id_of(places[n]));
            starts.push_back(static_cast<std::int64_t>(n));
        }
        listed = static_cast<std::int64_t>(numbers.size());
        starts.push_back(static_cast<std::int64_t>(places.size()));
        numbers.insert(numbers.end(), starts.begin(), starts.end());
        numbers.insert(numbers.end(), places.begin(), places.end());
    }
};

const char* too_many_logits(const CrossEntropyProblem& p) {
    return p.shape.rows > most_blocks ? "too many rows" : nullptr;
}

void cross_entropy(detail::Place& place, const CrossEntropyProblem& p) {
    CudaQueue& queue = queue_of(place);
    const OnDevice on(queue.device());
    Scratch scratch(queue);
    const auto rows = static_cast<std::size_t>(p.shape.rows);
    auto* memory = static_cast<double*>(scratch.bytes(3 * rows * sizeof(double)));
    auto* targets = reinterpret_cast<std::int64_t*>(memory + 2 * rows);
    queue.upload(targets, p.targets, rows * sizeof(std::int64_t));
    CrossEntropyCall call;
    call.shape = p.shape;
    call.targets = targets;
    call.losses = memory;
    call.nlls = memory + rows;
    call.ignore = p.ignore;
    call.base = p.base;
    call.target = p.target;
    call.gradient = p.gradient;
    call.softcap = p.softcap;
    call.logits = p.logits;
    call.dlogits = p.dlogits;
    launch_cross_entropy(queue.stream(), call, p.wide());
    check_launch(any_name);
    std::vector<double> both(2 * rows);
    queue.download(both.data(), memory, both.size() * sizeof(double));
    std::copy_n(both.data(), rows, p.losses);
    std::copy_n(both.data() + rows, rows, p.nlls);
}

void adam(detail::Place& place, const AdamStep& step) {
    CudaQueue& queue = queue_of(place);
    const OnDevice on(queue.device());
    for (const AdamProblem& p : step.parameters) {
        if (p.count > 0) { launch_adam(queue.stream(), p, p.wide()); }
    }
    check_launch(any_name);
}

void squares(detail::Place& place, const SquaresProblem& p) {
    CudaQueue& queue = queue_of(place);
    const OnDevice on(queue.device());
    Scratch scratch(queue);
    std::int64_t pieces = 0;
    for (const SquaresProblem::Tensor& x : p.tensors) { pieces += NumberPieces::count(x.count); }
    if (pieces == 0) { return; }
    const std::size_t bytes = static_cast<std::size_t>(pieces) * sizeof(double);
    auto* sums = static_cast<double*>(scratch.bytes(bytes));
    std::int64_t at = 0;
    for (const SquaresProblem::Tensor& x : p.tensors) {
        if (x.count == 0) { continue; }
        launch_squares(queue.stream(), x, sums + at);
        at += NumberPieces::count(x.count);
    }
    check_launch(any_name);
    queue.download(p.sums, sums, bytes);
}

}  // namespace

void embedding_backward(detail::Place& place, const EmbeddingProblem& p) {
    CudaQueue& queue = queue_of(place);
    const OnDevice on(queue.device());
    Scratch scratch(queue);
    const SortedPlaces sorted(p);
    const std::size_t bytes = sorted.numbers.size() * sizeof(std::int64_t);
    auto* memory = static_cast<std::int64_t*>(scratch.bytes(bytes));
    queue.upload(memory, sorted.numbers.data(), bytes);
    EmbeddingBackwardCall call;
    call.ids = memory;
    call.starts = memory + sorted.listed;
    call.places = call.starts + sorted.listed + 1;
    call.listed = sorted.listed;
    call.columns = p.columns;
    call.classes = p.classes;
    call.scale = p.scale;
    call.accumulate = p.accumulate;
    call.dout = p.dout;
    call.dtable = p.dtable;
    launch_embedding_backward(queue.stream(), call, p.wide());
    check_launch(any_name);
}

std::vector<Kernel<CrossEntropyProblem>> cross_entropy_kernels() {
    auto row = any_row<CrossEntropyProblem>(cross_entropy);
    row.declines = too_many_logits;
    return {row};
}
std::vector<Kernel<AdamStep>> adam_kernels() { return {any_row<AdamStep>(adam)}; }
std::vector<Kernel<SquaresProblem>> squares_kernels() { return {any_row<SquaresProblem>(squares)}; }

}  // namespace heed::cuda
