#include "look.h"

#include <algorithm>
#include <cmath>
#include <list>
#include <map>

#include "fields.h"

namespace heed::web {
namespace {

/// All weights of a text are kept while it is looked at, so texts are short: this many bytes of weights at most.
constexpr std::int64_t most_weight_bytes = std::int64_t{256} << 20;
constexpr std::size_t kept_texts = 3;
constexpr std::int64_t thumb_cells = 24;
constexpr std::int64_t most_cells = 128;

struct LookedAt {
    std::vector<std::int64_t> ids = {};     ///< of the stack that reads the prompt
    std::vector<std::int64_t> target = {};  ///< of an encoder-decoder's decoder
    ForwardResult result = {};
};

/// The weights of one kind of attention, layer by layer.
struct Kind {
    const char* name;
    const std::vector<Tensor>* layers;
    const std::vector<std::int64_t>* rows;
    const std::vector<std::int64_t>* columns;
};

std::vector<Kind> kinds_of(const LookedAt& text) {
    const ForwardResult& r = text.result;
    std::vector<Kind> kinds;
    if (!r.attention.empty()) { kinds.push_back({"self", &r.attention, &text.ids, &text.ids}); }
    if (!r.encoder_attention.empty()) { kinds.push_back({"encoder", &r.encoder_attention, &text.ids, &text.ids}); }
    if (!r.decoder_attention.empty()) {
        kinds.push_back({"decoder", &r.decoder_attention, &text.target, &text.target});
    }
    if (!r.cross_attention.empty()) { kinds.push_back({"cross", &r.cross_attention, &text.target, &text.ids}); }
    return kinds;
}

/// The weights [T,S] of one head.
struct Head {
    const float* weights = nullptr;
    std::int64_t rows = 0, columns = 0;
    double at(std::int64_t i, std::int64_t j) const { return weights[i * columns + j]; }
};

Head head_of(const Tensor& layer, std::int64_t head) {
    const std::int64_t rows = layer.shape()[2], columns = layer.shape()[3];
    return {layer.as<float>() + head * rows * columns, rows, columns};
}

class Looker {
public:
    explicit Looker(Engine& engine) : engine_(engine) {}

    std::shared_ptr<const LookedAt> look(const std::vector<std::int64_t>& ids) {
        const std::lock_guard lock(engine_.side_mutex());
        const auto known = std::find_if(kept_.begin(), kept_.end(), [&](const auto& one) { return one->ids == ids; });
        if (known != kept_.end()) {
            kept_.splice(kept_.begin(), kept_, known);
            return kept_.front();
        }
        const auto text = std::make_shared<LookedAt>();
        text->ids = ids;
        run(*text);
        kept_.push_front(text);
        if (kept_.size() > kept_texts) { kept_.pop_back(); }
        return text;
    }

    const Engine& engine() const { return engine_; }

private:
    void check(std::size_t count) const {
        const ModelConfig& config = engine_.model().config();
        std::int64_t heads = 0;
        for (const LayerConfig& layer : config.encoder.layers) { heads += layer.attention.heads; }
        for (const LayerConfig& layer : config.decoder.layers) { heads += 2 * layer.attention.heads; }
        const auto tokens = static_cast<std::int64_t>(count);
        const auto most = static_cast<std::int64_t>(std::sqrt(static_cast<double>(most_weight_bytes / 4) /
                                                              static_cast<double>(std::max<std::int64_t>(1, heads))));
        if (tokens < 1 || tokens > most) {
            throw HttpError{400, "prompt: expected 1 to " + std::to_string(most) +
                                     " tokens, so that the weights of all heads fit, got " + std::to_string(tokens)};
        }
    }

