#pragma once
/// What a transformer is made of: one description for every model that heed builds, loads, trains and runs. A public
/// checkpoint's config.json is read into it, and so is heed's own, which is this structure written out.
///
///     heed::ModelConfig config = heed::read_model_config(R"({"model_type": "heed", "kind": "decoder", "vocab": 256,
///         "d_model": 128, "decoder": {"layers": 8, "attention": {"heads": 8, "kv_heads": 2},
///                                     "pattern": [{"attention": {"core": "linear"}}, {}]}})");
///
/// A layer is attention, for the decoder of an encoder-decoder attention over the encoder's output, and a feed-forward
/// layer, each with its norms and added to the residual stream. Layers may differ from one another in everything but
/// the width.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <heed/activation.h>
#include <heed/attention.h>
#include <heed/infini_attention.h>
#include <heed/linear_attention.h>
#include <heed/positions.h>
#include <heed/sizes.h>

namespace heed {

struct NormConfig {
    NormKind kind = NormKind::rms_norm;
    double eps = 1e-5;
    bool bias = false;         ///< of layer norm
    double weight_offset = 0;  ///< 1: the file holds weight - 1 (Gemma)
};

/// Where the norms of a layer stand; f is attention or feed-forward.
enum class Placement : std::uint8_t {
    pre,       ///< x + f(norm(x)): GPT-2, Llama, T5
    post,      ///< norm(x + f(x)): the model of 2017, BERT, BART
    sandwich,  ///< x + norm(f(norm(x))): Gemma-2
    output,    ///< x + norm(f(x)): OLMo-2
    normed,    ///< y + f(y) with y = norm(x): BLOOM with apply_residual_connection_post_layernorm
    parallel,  ///< x + attention(norm1(x)) + feed_forward(norm2(x)): GPT-NeoX
};

enum class PositionKind : std::uint8_t {
    none,
    learned,     ///< a table that is added to the embedding
    sinusoidal,  ///< sines and cosines added to the embedding
    rope,        ///< queries and keys turn: AttentionConfig::rope
    alibi,       ///< scores fall with the distance
    relative,    ///< a learned bias by bucket of distance, shared by all layers of a stack (T5)
};

struct PositionConfig {
    PositionKind kind = PositionKind::none;
    std::int64_t rows = 0;    ///< learned: of the table
    std::int64_t offset = 0;  ///< learned: position p reads row p + offset (BART: 2)
    /// learned: positions count the tokens that are not this one, from this + 1 (RoBERTa); -1: all tokens, from 0
    std::int64_t skip_padding = -1;
    Pairing layout = Pairing::interleaved;  ///< sinusoidal
    RelativeBuckets buckets = {};           ///< relative; `bidirectional` follows the stack
};

/// What computes the output from queries, keys and values.
enum class AttentionCore : std::uint8_t {
    softmax,
    linear,
    infini,
    gated,        ///< linear with a learned decay per token: gated linear attention, Mamba-2
    delta,        ///< linear with the delta rule, keys of length 1: DeltaNet
    gated_delta,  ///< both: gated DeltaNet (Qwen3-Next), Kimi Linear
};

/// A norm of queries and keys before their rotation.
enum class QkNorm : std::uint8_t {
    none,
    head,   ///< of each head, one weight for all of them (Qwen3)
    whole,  ///< of all heads together (OLMo-2)
};

struct AttentionConfig {
    AttentionCore core = AttentionCore::softmax;
    std::int64_t heads = 8;
    std::int64_t kv_heads = 0;    ///< heads: MHA; 1: MQA; between: GQA; 0: as heads
    std::int64_t head_size = 0;   ///< of a query and key; 0: d_model / heads
    std::int64_t value_size = 0;  ///< 0: head_size
    /// MLA: replaces the three above; head_size is then nope + rope.
    std::optional<LatentAttention> latent = std::nullopt;
    bool qkv_bias = false;
    bool output_bias = false;
    std::optional<double> scale = std::nullopt;  ///< 1/sqrt(head_size)
    double softcap = 0;
    Window window{};
    bool sinks = false;  ///< a learned logit per head in the denominator
    QkNorm qk_norm = QkNorm::none;
    std::optional<Rope> rope = std::nullopt;  ///< where PositionConfig says rope; size 0: the whole head
    bool norm = true;                         ///< false: no norm before this attention (the first layer of ModernBERT)

    // linear
    FeatureMap feature = FeatureMap::elu_plus_one;
    bool decay = false;  ///< each head forgets: 1 - 2^(-5-h), not learned (retention)
    bool normalise = true;
    // gated, delta, gated_delta: no feature map and no normaliser, but an RMS norm of what each head gives
    /// 0: kv_heads; or a multiple of heads: that many values share a query and a key, each with a state and gates of
    /// its own (Qwen3-Next: 16 and 32)
    std::int64_t value_heads = 0;
    bool decay_rows = false;   ///< a decay for each row of the state (gated linear attention, Kimi Linear), not one
    bool output_gate = false;  ///< what a head gives, behind its norm, times silu of a projection
    // infini
    std::int64_t segment = 64;
    MemoryUpdate update = MemoryUpdate::delta;

