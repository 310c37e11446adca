#include "compositions.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "matmul.h"
#include "softmax.h"

namespace heed::bench {
namespace {

// By trial on a Zen 4 with 1 MiB of second-level cache per core: the best of 64 ... 512 each.
constexpr long query_block = 128;
constexpr long key_block = 512;

/// Grows and stays, so that repeated calls allocate nothing.
float* scratch(std::vector<float>& memory, std::int64_t size) {
    if (memory.size() < static_cast<std::size_t>(size)) { memory.resize(static_cast<std::size_t>(size)); }
    return memory.data();
}

void widen(const bf16* from, float* to, std::int64_t count) {
    for (std::int64_t n = 0; n < count; ++n) { to[n] = static_cast<float>(from[n]); }
}

void narrow(const float* from, bf16* to, std::int64_t count) {
    for (std::int64_t n = 0; n < count; ++n) { to[n] = bf16(from[n]); }
}

/// Elements [begin, begin + count) as float: in place, or converted into `memory`.
const float* floats(const Tensor& tensor, std::int64_t begin, std::int64_t count, std::vector<float>& memory) {
    if (tensor.dtype() == DType::f32) { return tensor.as<float>() + begin; }
    float* converted = scratch(memory, count);
    widen(tensor.as<bf16>() + begin, converted, count);
    return converted;
}

/// Where to put floats that belong at `begin` of the tensor; commit() converts them where that is needed.
class Destination {
public:
    Destination(const Tensor& tensor, std::int64_t begin, std::int64_t count, std::vector<float>& memory)
        : tensor_(const_cast<Tensor&>(tensor)), begin_(begin), count_(count) {
        data_ = tensor.dtype() == DType::f32 ? tensor_.as<float>() + begin : scratch(memory, count);
    }
    float* data() const { return data_; }
    void commit() const {
        if (tensor_.dtype() != DType::f32) { narrow(data_, tensor_.as<bf16>() + begin_, count_); }
    }

private:
    Tensor& tensor_;
    std::int64_t begin_;
    std::int64_t count_;
    float* data_;
};

/// Keys [0, n) that query i sees; causal and padding only ever cut the end off.
long visible_keys(const Spec& spec, long i) {
    long result = spec.key_length >= 0 ? spec.key_length : spec.keys;
    if (spec.causal != 0) { result = std::min(result, i + 1 + spec.keys - spec.queries); }
    return std::max(result, 0L);
}

const char* declines(const Spec& spec) {
    if (spec.window_left >= 0 || spec.window_right >= 0) { return "no window"; }
    if (spec.bias != 0 || spec.alibi != 0) { return "no bias"; }
    if (spec.softcap != 0) { return "no soft-cap"; }
    if (spec.dropout != 0) { return "no dropout"; }
    if (spec.query_length >= 0) { return "no query lengths"; }
    if (spec.dtype > 1) { return "f32 and bf16 only"; }
    return "";
}

struct Workspace {
    std::vector<float> q, k, v, out, dout, forward_out, dq, dk, dv, scores, gradients, maximum, sum;
};
thread_local Workspace workspace;

/// Rows of stacked heads [rows, D] against keys [keys, D]: row r is query r % T.
void blocked_rows(const Spec& spec, long rows, const float* q, const float* k, const float* v, float* out) {
    const RowOperations& row = row_operations();
    const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(spec.head_size)));
    const long size = spec.head_size;
    float* scores = scratch(workspace.scores, query_block * key_block);
    float* maximum = scratch(workspace.maximum, query_block);
    float* sum = scratch(workspace.sum, query_block);
    for (long begin = 0; begin < rows; begin += query_block) {
        const long count = std::min(query_block, rows - begin);
        float* o = out + begin * size;
        std::fill_n(maximum, count, -INFINITY);
        std::fill_n(sum, count, 0.F);
        std::fill_n(o, count * size, 0.F);
        const bool stacked = rows != spec.queries;
        const long end_key = visible_keys(spec, stacked ? spec.queries - 1 : begin + count - 1);
        for (long key = 0; key < end_key; key += key_block) {
            const long keys = std::min(key_block, end_key - key);
            matmul(Transpose::no, Transpose::yes, count, keys, size, scale, q + begin * size, size, k + key * size,
                   size, 0, scores, key_block);
            for (long r = 0; r < count; ++r) {
                const long visible = std::min(keys, visible_keys(spec, (begin + r) % spec.queries) - key);
                row.online_softmax(scores + r * key_block, visible, keys, maximum[r], sum[r], o + r * size, size);
            }
            matmul(Transpose::no, Transpose::no, count, size, keys, 1, scores, key_block, v + key * size, size, 1, o,
                   size);
        }
        for (long r = 0; r < count; ++r) { row.scale(o + r * size, size, sum[r] > 0 ? 1 / sum[r] : 0.F); }
    }
}

