#pragma once
/// Where a token stands: rotary positions (RoPE) with every published way to reach beyond the trained length,
/// sinusoids, learned positions, T5's relative bias, ALiBi's slopes. Letters as in <heed/attention.h>; positions count
/// from 0.
///
///     heed::RopeTable table = heed::rope_table({.size = 128, .theta = 500000}, 8192);
///     heed::rope(context, q, q, table);    // in place, positions 0 .. T-1
///     heed::rope(context, k, k, table);
///     heed::attend(context, q, k, v, out, {.causal = true});

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <heed/attention.h>
#include <heed/context.h>
#include <heed/view.h>

namespace heed {

/// Which two numbers of a row belong together.
enum class Pairing : std::uint8_t {
    interleaved,  ///< (0,1) (2,3) ...: original Llama weights, GPT-J, DeepSeek
    halves,       ///< (i, i + size/2): GPT-NeoX, and Llama, Mistral, Qwen, Gemma as Hugging Face stores them
};

// ---- RoPE: frequencies ---------------------------------------------------------------------------------------------
//
// Pair i of `size` rotated numbers turns by position * f_i, where f_i = theta^(-2i/size) unless scaled. `trained` is
// the length that the model saw before it was stretched (original_max_position_embeddings), `factor` how much longer
// the new length is. Each scaling changes f_i, and some multiply cos and sin by an attention factor A, so that scores
// grow by A^2.

namespace rope_scaling {

struct None {};

/// Position interpolation: f_i / factor. Needs fine-tuning; neighbours move together.
struct Linear {
    double factor = 1;
};

/// theta * factor^(size/(size-2)): the fastest pair stays, the slowest is slowed by exactly `factor`.
struct Ntk {
    double factor = 1;
};

/// Ntk with the factor that the length n in use asks for: factor*n/trained - (factor-1), from n = trained on. The table
/// depends on n: see rope_table.
struct DynamicNtk {
    double factor = 1;
    std::int64_t trained = 0;
};

/// Pairs that turn more than beta_fast times within `trained` stay, those that turn less than beta_slow times are
/// divided by `factor`, in between a ramp over the index i.
struct Yarn {
    double factor = 1;
    std::int64_t trained = 0;
    double beta_fast = 32;
    double beta_slow = 1;
    bool truncate = true;  ///< the ends of the ramp are whole indices
    /// A. Absent: g(mscale)/g(mscale_all_dim) where both are non-zero, else g(1), with g(m) = 0.1 m ln(factor) + 1.
    std::optional<double> attention_factor = {};
    double mscale = 0;
    double mscale_all_dim = 0;
};

/// Wavelengths below trained/high_freq_factor stay, above trained/low_freq_factor are stretched by `factor`, in between
/// blended.
struct Llama3 {
    double factor = 8;
    std::int64_t trained = 8192;
    double low_freq_factor = 1;
    double high_freq_factor = 4;
};

/// f_i / short_factors[i] up to length `trained`, f_i / long_factors[i] beyond; size/2 numbers each. The table depends
/// on the length: see rope_table.
struct LongRope {
    double factor = 1;  ///< for A alone
    std::int64_t trained = 0;
    std::vector<double> short_factors = {};
    std::vector<double> long_factors = {};
    /// A. Absent: sqrt(1 + ln(factor)/ln(trained)) for a factor above 1.
    std::optional<double> attention_factor = {};
};

/// Only the first `share` of the pairs turn, with the frequencies that all of them would have had, over `factor`.
struct Proportional {
    double share = 1;
    double factor = 1;
};

}  // namespace rope_scaling

/// One of them.
using RopeScaling =
    std::variant<rope_scaling::None, rope_scaling::Linear, rope_scaling::Ntk, rope_scaling::DynamicNtk,
                 rope_scaling::Yarn, rope_scaling::Llama3, rope_scaling::LongRope, rope_scaling::Proportional>;

/// "none", "linear", "ntk", "dynamic", "yarn", "llama3", "longrope", "proportional".
HEED_API std::string_view name_of(const RopeScaling& scaling);

/// Does the table change with the length of the sequence? (dynamic, longrope)
HEED_API bool depends_on_length(const RopeScaling& scaling);

/// How a model rotates. Plain data; rope_table checks it.
struct Rope {
    std::int64_t size = 0;  ///< numbers rotated, even; the rest of a head passes through
    double theta = 10000;
    Pairing pairing = Pairing::halves;
    RopeScaling scaling = {};
};

/// Frequencies in use: pair i turns by position * frequencies[i] and is multiplied by attention_factor.
/// Anything may be put here, such as frequencies read from a file.
struct RopeTable {
    std::vector<double> frequencies = {};
    double attention_factor = 1;
    Pairing pairing = Pairing::halves;

