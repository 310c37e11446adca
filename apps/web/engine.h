#pragma once
/// A model behind the server: many requests over one serving loop, on a thread of its own.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <heed/serving.h>

#include "model_folder.h"

namespace heed::web {

struct EngineOptions {
    std::string folder = {};
    std::int64_t tokens = 8192;   ///< room in the caches for all texts together
    std::int64_t sequences = 32;  ///< texts that are continued at once
    std::int64_t queue = 64;      ///< texts that wait for that; more are refused with 429
    int threads = 0;
    std::string weights = "stored";  ///< how linear layers hold theirs: LoadOptions::weights
};

/// A token of one of a run's texts, as it comes.
struct TokenEvent {
    std::size_t index = 0;
    std::int64_t token = 0;
    std::string text = {};
    TokenScore score = {};  ///< where asked for
    bool scored = false;
};

/// One or several texts that a client waits for. The client's thread takes events; the engine's thread makes them.
class Run {
public:
    /// The next token of any of the texts; nothing when all have ended, or `gone` says that nobody waits any more.
    /// Throws what went wrong in the engine.
    std::optional<TokenEvent> next(const std::function<bool()>& gone);
    /// Of a text that has ended.
    const Generated& result(std::size_t index) const { return results_[index]; }
    std::size_t size() const { return results_.size(); }

private:
    friend class Engine;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<TokenEvent> events_;
    std::vector<Generated> results_;
    std::size_t left_ = 0;
    std::string failure_;
    std::atomic<bool> cancelled_{false};
};

class Engine {
public:
    explicit Engine(const EngineOptions& options);
    ~Engine();
    Engine(const Engine&) = delete;
    Engine& operator=(const Engine&) = delete;

    const OpenModel& open() const { return open_; }
    const Model& model() const { return open_.model; }
    const std::optional<Tokenizer>& tokenizer() const { return open_.tokenizer; }
    const std::string& name() const { return open_.name; }
    const EngineOptions& options() const { return options_; }
    /// Whether it can continue texts at all; an encoder cannot.
    bool generates() const { return open_.model.config().kind != ModelKind::encoder; }

    /// Throws Error for requests that can never be served and HttpError 429 where too many wait.
    std::shared_ptr<Run> start(std::vector<heed::Request> requests);
    /// Once for each run, when nobody waits for it any more: what is still running of it ends, and its pages are free
    /// before the next step. A step that nobody at all waits for is given up where it is.
    void cancel(const std::shared_ptr<Run>& run);

    /// For computations beside the loop, one at a time.
    Context& side_context() { return side_context_; }
    std::mutex& side_mutex() { return side_mutex_; }

    struct Counts {
        ServingStatistics statistics = {};
        std::int64_t waiting = 0, running = 0, free_pages = 0, pages = 0;
        std::uint64_t finished = 0, cancelled = 0, refused = 0;
    };
    Counts counts() const;

private:
    struct Member {
        ServingLoop::Id id;
        std::shared_ptr<Run> run;
        std::size_t index;
    };

    void work();
    void step();
    void add_pending(std::unique_lock<std::mutex>& lock);
    void collect();
    void fail(const std::string& reason);
    heed::Request watched(heed::Request request, const std::shared_ptr<Run>& run, std::size_t index);
    void note_counts();

    EngineOptions options_;
    OpenModel open_;
    Context context_;
    Context side_context_;
    std::mutex side_mutex_;

    // Used on the engine's thread alone.
    std::optional<ServingLoop> loop_;
    std::vector<Member> members_;

    mutable std::mutex mutex_;
    std::condition_variable changed_;
    struct Pending {
        std::shared_ptr<Run> run;
        std::vector<heed::Request> requests;
    };
    std::deque<Pending> pending_;
    std::int64_t unfinished_ = 0;  ///< texts pending, waiting or running
    std::int64_t watched_ = 0;     ///< runs that somebody waits for
    bool cancels_ = false;
    bool stopping_ = false;
    /// Set while no run is watched: whatever a step computes then belongs to clients that have gone.
    std::atomic<bool> unwatched_{true};
    Counts counts_;
    std::thread thread_;
};

}  // namespace heed::web
