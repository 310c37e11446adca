#pragma once
/// heed's operations on a tape: the names and meanings of the functions that take a Context, with values in place of
/// views and a way back. Results have the type of the first input, where nothing else is said.

#include <heed/activation.h>
#include <heed/attention.h>
#include <heed/cross_entropy.h>
#include <heed/dropout.h>
#include <heed/embedding.h>
#include <heed/infini_attention.h>
#include <heed/linear.h>
#include <heed/linear_attention.h>
#include <heed/log_decay.h>
#include <heed/mla.h>
#include <heed/norm.h>
#include <heed/positions.h>
#include <heed/sizes.h>
#include <heed/tape.h>

namespace heed {

/// activation(x weight^T + bias); the bias may be absent.
HEED_API Value linear(Tape& tape, const Value& x, const Value& weight, const Value& bias = {},
                      Activation activation = Activation::none);

/// alpha a + beta b, b with the shape of a or repeated along its leading axes.
HEED_API Value add(Tape& tape, const Value& a, const Value& b, double alpha = 1, double beta = 1);
HEED_API Value scale(Tape& tape, const Value& x, double factor);
/// The same numbers in another type; x itself where it has it.
HEED_API Value convert(Tape& tape, const Value& x, DType dtype);
HEED_API Value activate(Tape& tape, Activation activation, const Value& x);
/// f(gate) * up
HEED_API Value gated(Tape& tape, Activation activation, const Value& gate, const Value& up);
/// cap tanh(x / cap)
HEED_API Value softcap(Tape& tape, const Value& x, double cap);
/// The residual is not a value here: add() joins it.
HEED_API Value dropout(Tape& tape, const Value& x, double p, std::uint64_t seed, std::uint32_t offset);

struct TapeNorm {
    NormKind kind = NormKind::layer_norm;
    double eps = 1e-5;
    double weight_offset = 0;
};
/// Over the last axis; weight and bias may be absent.
HEED_API Value norm(Tape& tape, const Value& x, const Value& weight, const Value& bias, const TapeNorm& options);

struct SummedNorm {
    Value out{};  ///< norm(x + residual)
    Value sum{};  ///< x + residual
};
/// Both in one pass over memory.
HEED_API SummedNorm add_norm(Tape& tape, const Value& x, const Value& residual, const Value& weight, const Value& bias,
                             const TapeNorm& options);

struct TapeEmbedding {
    double scale = 1;
    std::int64_t padding_id = -1;  ///< this row learns nothing
    DType dtype = DType::f32;      ///< of the result
};
/// [...,N] of ids [...], which are copied.
HEED_API Value embedding(Tape& tape, const View& ids, const Value& table, const TapeEmbedding& options = {});

/// x [B,H,T,D] of any strides; the result is row-major as [B,T,H,D], seen as [B,H,T,D]. Numbers before `begin` of each
/// row pass through, and the rotated ones begin there.
HEED_API Value rope(Tape& tape, const Value& x, const RopeTable& table, const RopeOptions& options = {},
                    std::int64_t begin = 0);

/// Parts of attention that are learned besides q, k, v; each may be absent.
struct AttentionLearned {
    Value bias{};   ///< AttentionOptions::bias
    Value sinks{};  ///< AttentionOptions::sinks
};

/// [B,T,H,E] of q [B,H,T,D], k [B,G,S,D], v [B,G,S,E]. Views in the options are kept as they are: their memory must
/// last until the way back has been gone.
HEED_API Value attend(Tape& tape, const Value& q, const Value& k, const Value& v, const AttentionOptions& options = {},
                      const AttentionLearned& learned = {});

/// [B,T,H,v] of q [B,H,T,n+p], latent [B,S,r], rotary_key [B,S,p], up_key [H,n,r], up_value [H,v,r].
HEED_API Value mla_attend(Tape& tape, const Value& q, const Value& latent, const Value& rotary_key, const Value& up_key,
                          const Value& up_value, const AttentionOptions& options = {},
                          const AttentionLearned& learned = {});

/// Gates of linear attention that gradients pass to, in place of those of the options.
struct LinearGates {
    Value log_decay{};  ///< [B,N,T] or [B,N,T,F]
    Value beta{};       ///< [B,N,T] or [B,N,T,E]; delta rule only
};
/// -exp(rate) softplus(x), in f32 or f64: see <heed/log_decay.h>.
HEED_API Value log_decay(Tape& tape, const Value& x, const Value& rate);
/// [B,H n,T,D] of x [B,H,T,D] of any strides: each head n times, one behind the other; row-major as [B,T,H n,D].
HEED_API Value repeat_heads(Tape& tape, const Value& x, std::int64_t times);
/// [B,T,H,E]
HEED_API Value linear_attend(Tape& tape, const Value& q, const Value& k, const Value& v,
                             const LinearAttentionOptions& options = {}, const LinearGates& gates = {});

/// Queries and keys that the memory of Infini-attention sees instead of q and k; both or neither.
struct InfiniMemoryInputs {
    Value q{};
    Value k{};
};
/// [B,T,H,E]; gates [H]. From an empty memory.
HEED_API Value infini_attend(Tape& tape, const Value& q, const Value& k, const Value& v, const Value& gates,
                             const InfiniOptions& options = {}, const InfiniMemoryInputs& memory = {});

/// [B,H,T,S] of a table [buckets,H].
HEED_API Value relative_bias(Tape& tape, const Value& table, std::int64_t queries, std::int64_t keys,
                             const RelativeBiasOptions& options = {});

/// One number. Targets are copied.
HEED_API Value cross_entropy(Tape& tape, const Value& logits, const View& targets,
                             const CrossEntropyOptions& options = {});

struct TapeLinearCrossEntropy {
    CrossEntropyOptions loss{};
    double softcap = 0;
};
/// One number: cross_entropy(linear(hidden, weight, bias)) without the logits of all tokens at once. The gradients are
/// made with the loss and kept for the way back. `result`, where given, receives the counts and the loss without
/// smoothing.
HEED_API Value linear_cross_entropy(Tape& tape, const Value& hidden, const Value& weight, const Value& bias,
                                    const View& targets, const TapeLinearCrossEntropy& options = {},
                                    CrossEntropy* result = nullptr);

/// [rows,N]: row i is x[indices[i]], of x [M,N].
HEED_API Value gather_rows(Tape& tape, const Value& x, std::span<const std::int64_t> indices);

}  // namespace heed
