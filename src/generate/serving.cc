#include <heed/serving.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <limits>
#include <map>
#include <numeric>
#include <span>

#include "base/access.h"
#include "base/refuse.h"
#include "generate/drafts.h"
#include "generate/token_limits.h"

namespace heed {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

bool changes_with_length(const ModelConfig& config) {
    return std::any_of(config.decoder.layers.begin(), config.decoder.layers.end(), [](const LayerConfig& layer) {
        return layer.attention.rope && depends_on_length(layer.attention.rope->scaling);
    });
}

bool can_forget(const ModelConfig& config) {
    return std::all_of(config.decoder.layers.begin(), config.decoder.layers.end(),
                       [](const LayerConfig& layer) { return layer.attention.core == AttentionCore::softmax; });
}

[[noreturn]] void refuse_request(const char* what, const std::string& expected, const std::string& got) {
    refuse("ServingLoop::add", what, expected, got);
}

}  // namespace

TokenScore token_score(std::span<const float> logits, std::int64_t token, std::int64_t best) {
    if (token < 0 || token >= static_cast<std::int64_t>(logits.size())) {
        refuse("token_score", "token", "0 to " + std::to_string(static_cast<std::int64_t>(logits.size()) - 1),
               std::to_string(token));
    }
    const double top = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (const float x : logits) { sum += std::exp(static_cast<double>(x) - top); }
    const double base = top + std::log(sum);
    const auto log_probability = [&](std::int64_t id) {
        return static_cast<double>(logits[static_cast<std::size_t>(id)]) - base;
    };
    TokenScore score{.token = token, .log_probability = log_probability(token)};
    std::vector<std::int64_t> order(logits.size());
    std::iota(order.begin(), order.end(), std::int64_t{0});
    const auto count = std::min(best, static_cast<std::int64_t>(logits.size()));
    std::partial_sort(order.begin(), order.begin() + count, order.end(), [&](std::int64_t a, std::int64_t b) {
        const float x = logits[static_cast<std::size_t>(a)], y = logits[static_cast<std::size_t>(b)];
        return x > y || (x == y && a < b);
    });
    for (std::int64_t n = 0; n < count; ++n) {
        const std::int64_t id = order[static_cast<std::size_t>(n)];
        score.best.emplace_back(id, log_probability(id));
    }
    return score;
}

/// A request on its way.
struct Job {
    ServingLoop::Id id = 0;
    Request request;
    TokenLimits limits;
    std::vector<std::int64_t> text;     // what the decoder reads: prompt, or its start token; then the new tokens
    std::size_t prompt = 0;             // of `text`
    std::vector<std::int64_t> drafted;  // proposed behind the last token of the text, in this step
    CachedSequence sequence;
    std::optional<DecodeStream> stream;
    DraftState draft;
    Generated result;
    Clock::time_point begun = Clock::now();

    std::int64_t made() const { return static_cast<std::int64_t>(text.size() - prompt); }
    /// Tokens that the caches lack; the last token is always one of them.
    std::int64_t missing() const { return static_cast<std::int64_t>(text.size()) - (sequence ? sequence.length() : 0); }
    bool finished() const { return result.reason != FinishReason::running; }
};

struct HEED_INTERNAL ServingLoop::State {
    State(const Model& model, const ServingOptions& given)
        : options(given), decoding(model, given.decoding), drafts(model, given.speculation, given.decoding) {
        const ModelConfig& config = model.config();
        if (options.prefill_tokens < 1) { refuse("ServingLoop", "prefill_tokens", "1 or more", "less"); }
        if (options.speculation.tokens > 0 && !can_forget(config)) {
            refuse("ServingLoop", "speculation", "a model whose attention is softmax in every layer", "another");
        }
        // Keys that a longer text rotates otherwise: prompts whole and on their own.
        if (changes_with_length(config)) {
            options.share_prefixes = false;
            options.prefill_tokens = std::numeric_limits<std::int64_t>::max() / 2;
        }
        grows = can_forget(config);
        options.share_prefixes = options.share_prefixes && can_forget(config) && config.kind == ModelKind::decoder;
    }

