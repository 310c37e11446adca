#include "openai.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <random>

#include <heed/evaluate.h>

#include "fields.h"

namespace heed::web {
namespace {

constexpr std::int64_t most_prompts = 64;
constexpr std::size_t most_stops = 16;
constexpr std::size_t longest_stop = 256;
constexpr std::size_t longest_text = std::size_t{1} << 20;

std::int64_t now_seconds() {
    return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
        .count();
}

std::string new_id(const char* kind) {
    static std::atomic<std::uint64_t> count{0};
    return std::string(kind) + "-" + std::to_string(now_seconds()) + "-" + std::to_string(++count);
}

std::string dumped(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

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

/// A text, a list of texts, a list of ids, or a list of lists of ids.
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

std::string token_bytes(const Engine& engine, std::int64_t id) {
    if (!engine.tokenizer()) { return "token_id:" + std::to_string(id); }
    const std::int64_t one[] = {id};
    return engine.tokenizer()->decode_bytes(one, false);
}

/// As text; a part of a character as "bytes:\\xe2\\x80", so that two tokens are never spelled alike for that reason.
std::string token_text(const Engine& engine, std::int64_t id) {
    const std::string bytes = token_bytes(engine, id);
    const std::int64_t one[] = {id};
    if (!engine.tokenizer() || engine.tokenizer()->decode(one, false) == bytes) { return bytes; }
    constexpr char digits[] = "0123456789abcdef";
    std::string text = "bytes:";
    for (const char c : bytes) {
        const auto byte = static_cast<unsigned char>(c);
        text += {'\\', 'x', digits[byte >> 4U], digits[byte & 15U]};
    }
    return text;
}

// ---- Chats ---------------------------------------------------------------------------------------------------------

/// Text of a message: a string, or the parts of type text.
std::string content_of(const Json& message) {
    const auto content = message.find("content");
    if (content == message.end() || content->is_null()) { return {}; }
    if (content->is_string()) { return content->get<std::string>(); }
    std::string text;
    if (!content->is_array()) { throw bad_field("messages.content", "a text", *content); }
    for (const Json& part : *content) {
        if (!part.is_object() || part.value("type", "") != "text" || !part.contains("text") ||
            !part["text"].is_string()) {
            throw bad_field("messages.content", "parts of type text", part);
        }
        text += part["text"].get<std::string>();
    }
    return text;
}

class ChatBuilder {
public:
    explicit ChatBuilder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

    /// A token of the format itself, which the tokenizer must have.
    void special(const std::string& token) {
        const auto id = tokenizer_.id_of(token);
        if (!id) {
            throw HttpError{400, "messages: expected a tokenizer with the chat format's token " + token +
                                     ", got one without; name another with heed serve --chat"};
        }
        ids_.push_back(*id);
    }
    /// What somebody said: special tokens spelled out in it are letters.
    void text(const std::string& text) {
        const auto more =
            tokenizer_.encode(text, {.add_special_tokens = false, .allow_special = false, .truncate_and_pad = false});
        ids_.insert(ids_.end(), more.begin(), more.end());
    }
    std::vector<std::int64_t> ids() && { return std::move(ids_); }

private:
    const Tokenizer& tokenizer_;
    std::vector<std::int64_t> ids_;
};

std::vector<std::int64_t> read_chat(const Engine& engine, const ChatFormat& format, const Json& messages) {
    if (format.name.empty()) {
        throw HttpError{400,
                        "messages: expected a server started with --chat chatml, llama3 or plain, got one without "
                        "a chat format; /v1/completions needs none"};
    }
    if (!messages.is_array() || messages.empty()) { throw bad_field("messages", "a list of messages", messages); }
    ChatBuilder builder(needed_tokenizer(engine, "messages"));
    std::string plain;
    if (format.name == "llama3") { builder.special("<|begin_of_text|>"); }
    for (const Json& message : messages) {
        if (!message.is_object() || !message.contains("role") || !message["role"].is_string()) {
            throw bad_field("messages", "objects with a role", message);
        }
        const std::string role = message["role"].get<std::string>(), content = content_of(message);
        if (role != "system" && role != "developer" && role != "user" && role != "assistant") {
            throw bad_field("messages.role", "system, developer, user or assistant", message["role"]);
        }
        if (format.name == "chatml") {
            builder.special("<|im_start|>");
            builder.text(role + "\n" + content);
            builder.special("<|im_end|>");
            builder.text("\n");
        } else if (format.name == "llama3") {
            builder.special("<|start_header_id|>");
            builder.text(role);
            builder.special("<|end_header_id|>");
            builder.text("\n\n" + content);
            builder.special("<|eot_id|>");
        } else {
            plain += role + ": " + content + "\n";
        }
    }
    if (format.name == "chatml") {
        builder.special("<|im_start|>");
        builder.text("assistant\n");
    } else if (format.name == "llama3") {
        builder.special("<|start_header_id|>");
        builder.text("assistant");
        builder.special("<|end_header_id|>");
        builder.text("\n\n");
    } else {
        builder.text(plain + "assistant:");
    }
    return std::move(builder).ids();
}

// ---- What is asked -------------------------------------------------------------------------------------------------

struct Asked {
    bool chat = false;
    bool stream = false;
    bool usage = false;             ///< at the end of a stream
    std::int64_t best_scores = -1;  ///< -1: none
    std::vector<std::string> stop = {};
    std::vector<heed::Request> requests = {};
    std::string id = {};
    std::string model = {};
    std::int64_t created = now_seconds();
    std::int64_t prompt_tokens = 0;
};

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

void check_model(const Engine& engine, const Json& body) {
    const std::string name = string_field(body, "model", 4096, engine.name());
    if (name != engine.name()) {
        throw HttpError{404, "model: expected " + engine.name() + ", got " + name, "model_not_found"};
    }
}

std::int64_t room_behind(const Engine& engine, std::size_t prompt) {
    const ModelConfig& config = engine.model().config();
    std::int64_t room = engine.options().tokens;
    if (config.max_positions > 0) { room = std::min(room, config.max_positions); }
    const auto used = config.kind == ModelKind::encoder_decoder ? std::int64_t{1} : static_cast<std::int64_t>(prompt);
    return std::max<std::int64_t>(1, room - used);
}

Asked read_asked(const Engine& engine, const ChatFormat& format, const Json& body, bool chat) {
    check_model(engine, body);
    if (!engine.generates()) {
        throw HttpError{400, "model: expected one that continues texts, got " + engine.name() + ", an encoder"};
    }
    refuse_unless(body, "n", 1);
    refuse_unless(body, "best_of", 1);
    refuse_unless(body, "presence_penalty", 0);
    refuse_unless(body, "frequency_penalty", 0);
    for (const char* name : {"logit_bias", "suffix", "tools", "functions"}) {
        const auto at = body.find(name);
        if (at != body.end() && !at->is_null() && !at->empty()) { throw bad_field(name, "none", *at); }
    }
    if (bool_field(body, "echo", false)) { throw HttpError{400, "echo: expected false, got true"}; }
    Asked asked;
    asked.chat = chat;
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
        prompts.push_back(read_chat(engine, format, body.contains("messages") ? body["messages"] : Json()));
    } else {
        prompts = read_prompts(engine, body.contains("prompt") ? body["prompt"] : Json(), "prompt");
    }
    const SamplingOptions sampling = read_sampling(body);
    constexpr std::int64_t most = std::int64_t{1} << 40;
    for (std::size_t n = 0; n < prompts.size(); ++n) {
        asked.prompt_tokens += static_cast<std::int64_t>(prompts[n].size());
        heed::Request request;
        const std::int64_t otherwise = chat ? room_behind(engine, prompts[n].size()) : 16;
        request.max_new_tokens = integer_field(body, "max_completion_tokens", 1, most,
                                               integer_field(body, "max_tokens", 1, most, otherwise));
        request.min_new_tokens = integer_field(body, "min_tokens", 0, most, 0);
        if (bool_field(body, "ignore_eos", false)) { request.eos = std::vector<std::int64_t>(); }
        request.prompt = std::move(prompts[n]);
        request.sampling = sampling;
        request.sequence = n;
        request.stop = asked.stop;
        if (asked.best_scores >= 0) {
            request.best_scores = asked.best_scores;
            request.on_score = [](const TokenScore&) {};
        }
        asked.requests.push_back(std::move(request));
    }
    return asked;
}

// ---- What is answered ----------------------------------------------------------------------------------------------

const char* reason_name(FinishReason reason) { return reason == FinishReason::length ? "length" : "stop"; }

Json bytes_of(const std::string& text) {
    Json bytes = Json::array();
    for (const char c : text) { bytes.push_back(static_cast<int>(static_cast<unsigned char>(c))); }
    return bytes;
}

/// Both forms that clients know: lists side by side for completions, a list of objects for chats.
Json scores_json(const Engine& engine, bool chat, const std::vector<TokenEvent>& events, std::size_t offset) {
    if (chat) {
        Json content = Json::array();
        const auto entry = [&](std::int64_t id, double score) {
            const std::string text = token_text(engine, id);
            return Json{{"token", text}, {"logprob", score}, {"bytes", bytes_of(token_bytes(engine, id))}};
        };
        for (const TokenEvent& event : events) {
            Json one = entry(event.token, event.score.log_probability);
            one["top_logprobs"] = Json::array();
            for (const auto& [id, score] : event.score.best) { one["top_logprobs"].push_back(entry(id, score)); }
            content.push_back(std::move(one));
        }
        return {{"content", std::move(content)}};
    }
    Json tokens = Json::array(), scores = Json::array(), best = Json::array(), offsets = Json::array();
    for (const TokenEvent& event : events) {
        const std::string text = token_text(engine, event.token);
        tokens.push_back(text);
        scores.push_back(event.score.log_probability);
        offsets.push_back(offset);
        offset += text.size();
        Json list = Json::object();
        for (const auto& [id, score] : event.score.best) { list[token_text(engine, id)] = score; }
        best.push_back(std::move(list));
    }
    return {{"tokens", tokens}, {"token_logprobs", scores}, {"top_logprobs", best}, {"text_offset", offsets}};
}

Json usage_json(const Asked& asked, std::int64_t made) {
    return {{"prompt_tokens", asked.prompt_tokens},
            {"completion_tokens", made},
            {"total_tokens", asked.prompt_tokens + made}};
}

Json frame(const Asked& asked, const char* object) {
    return {{"id", asked.id}, {"object", object}, {"created", asked.created}, {"model", asked.model}};
}

/// Cancels what nobody waits for any more, however the waiting ends.
class Watched {
public:
    Watched(Engine& engine, std::shared_ptr<Run> run) : engine_(engine), run_(std::move(run)) {}
    ~Watched() { engine_.cancel(run_); }
    Watched(const Watched&) = delete;
    Watched& operator=(const Watched&) = delete;
    Run& operator*() const { return *run_; }
    Run* operator->() const { return run_.get(); }

private:
    Engine& engine_;
    std::shared_ptr<Run> run_;
};

Response whole_answer(Engine& engine, const Asked& asked, const std::shared_ptr<Run>& started, const Stream& client) {
    const Watched run(engine, started);
    std::vector<std::vector<TokenEvent>> events(run->size());
    while (auto event = run->next([&] { return client.closed(); })) {
        events[event->index].push_back(std::move(*event));
    }
    if (client.closed()) { return {}; }
    Json choices = Json::array();
    std::int64_t made = 0;
    for (std::size_t n = 0; n < run->size(); ++n) {
        const Generated& result = run->result(n);
        made += static_cast<std::int64_t>(result.tokens.size());
        Json choice = {{"index", n}};
        if (asked.chat) {
            choice["message"] = {{"role", "assistant"}, {"content", result.text}};
        } else {
            choice["text"] = result.text;
        }
        choice["logprobs"] = asked.best_scores >= 0 ? scores_json(engine, asked.chat, events[n], 0) : Json(nullptr);
        choice["finish_reason"] = reason_name(result.reason);
        choice["token_ids"] = result.tokens;
        choices.push_back(std::move(choice));
    }
    Json answer = frame(asked, asked.chat ? "chat.completion" : "text_completion");
    answer["choices"] = std::move(choices);
    answer["usage"] = usage_json(asked, made);
    return {.body = dumped(answer)};
}

/// How much of a text can be shown while a stop string may still be on its way.
std::size_t certain_size(const std::string& text, const std::vector<std::string>& stops) {
    std::size_t held = 0;
    for (const std::string& stop : stops) {
        for (std::size_t n = std::min(stop.size() - 1, text.size()); n > held; --n) {
            if (text.compare(text.size() - n, n, stop, 0, n) == 0) {
                held = n;
                break;
            }
        }
    }
    return text.size() - held;
}

/// One text of a stream: what came, what of it was sent.
struct Streamed {
    std::string text = {};
    std::size_t sent = 0;
    std::size_t tokens = 0;
    std::size_t offset = 0;  ///< of the next token's text
};

class StreamAnswer {
public:
    StreamAnswer(const Engine& engine, const Asked& asked, std::size_t count)
        : engine_(engine), asked_(asked), texts_(count) {}

