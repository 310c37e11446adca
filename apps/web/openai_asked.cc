#include "openai_asked.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <random>

#include "chat.h"
#include "fields.h"

namespace heed::web {

std::int64_t now_seconds() {
    return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
        .count();
}

namespace {

constexpr std::int64_t most_prompts = 64;
constexpr std::int64_t most_choices = 16;  ///< "n"
constexpr std::size_t most_stops = 16;
constexpr std::size_t longest_stop = 256;
constexpr std::size_t longest_text = std::size_t{1} << 20;

std::string new_id(const char* kind) {
    static std::atomic<std::uint64_t> count{0};
    return std::string(kind) + "-" + std::to_string(now_seconds()) + "-" + std::to_string(++count);
}

// ---- Texts and ids -------------------------------------------------------------------------------------------------

const Tokenizer& needed_tokenizer(const Engine& engine, const char* field) {
    if (!engine.tokenizer()) {
        throw HttpError{400, std::string(field) + ": expected a list of token ids, got a text; " + engine.name() +
                                 " has no tokenizer.json"};
    }
    return *engine.tokenizer();
}

std::vector<std::int64_t> read_ids(const Json& list, const char* field) {
    std::vector<std::int64_t> ids;
    for (const Json& id : list) {
        if (!id.is_number_integer()) { throw bad_field(field, "token ids", id); }
        ids.push_back(id.get<std::int64_t>());
    }
    return ids;
}

std::vector<std::int64_t> encoded(const Engine& engine, const Json& text, const char* field) {
    const std::string& given = text.get_ref<const std::string&>();
    if (given.size() > longest_text) { throw bad_field(field, "at most 1 MiB of text", text); }
    return needed_tokenizer(engine, field).encode(given, {.truncate_and_pad = false});
}

}  // namespace

std::vector<std::vector<std::int64_t>> read_prompts(const Engine& engine, const Json& value, const char* field) {
    if (value.is_string()) { return {encoded(engine, value, field)}; }
    if (!value.is_array() || value.empty()) { throw bad_field(field, "a text or a list of token ids", value); }
    if (value.front().is_number()) { return {read_ids(value, field)}; }
    if (static_cast<std::int64_t>(value.size()) > most_prompts) {
        throw HttpError{400, std::string(field) + ": expected at most " + std::to_string(most_prompts) + ", got " +
                                 std::to_string(value.size())};
    }
    std::vector<std::vector<std::int64_t>> prompts;
    for (const Json& one : value) {
        if (one.is_string()) {
            prompts.push_back(encoded(engine, one, field));
        } else if (one.is_array()) {
            prompts.push_back(read_ids(one, field));
        } else {
            throw bad_field(field, "texts or lists of token ids", one);
        }
    }
    return prompts;
}

namespace {

// ---- What is asked -------------------------------------------------------------------------------------------------

void refuse_unless(const Json& body, const char* name, double only) {
    const auto at = body.find(name);
    if (at == body.end() || at->is_null()) { return; }
    if (!at->is_number() || at->get<double>() != only) { throw bad_field(name, Json(only).dump(), *at); }
}

std::vector<std::string> read_stop(const Engine& engine, const Json& body) {
    const auto at = body.find("stop");
    if (at == body.end() || at->is_null()) { return {}; }
    std::vector<std::string> stops;
    const Json list = at->is_string() ? Json::array({*at}) : *at;
    if (!list.is_array() || list.size() > most_stops) { throw bad_field("stop", "a text or at most 16 of them", *at); }
    for (const Json& one : list) {
        if (!one.is_string() || one.get_ref<const std::string&>().empty() ||
            one.get_ref<const std::string&>().size() > longest_stop) {
            throw bad_field("stop", "texts of 1 to 256 bytes", one);
        }
        stops.push_back(one.get<std::string>());
    }
    if (!stops.empty()) { needed_tokenizer(engine, "stop"); }
    return stops;
}

SamplingOptions read_sampling(const Json& body) {
    SamplingOptions sampling;
    sampling.temperature = number_field(body, "temperature", 0, 100, 1);
    sampling.do_sample = sampling.temperature > 0;
    if (!sampling.do_sample) { sampling.temperature = 1; }
    sampling.top_p = number_field(body, "top_p", 1e-6, 1, 1);
    sampling.top_k = integer_field(body, "top_k", 0, std::int64_t{1} << 40, 0);
    sampling.min_p = number_field(body, "min_p", 0, 1, 0);
    sampling.repetition_penalty = number_field(body, "repetition_penalty", 1e-3, 1e3, 1);
    constexpr std::int64_t far = std::int64_t{1} << 62;
    const auto seed = body.find("seed");
    if (seed != body.end() && !seed->is_null()) {
        sampling.seed = static_cast<std::uint64_t>(integer_field(body, "seed", -far, far, 0));
    } else {
        std::random_device source;
        sampling.seed = (std::uint64_t{source()} << 32U) | source();
    }
    return sampling;
}

std::int64_t read_scores(const Json& body, bool chat) {
    if (!chat) { return integer_field(body, "logprobs", 0, 20, -1); }
    const std::int64_t best = integer_field(body, "top_logprobs", 0, 20, -1);
    const bool wanted = bool_field(body, "logprobs", false);
    if (best > 0 && !wanted) { throw HttpError{400, "top_logprobs: expected logprobs to be true, got false"}; }
    return wanted ? std::max<std::int64_t>(0, best) : -1;
}

}  // namespace

void check_model(const Engine& engine, const Json& body) {
    const std::string name = string_field(body, "model", 4096, engine.name());
    if (name != engine.name()) {
        throw HttpError{404, "model: expected " + engine.name() + ", got " + name, "model_not_found"};
    }
}

namespace {

std::int64_t room_behind(const Engine& engine, std::size_t prompt) {
    const ModelConfig& config = engine.model().config();
    std::int64_t room = engine.options().tokens;
    if (config.max_positions > 0) { room = std::min(room, config.max_positions); }
    const auto used = config.kind == ModelKind::encoder_decoder ? std::int64_t{1} : static_cast<std::int64_t>(prompt);
    return std::max<std::int64_t>(1, room - used);
}

}  // namespace

namespace {

/// "echo": what is answered begins with the prompt.
void read_echo(const Engine& engine, const Json& body, const std::vector<std::vector<std::int64_t>>& prompts,
               std::int64_t copies, Asked& asked) {
    asked.echo = bool_field(body, "echo", false);
    if (!asked.echo) { return; }
    if (asked.chat || engine.model().config().kind != ModelKind::decoder) {
        throw HttpError{400, "echo: expected false for chats and for models with an encoder, got true"};
    }
    for (const std::vector<std::int64_t>& prompt : prompts) {
        for (std::int64_t copy = 0; copy < copies; ++copy) {
            asked.prompts.push_back(prompt);
            asked.echoed.push_back(engine.tokenizer() ? engine.tokenizer()->decode(prompt, false) : std::string());
        }
    }
}

}  // namespace

Asked read_asked(const Engine& engine, const Json& body, bool chat) {
    check_model(engine, body);
    if (!engine.generates()) {
        throw HttpError{400, "model: expected one that continues texts, got " + engine.name() + ", an encoder"};
    }
    refuse_unless(body, "presence_penalty", 0);
    refuse_unless(body, "frequency_penalty", 0);
    for (const char* name : {"logit_bias", "suffix", "tools", "functions"}) {
        const auto at = body.find(name);
        if (at != body.end() && !at->is_null() && !at->empty()) { throw bad_field(name, "none", *at); }
    }
    Asked asked;
    asked.chat = chat;
    asked.created = now_seconds();
    asked.model = engine.name();
    asked.stream = bool_field(body, "stream", false);
    if (const auto options = body.find("stream_options"); options != body.end() && options->is_object()) {
        asked.usage = bool_field(*options, "include_usage", false);
    }
    asked.best_scores = read_scores(body, chat);
    asked.stop = read_stop(engine, body);
    asked.id = new_id(chat ? "chatcmpl" : "cmpl");
    std::vector<std::vector<std::int64_t>> prompts;
    if (chat) {
        prompts.push_back(read_conversation(engine.open(), body.contains("messages") ? body["messages"] : Json()));
    } else {
        prompts = read_prompts(engine, body.contains("prompt") ? body["prompt"] : Json(), "prompt");
    }
    const std::int64_t copies = integer_field(body, "n", 1, most_choices, 1);
    refuse_unless(body, "best_of", static_cast<double>(copies));
    read_echo(engine, body, prompts, copies, asked);
    const SamplingOptions sampling = read_sampling(body);
    constexpr std::int64_t most = std::int64_t{1} << 40;
    const std::int64_t fewest = asked.echo ? 0 : 1;
    for (std::size_t n = 0; n < prompts.size(); ++n) {
        asked.prompt_tokens += static_cast<std::int64_t>(prompts[n].size());
        heed::Request request;
        const std::int64_t otherwise = chat ? room_behind(engine, prompts[n].size()) : 16;
        request.max_new_tokens = integer_field(body, "max_completion_tokens", fewest, most,
                                               integer_field(body, "max_tokens", fewest, most, otherwise));
        if (request.max_new_tokens == 0) { continue; }
        request.min_new_tokens = integer_field(body, "min_tokens", 0, most, 0);
        if (bool_field(body, "ignore_eos", false)) { request.eos = std::vector<std::int64_t>(); }
        request.prompt = std::move(prompts[n]);
        request.sampling = sampling;
        request.stop = asked.stop;
        if (asked.best_scores >= 0) {
            request.best_scores = asked.best_scores;
            request.on_score = [](const TokenScore&) {};
        }
        for (std::int64_t copy = 0; copy < copies; ++copy) {  // each draws numbers of its own
            request.sequence = asked.requests.size();
            asked.requests.push_back(request);
        }
    }
    return asked;
}

}  // namespace heed::web