    const ModelConfig& config() const { return decoding.model().config(); }

    // ---- A step ----------------------------------------------------------------------------------------------------

    bool step(Context& context) {
        stepping = true;
        const struct Done {
            State& state;
            ~Done() { state.stepping = false; }
        } done{*this};
        leave();
        admit(context);
        if (running.empty()) { return !waiting.empty(); }
        ++statistics.steps;
        decode(context);
        prefill(context);
        leave();
        return !running.empty() || !waiting.empty();
    }

    /// Waiting requests that find room for what they have to compute begin.
    void admit(Context& context) {
        while (!waiting.empty() && static_cast<std::int64_t>(running.size()) < options.decoding.sequences) {
            std::shared_ptr<Job> job = waiting.front();
            const auto pages = (static_cast<std::int64_t>(job->text.size()) + options.decoding.page_size) /
                                   options.decoding.page_size +
                               1;
            // One that has been evicted waits until others are done, else the two would take turns. A state of fixed
            // size takes one page whatever the text.
            const std::int64_t needed = (grows ? pages : 1) + (grows ? static_cast<std::int64_t>(running.size()) : 0);
            if (!running.empty() && (decoding.free_pages() < needed || should_wait(*job))) { return; }
            try {
                begin(context, *job);
            } catch (const CacheFull&) {
                if (running.empty()) { throw; }
                return;
            }
            waiting.pop_front();
            running.push_back(std::move(job));
        }
    }

    void begin(Context& context, Job& job) {
        if (config().kind == ModelKind::encoder_decoder) {
            Tensor source(DType::i64, {static_cast<std::int64_t>(job.request.prompt.size())});
            std::copy(job.request.prompt.begin(), job.request.prompt.end(), source.as<std::int64_t>());
            job.sequence = decoding.create(context, source);
            return;
        }
        if (options.share_prefixes && share(job)) { return; }
        job.sequence = decoding.create();
    }

    /// Tokens at the beginning of both, without the last of `job`, whose logits are needed.
    static std::int64_t common_beginning(const Job& job, const Job& other) {
        const std::size_t most = std::min(other.text.size(), job.text.size() - 1);
        std::size_t same = 0;
        while (same < most && other.text[same] == job.text[same]) { ++same; }
        return static_cast<std::int64_t>(same);
    }

    /// Whether a running text is about to compute what the job could take over.
    bool should_wait(const Job& job) const {
        return options.share_prefixes && std::any_of(running.begin(), running.end(), [&](const auto& other) {
                   const std::int64_t same = common_beginning(job, *other);
                   return same >= options.decoding.page_size && other->sequence.length() < same && other->missing() > 1;
               });
    }

    /// From the running text with the longest common beginning, where that is worth a page.
    bool share(Job& job) {
        const Job* best = nullptr;
        std::int64_t longest = options.decoding.page_size - 1;
        for (const auto& other : running) {
            const std::int64_t same = std::min(other->sequence.length(), common_beginning(job, *other));
            if (same > longest) {
                longest = same;
                best = other.get();
            }
        }
        if (best == nullptr) { return false; }
        job.sequence = best->sequence.fork();
        job.sequence.truncate(longest);
        statistics.shared += longest;
        return true;
    }

    /// Whether the caches of a text are of no use from here on.
    bool outgrown(const Job& job) const {
        const std::int64_t beyond = config().recompute_beyond(), cached = job.sequence.length();
        return beyond > 0 && cached > 0 && cached <= beyond && static_cast<std::int64_t>(job.text.size()) > beyond;
    }

