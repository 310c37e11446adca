#include "look.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>

#include <heed/interrupt.h>
#include <heed/sampling.h>

#include "fields.h"

namespace heed::web {
namespace {

constexpr std::int64_t most_cells = 128;
/// Weights that the first overview reads, of all heads together: about half a second on two cores.
constexpr std::int64_t overview_weights = std::int64_t{1} << 27;
constexpr std::int64_t fewest_rows = 32;
constexpr std::size_t most_off = 4096;
constexpr std::size_t longest_prompt = std::size_t{1} << 20;
/// Points of a profile; longer ones are pooled.
constexpr std::int64_t profile_points = 1024;
constexpr std::int64_t shown_best = 8;

// ---- What is asked -------------------------------------------------------------------------------------------------

/// "ids", or the "prompt": a text, or without a tokenizer ids with spaces between them.
std::vector<std::int64_t> read_text(const OpenModel& open, const Json& body) {
    std::vector<std::int64_t> ids;
    if (const auto at = body.find("ids"); at != body.end()) {
        if (!at->is_array()) { throw bad_field("ids", "a list of token ids", *at); }
        for (const Json& id : *at) {
            if (!id.is_number_integer()) { throw bad_field("ids", "token ids", id); }
            ids.push_back(id.get<std::int64_t>());
        }
        return ids;
    }
    const std::string prompt = string_field(body, "prompt", longest_prompt, "");
    if (open.tokenizer) { return open.tokenizer->encode(prompt, {.truncate_and_pad = false}); }
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

/// [["self", layer, head], ...]
std::vector<HeadName> read_off(const Json& body) {
    std::vector<HeadName> off;
    const auto at = body.find("off");
    if (at == body.end() || at->is_null()) { return off; }
    if (!at->is_array() || at->size() > most_off) { throw bad_field("off", "a list of heads", *at); }
    for (const Json& one : *at) {
        if (!one.is_array() || one.size() != 3 || !one[0].is_string() || !one[1].is_number_integer() ||
            !one[2].is_number_integer()) {
            throw bad_field("off", R"(heads as ["self", layer, head])", one);
        }
        off.push_back({one[0].get<std::string>(), one[1].get<std::int64_t>(), one[2].get<std::int64_t>()});
    }
    std::ranges::sort(off);
    off.erase(std::ranges::unique(off).begin(), off.end());
    return off;
}

/// "text": one that is kept; else what the request spells out.
std::shared_ptr<const LookedAt> read_looked_at(Looker& looker, const Json& body) {
    if (body.contains("text")) { return looker.find(string_field(body, "text", 64, "")); }
    LookRequest request;
    const auto models = static_cast<std::int64_t>(looker.models().size());
    request.model = static_cast<std::size_t>(integer_field(body, "model", 0, models - 1, 0));
    request.ids = read_text(looker.models()[request.model], body);
    request.off = read_off(body);
    for (const HeadName& name : request.off) {
        const bool both = looker.models()[request.model].model.config().kind == ModelKind::encoder_decoder;
        const bool known =
            both ? name.kind == "encoder" || name.kind == "decoder" || name.kind == "cross" : name.kind == "self";
        if (!known) { throw bad_field("off", "kinds of attention that the model has", name.kind); }
    }
    return looker.look(request);
}

struct NamedHead {
    LookKind kind = {};
    HeadName name = {};
    HeadView view = {};
};

NamedHead read_head(const LookedAt& text, const Json& body) {
    NamedHead head;
    head.name.kind = string_field(body, "kind", 16, "self");
    for (const LookKind& kind : kinds_of(text)) {
        if (head.name.kind != kind.name) { continue; }
        head.kind = kind;
        head.name.layer = integer_field(body, "layer", 0, static_cast<std::int64_t>(kind.layers->size()) - 1, 0);
        head.view.inputs = &(*kind.layers)[static_cast<std::size_t>(head.name.layer)];
        if (!*head.view.inputs) { throw bad_field("layer", "one whose attention has weights", head.name.layer); }
        head.name.head = integer_field(body, "head", 0, head.view.inputs->q.shape()[1] - 1, 0);
        head.view.head = head.name.head;
        return head;
    }
    throw bad_field("kind", "a kind of attention that the model has", head.name.kind);
}

// ---- What is answered ----------------------------------------------------------------------------------------------

Json text_of(const OpenModel& open, std::int64_t id) {
    if (!open.tokenizer) { return std::to_string(id); }
    const std::int64_t one[] = {id};
    return open.tokenizer->decode(one, false);
}

Json texts_of(const OpenModel& open, const std::vector<std::int64_t>& ids) {
    Json texts = Json::array();
    for (const std::int64_t id : ids) { texts.push_back(text_of(open, id)); }
    return texts;
}

/// The most probable tokens of logits [V].
Json best_tokens(const OpenModel& open, std::span<const float> logits, std::size_t shown) {
    auto list = token_probabilities(logits, {}, {.do_sample = true, .top_k = 0});
    std::stable_sort(list.begin(), list.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
    Json result = Json::array();
    for (std::size_t n = 0; n < list.size() && n < shown; ++n) {
        const auto& [id, p] = list[n];
        result.push_back({{"id", id}, {"text", text_of(open, id)}, {"p", p}});
    }
    return result;
}

/// What the head says of a token behind layer `layer` (0: the embedding); the last is behind the final norm already.
Json lens_of(Looker& looker, const LookedAt& text, std::size_t layer, std::int64_t row, std::size_t shown) {
    const OpenModel& open = looker.models()[text.request.model];
    const Tensor& hidden = text.result.hidden[layer];
    Tape tape(looker.context(), {.record = false});
    const Value x = tape.constant(View(hidden.view()).slice(1, row, row + 1));
    const bool last = layer + 1 == text.result.hidden.size();
    const Value logits = last ? open.model.logits(tape, x) : open.model.early_logits(tape, x);
    const Tensor numbers = Tensor::copy_of(logits).to(DType::f32);
    return best_tokens(open, {numbers.as<float>(), static_cast<std::size_t>(numbers.elements())}, shown);
}

Json next_tokens(Looker& looker, const LookedAt& text) {
    if (!looker.models()[text.request.model].model.config().head) { return Json::array(); }
    const std::vector<Tensor>& hidden = text.result.hidden;
    return lens_of(looker, text, hidden.size() - 1, hidden.back().shape()[1] - 1, 10);
}

/// Rows a head that the overview reads: all where they are few enough.
std::int64_t overview_rows(const LookedAt& text) {
    std::int64_t heads = 0, columns = 1;
    for (const LookKind& kind : kinds_of(text)) {
        for (const AttentionInputs& layer : *kind.layers) {
            if (layer) { heads += layer.q.shape()[1]; }
        }
        columns = std::max(columns, static_cast<std::int64_t>(kind.columns->size()));
    }
    return std::max(fewest_rows, overview_weights / (columns * std::max<std::int64_t>(1, heads)));
}

Json scores_json(const HeadScores& s) {
    return {{"entropy", s.entropy},     {"distance", s.distance},   {"first", s.first}, {"previous", s.previous},
            {"duplicate", s.duplicate}, {"induction", s.induction}, {"map", s.thumb}};
}

Json heads_of(Looker& looker, const LookedAt& text) {
    Json heads = Json::array();
    const std::int64_t count = overview_rows(text);
    for (const LookKind& kind : kinds_of(text)) {
        const auto rows = spread_rows(static_cast<std::int64_t>(kind.rows->size()), count);
        for (std::size_t layer = 0; layer < kind.layers->size(); ++layer) {
            const AttentionInputs& inputs = (*kind.layers)[layer];
            if (!inputs) { continue; }
            const auto scores = scores_of(looker.context(), inputs, {kind.rows, kind.columns}, rows);
            for (std::size_t h = 0; h < scores.size(); ++h) {
                Json one = {{"kind", kind.name}, {"layer", layer}, {"head", h}, {"rows", rows.size()}};
                one.update(scores_json(scores[h]));
                heads.push_back(std::move(one));
            }
        }
    }
    return heads;
}

Json look_answer(Looker& looker, const Json& body) {
    const auto text = read_looked_at(looker, body);
    const OpenModel& open = looker.models()[text->request.model];
    const auto begin = std::chrono::steady_clock::now();
    Json heads = heads_of(looker, *text);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    return {{"text", text->key},
            {"model", open.name},
            {"ids", text->request.ids},
            {"texts", texts_of(open, text->request.ids)},
            {"target", texts_of(open, text->target)},
            {"heads", std::move(heads)},
            {"layers", text->result.hidden.size() - 1},
            {"next", next_tokens(looker, *text)},
            {"bytes", text->bytes},
            {"seconds", {{"forward", text->seconds}, {"heads", seconds.count()}}}};
}

Json map_answer(Looker& looker, const Json& body) {
    const auto text = read_looked_at(looker, body);
    const NamedHead head = read_head(*text, body);
    Tile tile;
    tile.cells = integer_field(body, "cells", 1, most_cells, 64);
    const std::int64_t most = std::max(head.view.rows(), head.view.columns());
    const auto whole =
        static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>((most + tile.cells - 1) / tile.cells)));
    tile.step = integer_field(body, "step", 1, whole, whole);
    if (!std::has_single_bit(static_cast<std::uint64_t>(tile.step))) {
        throw bad_field("step", "a power of two", tile.step);
    }
    tile.top = integer_field(body, "top", 0, head.view.rows() - 1, 0) / tile.step * tile.step;
    tile.left = integer_field(body, "left", 0, head.view.columns() - 1, 0) / tile.step * tile.step;
    const auto begin = std::chrono::steady_clock::now();
    const auto map = looker.map(text, head.view, head.name);
    Json cells = map->tile(looker.context(), head.view, tile);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    return {{"rows", head.view.rows()}, {"columns", head.view.columns()},
            {"step", tile.step},        {"whole_step", whole},
            {"top", tile.top},          {"left", tile.left},
            {"map", std::move(cells)},  {"seconds", seconds.count()}};
}

/// Every `step` weights their largest, so that a line can be drawn; and the largest of all.
Json profile(const std::vector<float>& weights, const OpenModel& open, const std::vector<std::int64_t>& ids) {
    const auto count = static_cast<std::int64_t>(weights.size());
    const std::int64_t step = (count + profile_points - 1) / profile_points;
    Json values = Json::array();
    for (std::int64_t j = 0; j < count; j += step) {
        values.push_back(*std::max_element(weights.begin() + j, weights.begin() + std::min(count, j + step)));
    }
    std::vector<std::int64_t> order(weights.size());
    for (std::int64_t j = 0; j < count; ++j) { order[static_cast<std::size_t>(j)] = j; }
    const auto shown = std::min(shown_best, count);
    std::partial_sort(order.begin(), order.begin() + shown, order.end(), [&](std::int64_t a, std::int64_t b) {
        const float x = weights[static_cast<std::size_t>(a)], y = weights[static_cast<std::size_t>(b)];
        return x > y || (x == y && a < b);
    });
    Json best = Json::array();
    for (std::int64_t n = 0; n < shown; ++n) {
        const auto j = static_cast<std::size_t>(order[static_cast<std::size_t>(n)]);
        if (weights[j] > 0) { best.push_back({{"at", j}, {"weight", weights[j]}, {"text", text_of(open, ids[j])}}); }
    }
    return {{"step", step}, {"values", std::move(values)}, {"best", std::move(best)}};
}

Json parts_json(const ScoreParts& p, double softcap, double log_sum) {
    const bool seen = p.hidden_by == HiddenBy::nothing;
    const auto finite = [](double x) { return std::isfinite(x) ? Json(x) : Json(nullptr); };
    return {
        {"products", p.products},     {"dot", p.dot},
        {"scale", p.scale},           {"scaled", p.scaled},
        {"softcap", softcap},         {"capped", p.capped},
        {"relative", finite(p.bias)}, {"alibi", p.alibi},
        {"score", finite(p.score)},   {"hidden_by", seen ? "" : std::string(name_of(p.hidden_by))},
        {"log_sum", finite(log_sum)}, {"weight", seen && std::isfinite(log_sum) ? std::exp(p.score - log_sum) : 0.0}};
}

Json cell_answer(Looker& looker, const Json& body) {
    const auto text = read_looked_at(looker, body);
    const OpenModel& open = looker.models()[text->request.model];
    const NamedHead head = read_head(*text, body);
    const std::int64_t i = integer_field(body, "row", 0, head.view.rows() - 1, 0);
    const std::int64_t j = integer_field(body, "column", 0, head.view.columns() - 1, 0);
    const std::vector<float> row = row_of(looker.context(), head.view, i);
    const double weight = row[static_cast<std::size_t>(j)];
    double sum = 0, entropy = 0;
    std::int64_t seen = 0, before = 0;
    for (const double w : row) {
        sum += w;
        entropy -= w > 0 ? w * std::log(w) : 0;
        seen += w > 0 ? 1 : 0;
        before += w > weight ? 1 : 0;
    }
    const auto map = looker.map(text, head.view, head.name);
    const AttentionInputs& inputs = *head.view.inputs;
    const ScorePlace place{.head = head.view.head, .row = i, .column = j};
    const auto parts = score_parts(inputs.q, inputs.k, {&place, 1}, inputs.options, {.weight = false});
    return {{"row", i},
            {"column", j},
            {"weight", weight},
            {"row_sum", sum},
            {"row_entropy", entropy},
            {"seen", seen},
            {"rank", before + 1},
            {"sink", inputs.options.sinks ? Json(1 - sum) : Json(nullptr)},
            {"parts", parts_json(parts.front(), inputs.options.softcap, map->log_sum(i))},
            {"row_text", text_of(open, (*head.kind.rows)[static_cast<std::size_t>(i)])},
            {"column_text", text_of(open, (*head.kind.columns)[static_cast<std::size_t>(j)])},
            {"row_profile", profile(row, open, *head.kind.columns)},
            {"column_profile", profile(map->column(head.view, j), open, *head.kind.rows)}};
}

/// What the model would say behind each layer, of one of the last tokens.
Json lens_answer(Looker& looker, const Json& body) {
    const auto text = read_looked_at(looker, body);
    const OpenModel& open = looker.models()[text->request.model];
    if (!open.model.config().head) {
        throw HttpError{400, "model: expected one with a head, got " + open.name + " without"};
    }
    const auto& ids = text->target.empty() ? text->request.ids : text->target;
    const auto tokens = static_cast<std::int64_t>(ids.size());
    const std::int64_t kept = text->result.hidden.front().shape()[1];
    const std::int64_t row = integer_field(body, "row", tokens - kept, tokens - 1, tokens - 1);
    Json layers = Json::array();
    for (std::size_t layer = 0; layer < text->result.hidden.size(); ++layer) {
        layers.push_back({{"layer", layer}, {"best", lens_of(looker, *text, layer, row - (tokens - kept), 5)}});
    }
    return {{"row", row},
            {"first_row", tokens - kept},
            {"text", text_of(open, ids[static_cast<std::size_t>(row)])},
            {"layers", std::move(layers)}};
}

}  // namespace

void add_look(Server& server, const std::shared_ptr<Looker>& looker) {
    const auto add = [&](const char* path, Json (*answer)(Looker&, const Json&)) {
        server.add_streaming("POST", path, [looker, answer](const Request& request) {
            return Answer{.later = [looker, answer, body = request.body](const Stream& client) {
                const Json asked = parse_object(body);
                const std::lock_guard lock(looker->mutex());
                const Interruption with_the_client(client.gone());
                if (client.closed()) { return Response{}; }
                const Json json = answer(*looker, asked);
                return Response{.body = json.dump(-1, ' ', false, Json::error_handler_t::replace)};
            }};
        });
    };
    add("/api/look", look_answer);
    add("/api/look/map", map_answer);
    add("/api/look/cell", cell_answer);
    add("/api/look/lens", lens_answer);
}

}  // namespace heed::web
