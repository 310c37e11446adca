#include "model/families.h"

#include <algorithm>
#include <array>

#include "model/family.h"

namespace heed {
namespace {

/// Ids that generation needs; generation_config.json may say otherwise later.
void read_tokens(const ConfigReader& c, ModelConfig& m) {
    const auto one = [&](std::string_view key) -> std::optional<std::int64_t> {
        const auto found = c.integers(key, -1, family::most_rows);
        if (found.empty() || found[0] < 0) { return std::nullopt; }
        return found[0];
    };
    m.bos = one("bos_token_id");
    m.pad = one("pad_token_id");
    m.eos = c.integers("eos_token_id", -1, family::most_rows);
    std::erase_if(m.eos, [](std::int64_t id) { return id < 0; });
    m.decoder_start = one("decoder_start_token_id");
    m.forced_bos = one("forced_bos_token_id");
    m.forced_eos = one("forced_eos_token_id");
}

/// The row of the padding token learns nothing from lookups where the family's embedding says so.
void padding_row(ModelConfig& m) {
    if (m.pad && *m.pad < m.vocab) { m.padding_row = *m.pad; }
}

template <ModelConfig (*Read)(const ConfigReader&), bool Padding>
ModelConfig complete(const ConfigReader& c) {
    ModelConfig m = Read(c);
    read_tokens(c, m);
    if (Padding) { padding_row(m); }
    return m;
}

constexpr auto known_families = std::to_array<Family>({
    {"bart", complete<family::bart, true>, "BartModel", "BartForConditionalGeneration"},
    {"bert", complete<family::bert, true>, "BertModel", "BertForMaskedLM"},
    {"bloom", complete<family::bloom, false>, "BloomModel", "BloomForCausalLM"},
    {"deepseek_v2", complete<family::deepseek_v2, true>, "DeepseekV2Model", "DeepseekV2ForCausalLM"},
    {"deepseek_v3", complete<family::deepseek_v3, true>, "DeepseekV3Model", "DeepseekV3ForCausalLM"},
    {"gemma2", complete<family::gemma2, true>, "Gemma2Model", "Gemma2ForCausalLM"},
    {"gpt2", complete<family::gpt2, false>, "GPT2Model", "GPT2LMHeadModel"},
    {"gpt_neox", complete<family::gpt_neox, false>, "GPTNeoXModel", "GPTNeoXForCausalLM"},
    {"gpt_oss", complete<family::gpt_oss, true>, "GptOssModel", "GptOssForCausalLM"},
    {"llama", complete<family::llama, true>, "LlamaModel", "LlamaForCausalLM"},
    {"marian", complete<family::marian, true>, "MarianModel", "MarianMTModel"},
    {"mistral", complete<family::mistral, true>, "MistralModel", "MistralForCausalLM"},
    {"mixtral", complete<family::mixtral, true>, "MixtralModel", "MixtralForCausalLM"},
    {"modernbert", complete<family::modernbert, true>, "ModernBertModel", "ModernBertForMaskedLM"},
    {"olmo2", complete<family::olmo2, true>, "Olmo2Model", "Olmo2ForCausalLM"},
    {"phi3", complete<family::phi3, true>, "Phi3Model", "Phi3ForCausalLM"},
    {"qwen2", complete<family::qwen2, true>, "Qwen2Model", "Qwen2ForCausalLM"},
    {"qwen3", complete<family::qwen3, true>, "Qwen3Model", "Qwen3ForCausalLM"},
    {"roberta", complete<family::roberta, true>, "RobertaModel", "RobertaForMaskedLM"},
    {"t5", complete<family::t5, false>, "T5Model", "T5ForConditionalGeneration"},
});

}  // namespace

std::span<const Family> all_families() { return known_families; }

}  // namespace heed
