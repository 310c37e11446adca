#include <heed/serving.h>

#include <algorithm>

#include "base/dispatch.h"
#include "base/refuse.h"

namespace heed {
namespace {

/// A row as it came, and the tokens of it that count.
struct PromptRow {
    std::vector<std::int64_t> whole{}, tokens{};
};

std::vector<PromptRow> prompt_rows(const View& ids, const View& mask) {
    if (!ids || ids.rank() != 2 || (ids.dtype() != DType::i64 && ids.dtype() != DType::i32)) {
        refuse("generate_rows", "input_ids", "i64 or i32 [batch, tokens]",
               (ids ? std::string(name_of(ids.dtype())) + " " + to_string(ids.shape()) : "none"));
    }
    if (mask && !(mask.shape() == ids.shape())) {
        refuse("generate_rows", "attention_mask", "shape " + to_string(ids.shape()), to_string(mask.shape()));
    }
    std::vector<PromptRow> rows(static_cast<std::size_t>(ids.extent(0)));
    for (std::int64_t b = 0; b < ids.extent(0); ++b) {
        PromptRow& row = rows[static_cast<std::size_t>(b)];
        for (std::int64_t t = 0; t < ids.extent(1); ++t) {
            row.whole.push_back(read_integer(ids.dtype(), ids.data(), b * ids.stride(0) + t * ids.stride(1)));
            const bool there =
                !mask || read_number(mask.dtype(), mask.data(), b * mask.stride(0) + t * mask.stride(1)) != 0;
            if (there) { row.tokens.push_back(row.whole.back()); }
        }
    }
    return rows;
}

}  // namespace

Tensor generate_rows(Context& context, const Model& model, const View& input_ids, const View& attention_mask,
                     const GenerateOptions& options) {
    const ModelConfig& config = model.config();
    std::vector<PromptRow> rows = prompt_rows(input_ids, attention_mask);
    ServingOptions serving;
    serving.decoding.kernel = options.kernel;
    serving.decoding.sequences = std::max<std::int64_t>(1, static_cast<std::int64_t>(rows.size()));
    serving.decoding.tokens = 1;
    for (const PromptRow& row : rows) {
        serving.decoding.tokens +=
            static_cast<std::int64_t>(row.tokens.size()) + options.max_new_tokens + options.speculation.tokens + 1;
    }
    serving.speculation = options.speculation;
    serving.tokenizer = options.tokenizer;
    ServingLoop loop(model, serving);
    std::vector<ServingLoop::Id> ids;
    for (std::size_t r = 0; r < rows.size(); ++r) {
        ids.push_back(loop.add({.prompt = rows[r].tokens,
                                .max_new_tokens = options.max_new_tokens,
                                .min_new_tokens = options.min_new_tokens,
                                .sampling = options.sampling,
                                .sequence = r,
                                .eos = options.eos,
                                .stop = options.stop}));
    }
    loop.run(context);
    std::size_t longest = 0;
    for (std::size_t r = 0; r < rows.size(); ++r) {
        std::vector<std::int64_t>& row = rows[r].whole;
        if (config.kind == ModelKind::encoder_decoder) {
            row = {config.decoder_start ? *config.decoder_start : *config.bos};
        }
        const Generated made = loop.take(ids[r]);
        row.insert(row.end(), made.tokens.begin(), made.tokens.end());
        longest = std::max(longest, row.size());
    }
    const std::int64_t padding = config.pad ? *config.pad : config.eos.empty() ? 0 : config.eos[0];
    Tensor result(DType::i64, {static_cast<std::int64_t>(rows.size()), static_cast<std::int64_t>(longest)});
    std::fill_n(result.as<std::int64_t>(), result.elements(), padding);
    for (std::size_t r = 0; r < rows.size(); ++r) {
        std::copy(rows[r].whole.begin(), rows[r].whole.end(), result.as<std::int64_t>() + r * longest);
    }
    return result;
}

}  // namespace heed
