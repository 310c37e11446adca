#include "commands/inspect_prompt.h"

#include <filesystem>
#include <fstream>
#include <optional>
#include <span>
#include <sstream>

#include <fmt/format.h>
#include <heed/search.h>
#include <heed/train.h>

#include "print/heads.h"
#include "print/matrix.h"
#include "print/text.h"

namespace heed::cli {
namespace {

/// Text to ids and ids to what stands beside a picture, as the run's data had them.
class PromptCoder {
public:
    explicit PromptCoder(const std::filesystem::path& folder) {
        const std::filesystem::path run = folder / "run.json";
        if (std::filesystem::exists(run)) {
            std::ifstream file(run, std::ios::binary);
            std::ostringstream text;
            text << file.rdbuf();
            config_ = read_train_config(text.str());
            if (!config_->data.tokenizer.empty()) { tokenizer_.emplace(config_->data.tokenizer); }
        } else {
            tokenizer_.emplace(folder / "tokenizer.json");
        }
    }
    bool is_task() const { return config_ && !config_->data.task.empty(); }
    bool is_run() const { return config_.has_value(); }

    std::vector<std::int64_t> encode(const std::string& text) const {
        if (is_task()) { return task_encode(text); }
        if (tokenizer_) { return tokenizer_->encode(text); }
        std::vector<std::int64_t> ids;
        for (const char c : text) { ids.push_back(static_cast<unsigned char>(c)); }
        return ids;
    }
    std::string shown_token(std::int64_t id) const {
        if (is_task()) {
            constexpr const char* special[] = {"pad", "start", "end"};
            return id < 3 ? special[id] : task_decode(std::vector<std::int64_t>{id});
        }
        if (tokenizer_) { return printable(tokenizer_->decode(std::vector<std::int64_t>{id})); }
        return id < 256 ? printable(std::string(1, static_cast<char>(id))) : fmt::format("<{}>", id);
    }
    std::vector<std::string> labels(const std::vector<std::int64_t>& ids) const {
        std::vector<std::string> result;
        for (const std::int64_t id : ids) { result.push_back(shown_token(id)); }
        return result;
    }

private:
    std::optional<TrainConfig> config_;
    std::optional<Tokenizer> tokenizer_;
};

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
    const std::filesystem::path folder = a.path;
    const PromptCoder coder(folder);
    const Model model = Model::load(coder.is_run() ? folder / "best" : folder);
    Context context(a.threads);
    std::vector<std::int64_t> ids = coder.encode(a.prompt), answer;
    if (coder.is_task() && model.config().kind == ModelKind::decoder) { ids.insert(ids.begin(), 1); }
    if (ids.empty()) { throw UsageError("--prompt: expected some text, got none"); }
    if (ids.size() > 256) {
        throw UsageError(
            fmt::format("--prompt: expected at most 256 tokens, which a picture can show, got {}", ids.size()));
    }
    ForwardInputs inputs;
    const bool two = model.config().kind == ModelKind::encoder_decoder;
    if (two && coder.is_task()) { ids.push_back(2); }
    inputs.input_ids = row_of(ids);
    if (two) {
        answer = written(context, model, ids);
        inputs.decoder_input_ids = row_of(answer);
    }
    const ForwardResult result = model.forward(context, inputs, {.logits = false, .attention = true});
    const std::vector<std::string> read = coder.labels(ids), wrote = coder.labels(answer);
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
