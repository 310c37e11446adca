#include "serve.h"

#include <atomic>
#include <csignal>
#include <cstring>
#include <thread>

#include <pthread.h>

#include "json.h"
#include "learn.h"
#include "look.h"
#include "openai.h"
#include "page_files.h"

namespace heed::web {
namespace {

std::string metrics(const Server& server, const Engine* engine, const Looker* looker) {
    const Server::Counts counts = server.counts();
    std::string text;
    const auto line = [&](const char* name, const char* kind, const char* help, auto value) {
        text += std::string("# HELP heed_") + name + " " + help + "\n# TYPE heed_" + name + " " + kind + "\nheed_" +
                name + " " + std::to_string(value) + "\n";
    };
    line("http_requests_total", "counter", "Requests received.", counts.requests);
    line("http_refused_total", "counter", "Requests refused: malformed, not allowed, or too many.", counts.refused);
    line("http_failed_total", "counter", "Requests that failed inside the server.", counts.failed);
    line("http_connections", "gauge", "Open connections.", counts.connections);
    line("http_streams", "gauge", "Answers being streamed.", counts.streams);
    if (engine == nullptr) { return text; }
    const Engine::Counts model = engine->counts();
    line("prompt_tokens_total", "counter", "Tokens of prompts that were computed.", model.statistics.prefilled);
    line("shared_tokens_total", "counter", "Tokens of prompts that another text had computed.",
         model.statistics.shared);
    line("generated_tokens_total", "counter", "Tokens that were generated.", model.statistics.decoded);
    line("steps_total", "counter", "Steps of the serving loop.", model.statistics.steps);
    line("evictions_total", "counter", "Texts that gave their pages back to be computed again.",
         model.statistics.evictions);
    line("texts_finished_total", "counter", "Texts that came to their end.", model.finished);
    line("texts_cancelled_total", "counter", "Texts whose client went away.", model.cancelled);
    line("texts_refused_total", "counter", "Texts refused because too many waited.", model.refused);
    line("texts_running", "gauge", "Texts being continued.", model.running);
    line("texts_waiting", "gauge", "Texts that wait for room.", model.waiting);
    line("pages", "gauge", "Pages of the cache.", model.pages);
    line("pages_free", "gauge", "Pages of the cache that are free.", model.free_pages);
    const Looker::Counts looked = looker->counts();
    line("look_texts", "gauge", "Texts that are kept to be looked at.", looked.texts);
    line("look_bytes", "gauge", "Bytes of their queries, keys and hidden states.", looked.bytes);
    line("look_map_bytes", "gauge", "Bytes of the maps of heads that were opened.", looked.map_bytes);
    return text;
}

/// SIGINT and SIGTERM reach one thread that waits for them, so that stopping is ordinary code and no signal handler.
class Signals {
public:
    explicit Signals(std::function<void()> action) : action_(std::move(action)) {
        sigemptyset(&set_);
        sigaddset(&set_, SIGINT);
        sigaddset(&set_, SIGTERM);
        sigaddset(&set_, SIGUSR2);  // from the destructor: no signal came
        pthread_sigmask(SIG_BLOCK, &set_, &before_);
        thread_ = std::thread([this] {
            int number = 0;
            while (sigwait(&set_, &number) == 0) {
                if (number == SIGUSR2) { return; }
                action_();
            }
        });
    }
    ~Signals() {
        pthread_kill(thread_.native_handle(), SIGUSR2);
        thread_.join();
        pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    }
    Signals(const Signals&) = delete;
    Signals& operator=(const Signals&) = delete;

private:
    std::function<void()> action_;
    sigset_t set_{}, before_{};
    std::thread thread_;
};

}  // namespace

void add_page(Server& server) {
    for (const PageFile& file : page_files()) {
        const auto answer = [&file](const Request&) {
            return Response{.type = std::string(file.type), .body = std::string(file.bytes)};
        };
        server.add("GET", std::string(file.path), answer);
        if (file.path == "/index.html") { server.add("GET", "/", answer); }
    }
}

void serve(const ServeOptions& options, const std::function<void(const std::string&)>& ready) {
    // Blocked before the server starts its threads, which inherit that: none of them is interrupted.
    std::atomic<Server*> running{nullptr};
    const Signals signals([&running] {
        if (Server* server = running.load()) { server->stop(); }
    });
    std::unique_ptr<Engine> engine;
    ServerOptions settings = options.server;
    if (!options.engine.folder.empty()) {
        engine = std::make_unique<Engine>(options.engine);
        // Each text that waits or runs has a client's thread behind it.
        constexpr int others = 16;
        settings.limits.streams = static_cast<int>(options.engine.sequences + options.engine.queue) + others;
    }
    Server server(settings);
    running = &server;
    add_page(server);
    add_learn(server);
    std::shared_ptr<Looker> looker;
    if (engine) {
        add_openai(server, *engine);
        std::vector<OpenModel> models = {engine->open()};
        if (!options.compare.empty()) { models.push_back(open_model(options.compare)); }
        looker =
            std::make_shared<Looker>(std::move(models), engine->side_context(), engine->side_mutex(), options.look);
        add_look(server, looker);
    }
    server.add("GET", "/api/model", [&engine, &looker](const Request&) {
        Json names = Json::array();
        if (looker) {
            for (const OpenModel& open : looker->models()) { names.push_back(open.name); }
        }
        return Response{.body = Json{{"model", engine ? Json(engine->name()) : Json(nullptr)},
                                     {"models", names},
                                     {"generates", engine && engine->generates()},
                                     {"text", engine && engine->tokenizer()}}
                                    .dump()};
    });
    server.add("GET", "/health", [](const Request&) { return Response{.body = R"({"status":"ok"})"}; });
    server.add("GET", "/metrics", [&server, &engine, &looker](const Request&) {
        return Response{.type = "text/plain; version=0.0.4; charset=utf-8",
                        .body = metrics(server, engine.get(), looker.get())};
    });
    ready(server.address() + (options.server.token.empty() ? "/" : "/?token=" + options.server.token));
    server.run();
    running = nullptr;
}

}  // namespace heed::web