    /// The next token of every text whose caches lack only its last one.
    void decode(Context& context) {
        while (true) {
            std::vector<Job*> jobs;
            for (const auto& job : running) {
                if (outgrown(*job)) { job->sequence = decoding.create(); }  // prefilled anew
                if (job->missing() == 1) { jobs.push_back(job.get()); }
            }
            if (jobs.empty()) { return; }
            propose(context, jobs);
            DecodingBatch batch;
            for (Job* job : jobs) {
                batch.sequences.push_back(&job->sequence);
                batch.tokens.push_back(job->text.back());
                batch.tokens.insert(batch.tokens.end(), job->drafted.begin(), job->drafted.end());
                batch.counts.push_back(1 + static_cast<std::int64_t>(job->drafted.size()));
                batch.all_logits = batch.all_logits || !job->drafted.empty();
            }
            Tensor logits;
            try {
                logits = decoding.step(context, batch);
            } catch (const CacheFull&) {
                if (!make_room()) { throw; }
                continue;
            }
            std::int64_t row = 0;
            for (std::size_t n = 0; n < jobs.size(); ++n) {
                accept(*jobs[n], logits, row);
                row += batch.all_logits ? batch.counts[n] : 1;
            }
            return;
        }
    }

    void propose(Context& context, const std::vector<Job*>& jobs) {
        for (Job* job : jobs) {
            const std::int64_t left = job->request.max_new_tokens - job->made() - 1;
            job->drafted = left > 0 ? drafts.propose(context, {.text = job->text,
                                                               .state = &job->draft,
                                                               .most = left,
                                                               .sampling = &job->request.sampling,
                                                               .sequence = job->request.sequence,
                                                               .made = job->made()})
                                    : std::vector<std::int64_t>();
            statistics.proposed += static_cast<std::int64_t>(job->drafted.size());
        }
    }

    /// The rows of logits of one text: each gives a token, and the next row counts only if that is what was proposed.
    void accept(Job& job, const Tensor& logits, std::int64_t row) {
        const std::int64_t before = job.sequence.length() - static_cast<std::int64_t>(job.drafted.size());
        std::int64_t used = 0;
        for (std::size_t n = 0; n <= job.drafted.size() && !job.finished(); ++n) {
            const std::int64_t at = row + static_cast<std::int64_t>(n), size = logits.shape()[1];
            const std::int64_t token = next_token(job, logits, at);
            if (job.request.on_score) {
                const std::span<const float> numbers(logits.as<float>() + at * size, static_cast<std::size_t>(size));
                job.request.on_score(token_score(numbers, token, job.request.best_scores));
            }
            add_token(job, token);
            ++used;
            const bool goes_on = n < job.drafted.size() && token == job.drafted[n];
            statistics.accepted += goes_on ? 1 : 0;
            if (!goes_on) { break; }
        }
        statistics.decoded += used;
        if (job.sequence.length() > before + used - 1) { job.sequence.truncate(before + used - 1); }
        job.drafted.clear();
    }

    std::int64_t next_token(const Job& job, const Tensor& logits, std::int64_t row) const {
        const std::int64_t size = logits.shape()[1];
        std::vector<float> numbers(logits.as<float>() + row * size, logits.as<float>() + (row + 1) * size);
        job.limits.apply(behind_padding(job.request.padding, job.text), job.made(), numbers);
        return sample_token(numbers, job.text, job.request.sampling,
                            {.sequence = job.request.sequence, .step = static_cast<std::uint64_t>(job.made())});
    }

    void add_token(Job& job, std::int64_t token) {
        job.text.push_back(token);
        job.result.tokens.push_back(token);
        if (job.result.tokens.size() == 1) { job.result.first_token_seconds = seconds_since(job.begun); }
        if (job.limits.ends(token)) {
            job.result.reason = FinishReason::end_token;
        } else if (job.made() >= job.request.max_new_tokens) {
            job.result.reason = FinishReason::length;
        }
        std::string piece = job.stream ? job.stream->push(token) : std::string();
        if (job.stream && job.finished()) { piece += job.stream->finish(); }
        const std::size_t had = job.result.text.size();
        job.result.text += piece;
        for (const std::string& stop : job.request.stop) {
            // It may begin in what was there before.
            const std::size_t from = had > stop.size() ? had - stop.size() : 0;
            const std::size_t at = job.result.text.find(stop, from);
            if (at == std::string::npos) { continue; }
            job.result.text.resize(at);
            piece = at > had ? job.result.text.substr(had) : std::string();
            job.result.reason = FinishReason::stop;
        }
        if (job.request.on_token && !job.request.on_token(token, piece) && !job.finished()) {
            job.result.reason = FinishReason::cancelled;
        }
        job.result.seconds = seconds_since(job.begun);
    }

