#include "engine.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include <heed/interrupt.h>

#include "http.h"

namespace heed::web {
namespace {

/// What ServingLoop::add would say later, on another thread, said before anything is queued.
void check_request(const ModelConfig& config, const EngineOptions& options, const heed::Request& request) {
    check_sampling("generate", request.sampling);
    if (request.prompt.empty()) { throw HttpError{400, "prompt: expected at least one token, got none"}; }
    for (const std::int64_t id : request.prompt) {
        if (id < 0 || id >= config.vocab) {
            throw HttpError{400, "prompt: expected ids from 0 to " + std::to_string(config.vocab - 1) + ", got " +
                                     std::to_string(id)};
        }
    }
    const bool two_stacks = config.kind == ModelKind::encoder_decoder;
    const std::int64_t prompt = static_cast<std::int64_t>(request.prompt.size());
    const std::int64_t needed = (two_stacks ? 1 : prompt) + request.max_new_tokens;
    const bool learned = config.max_positions > 0 && config.first().positions.kind == PositionKind::learned;
    const std::int64_t room = learned ? std::min(options.tokens, config.max_positions) : options.tokens;
    if (needed > room || prompt > room) {
        throw HttpError{400, "prompt and max_tokens: expected at most " + std::to_string(room) +
                                 " tokens together, got " + std::to_string(std::max(needed, prompt))};
    }
}

}  // namespace

std::optional<TokenEvent> Run::next(const std::function<bool()>& gone) {
    constexpr std::chrono::milliseconds look_again{20};
    std::unique_lock lock(mutex_);
    while (events_.empty() && left_ > 0 && failure_.empty()) {
        if (gone && gone()) { return std::nullopt; }
        changed_.wait_for(lock, look_again);
    }
    if (!failure_.empty()) { throw HttpError{500, failure_, "server_error"}; }
    if (events_.empty()) { return std::nullopt; }
    TokenEvent event = std::move(events_.front());
    events_.pop_front();
    return event;
}

Engine::Engine(const EngineOptions& options)
    : options_(options),
      open_(open_model(options.folder, weight_storage(options.weights))),
      context_(options.threads),
      side_context_(options.threads) {
    if (!generates()) { return; }
    loop_.emplace(open_.model, ServingOptions{.decoding = {.tokens = options.tokens, .sequences = options.sequences},
                                              .tokenizer = open_.tokenizer});
    counts_.pages = loop_->free_pages();
    note_counts();
    thread_ = std::thread([this] { work(); });
}

Engine::~Engine() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) { thread_.join(); }
}

std::shared_ptr<Run> Engine::start(std::vector<heed::Request> requests) {
    if (!generates()) { throw HttpError{400, name() + ": expected a model that continues texts, got an encoder"}; }
    for (const heed::Request& request : requests) { check_request(open_.model.config(), options_, request); }
    const auto run = std::make_shared<Run>();
    run->results_.resize(requests.size());
    run->left_ = requests.size();
    {
        const std::lock_guard lock(mutex_);
        const auto count = static_cast<std::int64_t>(requests.size());
        if (stopping_) { throw HttpError{503, "the server is stopping", "server_error"}; }
        if (unfinished_ + count > options_.sequences + options_.queue) {
            ++counts_.refused;
            throw HttpError{429, "the queue of texts is full; try again", "server_busy"};
        }
        unfinished_ += count;
        ++watched_;
        unwatched_ = false;
        pending_.push_back({run, std::move(requests)});
    }
    changed_.notify_all();
    return run;
}

void Engine::cancel(const std::shared_ptr<Run>& run) {
    run->cancelled_ = true;
    {
        const std::lock_guard lock(mutex_);
        cancels_ = true;
        if (--watched_ == 0) { unwatched_ = true; }
    }
    changed_.notify_all();
}

