#pragma once
/// Transformers: loaded from a folder, made anew, run forward and backward, decoded with caches.
///
///     heed::Context context;
///     heed::Model model = heed::Model::load("folder");        // config.json, model.safetensors
///     heed::ForwardResult result = model.forward(context, {.input_ids = ids}, {.hidden = true});
///     result.logits;                                          // [B,T,V]
///
/// Encoders, decoders and encoder-decoders are one class: what a model is stands in its ModelConfig.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <heed/cache.h>
#include <heed/cross_entropy.h>
#include <heed/generation_config.h>
#include <heed/model_config.h>
#include <heed/nn.h>
#include <heed/safetensors.h>
#include <heed/tape.h>

namespace heed {
namespace detail {
struct Access;
}  // namespace detail

/// In which form linear layers read their weights while a model runs. Embeddings, norms and biases stay as they are.
enum class WeightStorage : std::uint8_t {
    stored,  ///< as the files have them, mapped, no second copy
    f32,     ///< packed for products: panels that are read in order, in huge pages where the system gives them
    bf16,    ///< likewise; what comes in is rounded to bf16 too
    int8,    ///< 32 weights share a scale (WeightFormat::int8); what comes in is rounded to 8 bits
    int4,    ///< likewise, weights in 4 bits
};

HEED_API std::string_view name_of(WeightStorage weights);
/// Error where there is no such name: stored, f32, bf16, int8, int4.
HEED_API WeightStorage weight_storage(std::string_view name);

struct LoadOptions {
    /// Read the weights into memory instead of mapping the files.
    bool copy = false;
    WeightStorage weights = WeightStorage::stored;
    /// Where the weights live: a GPU takes stored ones alone.
    Device device{};
};

struct SaveOptions {
    /// Weights in files of at most so many bytes (one tensor at least) with an index, as Hugging Face's shards; 0: one
    /// file.
    std::uint64_t max_shard_bytes = 0;
};

struct RandomOptions {
    std::uint64_t seed = 0;
    DType dtype = DType::f32;
    /// Standard deviation of a matrix's numbers times the root of its inputs, and of a table's times the root of
    /// d_model. 0: 0.4 for matrices and 0.02 for tables, as large models have it.
    double spread = 0;
};

/// Ids are i64 or i32, masks any integer or boolean type, 1 where there is a token. All are [B,T]; positions may be
/// [1,T]. What is absent: mask all ones, positions 0, 1, ... (RoBERTa counts what is no padding), token types 0.
struct ForwardInputs {
    View input_ids{};
    View attention_mask{};
    View position_ids{};
    View token_type_ids{};
    /// i64 or i32 [N+1]: input_ids is [1,T], and sequence n is its tokens cu_seqlens[n] up to cu_seqlens[n+1]. No
    /// sequence sees another, and each has positions of its own: what comes out is what each alone would give. Without
    /// mask and positions, for models with one stack.
    View cu_seqlens{};
    /// Encoder-decoder only, and needed there.
    View decoder_input_ids{};
    View decoder_attention_mask{};
};

/// Factors on what each head gives, before its layer's output projection: f32 or f64 [layers, heads], heads as many as
/// the layer with the most has. 0 switches a head off, 1 leaves it as it is; absent: all 1.
struct HeadFactors {
    View self{};     ///< of the only stack, or of an encoder-decoder's encoder
    View decoder{};  ///< of an encoder-decoder's decoder
    View cross{};    ///< of its attention over the encoder
};

struct ForwardOptions {
    bool logits = true;             ///< where the model has a head
    bool hidden = false;            ///< of every layer
    std::int64_t hidden_last = 0;   ///< of so many tokens at the end alone; 0: of all
    bool attention = false;         ///< weights of every layer
    bool attention_inputs = false;  ///< queries and keys of every layer, from which weights follow at any length
    DType dtype = DType::f32;       ///< of activations; f64 where the parameters are
    std::string kernel{};           ///< AttentionOptions::kernel
    HeadFactors head_factors{};
};

/// Of one text: queries and keys of each layer, in the order of the layers.
struct CapturedInputs {
    std::vector<AttentionInputs> self{};     ///< of the only stack
    std::vector<AttentionInputs> encoder{};  ///< of an encoder-decoder
    std::vector<AttentionInputs> decoder{};
    std::vector<AttentionInputs> cross{};
};

/// Tensors in f32, or f64 where the activations are. Absent where not asked for.
struct ForwardResult {
    Tensor logits{};  ///< [B,T,V]; an encoder-decoder's T is the decoder's
    /// [B,T,d]: the embedding, then behind each layer; the last one behind the final norm. Of the decoder where there
    /// are two stacks.
    std::vector<Tensor> hidden{};
    std::vector<Tensor> attention{};          ///< [B,H,T,T] of the only stack
    std::vector<Tensor> encoder_attention{};  ///< of an encoder-decoder
    std::vector<Tensor> decoder_attention{};
    std::vector<Tensor> cross_attention{};  ///< [B,H,T,S]
    CapturedInputs attention_inputs{};
    Tensor encoder_last_hidden_state{};
    Tensor last_hidden_state{};  ///< with `hidden`, or where there is no head
    Tensor pooled{};             ///< [B,d]: of a model with a pooler