    void run(LookedAt& text) {
        check(text.ids.size());
        const ModelConfig& config = engine_.model().config();
        for (const std::int64_t id : text.ids) {
            if (id < 0 || id >= config.vocab) {
                throw HttpError{
                    400, "ids: expected 0 to " + std::to_string(config.vocab - 1) + ", got " + std::to_string(id)};
            }
        }
        ForwardInputs inputs{.input_ids = row(text.ids)};
        if (config.kind == ModelKind::encoder_decoder) {
            constexpr std::int64_t longest = 64;
            const Generated made =
                generate(engine_.side_context(), engine_.model(), {.prompt = text.ids, .max_new_tokens = longest});
            text.target = made.tokens;
            if (!text.target.empty()) { text.target.pop_back(); }
            text.target.insert(text.target.begin(),
                               config.decoder_start ? *config.decoder_start : config.bos.value_or(0));
            inputs.decoder_input_ids = row(text.target);
        }
        text.result = engine_.model().forward(engine_.side_context(), inputs, {.attention = true});
    }

    static View row(const std::vector<std::int64_t>& ids) {
        return View(ids.data(), {1, static_cast<std::int64_t>(ids.size())});
    }

    Engine& engine_;
    std::list<std::shared_ptr<const LookedAt>> kept_;  // under the engine's side mutex
};

// ---- What a head does ----------------------------------------------------------------------------------------------

/// Means over the rows. Duplicate: weight on earlier tokens equal to this one. Induction: weight on tokens whose
/// predecessor equals this one. Both over the rows that have such tokens.
Json scores_of(const Head& head, const Kind& kind) {
    const bool same_text = kind.rows == kind.columns;
    double entropy = 0, distance = 0, first = 0, previous = 0, duplicate = 0, induction = 0;
    std::int64_t duplicates = 0, inductions = 0;
    for (std::int64_t i = 0; i < head.rows; ++i) {
        const std::int64_t own = (*kind.rows)[static_cast<std::size_t>(i)];
        bool has_duplicate = false, has_induction = false;
        for (std::int64_t j = 0; j < head.columns; ++j) {
            const double w = head.at(i, j);
            entropy -= w > 0 ? w * std::log(w) : 0;
            distance += w * static_cast<double>(std::abs(i - j));
            if (!same_text) { continue; }
            if (j < i && (*kind.columns)[static_cast<std::size_t>(j)] == own) {
                has_duplicate = true;
                duplicate += w;
            }
            if (j >= 1 && j <= i && (*kind.columns)[static_cast<std::size_t>(j - 1)] == own) {
                has_induction = true;
                induction += w;
            }
        }
        first += head.at(i, 0);
        if (same_text && i > 0) { previous += head.at(i, i - 1); }
        duplicates += has_duplicate ? 1 : 0;
        inductions += has_induction ? 1 : 0;
    }
    const auto rows = static_cast<double>(head.rows);
    const auto mean = [](double sum, std::int64_t count) { return count > 0 ? sum / static_cast<double>(count) : 0.0; };
    return {{"entropy", entropy / rows},
            {"distance", distance / rows},
            {"first", first / rows},
            {"previous", mean(previous, head.rows - 1)},
            {"duplicate", mean(duplicate, duplicates)},
            {"induction", mean(induction, inductions)}};
}

struct Region {
    std::int64_t top = 0, left = 0, height = 0, width = 0;
};

/// The region in at most `cells` x `cells` cells, each the largest weight in it; a weight each where they fit.
Json pooled(const Head& head, const Region& region, std::int64_t cells) {
    const std::int64_t rows = std::min(cells, region.height), columns = std::min(cells, region.width);
    Json map = Json::array();
    for (std::int64_t r = 0; r < rows; ++r) {
        std::vector<double> line(static_cast<std::size_t>(columns), 0.0);
        const std::int64_t i0 = region.top + r * region.height / rows, i1 = region.top + (r + 1) * region.height / rows;
        for (std::int64_t c = 0; c < columns; ++c) {
            const std::int64_t j0 = region.left + c * region.width / columns;
            const std::int64_t j1 = region.left + (c + 1) * region.width / columns;
            double& largest = line[static_cast<std::size_t>(c)];
            for (std::int64_t i = i0; i < i1; ++i) {
                for (std::int64_t j = j0; j < j1; ++j) { largest = std::max(largest, head.at(i, j)); }
            }
        }
        map.push_back(std::move(line));
    }
    return map;
}

// ---- Requests ------------------------------------------------------------------------------------------------------

Json text_of(const Engine& engine, std::int64_t id) {
    if (!engine.tokenizer()) { return std::to_string(id); }
    const std::int64_t one[] = {id};
    return engine.tokenizer()->decode(one, false);
}

Json texts_of(const Engine& engine, const std::vector<std::int64_t>& ids) {
    Json texts = Json::array();
    for (const std::int64_t id : ids) { texts.push_back(text_of(engine, id)); }
    return texts;
}

/// "ids", or the "prompt": a text, or without a tokenizer ids with spaces between them.
std::vector<std::int64_t> read_text(const Engine& engine, const Json& body) {
    std::vector<std::int64_t> ids;
    if (const auto at = body.find("ids"); at != body.end()) {
        if (!at->is_array()) { throw bad_field("ids", "a list of token ids", *at); }
        for (const Json& id : *at) {
            if (!id.is_number_integer()) { throw bad_field("ids", "token ids", id); }
            ids.push_back(id.get<std::int64_t>());
        }
        return ids;
    }
    const std::string prompt = string_field(body, "prompt", std::size_t{1} << 18, "");
    if (engine.tokenizer()) { return engine.tokenizer()->encode(prompt, {.truncate_and_pad = false}); }
    std::string word;
    for (const char c : prompt + " ") {
        if (c != ' ' && c != '\n' && c != ',') {
            word += c;
            continue;
        }
        if (word.empty()) { continue; }
        if (word.size() > 9 || word.find_first_not_of("0123456789") != std::string::npos) {
            throw bad_field("prompt", "token ids with spaces between them, as the model has no tokenizer.json", word);
        }
        ids.push_back(std::stoll(word));
        word.clear();
    }
    return ids;
}

Json next_tokens(const Engine& engine, const Tensor& logits) {
    if (!logits) { return Json::array(); }
    constexpr std::int64_t shown = 10;
    const std::int64_t size = logits.shape()[2], rows = logits.shape()[1];
    const std::span<const float> last(logits.as<float>() + (rows - 1) * size, static_cast<std::size_t>(size));
    auto list = token_probabilities(last, {}, {.do_sample = true, .top_k = 0});
    std::stable_sort(list.begin(), list.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
    Json result = Json::array();
    for (std::size_t n = 0; n < list.size() && n < static_cast<std::size_t>(shown); ++n) {
        const auto& [id, p] = list[n];
        result.push_back({{"id", id}, {"text", text_of(engine, id)}, {"p", p}});
    }
    return result;
}

Json look_answer(Looker& looker, const Json& body) {
    const Engine& engine = looker.engine();
    const auto text = looker.look(read_text(engine, body));
    Json heads = Json::array();
    for (const Kind& kind : kinds_of(*text)) {
        for (std::size_t layer = 0; layer < kind.layers->size(); ++layer) {
            const Tensor& weights = (*kind.layers)[layer];
            for (std::int64_t h = 0; h < weights.shape()[1]; ++h) {
                const Head head = head_of(weights, h);
                Json one = {{"kind", kind.name}, {"layer", layer}, {"head", h}};
                one.update(scores_of(head, kind));
                one["map"] = pooled(head, {0, 0, head.rows, head.columns}, thumb_cells);
                heads.push_back(std::move(one));
            }
        }
    }
    return {{"model", engine.name()},
            {"ids", text->ids},
            {"texts", texts_of(engine, text->ids)},
            {"target", texts_of(engine, text->target)},
            {"heads", std::move(heads)},
            {"next", next_tokens(engine, text->result.logits)}};
}

/// The head that a request names, among the weights that are kept.
std::pair<Kind, Head> read_head(const LookedAt& text, const Json& body) {
    const std::string name = string_field(body, "kind", 16, "self");
    for (const Kind& kind : kinds_of(text)) {
        if (name != kind.name) { continue; }
        const auto layers = static_cast<std::int64_t>(kind.layers->size());
        const auto layer = static_cast<std::size_t>(integer_field(body, "layer", 0, layers - 1, 0));
        const Tensor& weights = (*kind.layers)[layer];
        return {kind, head_of(weights, integer_field(body, "head", 0, weights.shape()[1] - 1, 0))};
    }
    throw bad_field("kind", "a kind of attention that the model has", name);
}

Json map_answer(Looker& looker, const Json& body) {
    const auto text = looker.look(read_text(looker.engine(), body));
    const auto [kind, head] = read_head(*text, body);
    Region region;
    region.top = integer_field(body, "top", 0, head.rows - 1, 0);
    region.left = integer_field(body, "left", 0, head.columns - 1, 0);
    region.height = integer_field(body, "height", 1, head.rows - region.top, head.rows - region.top);
    region.width = integer_field(body, "width", 1, head.columns - region.left, head.columns - region.left);
    const std::int64_t cells = integer_field(body, "cells", 1, most_cells, 64);
    return {{"rows", head.rows},
            {"columns", head.columns},
            {"top", region.top},
            {"left", region.left},
            {"height", region.height},
            {"width", region.width},
            {"map", pooled(head, region, cells)}};
}

/// Everything that a weight says about its score: softmax hides only a constant of the row.
Json cell_answer(Looker& looker, const Json& body) {
    const Engine& engine = looker.engine();
    const auto text = looker.look(read_text(engine, body));
    const auto [kind, head] = read_head(*text, body);
    const std::int64_t i = integer_field(body, "row", 0, head.rows - 1, 0);
    const std::int64_t j = integer_field(body, "column", 0, head.columns - 1, 0);
    std::vector<double> row(static_cast<std::size_t>(head.columns));
    for (std::int64_t c = 0; c < head.columns; ++c) { row[static_cast<std::size_t>(c)] = head.at(i, c); }
    const double weight = head.at(i, j), largest = *std::max_element(row.begin(), row.end());
    double sum = 0, entropy = 0;
    std::int64_t seen = 0, before = 0;
    for (const double w : row) {
        sum += w;
        entropy -= w > 0 ? w * std::log(w) : 0;
        seen += w > 0 ? 1 : 0;
        before += w > weight ? 1 : 0;
    }
    Json answer = {{"row", i},           {"column", j},       {"weight", weight},
                   {"largest", largest}, {"row_sum", sum},    {"row_entropy", entropy},
                   {"seen", seen},       {"rank", before + 1}};
    // Behind the softmax: s_ij - s_best = ln(w_ij / w_best).
    answer["below_best"] = weight > 0 && largest > 0 ? Json(std::log(weight / largest)) : Json(nullptr);
    answer["row_text"] = text_of(engine, (*kind.rows)[static_cast<std::size_t>(i)]);
    answer["column_text"] = text_of(engine, (*kind.columns)[static_cast<std::size_t>(j)]);
    answer["profile"] = std::move(row);
    return answer;
}

}  // namespace

void add_look(Server& server, Engine& engine) {
    const auto looker = std::make_shared<Looker>(engine);
    const auto add = [&](const char* path, Json (*answer)(Looker&, const Json&)) {
        server.add_streaming("POST", path, [looker, answer](const Request& request) {
            return Answer{.later = [looker, answer, body = request.body](const Stream&) {
                const Json json = answer(*looker, parse_object(body));
                return Response{.body = json.dump(-1, ' ', false, Json::error_handler_t::replace)};
            }};
        });
    };
    add("/api/look", look_answer);
    add("/api/look/map", map_answer);
    add("/api/look/cell", cell_answer);
}

}  // namespace heed::web
