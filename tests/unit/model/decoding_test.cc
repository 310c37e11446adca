#include <heed/model.h>
#include <heed/search.h>

#include <gtest/gtest.h>

#include <cmath>

namespace heed {
namespace {

Model decoding_model(const std::string& attention, const std::string& stack = "") {
    return Model::random(read_model_config(R"({"vocab": 23, "d_model": 16, "eos": [2], "decoder": {"layers": 3,
        "attention": {)" + attention + R"(}, "feed_forward": {"size": 24})" +
                                           stack + "}}"),
                         {.seed = 3});
}

std::vector<Model> decoding_models() {
    const std::string rope = R"(, "positions": {"kind": "rope"})";
    return {decoding_model(R"("heads": 4, "kv_heads": 2)", rope),
            decoding_model(R"("heads": 4, "window": {"left": 4}, "sinks": true)", rope),
            decoding_model(R"("heads": 2, "latent": {"kv_rank": 6, "nope_size": 4, "rope_size": 4, "value_size": 5})",
                           rope),
            decoding_model(R"("heads": 2)", R"(, "positions": {"kind": "alibi"})"),
            decoding_model(R"("heads": 2)", R"(, "positions": {"kind": "relative", "buckets": {"count": 8}})"),
            decoding_model(R"("heads": 2)", R"(, "positions": {"kind": "learned", "rows": 40})"),
            decoding_model(R"("heads": 2, "core": "linear")", rope),
            decoding_model(R"("heads": 4, "kv_heads": 2, "core": "gated", "decay_rows": true)", rope),
            decoding_model(R"("heads": 2, "core": "delta", "output_gate": true)", ""),
            decoding_model(R"("heads": 2, "value_heads": 6, "core": "gated_delta")", rope),
            decoding_model(R"("heads": 2, "core": "infini", "segment": 4)", rope),
            decoding_model(R"("heads": 2)", rope + R"(, "pattern": [{"attention": {"core": "linear"}},
                {"attention": {"core": "infini", "segment": 3}}, {}])")};
}

std::vector<std::int64_t> decoding_text(std::int64_t seed, std::int64_t length) {
    std::vector<std::int64_t> ids;
    for (std::int64_t i = 0; i < length; ++i) { ids.push_back((seed * 7 + i * i * 5 + i) % 23); }
    return ids;
}

double apart(const float* a, const float* b, std::int64_t n) {
    double most = 0;
    for (std::int64_t i = 0; i < n; ++i) { most = std::max(most, std::abs(static_cast<double>(a[i]) - b[i])); }
    return most;
}

TEST(Decoding, AnySplitOfATextGivesTheLogitsOfTheWhole) {
    Context context(2);
    for (const Model& model : decoding_models()) {
        const auto text = decoding_text(1, 13);
        const ForwardResult whole = model.forward(context, {.input_ids = View(text.data(), {1, 13})});
        Decoding decoding(model, {.tokens = 64, .sequences = 2, .page_size = 4});
        CachedSequence sequence = decoding.create();
        std::size_t at = 0;
        for (const std::size_t count : {5U, 1U, 3U, 1U, 1U, 2U}) {
            const std::vector<std::int64_t> part(text.begin() + static_cast<std::ptrdiff_t>(at),
                                                 text.begin() + static_cast<std::ptrdiff_t>(at + count));
            const Tensor logits = decoding.step(context, {.sequences = {&sequence},
                                                          .tokens = part,
                                                          .counts = {static_cast<std::int64_t>(count)},
                                                          .all_logits = true});
            ASSERT_EQ(to_string(logits.shape()), to_string(Shape{static_cast<std::int64_t>(count), 23}));
            EXPECT_LT(
                apart(logits.as<float>(), whole.logits.as<float>() + at * 23, static_cast<std::int64_t>(count) * 23),
                2e-5)
                << write_model_config(model.config());
            at += count;
        }
        EXPECT_EQ(sequence.length(), 13);
    }
}

TEST(Decoding, NeighboursDoNotMatterToTheBit) {
    Context context(2);
    for (const Model& model : decoding_models()) {
        Decoding alone(model, {.tokens = 128, .sequences = 4, .page_size = 4});
        Decoding together(model, {.tokens = 128, .sequences = 4, .page_size = 4});
        const auto first = decoding_text(1, 9), second = decoding_text(2, 4);
        CachedSequence a = alone.create(), b = together.create(), c = together.create();
        const Tensor one = alone.step(context, {.sequences = {&a}, .tokens = first, .counts = {9}});
        std::vector<std::int64_t> both = second;
        both.insert(both.end(), first.begin(), first.end());
        const Tensor two = together.step(context, {.sequences = {&c, &b}, .tokens = both, .counts = {4, 9}});
        EXPECT_EQ(apart(one.as<float>(), two.as<float>() + 23, 23), 0) << write_model_config(model.config());
    }
}

TEST(Decoding, AForkGoesItsOwnWay) {
    Context context(1);
    const Model model = decoding_models()[0];
    Decoding decoding(model, {.tokens = 128, .sequences = 4, .page_size = 4});
    CachedSequence a = decoding.create();
    decoding.step(context, {.sequences = {&a}, .tokens = decoding_text(1, 6), .counts = {6}});
    CachedSequence b = a.fork();
    const Tensor x = decoding.step(context, {.sequences = {&a}, .tokens = {3}});
    decoding.step(context, {.sequences = {&b}, .tokens = {9}});
    b.truncate(6);
    const Tensor y = decoding.step(context, {.sequences = {&b}, .tokens = {3}});
    EXPECT_EQ(apart(x.as<float>(), y.as<float>(), 23), 0);
}

TEST(Decoding, AFullCacheChangesNothing) {
    Context context(1);
    const Model model = decoding_models()[0];
    Decoding decoding(model, {.tokens = 4, .sequences = 1, .page_size = 4});
    CachedSequence a = decoding.create();
    decoding.step(context, {.sequences = {&a}, .tokens = decoding_text(1, 4), .counts = {4}});
    EXPECT_THROW(decoding.step(context, {.sequences = {&a}, .tokens = decoding_text(2, 30), .counts = {30}}),
                 CacheFull);
    EXPECT_EQ(a.length(), 4);
    EXPECT_NO_THROW(decoding.step(context, {.sequences = {&a}, .tokens = {1}}));
}

TEST(Decoding, WrongStepsAreRefused) {
    Context context(1);
    const Model model = decoding_models()[0];
    Decoding decoding(model);
    CachedSequence a = decoding.create(), none;
    EXPECT_THROW(decoding.step(context, {.sequences = {&a}, .tokens = {23}}), Error);
    EXPECT_THROW(decoding.step(context, {.sequences = {&a}, .tokens = {1, 2}}), Error);
    EXPECT_THROW(decoding.step(context, {.sequences = {&none}, .tokens = {1}}), Error);
    EXPECT_THROW(decoding.step(context, {}), Error);
    EXPECT_THROW(search(context, decoding, {}, {}), Error);
}

TEST(Search, OneBeamMoreNeverFindsALessProbableText) {
    Context context(1);
    const Model model = decoding_models()[3];
    const auto prompt = decoding_text(4, 5);
    const auto score = [&](const std::vector<std::int64_t>& text) {
        const auto n = static_cast<std::int64_t>(text.size());
        const ForwardResult result = model.forward(context, {.input_ids = View(text.data(), {1, n})});
        double sum = 0;
        for (std::int64_t t = 4; t + 1 < n; ++t) {
            const float* row = result.logits.as<float>() + t * 23;
            double total = 0;
            for (int v = 0; v < 23; ++v) { total += std::exp(static_cast<double>(row[v])); }
            sum += row[text[static_cast<std::size_t>(t + 1)]] - std::log(total);
        }
        return sum;
    };
    SearchOptions options{.max_new_tokens = 3, .min_new_tokens = 3, .num_beams = 1};
    const auto found = [&] {
        Decoding decoding(model, search_room(5, options));
        return search(context, decoding, prompt, options);
    };
    const double greedy = score(found());
    options.num_beams = 23;
    EXPECT_GE(score(found()), greedy - 1e-6);
}

}  // namespace
}  // namespace heed
