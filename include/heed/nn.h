#pragma once
/// Layers of transformers on a tape: linear, norms, feed-forward with and without experts, attention of every kind,
/// blocks. A layer is plain data: its configuration and where its weights lie. Weights are kept as a file has them,
/// transposed, fused or in one piece for all experts, and a layer sees its part; so gradients have the file's names and
/// shapes too.
///
/// x is [B,T,d_model] everywhere.

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <heed/cache.h>
#include <heed/model_config.h>
#include <heed/packed.h>
#include <heed/quantized.h>
#include <heed/tape.h>
#include <heed/tape_operations.h>

namespace heed {

/// Parameters by name, in the order they were added. They stay where they are.
class HEED_API Parameters {
public:
    Parameter& add(Parameter parameter);
    Parameter* find(std::string_view name);
    const Parameter* find(std::string_view name) const;
    std::deque<Parameter>& list() { return list_; }
    const std::deque<Parameter>& list() const { return list_; }
    std::int64_t elements() const;
    /// Sets all gradients that there are to zero. On a GPU: where the queue is idle.
    void clear_gradients();
    /// The next backward pass overwrites gradients instead of adding to them, which saves setting them to zero; until
    /// it has reached them they are what they were.
    void retire_gradients();

private:
    std::deque<Parameter> list_;
    std::map<std::string, Parameter*, std::less<>> by_name_;
};

/// A part of a parameter, as a layer sees it. Absent where default-constructed.
struct HEED_API Weight {
    Parameter* parameter = nullptr;
    std::int64_t offset = 0;
    Shape shape{};
    Shape strides{};

    Weight() = default;
    explicit Weight(Parameter& whole);
    explicit operator bool() const { return parameter != nullptr; }
    View view() const;
    Value on(Tape& tape) const;

    Weight permute(std::initializer_list<int> order) const;
    Weight slice(int axis, std::int64_t begin, std::int64_t end) const;
    /// One entry of the first axis, which goes away.
    Weight at(std::int64_t index) const;
    /// Every `step`-th row of the first axis from `begin` on.
    Weight every(std::int64_t begin, std::int64_t step) const;
    /// Row-major ones only.
    Weight reshape(const Shape& to) const;
};

/// The weights of one linear layer, or of several with the same input, in another form than their parameters have.
/// There is no way back through it.
struct PreparedWeight {
    PackedMatrix packed{};  ///< or
    QuantizedMatrix quantized{};
    Tensor bias{};  ///< [N], may be absent

    std::int64_t outputs() const { return packed ? packed.outputs() : quantized.outputs(); }
    std::size_t bytes() const { return packed ? packed.bytes() : quantized.bytes(); }
};

struct HEED_API LinearLayer {
    Weight weight{};                                   ///< [N,K]
    Weight bias{};                                     ///< [N], may be absent
    std::shared_ptr<const PreparedWeight> prepared{};  ///< used instead of them where present

    explicit operator bool() const { return weight || prepared != nullptr; }
    Value operator()(Tape& tape, const Value& x, Activation activation = Activation::none) const;
};

struct HEED_API NormLayer {
    Weight weight{};
    Weight bias{};
    TapeNorm options{};
    bool present = false;

    explicit operator bool() const { return present; }
    /// x itself where there is no norm.
    Value operator()(Tape& tape, const Value& x) const;
    /// x + residual and its norm, in one pass.
    SummedNorm added(Tape& tape, const Value& x, const Value& residual) const;
};

/// Dropout of one forward pass. Bits come from the seed, the offset and the place in the model.
struct DropoutPlan {
    double p = 0;
    double attention = 0;
    std::uint64_t seed = 0;
    std::uint32_t offset = 0;  ///< of the step
};

/// What a layer's weights follow from, kept: attention_weights(context, q, k, ..., options) gives any of them again,
/// without a matrix of all. Absent (no q) where a layer has no weights, as with linear attention.
struct HEED_API AttentionInputs {
    Tensor q{};                            ///< [B,H,T,D] behind norms and rotation, f32 or f64
    Tensor k{};                            ///< [B,G,S,D]; of MLA those of every head
    AttentionOptions options{};            ///< without dropout; sees the tensors here
    std::vector<Tensor> kept{};            ///< masks, slopes, sinks
    std::shared_ptr<const Tensor> bias{};  ///< relative bias: one for all layers of a stack