    /// All of them by name: logits, hidden.N, attention.N, encoder_attention.N, decoder_attention.N, cross_attention.N,
    /// encoder_last_hidden_state, pooler_output.
    std::vector<NamedView> named() const;
};

/// How a forward pass on a tape runs.
struct TapeForward {
    DType dtype = DType::f32;
    DropoutPlan dropout{};
    bool recompute = false;  ///< each layer again on the way back, instead of keeping what is inside
    std::string kernel{};
    ForwardResult* capture = nullptr;
    bool hidden = false;
    std::int64_t hidden_last = 0;
    bool attention = false;
    bool attention_inputs = false;
    HeadFactors head_factors{};
};

struct LossOptions {
    CrossEntropyOptions cross_entropy{};
    TapeForward forward{};
};

struct ModelState;

/// A handle: copies are the same model.
class HEED_API Model {
public:
    /// A Hugging Face folder (config.json, model.safetensors or its shards), one that heed saved, or that of a training
    /// run, whose best model is meant. Every tensor that the model needs must be there in its shape; FileError or Error
    /// names what is wrong.
    static Model load(const std::filesystem::path& folder, const LoadOptions& options = {});
    /// Fresh weights: normal, narrower behind the residual stream. Same numbers for a seed.
    static Model random(const ModelConfig& config, const RandomOptions& options = {});

    /// config.json and model.safetensors in the form the model was loaded from, so that the software it came from loads
    /// it again; heed's own form for a model made here. All files or none.
    void save(const std::filesystem::path& folder, const SaveOptions& options = {}) const;

    const ModelConfig& config() const;
    Parameters& parameters() const;
    /// From now on all linear layers read their weights in this form, made here from the parameters, and attention's
    /// projections, gate and up are one product each. Such a model runs forward only: gradients and assign() are
    /// refused. `stored` undoes it. Not while another thread uses the model.
    void set_weights(Context& context, WeightStorage weights) const;
    WeightStorage weights() const;
    /// Bytes that the linear layers read for a token, all experts included.
    std::size_t weight_bytes() const;
    /// Where the parameters are.
    Device device() const;
    /// Moves the parameters and their gradients to another device: calls take a context of that device from then on.
    /// Error for prepared weights (set_weights), which are the CPU's. Not while another thread uses the model.
    void to(Device device) const;

    /// New numbers for a parameter, of its shape and any float type; they are kept in the type that it has.
    void assign(std::string_view name, const View& value) const;
    /// What its folder asks of generation.
    const GenerationConfig& generation() const;
    /// Names of tensors in the files that the model has no use for.
    const std::vector<std::string>& unused_tensors() const;
    /// The folder it was loaded from; empty: none.
    const std::filesystem::path& folder() const;

    ForwardResult forward(Context& context, const ForwardInputs& inputs, const ForwardOptions& options = {}) const;

