#include <heed/evaluate.h>
#include <heed/serving.h>

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <map>
#include <random>

namespace heed::testing {
namespace {

using Ids = std::vector<std::int64_t>;

Model small_model(std::uint64_t seed, std::int64_t layers = 2) {
    return Model::random(
        read_model_config(R"({"model_type": "heed", "kind": "decoder", "vocab": 48, "d_model": 32, "decoder":
        {"layers": )" + std::to_string(layers) +
                          R"(, "positions": {"kind": "rope"}, "attention": {"heads": 4, "kv_heads": 2}}})"),
        {.seed = seed});
}

Request request_for(std::mt19937& random, std::uint64_t number) {
    Request request{.max_new_tokens = 1 + static_cast<std::int64_t>(random() % 24), .sequence = number};
    const std::size_t length = 1 + random() % 40;
    for (std::size_t n = 0; n < length; ++n) { request.prompt.push_back(static_cast<std::int64_t>(random() % 48)); }
    request.sampling = {.do_sample = number % 2 == 1, .temperature = 1.5, .top_k = 20, .top_p = 0.9, .seed = 11};
    if (number % 3 == 0) { request.eos = Ids{static_cast<std::int64_t>(random() % 48)}; }
    return request;
}

std::map<ServingLoop::Id, Ids> alone(Context& context, const Model& model, const std::vector<Request>& requests) {
    std::map<ServingLoop::Id, Ids> result;
    for (std::size_t n = 0; n < requests.size(); ++n) {
        result[static_cast<ServingLoop::Id>(n + 1)] = generate(context, model, requests[n]).tokens;
    }
    return result;
}

TEST(ServingLoop, TokensAreThoseOfOneByOne) {
    Context context(1);
    const Model model = small_model(1);
    std::mt19937 random(3);
    std::vector<Request> requests;
    for (std::uint64_t n = 0; n < 32; ++n) { requests.push_back(request_for(random, n)); }
    for (std::size_t n = 8; n < 16; ++n) {  // a common beginning
        requests[n].prompt.insert(requests[n].prompt.begin(), 40, 7);
    }
    const auto expected = alone(context, model, requests);
    struct Setting {
        std::int64_t tokens, sequences, page, prefill, speculated;
        bool share;
    };
    for (const Setting& s :
         {Setting{4096, 32, 16, 512, 0, true}, Setting{200, 8, 16, 7, 0, true}, Setting{110, 12, 4, 16, 0, false},
          Setting{4096, 32, 16, 64, 4, true}, Setting{128, 5, 8, 9, 3, true}}) {
        ServingOptions options{.decoding = {.tokens = s.tokens, .sequences = s.sequences, .page_size = s.page},
                               .prefill_tokens = s.prefill,
                               .share_prefixes = s.share};
        options.speculation.tokens = s.speculated;
        ServingLoop loop(model, options);
        const std::int64_t pages = loop.free_pages();
        for (const Request& request : requests) { loop.add(request); }
        loop.run(context);
        for (const auto& [id, tokens] : expected) {
            const Generated got = loop.take(id);
            EXPECT_EQ(got.tokens, tokens) << "request " << id << ", room for " << s.tokens;
            EXPECT_NE(got.reason, FinishReason::running);
        }
        EXPECT_EQ(loop.free_pages(), pages);
        if (s.tokens == 110) { EXPECT_GT(loop.statistics().evictions, 0); }
        if (s.tokens == 4096 && s.share) { EXPECT_GT(loop.statistics().shared, 0); }
    }
}

TEST(ServingLoop, ADraftModelChangesNothing) {
    Context context(1);
    const Model model = small_model(1), other = small_model(2, 1);
    std::mt19937 random(5);
    for (std::uint64_t n = 0; n < 6; ++n) {
        const Request request = request_for(random, n);
        const Ids expected = generate(context, model, request).tokens;
        for (const Model& draft : {model, other}) {
            ServingOptions options;
            options.speculation = {.tokens = 4, .draft = draft};
            EXPECT_EQ(generate(context, model, request, options).tokens, expected);
        }
    }
    ServingOptions options{.decoding = {.tokens = 100, .sequences = 1}};
    options.speculation = {.tokens = 4, .draft = model};
    ServingLoop loop(model, options);
    loop.add({.prompt = {1, 2, 3}, .max_new_tokens = 40});
    loop.run(context);
    EXPECT_EQ(loop.statistics().accepted, loop.statistics().proposed);  // the model agrees with itself
    EXPECT_LT(loop.statistics().steps, 12);
}

TEST(ServingLoop, CallbacksStreamAndStop) {
    Context context(1);
    const Model model = small_model(1);
    Ids streamed;
    Request request{.prompt = {1, 2, 3}, .max_new_tokens = 20};
    request.on_token = [&](std::int64_t token, const std::string&) {
        streamed.push_back(token);
        return streamed.size() < 5;
    };
    const Generated result = generate(context, model, request);
    EXPECT_EQ(result.tokens, streamed);
    EXPECT_EQ(streamed.size(), 5U);
    EXPECT_EQ(result.reason, FinishReason::cancelled);
}

TEST(ServingLoop, WhatCanNeverBeServedIsRefused) {
    ServingLoop loop(small_model(1), {.decoding = {.tokens = 64, .sequences = 2}});
    EXPECT_THROW(loop.add({}), Error);
    EXPECT_THROW(loop.add({.prompt = {48}}), Error);
    EXPECT_THROW(loop.add({.prompt = {1}, .max_new_tokens = 0}), Error);
    EXPECT_THROW(loop.add({.prompt = {1}, .max_new_tokens = 64}), Error);
    EXPECT_THROW(loop.add({.prompt = {1}, .stop = {"x"}}), Error);
    EXPECT_THROW(loop.add({.prompt = {1}, .sampling = {.top_p = 2}}), Error);
    EXPECT_THROW(loop.take(7), Error);
    EXPECT_EQ(loop.waiting(), 0);
}

/// HEED_SOAK=10000 runs the long version.
TEST(ServingLoop, SoakLosesNoPage) {
    const char* asked = std::getenv("HEED_SOAK");
    const int count = asked == nullptr ? 150 : std::atoi(asked);
    Context context(1);
    const Model model = small_model(4, 1);
    ServingOptions options{.decoding = {.tokens = 256, .sequences = 12, .page_size = 8}, .prefill_tokens = 24};
    options.speculation.tokens = 2;
    ServingLoop loop(model, options);
    const std::int64_t pages = loop.free_pages();
    std::mt19937 random(9);
    std::vector<ServingLoop::Id> open;
    int added = 0, done = 0;
    while (done < count) {
        while (added < count && open.size() < 20) {
            open.push_back(loop.add(request_for(random, static_cast<std::uint64_t>(added++))));
        }
        loop.step(context);
        if (random() % 4 == 0) { loop.cancel(open[random() % open.size()]); }
        for (auto id = open.begin(); id != open.end();) {
            if (!loop.finished(*id)) {
                ++id;
                continue;
            }
            EXPECT_NE(loop.take(*id).reason, FinishReason::running);
            id = open.erase(id);
            ++done;
        }
    }
    EXPECT_EQ(loop.waiting() + loop.running(), 0);
    EXPECT_EQ(loop.free_pages(), pages);
}

TEST(Evaluate, EveryTokenIsScoredOnceWhateverTheStride) {
    Context context(1);
    const Model model = small_model(1);
    Ids ids;
    for (std::int64_t n = 0; n < 50; ++n) { ids.push_back(n * n % 48); }
    const TextScore whole = score_text(context, model, ids, {.window = 64});
    EXPECT_EQ(whole.tokens, 49);
    EXPECT_NEAR(whole.perplexity(), std::exp(whole.negative_log_likelihood / 49), 1e-9);
    EXPECT_NEAR(whole.bits_per_byte(100), whole.negative_log_likelihood / std::log(2.0) / 100, 1e-12);
    const TextScore parts = score_text(context, model, ids, {.window = 10, .stride = 3});
    EXPECT_EQ(parts.tokens, 49);
    const TextScore first = score_text(context, model, std::span(ids).first(10), {.window = 64});
    const TextScore beginning = score_text(context, model, std::span(ids).first(10), {.window = 10, .stride = 10});
    EXPECT_NEAR(first.negative_log_likelihood, beginning.negative_log_likelihood, 1e-4);
    EXPECT_THROW(score_text(context, model, ids, {.window = 4, .stride = 5}), Error);
    // Windows side by side: each is a text of its own.
    double alone = 0;
    std::int64_t predicted = 0;
    for (std::size_t begin = 0; begin < ids.size(); begin += 10) {
        const auto part = std::span(ids).subspan(begin, std::min<std::size_t>(10, ids.size() - begin));
        const TextScore one = score_text(context, model, part, {.window = 64});
        alone += one.negative_log_likelihood;
        predicted += one.tokens;
    }
    const TextScore apart = score_text(context, model, ids, {.window = 10, .stride = 10});
    EXPECT_EQ(apart.tokens, predicted);
    EXPECT_NEAR(apart.negative_log_likelihood, alone, 1e-4);
}

TEST(Evaluate, VectorsIgnorePaddingAndHaveLengthOne) {
    Context context(1);
    const Model model = small_model(1);
    const std::int64_t ids[] = {1, 2, 3, 4, 5, 0, 0, 0}, mask[] = {1, 1, 1, 1, 1, 0, 0, 0};
    const Tensor padded = embed(context, model, {.input_ids = View(ids, {1, 8}), .attention_mask = View(mask, {1, 8})});
    const Tensor plain = embed(context, model, {.input_ids = View(ids, {1, 5})});
    double square = 0;
    for (std::int64_t n = 0; n < 32; ++n) {
        EXPECT_NEAR(padded.as<float>()[n], plain.as<float>()[n], 1e-5);
        square += static_cast<double>(plain.as<float>()[n]) * static_cast<double>(plain.as<float>()[n]);
    }
    EXPECT_NEAR(square, 1, 1e-5);
    const std::int64_t none[] = {0, 0, 0, 0, 0, 0, 0, 0};
    EXPECT_THROW(embed(context, model, {.input_ids = View(ids, {1, 8}), .attention_mask = View(none, {1, 8})}), Error);
}

TEST(Bleu, KnownValues) {
    const std::vector<std::string> same = {"The cat sat on the mat."};
    EXPECT_NEAR(bleu(same, same).score, 100, 1e-9);
    const std::vector<std::string> hypothesis = {"The cat sat on a mat."}, other = {"dog"};
    const Bleu close = bleu(hypothesis, same);
    EXPECT_NEAR(close.precisions[0], 100.0 * 6 / 7, 1e-9);
    EXPECT_NEAR(close.precisions[1], 100.0 * 4 / 6, 1e-9);
    EXPECT_NEAR(close.precisions[2], 100.0 * 2 / 5, 1e-9);
    EXPECT_NEAR(close.precisions[3], 100.0 * 1 / 4, 1e-9);
    EXPECT_NEAR(close.score, 100 * std::pow(6.0 / 7 * 4 / 6 * 2 / 5 * 1 / 4, 0.25), 1e-9);
    EXPECT_EQ(bleu(other, same).score, 0);
    // White space is Unicode's, and what stands at the end does not count.
    const std::vector<std::string> plain = {"one two three four five"}, spaced = {
                                                                            "one\u00A0two\u3000three\x1C"
                                                                            "four five \u2003\n"};
    EXPECT_NEAR(bleu(spaced, plain).score, 100, 1e-9);
    EXPECT_THROW(bleu(hypothesis, {}), Error);
}

}  // namespace
}  // namespace heed::testing
