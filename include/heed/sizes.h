#pragma once
#include <heed/dtype.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// How large a transformer is: parameters, operations and key/value-cache bytes, from its shape alone.
/// Nothing is allocated or loaded. Every count is exact; one that does not fit 63 bits is refused.
namespace heed {

enum class ModelKind : std::uint8_t { encoder, decoder, encoder_decoder };
enum class NormKind : std::uint8_t { layer_norm, rms_norm };
enum class AttentionKind : std::uint8_t { mha, gqa, mqa, mla };

/// Multi-head latent attention: keys and values of all heads come from one latent vector per token,
/// and only that vector and one rotated key part are cached.
struct LatentAttention {
    std::int64_t query_rank = 0;  ///< 0: the query is projected directly
    std::int64_t kv_rank = 0;     ///< size of the cached latent
    std::int64_t nope_size = 0;   ///< key part of each head without position
    std::int64_t rope_size = 0;   ///< rotated key part, one for all heads
    std::int64_t value_size = 0;  ///< value of each head
};

/// Gated feed-forward experts in place of the feed-forward layer.
struct Experts {
    std::int64_t routed = 0;        ///< experts the router chooses from
    std::int64_t active = 0;        ///< how many of those a token visits
    std::int64_t shared = 0;        ///< experts that every token visits
    std::int64_t d_ff = 0;          ///< inner size of one expert
    std::int64_t dense_layers = 0;  ///< the first layers keep the plain feed-forward
    bool correction_bias = false;   ///< a bias per routed expert in the choice
};

/// The shape of a transformer, as far as its size depends on it. An encoder-decoder has `layers` decoder blocks
/// with cross-attention beside `encoder_layers` encoder blocks, and one token table for both.
struct ModelShape {
    std::string name = {};
    ModelKind kind = ModelKind::decoder;

    std::int64_t layers = 0;
    std::int64_t encoder_layers = 0;  ///< encoder-decoder only
    std::int64_t d_model = 0;
    std::int64_t heads = 0;
    std::int64_t kv_heads = 0;                             ///< divides `heads`
    std::int64_t head_size = 0;                            ///< of a query and a key
    std::int64_t value_size = 0;                           ///< of a value
    std::optional<LatentAttention> latent = std::nullopt;  ///< replaces kv_heads, head_size and value_size

    std::int64_t d_ff = 0;
    std::int64_t encoder_d_ff = 0;  ///< encoder-decoder only
    bool gated = false;             ///< three matrices instead of two
    std::optional<Experts> experts = std::nullopt;

    std::int64_t vocab = 0;
    std::int64_t positions = 0;         ///< the longest sequence the model was made for; 0: no limit
    std::int64_t position_rows = 0;     ///< rows of the learned position table of each stack; 0: none
    std::int64_t relative_buckets = 0;  ///< rows of the learned relative bias (one column a head) of each stack
    std::int64_t token_types = 0;       ///< rows of the segment table

    bool qkv_bias = false;
    bool output_bias = false;  ///< of attention's output projection
    bool ffn_bias = false;

    NormKind norm = NormKind::rms_norm;
    std::int64_t norms_per_sublayer = 1;  ///< 2: one before and one after
    bool embedding_norm = false;          ///< one after the embedding of each stack
    bool final_norm = true;               ///< one at the end of each stack
    bool qk_norm = false;                 ///< a weight per element of a query head and of a key head

