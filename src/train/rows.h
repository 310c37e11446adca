#pragma once
/// Examples in ids, and the batches that are made of them.

#include <heed/train.h>

#include <cstdint>
#include <vector>

namespace heed {

constexpr std::int64_t no_label = -100;

/// Rows of ids of any lengths.
struct Rows {
    std::vector<std::vector<std::int64_t>> ids;

    std::int64_t longest() const;
    /// [rows, longest], what is missing filled up.
    Tensor filled(std::int64_t with) const;
    /// Where ids are; absent where every row is full.
    Tensor mask() const;
};

TrainBatch batch_of(const Rows& inputs, const Rows& labels, std::int64_t padding, ModelKind kind);

/// A question and its answer as a model reads and writes them: special tokens are in place.
struct Example {
    std::vector<std::int64_t> source, target;
};
/// A decoder reads both and is asked for the target; an encoder-decoder reads one and writes the other. Both are cut at
/// `longest`.
void add_example(Rows& inputs, Rows& labels, ModelKind kind, const Example& example, std::int64_t longest);

/// The n-th of `count` in an order that looks random and repeats nothing. No list is kept, however many there are.
std::int64_t shuffled(std::int64_t n, std::int64_t count, std::uint64_t seed, std::uint32_t round_of_data);

/// Which example is the k-th that a run sees: every one once a round, each round in an order of its own.
std::int64_t example_at(std::int64_t k, std::int64_t count, std::uint64_t seed);

}  // namespace heed
