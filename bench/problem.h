#pragma once
/// One case of the benchmark with its buffers, shared by every software that is measured on it.

#include <cstdint>
#include <vector>

#include <heed/attention.h>
#include <heed/tensor.h>

namespace heed::bench {

enum class BiasKind : std::int32_t { none, per_head, shared };

/// What to compute. Plain data, as bench/native.py mirrors it field by field.
struct Spec {
    std::int64_t batch = 1;       ///< B
    std::int64_t heads = 1;       ///< H
    std::int64_t kv_heads = 1;    ///< G
    std::int64_t queries = 1;     ///< T
    std::int64_t keys = 1;        ///< S
    std::int64_t head_size = 64;  ///< D, and E
    std::int64_t window_left = -1;
    std::int64_t window_right = -1;
    std::int64_t key_length = -1;  ///< keys from here on are padding; -1: none are
    std::int64_t query_length = -1;
    double softcap = 0;
    double dropout = 0;
    std::int32_t dtype = 0;  ///< 0 f32, 1 bf16, 2 f16: the order of DType
    std::int32_t causal = 0;
    std::int32_t bias = 0;  ///< BiasKind
    std::int32_t alibi = 0;
    std::int32_t backward = 0;  ///< whether the buffers of the backward pass are wanted
    std::int32_t copies = 1;    ///< of k and v, used in turn so that a small cache of keys is not found in the CPU's
};

class Problem {
public:
    explicit Problem(const Spec& spec);
    Problem(const Problem&) = delete;

    const Spec& spec() const { return spec_; }
    DType dtype() const { return static_cast<DType>(spec_.dtype); }
    const AttentionOptions& options() const { return options_; }
    /// Whether query i of batch entry b sees key j: the specification, spelled out again on purpose.
    bool visible(std::int64_t i, std::int64_t j) const;
    double scale() const;

    Tensor q;               ///< [B,H,T,D]
    std::vector<Tensor> k;  ///< [B,G,S,D], each a copy of the first
    std::vector<Tensor> v;
    Tensor out;   ///< [B,H,T,D]
    Tensor lse;   ///< [B,H,T] f32
    Tensor dout;  ///< [B,H,T,D]
    Tensor dq, dk, dv;
    Tensor bias;                        ///< [1,H,T,S] or [1,1,T,S] f32
    Tensor slopes;                      ///< [H] f32
    Tensor key_lengths, query_lengths;  ///< [B] i64

private:
    Spec spec_;
    AttentionOptions options_;
};

/// Error of a result against float64, on a sample of rows: the largest difference over the largest value.
/// `out` is [B,H,T,D] in the case's type.
double forward_error(const Problem& problem, const View& out);
/// The same for gradients; problem.out and problem.lse must hold the forward result.
double backward_error(const Problem& problem, const View& dq, const View& dk, const View& dv);

}  // namespace heed::bench