    std::string begin() const {
        std::string all;
        for (std::size_t n = 0; asked_.chat && n < texts_.size(); ++n) {
            all += event(choice(n, {{"role", "assistant"}, {"content", ""}}));
        }
        return all;
    }

    std::string token(const TokenEvent& event) {
        Streamed& one = texts_[event.index];
        one.text += event.text;
        ++one.tokens;
        const std::size_t until = std::max(one.sent, certain_size(one.text, asked_.stop));
        const std::string piece = one.text.substr(one.sent, until - one.sent);
        one.sent = until;
        Json json = choice(event.index, piece);
        json["token_ids"] = Json::array({event.token});
        if (asked_.best_scores >= 0) {
            json["logprobs"] = scores_json(engine_, asked_.chat, {event}, one.offset);
            one.offset += token_text(engine_, event.token).size();
        }
        return this->event(std::move(json));
    }

    std::string end(const Run& run) const {
        std::string all;
        std::int64_t made = 0;
        for (std::size_t n = 0; n < texts_.size(); ++n) {
            const Generated& result = run.result(n);
            made += static_cast<std::int64_t>(result.tokens.size());
            const std::string rest =
                result.text.size() > texts_[n].sent ? result.text.substr(texts_[n].sent) : std::string();
            Json json = rest.empty() && asked_.chat ? choice(n, Json::object()) : choice(n, rest);
            json["finish_reason"] = reason_name(result.reason);
            all += event(std::move(json));
        }
        if (asked_.usage) {
            Json last = frame(asked_, object());
            last["choices"] = Json::array();
            last["usage"] = usage_json(asked_, made);
            all += "data: " + dumped(last) + "\n\n";
        }
        return all + "data: [DONE]\n\n";
    }

private:
    const char* object() const { return asked_.chat ? "chat.completion.chunk" : "text_completion"; }