    bool head = true;             ///< projects to the vocabulary
    bool tied = false;            ///< that projection is the token table
    bool head_bias = false;       ///< a bias per vocabulary entry
    bool head_transform = false;  ///< a biased d x d layer and a norm before it (BERT's masked-token head)
    bool pooler = false;          ///< a biased d x d layer on the first token
    std::int64_t classes = 0;     ///< of a biased classifier on the pooled token
};

/// Names that model_preset knows, smallest of a family first.
HEED_API std::vector<std::string> model_presets();

/// A published model by name, such as "llama-3-8b". Error for a name that is not a preset, with the nearest ones.
HEED_API ModelShape model_preset(std::string_view name);

/// The shape that a Hugging Face config.json describes. Families: bart, bert, bloom, deepseek_v2, deepseek_v3,
/// gemma2, gpt2, gpt_neox, llama, marian, mistral, qwen2, qwen3, t5. Modules beside the model (DeepSeek-V3's
/// multi-token prediction) and quantisation scales are not counted. The text is not trusted: whatever cannot be
/// right is an Error that names the key, what was expected and what it got.
HEED_API ModelShape model_from_config(std::string_view json);

/// MLA for a latent model; else MHA, MQA or GQA by the number of key/value heads.
HEED_API AttentionKind attention_kind(const ModelShape& model);

/// "MHA", "GQA", "MQA", "MLA".
HEED_API std::string_view name_of(AttentionKind kind);

/// What with_attention cannot take from the model itself.
struct AttentionChoice {
    /// Key/value heads of GQA; 0: the model's own if it is GQA, else the largest divisor of its heads up to 8
    /// that is smaller than the number of heads (1 where there is none).
    std::int64_t groups = 0;
    /// Ranks of MLA; absent: the model's own if it is MLA, else DeepSeek's ratios without a query rank:
    /// latent 4 * head size, rotated part head size / 2.
    std::optional<LatentAttention> latent = std::nullopt;
};

/// The same model with another kind of attention in every layer, all else equal. From MLA to the others a head keeps
/// its unrotated key size and its value size. MLA has its own norms and no q/k/v biases, whatever the model had.
HEED_API ModelShape with_attention(const ModelShape& model, AttentionKind kind, const AttentionChoice& choice = {});

/// Trained numbers. The first six add up to `total`; tied weights count once.
struct ParameterCount {
    std::int64_t embedding = 0;  ///< token and segment tables
    std::int64_t positions = 0;  ///< learned position tables and relative biases
    std::int64_t attention = 0;  ///< all layers; with biases, q/k norms and MLA's inner norms
    std::int64_t ffn = 0;        ///< all layers; with experts and routers
    std::int64_t norms = 0;      ///< block, embedding and final norms
    std::int64_t head = 0;       ///< what the output adds: untied projection, biases, transform, pooler, classifier
    std::int64_t total = 0;

    std::int64_t attention_layer = 0;   ///< one attention; a decoder block of an encoder-decoder has two
    std::int64_t ffn_layer = 0;         ///< one plain feed-forward (0 where every layer has experts)
    std::int64_t expert_ffn_layer = 0;  ///< one feed-forward of experts with its router (0 without)

    std::int64_t active = 0;                 ///< total less the routed experts that a token does not visit
    std::int64_t active_without_lookup = 0;  ///< active less the tables that are only looked up
};
HEED_API ParameterCount parameters(const ModelShape& model);

/// Operations of one token; a multiply-add counts 2. Matrix products only: norms, activations, softmax and
/// table lookups are left out. In an encoder-decoder, of one source token and one target token together.
struct Flops {
    std::int64_t projections = 0;  ///< attention's linear layers
    std::int64_t scores = 0;       ///< q.k and weights times values, by the number of keys seen
    std::int64_t ffn = 0;          ///< feed-forward; of experts, the visited ones and the router
    std::int64_t head = 0;         ///< logits
    std::int64_t total = 0;
};

/// Forward, for a token that sees `keys` keys in every layer (sliding windows are not subtracted).
HEED_API Flops flops_per_token(const ModelShape& model, std::int64_t keys);

/// Forward and backward (three times forward), mean over a sequence of `context` tokens: a causal token sees
/// (context + 1) / 2 keys on average, a token of an encoder and of cross-attention all of them.
HEED_API Flops training_flops_per_token(const ModelShape& model, std::int64_t context);

/// Of the two ways to compute MLA: expand keys and values of all heads (prefill, training), or stay in the latent
/// (decode). The linear layers cost the same either way.
enum class LatentForm : std::uint8_t { expanded, absorbed };

/// Scores and values of one query token against one key, all heads of one layer. The form matters to MLA only.
HEED_API std::int64_t attention_flops_per_key(const ModelShape& model, LatentForm form = LatentForm::expanded);

/// Bytes that decoding keeps per token, all layers; 0 for an encoder.
HEED_API std::int64_t kv_bytes_per_token(const ModelShape& model, std::int64_t bytes_per_number);

/// Bytes that the cross-attention of an encoder-decoder keeps per source token; 0 for other models.
HEED_API std::int64_t cross_kv_bytes_per_token(const ModelShape& model, std::int64_t bytes_per_number);

/// Bytes of the whole cache of `batch` sequences of `context` tokens; of an encoder-decoder, with sources as long.
HEED_API std::int64_t kv_cache_bytes(const ModelShape& model, std::int64_t bytes_per_number, std::int64_t context,
                                     std::int64_t batch);

/// Bytes of the parameters alone.
HEED_API std::int64_t weight_bytes(const ModelShape& model, std::int64_t bytes_per_number);

/// One self-attention layer on a batch, every token seeing every token.
struct AttentionCost {
    std::int64_t input_numbers = 0;   ///< batch * tokens * d_model
    std::int64_t score_numbers = 0;   ///< batch * heads * tokens * tokens, were they stored
    std::int64_t weight_numbers = 0;  ///< projection matrices
    std::int64_t projection_flops = 0;
    std::int64_t score_flops = 0;
};
HEED_API AttentionCost attention_cost(const ModelShape& model, std::int64_t batch, std::int64_t tokens);

}  // namespace heed
