#include <heed/evaluate.h>
#include <heed/model.h>
#include <heed/search.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace heed {
namespace {

constexpr WeightStorage prepared_forms[] = {WeightStorage::f32, WeightStorage::bf16, WeightStorage::int8,
                                            WeightStorage::int4};

/// One of each kind of linear layer: separate and joined projections, biases, experts, latents, an encoder-decoder.
std::vector<Model> models_to_prepare() {
    std::vector<Model> models;
    const auto add = [&](const std::string& text) {
        models.push_back(Model::random(read_model_config(text), {.seed = models.size() + 1}));
    };
    add(R"({"vocab": 70, "d_model": 32, "decoder": {"layers": 2, "attention": {"heads": 4, "kv_heads": 2},
        "feed_forward": {"size": 48, "gated": true, "activation": "silu"}, "positions": {"kind": "rope"}}})");
    add(R"({"vocab": 70, "d_model": 32, "decoder": {"layers": 2,
        "attention": {"heads": 4, "qkv_bias": true, "output_bias": true},
        "feed_forward": {"size": 48, "bias": true}, "positions": {"kind": "rope"}}})");
    add(R"({"vocab": 70, "d_model": 32, "decoder": {"layers": 2,
        "attention": {"heads": 2, "latent": {"kv_rank": 16, "query_rank": 12, "nope_size": 8, "rope_size": 8,
        "value_size": 8}}, "feed_forward": {"size": 48}, "positions": {"kind": "rope"}}})");
    add(R"({"vocab": 70, "d_model": 32, "decoder": {"layers": 2, "attention": {"heads": 4, "qk_norm": "head"},
        "feed_forward": {"gated": true, "experts": {"routed": 4, "active": 2, "size": 24, "shared": 1}},
        "positions": {"kind": "rope"}}})");
    return models;
}

Tensor logits_of_model(const Model& model) {
    Context context(2);
    const std::vector<std::int64_t> ids = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3};
    return model.forward(context, {.input_ids = View(ids.data(), {1, 10})}).logits;
}

double relative_error(const Tensor& a, const Tensor& b) {
    double error = 0, size = 0;
    for (std::int64_t n = 0; n < a.elements(); ++n) {
        const double x = a.as<float>()[n], y = b.as<float>()[n];
        error += (x - y) * (x - y);
        size += y * y;
    }
    return std::sqrt(error / size);
}

}  // namespace

TEST(PreparedWeights, AreCloseToTheStoredOnes) {
    Context context(2);
    for (const Model& model : models_to_prepare()) {
        const Tensor stored = logits_of_model(model);
        const std::size_t bytes = model.weight_bytes();
        std::size_t before = 0;
        for (const WeightStorage form : prepared_forms) {
            model.set_weights(context, form);
            EXPECT_EQ(model.weights(), form);
            const double most = form == WeightStorage::f32    ? 1e-5
                                : form == WeightStorage::bf16 ? 0.03
                                : form == WeightStorage::int8 ? 0.06
                                                              : 0.5;
            const double error = relative_error(logits_of_model(model), stored);
            EXPECT_LT(error, most) << name_of(form);
            if (form != WeightStorage::f32) { EXPECT_GT(error, 0) << name_of(form); }
            // Rows are filled up to whole panels: compared with each other, not with the number of weights.
            if (form != WeightStorage::f32) { EXPECT_LT(model.weight_bytes(), before) << name_of(form); }
            before = model.weight_bytes();
        }
        model.set_weights(context, WeightStorage::stored);
        EXPECT_EQ(model.weight_bytes(), bytes);
        EXPECT_EQ(relative_error(logits_of_model(model), stored), 0);
    }
}

