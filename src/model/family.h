#pragma once
#include "model/families.h"
#include "model/shape.h"

/// What the readers of a family's config.json share, and the readers themselves: a file of them for each line of models
/// (family_*.cc), all listed in families.cc.
namespace heed::family {

constexpr std::int64_t most_rows = shape_limit::rows;
constexpr std::int64_t most_width = shape_limit::width;
constexpr double largest_number = 1e9;

std::int64_t layers_of(const ConfigReader& c, ConfigReader::Key key);

/// The size of a head that is the width shared out; the width must divide.
std::int64_t shared_out(const ConfigReader& c, std::string_view heads_key, std::int64_t d_model, std::int64_t heads);

void same_heads(AttentionConfig& attention, std::int64_t heads, std::int64_t head_size);

Activation activation_in(const ConfigReader& c, std::string_view key, const std::string& absent);

void refuse_true(const ConfigReader& c, std::string_view key);

double probability(const ConfigReader& c, std::string_view key, double absent);

double epsilon(const ConfigReader& c, std::string_view key, double absent);

/// LayerNorm, biases everywhere, two feed-forward matrices: BERT, GPT-2, BLOOM, GPT-NeoX, BART, Marian.
LayerConfig biased_layer();

NormConfig layer_norm_config(double eps, bool bias = true);

void stack_of(StackConfig& stack, std::int64_t count, const LayerConfig& layer);

void decoder_of(ModelConfig& m);

/// RoPE of each layer by its type, and the window of those that slide.
void rotate_layers(const ConfigReader& c, StackConfig& stack);

/// A decoder with a gated feed-forward and RMS norms: Llama's line and DeepSeek.
ModelConfig gated_decoder(const ConfigReader& c, LayerConfig& layer, double usual_eps = 1e-6);

void finish_decoder(const ConfigReader& c, ModelConfig& m, const LayerConfig& layer);

ModelConfig bart(const ConfigReader& c);
ModelConfig bert(const ConfigReader& c);
ModelConfig bloom(const ConfigReader& c);
ModelConfig deepseek_v2(const ConfigReader& c);
ModelConfig deepseek_v3(const ConfigReader& c);
ModelConfig gemma2(const ConfigReader& c);
ModelConfig gpt2(const ConfigReader& c);
ModelConfig gpt_neox(const ConfigReader& c);
ModelConfig gpt_oss(const ConfigReader& c);
ModelConfig llama(const ConfigReader& c);
ModelConfig marian(const ConfigReader& c);
ModelConfig mistral(const ConfigReader& c);
ModelConfig mixtral(const ConfigReader& c);
ModelConfig modernbert(const ConfigReader& c);
ModelConfig olmo2(const ConfigReader& c);
ModelConfig phi3(const ConfigReader& c);
ModelConfig qwen2(const ConfigReader& c);
ModelConfig qwen3(const ConfigReader& c);
ModelConfig roberta(const ConfigReader& c);
ModelConfig t5(const ConfigReader& c);

}  // namespace heed::family
