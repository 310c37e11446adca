#include "openai.h"

#include <algorithm>

#include <heed/evaluate.h>
#include <heed/interrupt.h>

#include "fields.h"
#include "openai_answer.h"

namespace heed::web {
namespace {

Answer completions(Engine& engine, const Request& request, bool chat) {
    const auto asked = std::make_shared<Asked>(read_asked(engine, parse_object(request.body), chat));
    // Started here, so that a full queue is said at once; what is not answered in the end is cancelled with the answer.
    const auto run = std::make_shared<const Watched>(engine, asked->requests);
    if (asked->stream) {
        return {.stream = [&engine, asked, run](Stream& client) { stream_answer(engine, *asked, *run, client); }};
    }
    return {
        .later = [&engine, asked, run](const Stream& client) { return whole_answer(engine, *asked, *run, client); }};
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

Response embeddings(Engine& engine, const Request& request, const Stream& client) {
    const Interruption with_the_client(client.gone());
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

void add_openai(Server& server, Engine& engine) {
    const Json model = {{"id", engine.name()}, {"object", "model"}, {"created", now_seconds()}, {"owned_by", "heed"}};
    server.add("GET", "/v1/models", [model](const Request&) {
        return Response{.body = dumped({{"object", "list"}, {"data", Json::array({model})}})};
    });
    server.add("GET", "/v1/models/" + engine.name(),
               [model](const Request&) { return Response{.body = dumped(model)}; });
    server.add_streaming("POST", "/v1/completions",
                         [&engine](const Request& r) { return completions(engine, r, false); });
    server.add_streaming("POST", "/v1/chat/completions",
                         [&engine](const Request& r) { return completions(engine, r, true); });
    server.add_streaming("POST", "/v1/embeddings", [&engine](const Request& r) {
        return Answer{.later = [&engine, r](const Stream& client) { return embeddings(engine, r, client); }};
    });
}

}  // namespace heed::web