    bool operator==(const RopeTable&) const = default;
};

/// The frequencies for sequences of up to `length` tokens; 0: for the trained length.
///
/// Only dynamic NTK and LongRoPE look at the length. With those, queries and keys must be rotated by one table: keys
/// kept from a shorter sequence do not fit the queries of a longer one. Three ways that are right as a sequence grows:
///   - one table for the longest length planned, from the start (the simplest, and the only one that is free);
///   - keep keys unrotated and rotate them anew for every step, as for caches that drop tokens;
///   - when rope_table gives a table that differs from the last (==), turn the kept keys over with rerotate.
HEED_API RopeTable rope_table(const Rope& rope, std::int64_t length = 0);

// ---- RoPE: rotation ------------------------------------------------------------------------------------------------

struct RopeOptions {
    /// i32 or i64; [B,T], [1,T] or [T]: the position of each token, of any sign. Absent: first, first + 1, ...
    View positions = {};
    std::int64_t first = 0;  ///< beside positions: 0
};

/// out [B,H,T,D] = x [B,H,T,D] with the first 2 * frequencies.size() numbers of every row rotated:
///
///     (a, b) -> A * (a cos - b sin, a sin + b cos)      angle = position * frequency of the pair
///
/// and the others as they are. f32, bf16, f16 or f64; out has the type of x or f32. `out` may be x itself (the same
/// view); any other overlap is refused. Angles are computed in double, so they are right at any position; cos and
/// sin are float32 (double for f64). [B,T,H,D] memory: permute({0,2,1,3}).
HEED_API void rope(Context& context, const View& x, const MutableView& out, const RopeTable& table,
                   const RopeOptions& options = {});

/// dx = gradient of sum(dout * rope(x)): the inverse rotation, times A. It needs no x. In place or not, as rope.
HEED_API void rope_backward(Context& context, const View& dout, const MutableView& dx, const RopeTable& table,
                            const RopeOptions& options = {});

/// out = rows that `from` rotated, as if `to` had rotated them: turns by position * (difference of frequencies), times
/// the ratio of the attention factors. Both tables have the same number of pairs and the same pairing. In bf16 and f16
/// each pass rounds once more; keep keys unrotated where that matters.
HEED_API void rerotate(Context& context, const View& x, const MutableView& out, const RopeTable& from,
                       const RopeTable& to, const RopeOptions& options = {});

// ---- RoPE: a Hugging Face config.json ------------------------------------------------------------------------------

/// RoPE of the layers of one kind ("full_attention", "sliding_attention"); an empty name stands for every layer.
struct LayerRope {
    std::string layer_type;
    Rope rope;
};

struct RopeConfig {
    std::vector<LayerRope> kinds;          ///< at least one
    std::vector<std::string> layer_types;  ///< of each layer, where the file lists them
    std::int64_t head_size = 0;            ///< of a query (for MLA, of its rotated part)
    std::int64_t max_positions = 0;        ///< the longest sequence the model is meant for; 0: not said
};

/// Both spellings: `rope_parameters` (also nested by layer type), and `rope_theta` with `rope_scaling`, `type` or
/// `rope_type`; `rotary_pct`, `rotary_dim`, `rotary_emb_base`, `rope_local_base_freq` of older files. A missing theta
/// is that of the model's type. Only types that were checked against transformers are known (a file without
/// model_type is read as Llama's); others are an Error that names them. Of a model of several parts, text_config is
/// read. The text is not trusted: what is unknown and would change the result (a rope type, a setting of it) and what
/// cannot be right is an Error that names the key.
HEED_API RopeConfig rope_from_config(std::string_view json);

// ---- Sinusoids -----------------------------------------------------------------------------------------------------

struct SinusoidOptions {
    /// interleaved: sin, cos, sin, cos (the 2017 paper); halves: all sines, then all cosines (tensor2tensor, Marian).
    Pairing layout = Pairing::interleaved;
    /// Frequency i of n is base^(-i/n) (the paper, Marian), or base^(-i/(n-1)) where the last is to be exactly 1/base
    /// (tensor2tensor).
    bool reach_base = false;
    double base = 10000;
    /// i32 or i64 [T]. Absent: first, first + 1, ...
    View positions = {};
    std::int64_t first = 0;  ///< beside positions: 0
};

/// out [T,d] = sin and cos of position * frequency, n = d/2 frequencies; an odd d ends with a column of zeros.
HEED_API void sinusoids(Context& context, const MutableView& out, const SinusoidOptions& options = {});

// ---- Learned positions ---------------------------------------------------------------------------------------------

struct LearnedOptions {
    std::int64_t offset = 0;  ///< position p reads row p + offset (BART: 2)
    bool add = false;         ///< add to what the output holds, instead of replacing it
};

/// out [B,T,d] = table [P,d] at positions [B,T] or [T], i32 or i64. A position outside the table is an Error. out has
/// any float type.
HEED_API void learned_positions(Context& context, const View& table, const View& positions, const MutableView& out,
                                const LearnedOptions& options = {});

/// dtable [P,d], f32 or f64: row r is the sum of dout [B,T,d] where r was read; rows never read get 0.
HEED_API void learned_positions_backward(Context& context, const View& dout, const View& positions,
                                         const MutableView& dtable, const LearnedOptions& options = {});

// ---- T5's relative bias --------------------------------------------------------------------------------------------

/// Near distances have a bucket each; those from half of the buckets on share, evenly by their logarithm.
struct RelativeBuckets {
    std::int64_t count = 32;
    std::int64_t max_distance = 128;  ///< from here on one bucket
    bool bidirectional = true;        ///< half of the buckets for keys ahead; false: keys ahead are at distance 0
};

/// The bucket of a key at `distance` = p_j - p_i from the query.
HEED_API std::int64_t relative_bucket(std::int64_t distance, const RelativeBuckets& buckets = {});

struct RelativeBiasOptions {
    RelativeBuckets buckets = {};
    /// i32 or i64; [B,T] and [B,S], [1,T] and [1,S], or [T] and [S]. Absent: as in attend, by `align`.
    View query_positions = {};
    View key_positions = {};
    Align align = Align::bottom_right;
};

/// bias [B,H,T,S] (B = 1 serves every batch entry) = table [buckets,H] at the bucket of p_j - p_i: what attend takes as
/// AttentionOptions::bias, with scale 1 for T5. bias has any float type.
HEED_API void relative_bias(Context& context, const View& table, const MutableView& bias,
                            const RelativeBiasOptions& options = {});

/// dtable [buckets,H], f32 or f64, from dbias [B,H,T,S] (AttentionGradients::dbias).
HEED_API void relative_bias_backward(Context& context, const View& dbias, const MutableView& dtable,
                                     const RelativeBiasOptions& options = {});

// ---- ALiBi ---------------------------------------------------------------------------------------------------------

/// Slopes for any number of heads, for AttentionOptions::alibi_slopes: 2^(-max_bias (k+1)/P) for the P heads up to the
/// largest power of two, then every other one of the series for 2P.
HEED_API std::vector<double> alibi_slopes(std::int64_t heads, double max_bias = 8);

}  // namespace heed
