#include <heed/serving.h>

#include <algorithm>

#include "base/refuse.h"
#include "generate/prompt_rows.h"
#include "generate/token_limits.h"

namespace heed {
Tensor generate_rows(Context& context, const Model& model, const View& input_ids, const View& attention_mask,
                     const GenerateOptions& options, const View& decoder_input_ids) {
    const ModelConfig& config = model.config();
    const std::vector<PromptRow> rows = prompt_rows(model, {.function = "generate_rows",
                                                            .input_ids = input_ids,
                                                            .attention_mask = attention_mask,
                                                            .eos = options.eos,
                                                            .special = options.special});
    const std::int64_t texts = options.num_return_sequences;
    if (texts < 1 || (texts > 1 && !options.sampling.do_sample)) {
        refuse("generate_rows", "num_return_sequences", "1, or more with do_sample", std::to_string(texts));
    }
    const auto beginnings = decoder_prompts("generate_rows", model, options.special, decoder_input_ids,
                                            static_cast<std::int64_t>(rows.size()));
    ServingOptions serving;
    serving.decoding.kernel = options.kernel;
    serving.decoding.sequences = std::max<std::int64_t>(1, static_cast<std::int64_t>(rows.size()) * texts);
    serving.decoding.tokens = 1;
    for (std::size_t r = 0; r < rows.size(); ++r) {
        const auto longer = static_cast<std::int64_t>(std::max(rows[r].tokens.size(), beginnings[r].size()));
        serving.decoding.tokens += texts * (longer + options.max_new_tokens + options.speculation.tokens + 1);
    }
    serving.speculation = options.speculation;
    serving.tokenizer = options.tokenizer;
    ServingLoop loop(model, serving);
    std::vector<ServingLoop::Id> ids;
    for (std::size_t n = 0; n < rows.size() * static_cast<std::size_t>(texts); ++n) {
        const std::size_t r = n / static_cast<std::size_t>(texts);
        ids.push_back(
            loop.add({.prompt = rows[r].tokens,
                      .max_new_tokens = options.max_new_tokens,
                      .min_new_tokens = options.min_new_tokens,
                      .sampling = options.sampling,
                      .sequence = n,
                      .eos = options.eos,
                      .special = options.special,
                      .rules = options.rules,
                      .decoder_prompt = beginnings[r],
                      .padding = config.kind == ModelKind::decoder ? rows[r].padding : std::vector<std::int64_t>(),
                      .stop = options.stop}));
    }
    loop.run(context);
    std::vector<std::vector<std::int64_t>> made;
    std::size_t longest = 0;
    for (std::size_t n = 0; n < ids.size(); ++n) {
        const std::size_t r = n / static_cast<std::size_t>(texts);
        std::vector<std::int64_t> row = rows[r].whole;
        if (config.kind == ModelKind::encoder_decoder) {
            row = target_beginning("generate_rows", model, options.special, beginnings[r]);
        }
        const Generated generated = loop.take(ids[n]);
        row.insert(row.end(), generated.tokens.begin(), generated.tokens.end());
        longest = std::max(longest, row.size());
        made.push_back(std::move(row));
    }
    Tensor result(DType::i64, {static_cast<std::int64_t>(made.size()), static_cast<std::int64_t>(longest)});
    std::fill_n(result.as<std::int64_t>(), result.elements(), padding_token(model, options.eos, options.special));
    for (std::size_t n = 0; n < made.size(); ++n) {
        std::copy(made[n].begin(), made[n].end(), result.as<std::int64_t>() + n * longest);
    }
    return result;
}

}  // namespace heed
