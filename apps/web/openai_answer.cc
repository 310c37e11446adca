#include "openai_answer.h"

#include <algorithm>

#include <heed/interrupt.h>

#include "prompt_scores.h"

namespace heed::web {
namespace {

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
        offsets.push_back(offset);
        offset += text.size();
        if (!event.scored) {  // the first token of an echoed prompt: nothing stood before it
            scores.push_back(nullptr);
            best.push_back(nullptr);
            continue;
        }
        scores.push_back(event.score.log_probability);
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

/// The prompts' own tokens with their scores, first of them without; empty where neither is asked for.
std::vector<std::vector<TokenEvent>> echoed_events(Engine& engine, const Asked& asked, const Stream& client) {
    std::vector<std::vector<TokenEvent>> events(asked.choices());
    if (!asked.echo || asked.best_scores < 0) { return events; }
    const Interruption with_the_client(client.gone());
    for (std::size_t n = 0; n < events.size(); ++n) {
        const std::vector<std::int64_t>& ids = asked.prompts[n];
        if (n > 0 && ids == asked.prompts[n - 1]) {
            events[n] = events[n - 1];
            continue;
        }
        const std::lock_guard lock(engine.side_mutex());
        events[n].push_back({.index = n, .token = ids.front()});
        for (TokenScore& score : prompt_scores(engine.side_context(), engine.model(), ids, asked.best_scores)) {
            events[n].push_back({.index = n, .token = score.token, .score = std::move(score), .scored = true});
        }
    }
    return events;
}

}  // namespace

Watched::Watched(Engine& engine, std::vector<heed::Request> requests)
    : engine_(engine), run_(requests.empty() ? nullptr : engine.start(std::move(requests))) {}

Watched::~Watched() {
    if (run_) { engine_.cancel(run_); }
}

std::optional<TokenEvent> Watched::next(const Stream& client) const {
    return run_ ? run_->next([&] { return client.closed(); }) : std::nullopt;
}

const Generated& Watched::result(std::size_t index) const {
    static const Generated nothing{.reason = FinishReason::length};
    return run_ ? run_->result(index) : nothing;
}

Response whole_answer(Engine& engine, const Asked& asked, const Watched& run, const Stream& client) {
    auto events = echoed_events(engine, asked, client);
    while (auto event = run.next(client)) { events[event->index].push_back(std::move(*event)); }
    if (client.closed()) { return {}; }
    Json choices = Json::array();
    std::int64_t made = 0;
    for (std::size_t n = 0; n < asked.choices(); ++n) {
        const Generated& result = run.result(n);
        made += static_cast<std::int64_t>(result.tokens.size());
        Json choice = {{"index", n}};
        if (asked.chat) {
            choice["message"] = {{"role", "assistant"}, {"content", result.text}};
        } else {
            choice["text"] = (asked.echo ? asked.echoed[n] : std::string()) + result.text;
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

namespace {

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

    /// Before the first token: whose turn it is, or the prompt where it is to be echoed.
    std::string begin(const std::vector<std::vector<TokenEvent>>& echoed) {
        std::string all;
        for (std::size_t n = 0; n < texts_.size(); ++n) {
            if (asked_.chat) { all += event(choice(n, {{"role", "assistant"}, {"content", ""}})); }
            if (!asked_.echo) { continue; }
            Json json = choice(n, asked_.echoed[n]);
            if (!echoed[n].empty()) { json["logprobs"] = scores_json(engine_, false, echoed[n], 0); }
            for (const TokenEvent& one : echoed[n]) { texts_[n].offset += token_text(engine_, one.token).size(); }
            all += event(std::move(json));
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

    std::string end(const Watched& run) const {
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

}  // namespace

void stream_answer(Engine& engine, const Asked& asked, const Watched& run, Stream& client) {
    StreamAnswer answer(engine, asked, asked.choices());
    if (!client.write(answer.begin(echoed_events(engine, asked, client)))) { return; }
    while (const auto event = run.next(client)) {
        if (!client.write(answer.token(*event))) { return; }
    }
    if (!client.closed()) { client.write(answer.end(run)); }
}

}  // namespace heed::web