/// One head's part of the gradients, added to dk and dv.
void blocked_rows_backward(const Spec& spec, const float* q, const float* k, const float* v, const float* out,
                           const float* lse, const float* dout, float* dq, float* dk, float* dv) {
    const RowOperations& row = row_operations();
    const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(spec.head_size)));
    const long size = spec.head_size;
    float* p = scratch(workspace.scores, query_block * key_block);
    float* ds = scratch(workspace.gradients, query_block * key_block);
    float* delta = scratch(workspace.sum, query_block);
    for (long begin = 0; begin < spec.queries; begin += query_block) {
        const long count = std::min(query_block, spec.queries - begin);
        const long at = begin * size;
        std::fill_n(dq + at, count * size, 0.F);
        for (long r = 0; r < count; ++r) { delta[r] = row.dot(dout + at + r * size, out + at + r * size, size); }
        const long end_key = visible_keys(spec, begin + count - 1);
        for (long key = 0; key < end_key; key += key_block) {
            const long keys = std::min(key_block, end_key - key);
            // P = exp(S - lse); dV += P^T dO; dP = dO V^T; dS = P (dP - delta); dQ += dS K; dK += dS^T Q
            matmul(Transpose::no, Transpose::yes, count, keys, size, scale, q + at, size, k + key * size, size, 0, p,
                   key_block);
            for (long r = 0; r < count; ++r) {
                const long visible = std::min(keys, visible_keys(spec, begin + r) - key);
                row.probabilities(p + r * key_block, visible, keys, lse[begin + r]);
            }
            matmul(Transpose::yes, Transpose::no, keys, size, count, 1, p, key_block, dout + at, size, 1,
                   dv + key * size, size);
            matmul(Transpose::no, Transpose::yes, count, keys, size, 1, dout + at, size, v + key * size, size, 0, ds,
                   key_block);
            for (long r = 0; r < count; ++r) {
                row.score_gradient(ds + r * key_block, p + r * key_block, keys, delta[r]);
            }
            matmul(Transpose::no, Transpose::no, count, size, keys, scale, ds, key_block, k + key * size, size, 1,
                   dq + at, size);
            matmul(Transpose::yes, Transpose::no, keys, size, count, scale, ds, key_block, q + at, size, 1,
                   dk + key * size, size);
        }
    }
}

}  // namespace

const char* naive_declines(const Spec& spec) {
    if (spec.backward != 0) { return "forward only"; }
    return declines(spec);
}

const char* blocked_declines(const Spec& spec) { return has_onednn() ? declines(spec) : "oneDNN not found"; }

