#include "cuda/attention_lower.h"

#include "cuda/attention_any.h"
#include "kernel/pattern_program.h"

#include <heed/random.h>

#include <algorithm>
#include <cstring>

namespace heed::cuda {
namespace {

constexpr std::size_t alignment = 256;
std::size_t aligned(std::size_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

/// What is only read is not written, whatever the pointer's type says.
void* pointer_of(const View& view) { return const_cast<void*>(view.data()); }

}  // namespace

Tensor4 LoweredAttention::tensor(const View& view) const {
    Tensor4 result;
    if (!view) { return result; }
    result.data = pointer_of(view);
    result.dtype = view.dtype();
    for (int axis = 0; axis < view.rank(); ++axis) { result.stride[axis] = view.stride(axis); }
    return result;
}

Tensor4 LoweredAttention::pairwise(const View& view) const {
    Tensor4 result = tensor(view);
    if (!view) { return result; }
    for (int axis = 0; axis < 4; ++axis) {
        if (view.extent(axis) == 1) { result.stride[axis] = 0; }
    }
    return result;
}

void LoweredAttention::small(const View& view, int axes, Tensor4& target) {
    if (!view) { return; }
    target.dtype = view.dtype();
    // A list that the tensors' first axis leaves out, or repeats, has stride 0 there.
    const int missing = axes - view.rank();
    const auto stride = [&](int axis, const Shape& strides) {
        return axis < missing || (axes == 2 && axis == 0 && view.extent(0) == 1) ? 0 : strides[axis - missing];
    };
    if (view.device().kind == DeviceKind::cuda) {
        target.data = pointer_of(view);
        for (int axis = 0; axis < axes; ++axis) { target.stride[axis] = stride(axis, view.strides()); }
        return;
    }
    const Shape row_major = view.shape().row_major();
    for (int axis = 0; axis < axes; ++axis) { target.stride[axis] = stride(axis, row_major); }
    host_.resize((host_.size() + 15) / 16 * 16);
    host_targets_.push_back({&target.data, host_.size()});
    const std::size_t size = size_of(view.dtype());
    const std::int64_t elements = view.shape().elements();
    const auto* from = static_cast<const unsigned char*>(view.data());
    for (std::int64_t n = 0; n < elements; ++n) {
        std::int64_t offset = 0;
        for (int axis = 0; axis < view.rank(); ++axis) {
            offset += n / row_major[axis] % view.extent(axis) * view.stride(axis);
        }
        const unsigned char* element = from + offset * static_cast<std::int64_t>(size);
        host_.insert(host_.end(), element, element + size);
    }
}

template <class T>
void LoweredAttention::upload(const T* numbers, std::size_t count, const T** target) {
    host_.resize((host_.size() + 15) / 16 * 16);
    host_targets_.push_back({const_cast<void**>(reinterpret_cast<const void**>(target)), host_.size()});
    const auto* bytes = reinterpret_cast<const unsigned char*>(numbers);
    host_.insert(host_.end(), bytes, bytes + count * sizeof(T));
}

void LoweredAttention::pages(const AttentionProblem& p) {
    if (p.pages == nullptr) { return; }
    PagesOnDevice& to = call.pages;
    to.k = p.pages->k;
    to.v = p.pages->v;
    to.page_size = p.pages->page_size;
    std::vector<std::int32_t> table;
    std::vector<std::int64_t> begin;
    for (std::int64_t b = 0; b < p.batch; ++b) {
        const std::int64_t keys = p.sequence(b).key_rows;
        const std::int32_t* const pages = p.pages->tables[b];
        begin.push_back(static_cast<std::int64_t>(table.size()));
        table.insert(table.end(), pages, pages + (keys + to.page_size - 1) / to.page_size);
        to.longest = std::max(to.longest, keys);
    }
    upload(table.data(), table.size(), &to.table);
    upload(begin.data(), begin.size(), &to.begin);
}

LoweredAttention::LoweredAttention(CudaQueue& queue, const AttentionProblem& p) : queue_(queue) {
    const AttentionOptions& o = p.options;
    AttentionCall& c = call;
    c.entries = p.batch;
    c.batch = p.q.extent(0);
    c.heads = p.heads;
    c.kv_heads = p.kv_heads;
    c.group = p.group();
    c.queries = p.queries;
    c.keys = p.keys;
    c.head_size = p.head_size;
    c.value_size = p.value_size;
    c.scale = p.scale;
    c.softcap = o.softcap;
    c.packed = p.packed;
    c.bottom_right = o.align == Align::bottom_right;
    c.left = p.reach.left;
    c.right = p.reach.right;
    wide = p.q.dtype() == DType::f64;

    c.q = tensor(p.q);
    c.k = tensor(p.k);
    c.v = tensor(p.v);
    c.out = p.dout ? tensor(p.forward_out) : tensor(p.out);
    c.lse = p.dout ? tensor(p.forward_lse) : tensor(p.lse);
    pages(p);
    c.allow = pairwise(o.allow);
    c.bias = pairwise(o.bias);
    c.drops = p.drops();
    c.keep = pairwise(o.dropout.keep);
    c.drop_probability = o.dropout.p;
    c.drop_seed = o.dropout.seed.value_or(0);
    c.drop_offset = o.dropout.offset;
    if (c.drops) { c.drop_factor = static_cast<float>(1 / (1 - o.dropout.p)); }
    c.drop_threshold = dropout_threshold(o.dropout.p);

    small(o.alibi_slopes, 2, c.slopes);
    small(o.sinks, 1, c.sinks);
    small(o.query_lengths, 1, c.query_lengths);
    small(o.key_lengths, 1, c.key_lengths);
    small(o.cu_seqlens_q, 1, c.cu_queries);
    small(o.cu_seqlens_k, 1, c.cu_keys);
    small(o.query_positions, 2, c.query_positions);
    small(o.key_positions, 2, c.key_positions);
    const std::vector<std::int64_t> program = pattern_program(p.sparse);
    if (!program.empty()) {
        upload(program.data(), program.size(), &c.pattern);
        c.pattern_words = static_cast<std::int64_t>(program.size());
        for (std::size_t at = 0; at + 1 < program.size(); at += 2 + static_cast<std::size_t>(program[at + 1])) {
            const auto code = static_cast<PatternCode>(program[at]);
            c.pattern_by_head |= code == PatternCode::per_head || code == PatternCode::random_blocks;
            c.pattern_by_entry |= code == PatternCode::lengths || code == PatternCode::document;
        }
    }

    if (!p.dout) { return; }
    c.dout = tensor(p.dout);
    c.dlse = tensor(p.dlse);
    c.dq = tensor(p.gradients.dq);
    c.dk = tensor(p.gradients.dk);
    c.dv = tensor(p.gradients.dv);
    c.dbias = tensor(p.gradients.dbias);
    c.dsinks = tensor(p.gradients.dsinks);
    c.dsinks.stride[1] = c.dsinks.stride[0];  // kernels write [b,h]
    c.dsinks.stride[0] = 0;
    if (p.gradients.dbias) {
        for (int axis = 0; axis < 4; ++axis) { c.dbias_extent[axis] = p.gradients.dbias.extent(axis); }
    }
    c.dslopes = tensor(p.gradients.dalibi_slopes);
    c.slopes_per_entry = o.alibi_slopes && o.alibi_slopes.rank() == 2;
    if (!c.slopes_per_entry) {
        c.dslopes.stride[1] = c.dslopes.stride[0];
        c.dslopes.stride[0] = 0;
    }
}

void LoweredAttention::queue() {
    std::size_t total = aligned(host_.size());
    for (const Piece& piece : pieces_) { total += aligned(piece.bytes); }
    if (total == 0) { return; }
    auto* memory = static_cast<unsigned char*>(queue_.scratch(total));
    for (const Host& host : host_targets_) { *host.target = memory + host.offset; }
    if (!host_.empty()) {
        launch_upload(queue_.stream(), memory, host_.data(), static_cast<std::int64_t>(host_.size()));
    }
    std::size_t offset = aligned(host_.size());
    for (const Piece& piece : pieces_) {
        *piece.target = memory + offset;
        offset += aligned(piece.bytes);
    }
}

}  // namespace heed::cuda