    /// Parts of prompts, first come first served, up to what a step may have.
    void prefill(Context& context) {
        while (true) {
            DecodingBatch batch;
            std::vector<Job*> jobs;
            std::int64_t room = options.prefill_tokens;
            for (const auto& job : running) {
                if (job->finished() || job->missing() <= 0 || room <= 0) { continue; }
                if (job->missing() == 1 && job->made() > 0 && job->sequence.length() > 0) {
                    continue;
                }  // decodes next time
                const std::int64_t count = std::min(room, job->missing());
                const auto from = job->text.begin() + (static_cast<std::int64_t>(job->text.size()) - job->missing());
                batch.sequences.push_back(&job->sequence);
                batch.tokens.insert(batch.tokens.end(), from, from + count);
                batch.counts.push_back(count);
                jobs.push_back(job.get());
                room -= count;
            }
            if (jobs.empty()) { return; }
            Tensor logits;
            try {
                logits = decoding.step(context, batch);
            } catch (const CacheFull&) {
                if (!make_room()) { throw; }
                continue;
            }
            for (std::size_t n = 0; n < jobs.size(); ++n) {
                statistics.prefilled += batch.counts[n];
                if (jobs[n]->missing() == 0) { accept(*jobs[n], logits, static_cast<std::int64_t>(n)); }
            }
            return;
        }
    }

    bool make_room() {
        const std::size_t before = running.size();
        leave();
        return running.size() < before || evict();
    }

    /// The request that came last gives its pages back; false where only one is running.
    bool evict() {
        if (running.size() < 2) { return false; }
        const auto last = std::max_element(running.begin(), running.end(),
                                           [](const auto& a, const auto& b) { return a->id < b->id; });
        std::shared_ptr<Job> job = *last;
        running.erase(last);
        job->sequence = CachedSequence();
        job->drafted.clear();
        drafts.forget(job->draft);
        ++statistics.evictions;
        const auto place =
            std::find_if(waiting.begin(), waiting.end(), [&](const auto& other) { return other->id > job->id; });
        waiting.insert(place, std::move(job));
        return true;
    }

    void leave() {
        for (auto job = running.begin(); job != running.end();) {
            if (!(*job)->finished()) {
                ++job;
                continue;
            }
            release(**job);
            job = running.erase(job);
        }
    }

    void release(Job& job) {
        job.sequence = CachedSequence();
        drafts.forget(job.draft);
    }

    ServingOptions options;
    Decoding decoding;
    Drafts drafts;
    std::deque<std::shared_ptr<Job>> waiting;
    std::vector<std::shared_ptr<Job>> running;
    std::map<Id, std::shared_ptr<Job>> known;
    ServingStatistics statistics;
    Id next = 1;
    bool grows = true;      // caches take pages as texts get longer
    bool stepping = false;  // callbacks may cancel
};

ServingLoop::ServingLoop(const Model& model, const ServingOptions& options)
    : state_(std::make_unique<State>(model, options)) {}
ServingLoop::ServingLoop(ServingLoop&&) noexcept = default;
ServingLoop& ServingLoop::operator=(ServingLoop&&) noexcept = default;
ServingLoop::~ServingLoop() = default;