    /// Is the core one of those with gates?
    bool has_gates() const { return core >= AttentionCore::gated; }
    /// Heads of the values.
    std::int64_t values() const { return has_gates() && value_heads > 0 ? value_heads : kv_heads; }
    /// Heads that reach the output projection.
    std::int64_t outputs() const { return values() > kv_heads ? values() : heads; }
};

/// How a router scores its experts and what a token makes of the scores.
struct ExpertConfig {
    std::int64_t routed = 0;  ///< 0: no experts, a plain feed-forward layer
    std::int64_t active = 1;  ///< visited by a token
    std::int64_t shared = 0;  ///< times `size`: width of the one that every token visits
    std::int64_t size = 0;    ///< inner size of each
    enum class Score : std::uint8_t {
        softmax,         ///< over all experts, before the choice (Mixtral, DeepSeek-V2)
        sigmoid,         ///< of each (DeepSeek-V3)
        softmax_chosen,  ///< over the chosen ones (gpt-oss)
    } score = Score::softmax;
    bool normalise = true;         ///< weights of the chosen sum to 1
    double scale = 1;              ///< of the weights
    std::int64_t groups = 1;       ///< experts are chosen from the best groups only
    std::int64_t top_groups = 1;   ///< so many of them
    std::int64_t group_best = 1;   ///< a group is worth the sum of so many of its best experts
    bool router_bias = false;      ///< added to the scores' logits
    bool correction_bias = false;  ///< added for the choice alone, not to the weights
    bool bias = false;             ///< of the experts' matrices
    /// gpt-oss: gate = min(gate, limit), up = clamp(up, limit), out = (up + 1) gate sigmoid(alpha gate); 0: no limit,
    /// the activation of the layer
    double limit = 0;
    double alpha = 1.702;
};

struct FeedForwardConfig {
    std::int64_t size = 0;  ///< 0: 4 d_model, or 8/3 where gated
    bool gated = false;     ///< three matrices: down(f(gate(x)) * up(x))
    bool bias = false;
    Activation activation = Activation::gelu;
    ExpertConfig experts = {};
};

struct LayerConfig {
    AttentionConfig attention = {};
    FeedForwardConfig feed_forward = {};
};

/// A stack of layers: an encoder or a decoder.
struct StackConfig {
    std::vector<LayerConfig> layers = {};
    /// Attention of a decoder over its encoder's output, in every layer: as its self-attention without positions.
    bool cross = false;
    bool causal = false;
    Placement placement = Placement::pre;
    NormConfig norm = {};
    bool embedding_norm = false;
    bool final_norm = true;
    PositionConfig positions = {};
};

/// How hidden states become logits. Absent for a model without one.
struct HeadConfig {
    bool tied = true;        ///< the token table is the projection
    bool bias = false;       ///< of each logit
    bool transform = false;  ///< dense layer, activation and norm before it (BERT)
    bool transform_bias = true;
    Activation transform_activation = Activation::gelu;
    double scale = 1;    ///< of the hidden state (T5: d_model^-1/2)
    double softcap = 0;  ///< of the logits (Gemma-2: 30)
};

struct ModelConfig {
    std::string family = "heed";  ///< model_type of the file
    ModelKind kind = ModelKind::decoder;
    std::int64_t vocab = 0;
    /// Of an encoder-decoder whose source has a table of its own: its rows. 0: one table for source and target.
    std::int64_t source_vocab = 0;
    std::int64_t d_model = 0;
    std::int64_t max_positions = 0;  ///< the longest sequence the model was made for; 0: no limit
    double embedding_scale = 1;      ///< sqrt(d_model) in the model of 2017
    std::int64_t token_types = 0;    ///< rows of the segment table
    std::int64_t padding_row = -1;   ///< row of the token table that learns nothing from lookups
    StackConfig encoder = {};        ///< empty in a decoder
    StackConfig decoder = {};        ///< empty in an encoder
    std::optional<HeadConfig> head = HeadConfig{};
    bool pooler = false;  ///< a dense layer with tanh on the first token (BERT)
    double dropout = 0;   ///< of embeddings and of what joins the residual stream, in training
    double attention_dropout = 0;

    std::vector<std::int64_t> eos = {};
    std::optional<std::int64_t> bos = std::nullopt;
    std::optional<std::int64_t> pad = std::nullopt;
    std::optional<std::int64_t> decoder_start = std::nullopt;
    std::optional<std::int64_t> forced_bos = std::nullopt;  ///< the first token behind decoder_start, where generating
    std::optional<std::int64_t> forced_eos = std::nullopt;  ///< the last one

    /// The stack that reads input_ids.
    const StackConfig& first() const { return kind == ModelKind::decoder ? decoder : encoder; }
    /// Generation computes a text anew when it grows beyond so many tokens, as keys turn otherwise from there on (Phi-3
    /// with LongRoPE); 0: never.
    HEED_API std::int64_t recompute_beyond() const;
    /// Tokens of input_ids.
    std::int64_t input_vocab() const { return source_vocab > 0 ? source_vocab : vocab; }
    /// The stack whose output the head sees.
    const StackConfig& last() const { return kind == ModelKind::encoder ? encoder : decoder; }
};

/// A config.json: heed's own (`model_type` heed, or none), or that of a Hugging Face family: see model_families. The
/// text is not trusted. Unknown keys of public files are ignored unless they change the result; heed's own are refused.
/// What is wrong is an Error that names key and line, what was expected and what it got; what the family's own
/// software can do and heed cannot is refused by name.
HEED_API ModelConfig read_model_config(std::string_view json);
/// heed's own form of it, readable and complete.
HEED_API std::string write_model_config(const ModelConfig& config);

/// Every field in range and all of them in agreement, sizes left at 0 filled in; else Error.
HEED_API ModelConfig checked(ModelConfig config);

/// The size of it, for parameters() and the rest of <heed/sizes.h>. Layers that differ in size are refused there.
HEED_API ModelShape shape_of(const ModelConfig& config);

/// model_type names that read_model_config knows.
HEED_API std::vector<std::string> model_families();

/// The model of 2017, base: d_model 512, 8 heads, 6 + 6 layers, feed-forward 2048, post-norm, sinusoids, one table for
/// source, target and output.
HEED_API ModelConfig transformer_2017(std::int64_t vocab = 37000);

}  // namespace heed
