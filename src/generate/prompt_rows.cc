#include "generate/prompt_rows.h"

#include <algorithm>

#include "base/dispatch.h"
#include "base/refuse.h"

namespace heed {
namespace {

void check_rows(const GivenRows& given) {
    const View &ids = given.input_ids, &mask = given.attention_mask;
    if (!ids || ids.rank() != 2 || (ids.dtype() != DType::i64 && ids.dtype() != DType::i32)) {
        refuse(given.function, "input_ids", "i64 or i32 [batch, tokens]",
               ids ? std::string(name_of(ids.dtype())) + " " + to_string(ids.shape()) : "none");
    }
    if (mask && !(mask.shape() == ids.shape())) {
        refuse(given.function, "attention_mask", "shape " + to_string(ids.shape()), to_string(mask.shape()));
    }
}

/// The token that says by itself that it is padding.
std::optional<std::int64_t> hidden_token(const Model& model, const GivenRows& given) {
    if (given.attention_mask) { return std::nullopt; }
    const std::vector<std::int64_t>& eos = given.eos ? *given.eos : model.config().eos;
    const std::optional<std::int64_t> pad = given.special.pad ? given.special.pad : model.config().pad;
    return pad && std::ranges::find(eos, *pad) == eos.end() ? pad : std::nullopt;
}

}  // namespace

std::vector<PromptRow> prompt_rows(const Model& model, const GivenRows& given) {
    check_rows(given);
    const View &ids = given.input_ids, &mask = given.attention_mask;
    const std::optional<std::int64_t> hidden = hidden_token(model, given);
    std::vector<PromptRow> rows(static_cast<std::size_t>(ids.extent(0)));
    for (std::int64_t b = 0; b < ids.extent(0); ++b) {
        PromptRow& row = rows[static_cast<std::size_t>(b)];
        for (std::int64_t t = 0; t < ids.extent(1); ++t) {
            const std::int64_t id = read_integer(ids.dtype(), ids.data(), b * ids.stride(0) + t * ids.stride(1));
            const bool there =
                mask ? read_number(mask.dtype(), mask.data(), b * mask.stride(0) + t * mask.stride(1)) != 0
                     : id != hidden;
            row.whole.push_back(id);
            (there ? row.tokens : row.padding).push_back(id);
        }
        if (!mask && row.tokens.empty()) {
            row.tokens = row.whole;
            row.padding.clear();
        }
    }
    return rows;
}

}  // namespace heed
