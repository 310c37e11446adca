#include "cpu/attention/attention.h"

#include "cpu/attention/call.h"
#include "cpu/instruction_sets.h"

#include <limits>
#include <utility>

namespace heed::cpu {
namespace {

/// Packed batches may end before the tensors do: the rows behind the last sequence are 0, as for any row past its
/// length.
void clear_behind(const AttentionProblem& p, const MutableView& view, const View& cumulative) {
    if (!p.packed || !view) { return; }
    const std::int64_t begin = read_integer(cumulative.dtype(), cumulative.data(), p.batch * cumulative.stride(0));
    if (view.rank() == 4) {
        clear_rows_of_heads(rows_of(view), 0, view.extent(1), begin, view.extent(2), view.extent(3));
        return;
    }
    for (std::int64_t h = 0; h < view.extent(1); ++h) {
        for (std::int64_t t = begin; t < view.extent(2); ++t) {
            write_number(view.dtype(), view.data(), h * view.stride(1) + t * view.stride(2),
                         -std::numeric_limits<double>::infinity());
        }
    }
}

template <const Kernels& kernels, AttentionWay way>
void forward(detail::Place& place, const AttentionProblem& p) {
    clear_behind(p, p.out, p.options.cu_seqlens_q);
    clear_behind(p, p.lse, p.options.cu_seqlens_q);
    kernels.attention.forward(*place.pool, p, way);
}

template <const Kernels& kernels>
void backward(detail::Place& place, const AttentionProblem& p) {
    clear_behind(p, p.gradients.dq, p.options.cu_seqlens_q);
    clear_behind(p, p.gradients.dk, p.options.cu_seqlens_k);
    clear_behind(p, p.gradients.dv, p.options.cu_seqlens_k);
    kernels.attention.backward(*place.pool, p);
}

/// What is cheap to see comes first, as every call walks past these rows.
const char* declines_few_rows(const AttentionProblem& p) {
    if (p.q.dtype() == DType::f64) { return declines(p); }
    if (p.options.dropout.p > 0 || p.options.dropout.keep) { return "dropout is for tiles"; }
    if (!p.packed && !p.options.query_lengths && p.queries > most_rows) { return "for a few rows of queries"; }
    return nullptr;
}

const char* declines_short(const AttentionProblem& p) {
    if (p.q.dtype() == DType::f64) { return declines(p); }
    if (p.packed || p.pages != nullptr || p.queries > most_rows || p.keys > most_tile_keys) {
        return "for short heads, not packed";
    }
    return nullptr;
}

template <const Kernels& kernels>
const char* declines_decode(const AttentionProblem& p) {
    if (const char* reason = declines_few_rows(p)) { return reason; }
    if (kernels.attention.way(p) != AttentionWay::decode) { return "for a few rows of queries in every entry"; }
    return declines(p);  // looks at every position, where they are given: last
}

template <const Kernels& kernels>
const char* declines_short_heads(const AttentionProblem& p) {
    if (const char* reason = declines_short(p)) { return reason; }
    if (kernels.attention.way(p) != AttentionWay::short_heads) {
        return "for short heads in rows of floats, without options that change scores";
    }
    return declines(p);
}

template <const Kernels& kernels, AttentionWay way>
void fill(AttentionKernel& row, const char* part) {
    row.name += part;
    row.declines = declines;
    row.forward = forward<kernels, way>;
    row.weights = kernels.attention.weights;
    row.reads_pages = true;
}

}  // namespace

std::vector<AttentionKernel> attention_kernels() {
    using Row = AttentionKernel;
    using enum AttentionWay;
    // Entries of a batch may differ; then each is computed in its own way, by the row that has the name of the set.
    std::vector<Row> lists[] = {rows_of_sets<Row>("a few rows over keys read once",
                                                  []<const Kernels & kernels>(Row& row) {
                                                      fill<kernels, each_its_own>(row, "/decode");
                                                      row.declines = declines_decode<kernels>;
                                                  }),
                                rows_of_sets<Row>("short heads as a whole",
                                                  []<const Kernels & kernels>(Row& row) {
                                                      fill<kernels, each_its_own>(row, "/short");
                                                      row.declines = declines_short_heads<kernels>;
                                                  }),
                                rows_of_sets<Row>("tiled",
                                                  []<const Kernels & kernels>(Row& row) {
                                                      fill<kernels, each_its_own>(row, "");
                                                      row.backward = backward<kernels>;
                                                  }),
                                rows_of_sets<Row>("tiled, whatever the size", []<const Kernels & kernels>(Row& row) {
                                    fill<kernels, tiles>(row, "/tiles");
                                    row.backward = backward<kernels>;
                                })};
    std::vector<Row> rows;
    for (std::size_t set = 0; set < lists[0].size(); ++set) {
        for (std::vector<Row>& list : lists) { rows.push_back(std::move(list[set])); }
    }
    return rows;
}

}  // namespace heed::cpu