    explicit operator bool() const { return static_cast<bool>(q); }
    /// Of queries, keys and what else is this layer's alone.
    std::size_t bytes() const;
};

/// Sequences that lie end to end in one row of T tokens and do not see one another. All absent where there is but one
/// to a row.
struct PackedRows {
    View cu_seqlens{};  ///< i64 [N+1]: sequence n is tokens cu_seqlens[n] up to cu_seqlens[n+1]
    View padded{};      ///< i64 [N,L]: the token at each place of a padded batch, any where there is none
    View lengths{};     ///< i64 [N]
    View places{};      ///< i64 [1,T]: where a token lies in that batch
};

/// What attention needs to know besides its input.
struct AttentionCall {
    bool causal = false;
    View positions{};         ///< i64 [B,T] or [1,T]: for RoPE; absent: 0, 1, ...
    std::int64_t length = 0;  ///< longest position + 1: for RoPE that depends on it
    View allow{};             ///< [B,1,1,S]: keys that are there
    View lengths{};           ///< [B] i64: the same where what is missing is at the end; linear attention needs it
    PackedRows packed{};      ///< of self-attention without caches
    View alibi{};             ///< [H] f64: slopes
    View alibi_positions{};   ///< [B,T] i64: where they are not 0, 1, ...
    Value bias{};             ///< relative bias [1,H,T,S] or [B,H,T,S]
    Value memory{};           ///< cross-attention: [B,S,d_model]
    DropoutPlan dropout{};
    std::uint32_t place = 0;  ///< of this layer among the users of dropout
    std::string kernel{};     ///< AttentionOptions::kernel
    /// Decoding: x is [1,T,d_model], the new tokens of all sequences end to end, and keys and values are in the caches.
    CacheBatch* caches = nullptr;
    bool append = true;  ///< false: cross-attention over what is there
    /// RoPE whose table changes with the length: the caches hold unrotated keys and turn them as they are read. Else a
    /// key keeps the rotation that it got when it came.
    bool rotate_in_cache = false;
    Tensor* weights = nullptr;          ///< receives the weights [B,H,T,S] in f32; softmax without caches only
    AttentionInputs* inputs = nullptr;  ///< receives queries and keys, where there are weights; without caches only
    /// One factor a head on what it gives, before the output projection; 0 switches it off. Empty: all 1.
    std::vector<double> head_factors{};
};

struct HEED_API AttentionLayer {
    AttentionConfig config{};
    std::int64_t d_model = 0;
    bool cross = false;

    LinearLayer q{}, k{}, v{};
    /// Instead of them: one matrix. Queries, keys and values of a head begin at these rows, `stride` rows a head apart.
    LinearLayer qkv{};
    struct Rows {
        std::int64_t begin = 0;
        std::int64_t stride = 0;
    };
    Rows q_rows{}, k_rows{}, v_rows{};
    /// q, k and v in one product, in blocks one behind the other, where weights are prepared.
    LinearLayer joined{};
    NormLayer q_norm{}, k_norm{};
    // MLA
    LinearLayer q_down{}, q_up{};  ///< q where there is no rank
    NormLayer q_latent_norm{};
    LinearLayer kv_down{};
    NormLayer kv_latent_norm{};
    Weight up_key{}, up_value{};  ///< [H,n,r], [H,v,r]

    LinearLayer out{};
    Weight sinks{};               ///< [H]
    Weight gates{};               ///< [H]: infini
    std::vector<double> decay{};  ///< of each head: linear
    // gated, delta, gated_delta; N states, one for each head of the values
    LinearLayer decay_gate{};   ///< to [N] or [N D], into log_decay
    Weight decay_rate{};        ///< [N]
    LinearLayer beta{};         ///< to [N]
    LinearLayer output_gate{};  ///< to the size of all heads' outputs; may be absent
    NormLayer output_norm{};    ///< of a head
    RopeTable table{};

    /// What follows from config alone.
    void prepare();
    Value operator()(Tape& tape, const Value& x, const AttentionCall& call) const;
    /// Keys and values of an encoder's output [1,S,d_model] into caches, for cross-attention while decoding.
    void fill_caches(Tape& tape, const Value& memory, const CacheBatch& caches) const;
    /// Of the caches that decoding needs; rotate_in_cache as in AttentionCall.
    CacheConfig cache_config(bool rotate_in_cache = false) const;
};

struct HEED_API FeedForwardLayer {
    FeedForwardConfig config{};
    LinearLayer up{}, gate{}, down{};
    LinearLayer joined{};  ///< gate, then up in one product, where weights are prepared
    // Experts
    LinearLayer router{};
    Weight correction{};  ///< [E]
    std::vector<FeedForwardLayer> experts{};
    std::vector<FeedForwardLayer> shared{};  ///< none or one

    Value operator()(Tape& tape, const Value& x) const;
};

/// One layer of a stack.
struct HEED_API BlockLayer {
    Placement placement = Placement::pre;
    AttentionLayer attention{};
    AttentionLayer cross{};
    bool has_cross = false;
    FeedForwardLayer feed_forward{};
    /// Before (post: behind) each part, and behind it (sandwich, output).
    NormLayer attention_norm{}, attention_out_norm{};
    NormLayer cross_norm{}, cross_out_norm{};
    NormLayer feed_forward_norm{}, feed_forward_out_norm{};

    Value operator()(Tape& tape, const Value& x, const AttentionCall& self, const AttentionCall* over) const;
};

}  // namespace heed
