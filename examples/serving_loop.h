#pragma once
// A serving loop: continuous batching, prompts in chunks, preemption where the pool is full.
#include <heed/cache.h>

#include <algorithm>
#include <cstddef>
#include <deque>
#include <vector>

struct Request {
    int id = 0;
    std::vector<int> tokens{};  // the prompt, then what was generated
    std::size_t wanted = 0;     // tokens to end with
    heed::Cache cache{};        // of those tokens that were seen
};

/// model(batch, tokens): for each token of the batch the one that follows. done(request): it is complete.
template <class Model, class Done>
void serve(Model&& model, const heed::CachePool& pool, std::deque<Request> waiting, Done&& done) {
    constexpr std::size_t most = 8, chunk = 16;
    std::vector<Request> running;
    for (std::size_t limit = most; !waiting.empty() || !running.empty();) {
        for (; !waiting.empty() && running.size() < limit; waiting.pop_front()) {
            running.push_back(std::move(waiting.front()));
            if (!running.back().cache) { running.back().cache = pool.create(); }
        }
        heed::CacheBatch batch;
        std::vector<int> tokens;
        for (Request& r : running) {  // a prompt, a chunk of one, or the token that was generated last
            const auto unseen = r.tokens.begin() + r.cache.length();
            const auto count = std::min<std::ptrdiff_t>(chunk, r.tokens.end() - unseen);
            batch.caches.push_back(&r.cache);
            batch.tokens.push_back(count);
            tokens.insert(tokens.end(), unseen, unseen + count);
        }
        std::vector<int> next;
        try {
            next = model(batch, tokens);
        } catch (const heed::CacheFull&) {  // nothing has changed: the last to come gives its pages back
            if (running.size() == 1) { throw; }
            running.back().cache.free();
            waiting.push_front(std::move(running.back()));
            running.pop_back();
            limit = running.size();  // until somebody is done
            continue;
        }
        std::size_t behind = 0;
        for (std::size_t n = 0; n < running.size(); ++n) {
            behind += static_cast<std::size_t>(batch.tokens[n]);
            Request& r = running[n];
            if (r.tokens.begin() + r.cache.length() == r.tokens.end()) { r.tokens.push_back(next[behind - 1]); }
        }
        std::erase_if(running, [&](Request& r) {
            if (r.tokens.size() < r.wanted) { return false; }
            done(r);
            limit = most;
            return true;
        });
    }
}