    Json choice(std::size_t index, const Json& what) const {
        Json json = {{"index", index}};
        if (!asked_.chat) {
            json["text"] = what;
        } else if (what.is_string()) {
            json["delta"] = {{"content", what}};
        } else {
            json["delta"] = what;
        }
        json["logprobs"] = nullptr;
        json["finish_reason"] = nullptr;
        return json;
    }

    std::string event(Json one) const {
        Json json = frame(asked_, object());
        json["choices"] = Json::array({std::move(one)});
        return "data: " + dumped(json) + "\n\n";
    }

    const Engine& engine_;
    const Asked& asked_;
    std::vector<Streamed> texts_;
};

void stream_answer(Engine& engine, const Asked& asked, const std::shared_ptr<Run>& started, Stream& client) {
    const Watched run(engine, started);
    StreamAnswer answer(engine, asked, run->size());
    if (!client.write(answer.begin())) { return; }
    while (const auto event = run->next([&] { return client.closed(); })) {
        if (!client.write(answer.token(*event))) { return; }
    }
    if (!client.closed()) { client.write(answer.end(*run)); }
}

Answer completions(Engine& engine, const ChatFormat& format, const Request& request, bool chat) {
    const auto asked = std::make_shared<Asked>(read_asked(engine, format, parse_object(request.body), chat));
    const std::shared_ptr<Run> run = engine.start(std::move(asked->requests));
    if (asked->stream) {
        return {.stream = [&engine, asked, run](Stream& client) { stream_answer(engine, *asked, run, client); }};
    }
    return {.later = [&engine, asked, run](const Stream& client) { return whole_answer(engine, *asked, run, client); }};
}

// ---- Vectors -------------------------------------------------------------------------------------------------------

std::string base64(const void* data, std::size_t size) {
    constexpr char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const auto* bytes = static_cast<const unsigned char*>(data);
    std::string text;
    for (std::size_t n = 0; n < size; n += 3) {
        const std::size_t left = std::min<std::size_t>(3, size - n);
        std::uint32_t three = 0;
        for (std::size_t k = 0; k < 3; ++k) { three = (three << 8U) | (k < left ? bytes[n + k] : 0U); }
        for (std::size_t k = 0; k < 4; ++k) {
            text += k <= left ? letters[(three >> (18U - 6U * static_cast<unsigned>(k))) & 63U] : '=';
        }
    }
    return text;
}

Response embeddings(Engine& engine, const Request& request) {
    const Json body = parse_object(request.body);
    check_model(engine, body);
    const std::string format = string_field(body, "encoding_format", 16, "float");
    if (format != "float" && format != "base64") { throw bad_field("encoding_format", "float or base64", format); }
    const auto inputs = read_prompts(engine, body.contains("input") ? body["input"] : Json(), "input");
    const std::int64_t d = engine.model().config().d_model;
    if (integer_field(body, "dimensions", 1, std::int64_t{1} << 40, d) != d) {
        throw bad_field("dimensions", std::to_string(d), body["dimensions"]);
    }
    Json data = Json::array();
    std::int64_t tokens = 0;
    for (std::size_t n = 0; n < inputs.size(); ++n) {
        const auto count = static_cast<std::int64_t>(inputs[n].size());
        if (count == 0 || count > engine.options().tokens) {
            throw HttpError{400, "input: expected 1 to " + std::to_string(engine.options().tokens) + " tokens, got " +
                                     std::to_string(count)};
        }
        tokens += count;
        Tensor vector;
        {
            const std::lock_guard lock(engine.side_mutex());
            vector = embed(engine.side_context(), engine.model(), {.input_ids = View(inputs[n].data(), {1, count})});
        }
        Json entry = {{"object", "embedding"}, {"index", n}};
        const float* numbers = vector.as<float>();
        if (format == "base64") {
            entry["embedding"] = base64(numbers, static_cast<std::size_t>(d) * sizeof(float));
        } else {
            entry["embedding"] = std::vector<float>(numbers, numbers + d);
        }
        data.push_back(std::move(entry));
    }
    const Json usage = {{"prompt_tokens", tokens}, {"total_tokens", tokens}};
    return {.body = dumped({{"object", "list"}, {"data", data}, {"model", engine.name()}, {"usage", usage}})};
}

}  // namespace

ChatFormat chat_format(const std::string& name) {
    if (!name.empty() && name != "chatml" && name != "llama3" && name != "plain") {
        throw Error("[serve] chat: expected chatml, llama3 or plain, got " + name);
    }
    return {.name = name};
}

void add_openai(Server& server, Engine& engine, const ChatFormat& chat) {
    server.add("GET", "/v1/models", [&engine, created = now_seconds()](const Request&) {
        const Json model = {{"id", engine.name()}, {"object", "model"}, {"created", created}, {"owned_by", "heed"}};
        return Response{.body = dumped({{"object", "list"}, {"data", Json::array({model})}})};
    });
    server.add_streaming("POST", "/v1/completions",
                         [&engine, chat](const Request& r) { return completions(engine, chat, r, false); });
    server.add_streaming("POST", "/v1/chat/completions",
                         [&engine, chat](const Request& r) { return completions(engine, chat, r, true); });
    server.add_streaming("POST", "/v1/embeddings", [&engine](const Request& r) {
        return Answer{.later = [&engine, r](const Stream&) { return embeddings(engine, r); }};
    });
}

}  // namespace heed::web
