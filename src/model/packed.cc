#include "model/packed.h"

#include "base/refuse.h"

#include <heed/error.h>

#include <algorithm>

namespace heed {
namespace {

[[noreturn]] void refuse_packed(const std::string& expected, const std::string& got) {
    refuse("forward", "cu_seqlens", expected, got);
}

Tensor read_bounds(const View& view, std::int64_t rows, std::int64_t tokens) {
    if (view.rank() != 1 || view.extent(0) < 2 || (view.dtype() != DType::i32 && view.dtype() != DType::i64)) {
        refuse_packed("i64 or i32 [sequences + 1]", std::string(name_of(view.dtype())) + " " + to_string(view.shape()));
    }
    if (rows != 1) { refuse_packed("input_ids in one row", std::to_string(rows) + " rows"); }
    Tensor bounds(DType::i64, view.shape());
    for (std::int64_t n = 0; n < view.extent(0); ++n) {
        const std::int64_t at = n * view.stride(0);
        const std::int64_t bound =
            view.dtype() == DType::i64 ? view.as<std::int64_t>()[at] : view.as<std::int32_t>()[at];
        const std::int64_t before = n == 0 ? -1 : bounds.as<std::int64_t>()[n - 1];
        if (n == 0 ? bound != 0 : bound <= before) {
            refuse_packed("0 and then growing numbers", std::to_string(bound) + " at " + std::to_string(n));
        }
        bounds.as<std::int64_t>()[n] = bound;
    }
    const std::int64_t end = bounds.as<std::int64_t>()[view.extent(0) - 1];
    if (end != tokens) {
        refuse_packed("the number of tokens, " + std::to_string(tokens) + ", at the end", std::to_string(end));
    }
    return bounds;
}

}  // namespace

PackedRows PackedSequences::rows() const {
    return {
        .cu_seqlens = cu_seqlens.view(), .padded = padded.view(), .lengths = lengths.view(), .places = places.view()};
}

PackedSequences read_packed(const View& cu_seqlens, std::int64_t rows, std::int64_t tokens, std::int64_t first) {
    PackedSequences packed;
    packed.cu_seqlens = read_bounds(cu_seqlens, rows, tokens);
    const std::int64_t count = packed.cu_seqlens.elements() - 1;
    const auto* bounds = packed.cu_seqlens.as<std::int64_t>();
    packed.lengths = Tensor(DType::i64, {count});
    for (std::int64_t n = 0; n < count; ++n) {
        packed.lengths.as<std::int64_t>()[n] = bounds[n + 1] - bounds[n];
        packed.longest = std::max(packed.longest, bounds[n + 1] - bounds[n]);
    }
    packed.positions = Tensor(DType::i64, {1, tokens});
    packed.places = Tensor(DType::i64, {1, tokens});
    packed.padded = Tensor(DType::i64, {count, packed.longest});
    for (std::int64_t n = 0; n < count; ++n) {
        for (std::int64_t t = bounds[n]; t < bounds[n + 1]; ++t) {
            const std::int64_t place = n * packed.longest + t - bounds[n];
            packed.positions.as<std::int64_t>()[t] = first + t - bounds[n];
            packed.places.as<std::int64_t>()[t] = place;
            packed.padded.as<std::int64_t>()[place] = t;
        }
    }
    return packed;
}

}  // namespace heed
