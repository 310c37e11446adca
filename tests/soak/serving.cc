/// A soak of the serving loop: requests of random lengths come, some are cancelled, pages run out now and then.
///
///     make soak REQUESTS=10000
///
/// Fails where a request that was served to its end has other tokens than one served alone (a sample is compared),
/// where a page is lost, or where memory has grown since the first tenth.

#include <heed/heed.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <random>
#include <string>

namespace {

using namespace heed;

constexpr std::int64_t vocabulary = 64, longest_prompt = 90, most_new = 40;

Model soak_model() {
    return Model::random(read_model_config(R"({"vocab": 64, "d_model": 32, "decoder": {"layers": 2,
        "attention": {"heads": 4, "kv_heads": 2}, "feed_forward": {"size": 48, "gated": true},
        "positions": {"kind": "rope"}}})"),
                         {.seed = 1});
}

Request random_request(std::mt19937_64& random, std::uint64_t number) {
    Request request;
    const auto below = [&](std::int64_t most) {
        return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most));
    };
    // One in three begins as others do, so that pages are shared.
    const bool common = below(3) == 0;
    const std::int64_t length = 1 + below(longest_prompt);
    for (std::int64_t n = 0; n < length; ++n) {
        request.prompt.push_back(common && n < 40 ? (n * 7) % vocabulary : below(vocabulary));
    }
    request.max_new_tokens = 1 + below(most_new);
    request.eos = std::vector<std::int64_t>{below(vocabulary)};
    request.sampling.do_sample = below(2) == 0;
    request.sampling.temperature = 1;
    request.sampling.seed = number;
    request.sequence = number;
    return request;
}

long resident_kilobytes() {
    std::ifstream file("/proc/self/status");
    for (std::string line; std::getline(file, line);) {
        if (line.starts_with("VmRSS:")) { return std::strtol(line.c_str() + 6, nullptr, 10); }
    }
    return 0;
}

[[noreturn]] void fail(const std::string& what) {
    std::fprintf(stderr, "soak: %s\n", what.c_str());
    std::exit(1);
}

struct Counts {
    std::int64_t finished = 0, cancelled = 0, compared = 0, tokens = 0;
};

class Soak {
public:
    Soak(std::int64_t requests, std::uint64_t seed)
        : requests_(requests),
          random_(seed),
          loop_(model_, {.decoding = {.tokens = 400, .sequences = 16}, .prefill_tokens = 64}),
          pages_(loop_.free_pages()) {}

    void run() {
        while (added_ < requests_ || !open_.empty()) {
            add_some();
            loop_.step(context_);
            cancel_some();
            take_finished();
            watch_memory();
        }
        if (loop_.free_pages() != pages_) {
            fail("expected " + std::to_string(pages_) + " free pages at the end, got " +
                 std::to_string(loop_.free_pages()));
        }
        // A short run is still filling its pools, and sanitizers keep what was freed.
        if (requests_ >= 5000 && resident_kilobytes() > early_kilobytes_ + 16384) {
            fail("expected memory as after the first tenth, " + std::to_string(early_kilobytes_) + " KB, got " +
                 std::to_string(resident_kilobytes()));
        }
        const ServingStatistics& s = loop_.statistics();
        std::printf(
            "%lld requests: %lld finished, %lld cancelled, %lld compared with one alone; %lld tokens, %lld steps, "
            "%lld evictions, %lld prompt tokens shared; all %lld pages free; %ld KB, %ld KB after the first tenth\n",
            static_cast<long long>(requests_), static_cast<long long>(counts_.finished),
            static_cast<long long>(counts_.cancelled), static_cast<long long>(counts_.compared),
            static_cast<long long>(counts_.tokens), static_cast<long long>(s.steps),
            static_cast<long long>(s.evictions), static_cast<long long>(s.shared), static_cast<long long>(pages_),
            resident_kilobytes(), early_kilobytes_);
        if (counts_.cancelled == 0 || s.evictions == 0 || s.shared == 0) {
            fail("expected every way to end, got fewer");
        }
    }

private:
    void add_some() {
        while (added_ < requests_ && open_.size() < 40 && random_() % 3 != 0) {
            Request request = random_request(random_, static_cast<std::uint64_t>(added_));
            const Request copy = request;
            open_.emplace(loop_.add(std::move(request)), copy);
            ++added_;
        }
    }
    void cancel_some() {
        if (open_.empty() || random_() % 8 != 0) { return; }
        auto chosen = open_.begin();
        std::advance(chosen, static_cast<std::ptrdiff_t>(random_() % open_.size()));
        loop_.cancel(chosen->first);
    }
    void take_finished() {
        for (auto one = open_.begin(); one != open_.end();) {
            if (!loop_.finished(one->first)) {
                ++one;
                continue;
            }
            const Generated result = loop_.take(one->first);
            counts_.tokens += static_cast<std::int64_t>(result.tokens.size());
            result.reason == FinishReason::cancelled ? ++counts_.cancelled : ++counts_.finished;
            if (one->first % 50 == 0) { compare(one->second, result); }
            one = open_.erase(one);
        }
    }
    /// What a cancelled request has is the beginning of what it would have had.
    void compare(const Request& request, const Generated& result) {
        ++counts_.compared;
        const std::vector<std::int64_t> alone = generate(context_, model_, request).tokens;
        const bool whole = result.reason != FinishReason::cancelled;
        const bool same = result.tokens.size() <= alone.size() &&
                          std::equal(result.tokens.begin(), result.tokens.end(), alone.begin()) &&
                          (!whole || alone.size() == result.tokens.size());
        if (!same) { fail("expected the tokens of a request served alone, got others"); }
    }
    void watch_memory() {
        if (early_kilobytes_ == 0 && added_ >= requests_ / 10) { early_kilobytes_ = resident_kilobytes(); }
    }

    std::int64_t requests_, added_ = 0;
    std::mt19937_64 random_;
    Context context_;
    Model model_ = soak_model();
    ServingLoop loop_;
    std::int64_t pages_;
    std::map<ServingLoop::Id, Request> open_;
    Counts counts_;
    long early_kilobytes_ = 0;
};

}  // namespace

int main(int count, char** arguments) {
    try {
        Soak(count > 1 ? std::atoll(arguments[1]) : 10000, count > 2 ? std::strtoull(arguments[2], nullptr, 10) : 1)
            .run();
    } catch (const std::exception& error) { fail(error.what()); }
    return 0;
}