ServingLoop::Id ServingLoop::add(Request request) {
    const ModelConfig& config = state_->config();
    check_sampling("ServingLoop::add", request.sampling);
    refuse_unknown("ServingLoop::add", state_->decoding.model().generation(), request.sampling.do_sample);
    if (request.prompt.empty()) { refuse_request("prompt", "at least one token", "none"); }
    if (request.max_new_tokens < 1) {
        refuse_request("max_new_tokens", "1 or more", std::to_string(request.max_new_tokens));
    }
    for (const std::int64_t id : request.prompt) {
        if (id < 0 || id >= config.input_vocab()) {
            refuse_request("prompt", "ids below " + std::to_string(config.input_vocab()), std::to_string(id));
        }
    }
    if (request.best_scores < 0) { refuse_request("best_scores", "0 or more", std::to_string(request.best_scores)); }
    if (!request.stop.empty() && !state_->options.tokenizer) {
        refuse_request("stop", "a tokenizer in the loop's options", "none");
    }
    for (const std::string& stop : request.stop) {
        if (stop.empty()) { refuse_request("stop", "strings that are not empty", "an empty one"); }
    }
    auto job = std::make_shared<Job>();
    constexpr const char* function = "ServingLoop::add";
    job->limits = TokenLimits(state_->decoding.model(), {.function = function,
                                                         .eos = request.eos,
                                                         .special = request.special,
                                                         .rules = request.rules,
                                                         .min_new_tokens = request.min_new_tokens,
                                                         .max_new_tokens = request.max_new_tokens});
    job->text = request.prompt;
    if (config.kind == ModelKind::encoder_decoder) {
        job->text = target_beginning(function, state_->decoding.model(), request.special, request.decoder_prompt);
    } else if (!request.decoder_prompt.empty()) {
        refuse_request("decoder_prompt", "none, as the model is no encoder-decoder",
                       std::to_string(request.decoder_prompt.size()) + " tokens");
    }
    job->prompt = job->text.size();
    const std::int64_t needed = static_cast<std::int64_t>(job->text.size()) + request.max_new_tokens;
    if (needed > state_->options.decoding.tokens) {
        refuse_request("prompt and max_new_tokens",
                       "at most " + std::to_string(state_->options.decoding.tokens) + " together",
                       std::to_string(needed));
    }
    if (config.max_positions > 0 && config.first().positions.kind == PositionKind::learned &&
        needed - 1 > config.max_positions) {  // the last token is not read
        refuse_request("prompt and max_new_tokens",
                       "at most " + std::to_string(config.max_positions) + " positions of the model",
                       std::to_string(needed));
    }
    if (state_->options.tokenizer) { job->stream.emplace(*state_->options.tokenizer); }
    job->request = std::move(request);
    job->id = state_->next++;
    const Id id = job->id;
    state_->known.emplace(id, job);
    state_->waiting.push_back(std::move(job));
    return id;
}

void ServingLoop::cancel(Id id) {
    const auto found = state_->known.find(id);
    if (found == state_->known.end() || found->second->finished()) { return; }
    found->second->result.reason = FinishReason::cancelled;
    const auto waits = std::find(state_->waiting.begin(), state_->waiting.end(), found->second);
    if (waits != state_->waiting.end()) { state_->waiting.erase(waits); }
    if (!state_->stepping) { state_->leave(); }
}

bool ServingLoop::step(Context& context) { return state_->step(context); }

void ServingLoop::run(Context& context) {
    while (step(context)) {}
}

bool ServingLoop::finished(Id id) const {
    const auto found = state_->known.find(id);
    return found != state_->known.end() && found->second->finished();
}

Generated ServingLoop::take(Id id) {
    const auto found = state_->known.find(id);
    if (found == state_->known.end()) {
        refuse("ServingLoop::take", "id", "one that add gave and take did not", std::to_string(id));
    }
    if (!found->second->finished()) { return found->second->result; }
    Generated result = std::move(found->second->result);
    state_->known.erase(found);
    return result;
}

std::int64_t ServingLoop::waiting() const { return static_cast<std::int64_t>(state_->waiting.size()); }
std::int64_t ServingLoop::running() const { return static_cast<std::int64_t>(state_->running.size()); }
std::int64_t ServingLoop::free_pages() const { return state_->decoding.free_pages(); }
const ServingStatistics& ServingLoop::statistics() const { return state_->statistics; }

Generated generate(Context& context, const Model& model, Request request, ServingOptions options) {
    const auto prompt = static_cast<std::int64_t>(request.prompt.size());
    options.decoding.sequences = 1;
    options.decoding.source_tokens = prompt;
    options.decoding.tokens =
        prompt + std::max<std::int64_t>(1, request.max_new_tokens) + options.speculation.tokens + 1;
    ServingLoop loop(model, options);
    const ServingLoop::Id id = loop.add(std::move(request));
    loop.run(context);
    return loop.take(id);
}

}  // namespace heed