heed::Request Engine::watched(heed::Request request, const std::shared_ptr<Run>& run, std::size_t index) {
    const auto score = std::make_shared<TokenScore>();
    const bool scored = static_cast<bool>(request.on_score);
    if (scored) {
        request.on_score = [score](const TokenScore& given) { *score = given; };
    }
    request.on_token = [run, index, score, scored](std::int64_t token, const std::string& text) {
        {
            const std::lock_guard lock(run->mutex_);
            run->events_.push_back({.index = index, .token = token, .text = text, .score = *score, .scored = scored});
        }
        run->changed_.notify_all();
        return !run->cancelled_.load();
    };
    return request;
}

/// Hands what clients asked for to the loop. `lock` is held on entry and on return.
void Engine::add_pending(std::unique_lock<std::mutex>& lock) {
    std::deque<Pending> taken = std::exchange(pending_, {});
    const bool cancels = std::exchange(cancels_, false);
    lock.unlock();
    std::int64_t refused = 0;
    for (Pending& pending : taken) {
        for (std::size_t n = 0; n < pending.requests.size(); ++n) {
            try {
                const ServingLoop::Id id = loop_->add(watched(std::move(pending.requests[n]), pending.run, n));
                members_.push_back({id, pending.run, n});
            } catch (const std::exception& error) {
                ++refused;
                const std::lock_guard run_lock(pending.run->mutex_);
                pending.run->failure_ = error.what();
                --pending.run->left_;
                pending.run->changed_.notify_all();
            }
        }
    }
    if (cancels) {
        for (const Member& member : members_) {
            if (member.run->cancelled_) { loop_->cancel(member.id); }
        }
    }
    lock.lock();
    unfinished_ -= refused;
}

/// Results of the texts that have ended.
void Engine::collect() {
    std::int64_t ended = 0, cancelled = 0;
    std::erase_if(members_, [&](const Member& member) {
        if (!loop_->finished(member.id)) { return false; }
        Generated result = loop_->take(member.id);
        ++ended;
        cancelled += result.reason == FinishReason::cancelled ? 1 : 0;
        const std::lock_guard lock(member.run->mutex_);
        member.run->results_[member.index] = std::move(result);
        --member.run->left_;
        member.run->changed_.notify_all();
        return true;
    });
    const std::lock_guard lock(mutex_);
    unfinished_ -= ended;
    counts_.finished += static_cast<std::uint64_t>(ended - cancelled);
    counts_.cancelled += static_cast<std::uint64_t>(cancelled);
    note_counts();
}

void Engine::note_counts() {
    counts_.statistics = loop_->statistics();
    counts_.waiting = loop_->waiting();
    counts_.running = loop_->running();
    counts_.free_pages = loop_->free_pages();
}

/// Nobody waits for ever on a loop that cannot go on.
void Engine::fail(const std::string& reason) {
    for (const Member& member : members_) {
        loop_->cancel(member.id);
        loop_->take(member.id);
        const std::lock_guard lock(member.run->mutex_);
        member.run->failure_ = reason;
        member.run->left_ = 0;
        member.run->changed_.notify_all();
    }
    const std::lock_guard lock(mutex_);
    unfinished_ -= static_cast<std::int64_t>(members_.size());
    members_.clear();
    note_counts();
}

/// Texts whose clients have gone leave before the loop computes; those that go while it does end it, if they were all.
void Engine::step() {
    const Interruption with_the_clients(unwatched_);
    try {
        loop_->step(context_);
    } catch (const Interrupted&) {
        for (const Member& member : members_) { loop_->cancel(member.id); }
    }
}

void Engine::work() {
    std::unique_lock lock(mutex_);
    for (;;) {
        changed_.wait(lock, [&] { return stopping_ || cancels_ || !pending_.empty() || !members_.empty(); });
        if (stopping_) { break; }
        add_pending(lock);
        lock.unlock();
        try {
            step();
            collect();
        } catch (const std::exception& error) { fail(error.what()); }
        lock.lock();
    }
    for (const Pending& pending : pending_) {
        const std::lock_guard run_lock(pending.run->mutex_);
        pending.run->failure_ = "the server is stopping";
        pending.run->changed_.notify_all();
    }
    pending_.clear();
    lock.unlock();
    fail("the server is stopping");
}

Engine::Counts Engine::counts() const {
    const std::lock_guard lock(mutex_);
    return counts_;
}

}  // namespace heed::web