TEST(PreparedWeights, StepsGiveTheLogitsOfTheWhole) {
    Context context(2);
    const std::vector<std::int64_t> ids = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3};
    for (const Model& model : models_to_prepare()) {
        for (const WeightStorage form : prepared_forms) {
            model.set_weights(context, form);
            const Tensor whole = logits_of_model(model);
            Decoding decoding(model, {.tokens = 64, .sequences = 1, .page_size = 4});
            CachedSequence sequence = decoding.create();
            std::size_t at = 0;
            for (const std::size_t count : {6U, 1U, 1U, 2U}) {
                const std::vector<std::int64_t> part(ids.begin() + static_cast<std::ptrdiff_t>(at),
                                                     ids.begin() + static_cast<std::ptrdiff_t>(at + count));
                const Tensor logits = decoding.step(
                    context, {.sequences = {&sequence}, .tokens = part, .counts = {static_cast<std::int64_t>(count)}});
                at += count;
                // Quantised inputs make of a rounding in attention a step of 1 / 127.
                const double most = form == WeightStorage::f32 ? 1e-4 : 0.05;
                const Tensor row = Tensor::copy_of(View(whole.as<float>() + (at - 1) * 70, {1, 70}));
                EXPECT_LT(relative_error(logits, row), most) << name_of(form);
            }
        }
    }
}

TEST(PreparedWeights, HaveNoWayBack) {
    Context context(1);
    const Model model = models_to_prepare().front();
    const std::vector<std::int64_t> ids = {3, 1, 4, 1};
    const View view(ids.data(), {1, 4});
    model.set_weights(context, WeightStorage::int8);
    Tape tape(context);
    EXPECT_THROW(model.hidden(tape, {.input_ids = view}), Error);
    EXPECT_THROW(model.loss(tape, {.input_ids = view}, view), Error);
    const Parameter& parameter = model.parameters().list().front();
    EXPECT_THROW(model.assign(parameter.name, parameter.value), Error);
    model.set_weights(context, WeightStorage::stored);
    EXPECT_NO_THROW(model.loss(tape, {.input_ids = view}, view));
}

TEST(PreparedWeights, NamesAndRefusals) {
    for (const WeightStorage form : prepared_forms) { EXPECT_EQ(weight_storage(name_of(form)), form); }
    EXPECT_EQ(weight_storage("stored"), WeightStorage::stored);
    EXPECT_THROW(weight_storage("int7"), Error);
    Context context(1);
    const Model model = models_to_prepare().front();
    const Tensor before = logits_of_model(model);
    // A weight that 8 bits cannot hold: refused, and the model is what it was.
    Parameter& matrix = *std::find_if(model.parameters().list().begin() + 1, model.parameters().list().end(),
                                      [](const Parameter& p) { return p.value.rank() == 2; });
    Tensor broken = Tensor::copy_of(matrix.value);
    broken.as<float>()[0] = std::nanf("");
    const Tensor kept = Tensor::copy_of(matrix.value);
    model.assign(matrix.name, broken);
    EXPECT_THROW(model.set_weights(context, WeightStorage::int8), Error);
    EXPECT_EQ(model.weights(), WeightStorage::stored);
    model.assign(matrix.name, kept);
    EXPECT_EQ(relative_error(logits_of_model(model), before), 0);
}

TEST(PreparedWeights, ScoresSayWhatTheyCost) {
    Context context(2);
    const Model original = models_to_prepare().front();
    std::vector<std::int64_t> ids;
    for (std::int64_t n = 0; n < 60; ++n) { ids.push_back((n * n * 7 + n) % 70); }
    const ScoreOptions options{.window = 24, .stride = 12};
    const TextScore plain = score_text(context, original, ids, options);
    EXPECT_EQ(plain.tokens, 59);
    const ScoreComparison same = compare_scores(context, original, original, ids, options);
    EXPECT_EQ(same.score.tokens, 59);
    EXPECT_NEAR(same.score.negative_log_likelihood, plain.negative_log_likelihood, 1e-6);
    EXPECT_EQ(same.logit_error, 0);
    EXPECT_NEAR(same.divergence, 0, 1e-12);
    EXPECT_EQ(same.agreement, 1);
    const Model small = models_to_prepare().front();
    small.set_weights(context, WeightStorage::int8);
    const ScoreComparison eight = compare_scores(context, small, original, ids, options);
    small.set_weights(context, WeightStorage::int4);
    const ScoreComparison four = compare_scores(context, small, original, ids, options);
    EXPECT_GT(eight.logit_error, 0);
    EXPECT_GT(eight.divergence, 0);
    EXPECT_GT(four.logit_error, 3 * eight.logit_error);
    EXPECT_NEAR(eight.original.negative_log_likelihood, plain.negative_log_likelihood, 1e-6);
}

}  // namespace heed