void naive_forward(const Problem& problem, int copy, int threads) {
    const Spec& spec = problem.spec();
    const auto scale = static_cast<float>(problem.scale());
    const long group = spec.heads / spec.kv_heads;
    const long q_size = spec.queries * spec.head_size;
    const long kv_size = spec.keys * spec.head_size;
    const Tensor& all_k = problem.k[static_cast<std::size_t>(copy)];
    const Tensor& all_v = problem.v[static_cast<std::size_t>(copy)];
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (long plane = 0; plane < spec.batch * spec.heads; ++plane) {
        const long kv_plane = plane / spec.heads * spec.kv_heads + plane % spec.heads / group;
        const float* q = floats(problem.q, plane * q_size, q_size, workspace.q);
        const float* k = floats(all_k, kv_plane * kv_size, kv_size, workspace.k);
        const float* v = floats(all_v, kv_plane * kv_size, kv_size, workspace.v);
        const Destination out(problem.out, plane * q_size, q_size, workspace.out);
        float* scores = scratch(workspace.scores, spec.queries * spec.keys);
        matmul(Transpose::no, Transpose::yes, spec.queries, spec.keys, spec.head_size, scale, q, spec.head_size, k,
               spec.head_size, 0, scores, spec.keys);
        for (long i = 0; i < spec.queries; ++i) {
            float maximum = -INFINITY;
            float sum = 0;
            float* row = scores + i * spec.keys;
            row_operations().online_softmax(row, visible_keys(spec, i), spec.keys, maximum, sum, nullptr, 0);
            row_operations().scale(row, spec.keys, sum > 0 ? 1 / sum : 0.F);
        }
        matmul(Transpose::no, Transpose::no, spec.queries, spec.head_size, spec.keys, 1, scores, spec.keys, v,
               spec.head_size, 0, out.data(), spec.head_size);
        out.commit();
    }
}

void blocked_forward(const Problem& problem, int copy, int threads) {
    const Spec& spec = problem.spec();
    const long group = spec.heads / spec.kv_heads;
    const long stack = group * spec.queries <= query_block && (spec.causal == 0 || spec.queries == 1) ? group : 1;
    const long rows = stack * spec.queries;
    const long q_size = rows * spec.head_size;
    const long kv_size = spec.keys * spec.head_size;
    const Tensor& all_k = problem.k[static_cast<std::size_t>(copy)];
    const Tensor& all_v = problem.v[static_cast<std::size_t>(copy)];
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (long task = 0; task < spec.batch * spec.heads / stack; ++task) {
        const long plane = task * stack;
        const long kv_plane = plane / spec.heads * spec.kv_heads + plane % spec.heads / group;
        const float* q = floats(problem.q, task * q_size, q_size, workspace.q);
        const float* k = floats(all_k, kv_plane * kv_size, kv_size, workspace.k);
        const float* v = floats(all_v, kv_plane * kv_size, kv_size, workspace.v);
        const Destination out(problem.out, task * q_size, q_size, workspace.out);
        blocked_rows(spec, rows, q, k, v, out.data());
        out.commit();
    }
}

void blocked_backward(const Problem& problem, int threads) {
    const Spec& spec = problem.spec();
    const long group = spec.heads / spec.kv_heads;
    const long q_size = spec.queries * spec.head_size;
    const long kv_size = spec.keys * spec.head_size;
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (long kv_plane = 0; kv_plane < spec.batch * spec.kv_heads; ++kv_plane) {
        const float* k = floats(problem.k[0], kv_plane * kv_size, kv_size, workspace.k);
        const float* v = floats(problem.v[0], kv_plane * kv_size, kv_size, workspace.v);
        const Destination dk(problem.dk, kv_plane * kv_size, kv_size, workspace.dk);
        const Destination dv(problem.dv, kv_plane * kv_size, kv_size, workspace.dv);
        std::fill_n(dk.data(), kv_size, 0.F);
        std::fill_n(dv.data(), kv_size, 0.F);
        for (long member = 0; member < group; ++member) {
            const long plane = kv_plane * group + member;
            const long at = plane * q_size;
            const float* q = floats(problem.q, at, q_size, workspace.q);
            const float* out = floats(problem.out, at, q_size, workspace.forward_out);
            const float* dout = floats(problem.dout, at, q_size, workspace.dout);
            const Destination dq(problem.dq, at, q_size, workspace.dq);
            blocked_rows_backward(spec, q, k, v, out, problem.lse.as<float>() + plane * spec.queries, dout, dq.data(),
                                  dk.data(), dv.data());
            dq.commit();
        }
        dk.commit();
        dv.commit();
    }
}

}  // namespace heed::bench
