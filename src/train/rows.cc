#include "train/rows.h"

#include <heed/random.h>

#include <algorithm>

namespace heed {

std::int64_t Rows::longest() const {
    std::size_t most = 1;
    for (const auto& row : ids) { most = std::max(most, row.size()); }
    return static_cast<std::int64_t>(most);
}

Tensor Rows::filled(std::int64_t with) const {
    const std::int64_t columns = longest();
    Tensor tensor(DType::i64, {static_cast<std::int64_t>(ids.size()), columns});
    std::fill_n(tensor.as<std::int64_t>(), tensor.elements(), with);
    for (std::size_t r = 0; r < ids.size(); ++r) {
        std::copy(ids[r].begin(), ids[r].end(), tensor.as<std::int64_t>() + static_cast<std::int64_t>(r) * columns);
    }
    return tensor;
}

Tensor Rows::mask() const {
    const std::int64_t columns = longest();
    if (std::ranges::all_of(ids, [&](const auto& row) { return static_cast<std::int64_t>(row.size()) == columns; })) {
        return {};
    }
    Tensor tensor(DType::u8, {static_cast<std::int64_t>(ids.size()), columns});
    for (std::size_t r = 0; r < ids.size(); ++r) {
        std::fill_n(tensor.as<std::uint8_t>() + static_cast<std::int64_t>(r) * columns, ids[r].size(), 1);
    }
    return tensor;
}

namespace {

/// Labels that count: of a decoder the one at the first place does not, as nothing comes before it.
std::int64_t count_targets(const Tensor& labels, ModelKind kind) {
    const std::int64_t columns = labels.shape()[1];
    std::int64_t count = 0;
    for (std::int64_t n = 0; n < labels.elements(); ++n) {
        const bool first = n % columns == 0 && kind == ModelKind::decoder;
        count += !first && labels.as<std::int64_t>()[n] != no_label ? 1 : 0;
    }
    return count;
}

}  // namespace

TrainBatch batch_of(const Rows& inputs, const Rows& labels, std::int64_t padding, ModelKind kind) {
    TrainBatch batch;
    batch.input_ids = inputs.filled(padding);
    batch.attention_mask = inputs.mask();
    batch.labels = labels.filled(no_label);
    batch.targets = count_targets(batch.labels, kind);
    return batch;
}

void add_example(Rows& inputs, Rows& labels, ModelKind kind, const Example& example, std::int64_t longest) {
    std::vector<std::int64_t> in = example.source, out = example.target;
    if (kind != ModelKind::encoder_decoder) {
        in.insert(in.end(), example.target.begin(), example.target.end());
        out.insert(out.begin(), example.source.size(), no_label);
    }
    const auto cut = [&](std::vector<std::int64_t>& ids) {
        if (static_cast<std::int64_t>(ids.size()) > longest) { ids.resize(static_cast<std::size_t>(longest)); }
    };
    cut(in);
    cut(out);
    inputs.ids.push_back(std::move(in));
    labels.ids.push_back(std::move(out));
}

/// A Feistel network on the next power of four, walked until it lands inside.
std::int64_t shuffled(std::int64_t n, std::int64_t count, std::uint64_t seed, std::uint32_t round_of_data) {
    int half = 1;
    while ((std::int64_t{1} << (2 * half)) < count) { ++half; }
    const std::uint32_t mask = (std::uint32_t{1} << half) - 1U;
    auto value = static_cast<std::uint64_t>(n);
    do {
        auto left = static_cast<std::uint32_t>(value >> half), right = static_cast<std::uint32_t>(value) & mask;
        for (std::uint32_t round = 0; round < 4; ++round) {
            const std::uint32_t mixed = left ^ (philox4x32({right, round, round_of_data, 0x73687566U}, seed)[0] & mask);
            left = right;
            right = mixed;
        }
        value = (static_cast<std::uint64_t>(left) << half) | right;
    } while (value >= static_cast<std::uint64_t>(count));
    return static_cast<std::int64_t>(value);
}

std::int64_t example_at(std::int64_t k, std::int64_t count, std::uint64_t seed) {
    return shuffled(k % count, count, seed, static_cast<std::uint32_t>(k / count));
}

}  // namespace heed
