#include "commands/inspect_prompt.h"

#include <filesystem>
#include <fstream>
#include <span>

#include <fmt/format.h>
#include <heed/search.h>
#include <heed/tokenizer.h>

#include "print/heads.h"
#include "print/matrix.h"
#include "print/text.h"

namespace heed::cli {
namespace {

/// What stands beside a picture.
std::vector<std::string> labels_of(const Tokenizer& tokenizer, const std::vector<std::int64_t>& ids) {
    std::vector<std::string> result;
    for (const std::int64_t id : ids) {
        result.push_back(printable(tokenizer.is_special(id) ? tokenizer.token_of(id).value_or("")
                                                            : tokenizer.decode(std::vector<std::int64_t>{id})));
    }
    return result;
}

View row_of(const std::vector<std::int64_t>& ids) {
    return View(ids.data(), {1, static_cast<std::int64_t>(ids.size())});
}

/// What an encoder-decoder writes for a source, its start token in front.
std::vector<std::int64_t> written(Context& context, const Model& model, const std::vector<std::int64_t>& source) {
    SearchOptions options;
    options.max_new_tokens = 48;
    Decoding decoding(model, search_room(static_cast<std::int64_t>(source.size()), options));
    std::vector<std::int64_t> ids = search(context, decoding, source, options);
    if (ids.size() > 1) { ids.pop_back(); }  // what the last token would look at is of no use to anybody
    return ids;
}

void add_layers(std::vector<HeadsOfLayer>& to, const std::string& what, const std::vector<Tensor>& weights,
                const std::vector<std::string>& rows, const std::vector<std::string>& columns) {
    for (std::size_t n = 0; n < weights.size(); ++n) {
        to.push_back({fmt::format("{}layer {}", what, n + 1), &weights[n], &rows, &columns});
    }
}

void draw(const std::vector<HeadsOfLayer>& layers, const PromptArguments& a) {
    const bool colour = wants_colour(a.colour);
    for (std::size_t n = 0; n < layers.size(); ++n) {
        if (a.layer > 0 && static_cast<std::size_t>(a.layer) != n + 1) { continue; }
        for (std::int64_t h = 0; h < layers[n].weights->shape()[1]; ++h) {
            if (a.head > 0 && a.head != h + 1) { continue; }
            fmt::print("{}", head_map(layers[n], h, colour));
        }
    }
    fmt::print("{}", heat_legend(0, colour));
}

}  // namespace

void inspect_prompt(const PromptArguments& a) {
    const Tokenizer tokenizer{std::filesystem::path(a.path)};
    const Model model = Model::load(a.path);
    Context context(a.threads);
    const std::vector<std::int64_t> ids = tokenizer.encode(a.prompt);
    std::vector<std::int64_t> answer;
    if (ids.empty()) { throw UsageError("--prompt: expected some text, got none"); }
    if (ids.size() > 256) {
        throw UsageError(
            fmt::format("--prompt: expected at most 256 tokens, which a picture can show, got {}", ids.size()));
    }
    ForwardInputs inputs;
    const bool two = model.config().kind == ModelKind::encoder_decoder;
    inputs.input_ids = row_of(ids);
    if (two) {
        answer = written(context, model, ids);
        inputs.decoder_input_ids = row_of(answer);
    }
    const ForwardResult result = model.forward(context, inputs, {.logits = false, .attention = true});
    const std::vector<std::string> read = labels_of(tokenizer, ids), wrote = labels_of(tokenizer, answer);
    std::vector<HeadsOfLayer> layers;
    add_layers(layers, two ? "encoder " : "", two ? result.encoder_attention : result.attention, read, read);
    add_layers(layers, "decoder ", result.decoder_attention, wrote, wrote);
    add_layers(layers, "cross ", result.cross_attention, wrote, read);
    if (a.layer > static_cast<int>(layers.size())) {
        throw UsageError(fmt::format("--layer: expected 1 to {}, got {}", layers.size(), a.layer));
    }
    draw(layers, a);
    if (!a.out.empty()) {
        std::ofstream file(a.out, std::ios::binary | std::ios::trunc);
        file << heads_picture(printable(a.prompt), layers);
        file.flush();
        if (!file) { throw UsageError(a.out + ": cannot be written"); }
        fmt::print("every head: {}\n", a.out);
    }
}

}  // namespace heed::cli
