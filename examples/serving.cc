// Requests with one instruction in front, served from a pool that is too small for all of them at once; then each
// alone, with the same words as a result.
#include "serving_loop.h"

#include <heed/heed.h>

#include <cstdio>
#include <map>

namespace {

constexpr std::int64_t layers = 2, heads = 4, groups = 2, size = 16;
constexpr int vocabulary = 50;

/// Random weights: not a language model, but its attention is one's.
class Toy {
public:
    std::vector<int> operator()(const heed::CacheBatch& given, const std::vector<int>& tokens) {
        heed::CacheBatch batch = given;
        const auto count = static_cast<std::int64_t>(tokens.size());
        heed::Tensor out(heed::DType::f32, {1, heads, count, size});
        for (batch.layer = 0; batch.layer < layers; ++batch.layer) {
            const heed::Tensor q = rows(1, heads, tokens, out), k = rows(2, groups, tokens, out),
                               v = rows(3, groups, tokens, out);
            heed::cached_attend(context_, batch, q, k, v, out, {.causal = true});
        }
        std::vector<int> next;
        for (std::int64_t t = 0; t < count; ++t) { next.push_back(best(out, t)); }
        return next;
    }

private:
    static float weight(int which, int token, std::int64_t n) {
        const auto words = heed::philox4x32({static_cast<std::uint32_t>(n), static_cast<std::uint32_t>(token), 0, 0},
                                            static_cast<std::uint64_t>(which));
        return static_cast<float>(words[0]) / 2147483648.0F - 1;
    }
    /// [1,H,T,D] of the tokens and of what the layer before gave.
    heed::Tensor rows(int which, std::int64_t count, const std::vector<int>& tokens, const heed::Tensor& before) const {
        const auto length = static_cast<std::int64_t>(tokens.size());
        heed::Tensor x(heed::DType::f32, {1, count, length, size});
        for (std::int64_t n = 0; n < x.elements(); ++n) {
            const std::int64_t head = n / size / length, t = n / size % length;
            x.as<float>()[n] =
                2 * weight(which, tokens[static_cast<std::size_t>(t)], head * size + n % size) + before.as<float>()[n];
        }
        return x;
    }
    static int best(const heed::Tensor& out, std::int64_t t) {
        int found = 0;
        float largest = -1e30F;
        for (int token = 0; token < vocabulary; ++token) {
            float score = 0;
            for (std::int64_t n = 0; n < heads * size; ++n) {
                const std::int64_t length = out.shape()[2];
                score += weight(4, token, n) * out.as<float>()[(n / size * length + t) * size + n % size];
            }
            if (score > largest) {
                largest = score;
                found = token;
            }
        }
        return found;
    }
    heed::Context context_;
};

heed::CacheConfig config(std::int64_t pages) {
    return {.layers = layers,
            .kv_heads = groups,
            .head_size = size,
            .value_size = size,
            .page_size = 8,
            .pages = pages,
            .rope = heed::Rope{.size = size}};
}

}  // namespace

int main() {
    Toy model;
    int steps = 0, refused = 0;
    const auto counted = [&](const heed::CacheBatch& batch, const std::vector<int>& tokens) {
        try {
            ++steps;
            return model(batch, tokens);
        } catch (const heed::CacheFull&) {
            ++refused;
            throw;
        }
    };

    // Twelve requests that begin with the same 40 tokens, read once.
    const heed::CachePool pool(config(18));
    std::vector<int> instruction;
    for (int n = 0; n < 40; ++n) { instruction.push_back(n * 7 % vocabulary); }
    heed::Cache shared = pool.create();
    model({.caches = {&shared}}, instruction);
    std::deque<Request> requests;
    for (int id = 0; id < 12; ++id) {
        std::vector<int> prompt = instruction;
        for (int n = 0; n <= 3 * id; ++n) { prompt.push_back((id * 11 + n * 5) % vocabulary); }
        const std::size_t wanted = prompt.size() + 10;
        requests.push_back({id, std::move(prompt), wanted, shared.fork()});
    }
    std::map<int, std::vector<int>> answers;
    serve(counted, pool, std::move(requests), [&](const Request& r) { answers[r.id] = r.tokens; });
    std::printf("%zu requests in %d steps, %d times the pool was full\n", answers.size(), steps, refused);

    int wrong = 0;
    for (const auto& [id, tokens] : answers) {
        const heed::CachePool own(config(30));
        const std::size_t length = tokens.size() - 10;
        std::deque<Request> alone;
        alone.push_back(
            {id, {tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(length)}, tokens.size(), {}});
        serve(model, own, std::move(alone), [&](const Request& r) { wrong += r.tokens == tokens ? 0 : 1; });
        std::printf("request %2d:", id);
        for (std::size_t n = length; n < tokens.size(); ++n) { std::printf(" %2d", tokens[n]); }
        std::printf("\n");
    }
    shared.free();
    std::printf("%d differ from the same request alone; %ld of %ld pages free\n", wrong,
                static_cast<long>(pool.free_pages()), static_cast<long>(pool.pages()));
    return wrong == 0 && answers.size() == 12 && refused > 0 && pool.free_pages() == pool.pages() ? 0 : 1;
}