    /// The last layer's output on a tape, [B,T,d].
    Value hidden(Tape& tape, const ForwardInputs& inputs, const TapeForward& options = {}) const;
    /// [...,V] of hidden [...,d].
    Value logits(Tape& tape, const Value& hidden) const;
    /// The logit lens: what the head makes of the output [...,d] of a layer that is not the last, as if it were.
    Value early_logits(Tape& tape, const Value& hidden) const;
    /// Mean cross-entropy, one number. labels [B,T], -100 where there is none: of a decoder the inputs themselves (they
    /// are shifted here), of an encoder what stands at each place, of an encoder-decoder the target, from which the
    /// decoder's input is made where there is none.
    Value loss(Tape& tape, const ForwardInputs& inputs, const View& labels, const LossOptions& options = {},
               CrossEntropy* result = nullptr) const;

private:
    friend struct detail::Access;
    explicit Model(std::shared_ptr<ModelState> state) : state_(std::move(state)) {}
    std::shared_ptr<ModelState> state_;
};

// ---- Decoding with caches ------------------------------------------------------------------------------------------

class Decoding;

/// A text that is being continued: what its tokens left in the caches. Moves; fork() copies.
class HEED_API CachedSequence {
public:
    CachedSequence() = default;
    /// Tokens so far.
    std::int64_t length() const { return length_; }
    /// The same text once more; memory is shared until one of the two goes on.
    CachedSequence fork() const;
    /// Forgets the tokens from `length` on. Models with linear or Infini-attention can only forget everything.
    void truncate(std::int64_t length);
    explicit operator bool() const { return !caches_.empty(); }

private:
    friend class Decoding;
    std::vector<Cache> caches_;
    std::vector<Cache> cross_;
    std::int64_t length_ = 0;
    std::int64_t first_position_ = 0;
};

struct DecodingOptions {
    std::int64_t tokens = 4096;      ///< room for so many of all sequences together, with
    std::int64_t sequences = 16;     ///< so many of them
    std::int64_t source_tokens = 0;  ///< of an encoder-decoder's sources; 0: as many as tokens
    std::int64_t page_size = 16;
    CacheStorage storage = CacheStorage::f32;
    /// RoPE whose table changes with the length (dynamic NTK, LongRoPE). false: a key keeps the rotation that it got
    /// when it came, which is what transformers' caches do, token for token. true: all keys follow the table of the
    /// length that the sequence has now, which is what the scaling means.
    bool rotate_in_cache = false;
    std::string kernel{};
};

/// What a step takes and gives: the new tokens of each sequence, end to end.
struct DecodingBatch {
    std::vector<CachedSequence*> sequences{};
    std::vector<std::int64_t> tokens{};
    std::vector<std::int64_t> counts{};  ///< of each sequence, 1 or more; empty: one each
    bool all_logits = false;             ///< of every token instead of the last of each sequence
};

/// The caches of a model and the steps over them. Prefill, part of a prefill and decoding are the same call.
class HEED_API Decoding {
public:
    explicit Decoding(const Model& model, const DecodingOptions& options = {});

    /// Empty; of a decoder.
    CachedSequence create() const;
    /// Of an encoder-decoder: runs the encoder over the source [S], i64 or i32, and keeps its keys and values.
    CachedSequence create(Context& context, const View& source);

    /// Logits [N,V], or [T,V] of all tokens, in f32. A full cache is a CacheFull and nothing has changed.
    Tensor step(Context& context, const DecodingBatch& batch);

    const Model& model() const { return model_; }
    /// Pages that are free in the fullest pool.
    std::int64_t free_pages() const;

private:
    struct Group {
        CachePool pool;
        std::vector<std::int64_t> layers;
    };
    Model model_;
    DecodingOptions options_;
    std::vector<Group> groups_;
    std::vector<std::pair<std::size_t, std::int64_t>> places_;  ///< of each layer: group, layer in it
    std::vector<CachePool> cross_;                              ///< none or one
    TapeMemory memory_;
};

}  // namespace heed
