#include "compositions.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "matmul.h"
#include "softmax.h"

namespace heed::bench {
namespace {

// A block of scores is 256 KiB: with 512 keys and values beside it, it fits a second-level cache of 1 MiB.
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
        if (tensor_.dtype() != DType::f32) { row_operations().narrow(data_, tensor_.as<bf16>() + begin_, count_); }
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
    std::vector<float> q, k, v, out, dq, dk, dv, scores, gradients, maximum, sum;
    std::vector<bf16> narrow_scores, narrow_gradients;
};
thread_local Workspace workspace;

/// A block of scores as an operand of the next product: as it is, or rounded to bf16.
const float* operand(const float* scores, long, long, std::vector<bf16>&, const float*) { return scores; }
const bf16* operand(const float* scores, long rows, long columns, std::vector<bf16>& memory, const bf16*) {
    memory.resize(static_cast<std::size_t>(query_block * key_block));
    for (long r = 0; r < rows; ++r) {
        row_operations().narrow(scores + r * key_block, memory.data() + r * key_block, columns);
    }
    return memory.data();
}

float row_dot(const float* a, const float* b, long size) { return row_operations().dot(a, b, size); }
float row_dot(const bf16* a, const bf16* b, long size) {
    float sum = 0;
    for (long d = 0; d < size; ++d) { sum += static_cast<float>(a[d]) * static_cast<float>(b[d]); }
    return sum;
}

/// Rows of stacked heads [rows, D] against keys [keys, D]: row r is query r % T.
template <class T>
void blocked_rows(const Spec& spec, long rows, const T* q, const T* k, const T* v, float* out) {
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
            const T* p = operand(scores, count, keys, workspace.narrow_scores, v);
            matmul(Transpose::no, Transpose::no, count, size, keys, 1, p, key_block, v + key * size, size, 1, o, size);
        }
        for (long r = 0; r < count; ++r) { row.scale(o + r * size, size, sum[r] > 0 ? 1 / sum[r] : 0.F); }
    }
}

/// One head's part of the gradients, added to dk and dv.
template <class T>
void blocked_rows_backward(const Spec& spec, const T* q, const T* k, const T* v, const T* out, const float* lse,
                           const T* dout, float* dq, float* dk, float* dv) {
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
        for (long r = 0; r < count; ++r) { delta[r] = row_dot(dout + at + r * size, out + at + r * size, size); }
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
            const T* p_operand = operand(p, count, keys, workspace.narrow_scores, v);
            matmul(Transpose::yes, Transpose::no, keys, size, count, 1, p_operand, key_block, dout + at, size, 1,
                   dv + key * size, size);
            matmul(Transpose::no, Transpose::yes, count, keys, size, 1, dout + at, size, v + key * size, size, 0, ds,
                   key_block);
            for (long r = 0; r < count; ++r) {
                row.score_gradient(ds + r * key_block, p + r * key_block, keys, delta[r]);
            }
            const T* ds_operand = operand(ds, count, keys, workspace.narrow_gradients, v);
            matmul(Transpose::no, Transpose::no, count, size, keys, scale, ds_operand, key_block, k + key * size, size,
                   1, dq + at, size);
            matmul(Transpose::yes, Transpose::no, keys, size, count, scale, ds_operand, key_block, q + at, size, 1,
                   dk + key * size, size);
        }
    }
}

template <class T>
void blocked_forward_as(const Problem& problem, int copy, int threads) {
    const Spec& spec = problem.spec();
    const long group = spec.heads / spec.kv_heads;
    const long stack = group * spec.queries <= query_block && (spec.causal == 0 || spec.queries == 1) ? group : 1;
    const long rows = stack * spec.queries;
    const long q_size = rows * spec.head_size;
    const long kv_size = spec.keys * spec.head_size;
    const T* all_k = problem.k[static_cast<std::size_t>(copy)].as<T>();
    const T* all_v = problem.v[static_cast<std::size_t>(copy)].as<T>();
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (long task = 0; task < spec.batch * spec.heads / stack; ++task) {
        const long plane = task * stack;
        const long kv = (plane / spec.heads * spec.kv_heads + plane % spec.heads / group) * kv_size;
        const Destination out(problem.out, task * q_size, q_size, workspace.out);
        blocked_rows(spec, rows, problem.q.as<T>() + task * q_size, all_k + kv, all_v + kv, out.data());
        out.commit();
    }
}

template <class T>
void blocked_backward_as(const Problem& problem, int threads) {
    const Spec& spec = problem.spec();
    const long group = spec.heads / spec.kv_heads;
    const long q_size = spec.queries * spec.head_size;
    const long kv_size = spec.keys * spec.head_size;
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (long kv_plane = 0; kv_plane < spec.batch * spec.kv_heads; ++kv_plane) {
        const long kv = kv_plane * kv_size;
        const Destination dk(problem.dk, kv, kv_size, workspace.dk);
        const Destination dv(problem.dv, kv, kv_size, workspace.dv);
        std::fill_n(dk.data(), kv_size, 0.F);
        std::fill_n(dv.data(), kv_size, 0.F);
        for (long plane = kv_plane * group; plane < (kv_plane + 1) * group; ++plane) {
            const long at = plane * q_size;
            const Destination dq(problem.dq, at, q_size, workspace.dq);
            blocked_rows_backward(spec, problem.q.as<T>() + at, problem.k[0].as<T>() + kv, problem.v[0].as<T>() + kv,
                                  problem.out.as<T>() + at, problem.lse.as<float>() + plane * spec.queries,
                                  problem.dout.as<T>() + at, dq.data(), dk.data(), dv.data());
            dq.commit();
        }
        dk.commit();
        dv.commit();
    }
}

}  // namespace

const char* naive_declines(const Spec& spec) {
    if (spec.backward != 0) { return "forward only"; }
    return declines(spec);
}

const char* blocked_declines(const Spec& spec) {
    if (!has_onednn()) { return "oneDNN not found"; }
    if (static_cast<DType>(spec.dtype) == DType::bf16 && !has_bf16_matmul()) {
        return "oneDNN has no bf16 on this CPU";
    }
    return declines(spec);
}

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
    problem.dtype() == DType::bf16 ? blocked_forward_as<bf16>(problem, copy, threads)
                                   : blocked_forward_as<float>(problem, copy, threads);
}

void blocked_backward(const Problem& problem, int threads) {
    problem.dtype() == DType::bf16 ? blocked_backward_as<bf16>(problem, threads)
                                   : blocked_backward_as<float>(problem, threads);
}

}  // namespace heed::bench
