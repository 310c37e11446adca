/// Sequences end to end give what each alone gives: loss, gradients, logits.
#include <heed/model.h>

#include <gtest/gtest.h>

#include <cmath>

namespace heed {
namespace {

struct PackedCase {
    std::string name;
    std::string attention;
    std::string stack;
    std::string kind = "decoder";
};

std::string config_text(const PackedCase& test) {
    return R"({"model_type": "heed", "kind": ")" + test.kind + R"(", "vocab": 13, "d_model": 12, ")" + test.kind +
           R"(": {"layers": 2, "attention": {)" + test.attention + R"(}, "feed_forward": {"size": 10})" + test.stack +
           "}}";
}

std::vector<PackedCase> packed_cases() {
    const std::string heads = R"("heads": 2)", rope = R"(, "positions": {"kind": "rope"})";
    return {
        {"mha", heads, rope},
        {"gqa_window", R"("heads": 4, "kv_heads": 2, "head_size": 4, "window": {"left": 2})", rope},
        {"mqa_sinks", R"("heads": 2, "kv_heads": 1, "sinks": true)", rope},
        {"mla", R"("heads": 2, "latent": {"kv_rank": 5, "nope_size": 4, "rope_size": 2, "value_size": 3})", rope},
        {"learned", heads, R"(, "positions": {"kind": "learned", "rows": 16})"},
        {"sinusoidal", heads, R"(, "positions": {"kind": "sinusoidal"})"},
        {"alibi", heads, R"(, "positions": {"kind": "alibi"})"},
        {"relative", heads, R"(, "positions": {"kind": "relative", "buckets": {"count": 8}})"},
        {"linear", R"("heads": 2, "core": "linear")", rope},
        {"linear_decay", R"("heads": 2, "core": "linear", "decay": true, "normalise": false)", ""},
        {"gated", R"("heads": 2, "core": "gated", "decay_rows": true)", rope},
        {"gated_delta", R"("heads": 2, "value_heads": 4, "core": "gated_delta", "output_gate": true)", rope},
        {"infini", R"("heads": 2, "core": "infini", "segment": 3)", rope},
        {"hybrid", heads, rope + R"(, "pattern": [{"attention": {"core": "linear"}}, {}])"},
        {"encoder", heads, rope, "encoder"},
        {"encoder_linear", R"("heads": 2, "core": "linear")", rope, "encoder"},
        {"encoder_learned", heads, R"(, "positions": {"kind": "learned", "rows": 16})", "encoder"},
    };
}

class Packed : public ::testing::TestWithParam<PackedCase> {};

struct Documents {
    std::vector<std::int64_t> ids, labels, bounds = {0};

    View row(const std::vector<std::int64_t>& list, std::size_t n) const {
        return View(list.data() + bounds[n], {1, bounds[n + 1] - bounds[n]});
    }
};

Documents some_documents() {
    Documents d;
    std::int64_t state = 5;
    for (const std::int64_t length : {7, 1, 4, 9}) {
        for (std::int64_t t = 0; t < length; ++t) {
            state = (state * 31 + 7) % 1009;
            d.ids.push_back(state % 13);
            // The first has nothing before it, and some are not asked for.
            d.labels.push_back(t == 0 || state % 5 == 0 ? -100 : state % 13);
        }
        d.bounds.push_back(d.bounds.back() + length);
    }
    return d;
}

struct Result {
    double loss = 0;
    std::vector<Tensor> gradients;
};

Result pass(Context& context, const Model& model, const ForwardInputs& inputs, const View& labels, double divisor) {
    Result result;
    Tape tape(context);
    LossOptions options;
    options.cross_entropy.divisor = divisor;
    CrossEntropy entropy;
    tape.backward(model.loss(tape, inputs, labels, options, &entropy));
    result.loss = entropy.loss;
    return result;
}

void take_gradients(const Model& model, Result& result) {
    for (const Parameter& parameter : model.parameters().list()) {
        result.gradients.push_back(parameter.gradient ? Tensor::copy_of(parameter.gradient.view()) : Tensor());
    }
}

TEST_P(Packed, LossAndGradientsAreThoseOfEachAlone) {
    Context context(2);
    const Model model = Model::random(read_model_config(config_text(GetParam())), {.seed = 3, .dtype = DType::f64});
    const Documents d = some_documents();
    const double divisor = 10;
    Result apart, packed;
    for (std::size_t n = 0; n + 1 < d.bounds.size(); ++n) {
        apart.loss += pass(context, model, {.input_ids = d.row(d.ids, n)}, d.row(d.labels, n), divisor).loss;
    }
    take_gradients(model, apart);
    model.parameters().clear_gradients();
    const auto all = static_cast<std::int64_t>(d.ids.size()), count = static_cast<std::int64_t>(d.bounds.size());
    const ForwardInputs inputs{.input_ids = View(d.ids.data(), {1, all}), .cu_seqlens = View(d.bounds.data(), {count})};
    packed.loss = pass(context, model, inputs, View(d.labels.data(), {1, all}), divisor).loss;
    take_gradients(model, packed);

    EXPECT_NEAR(packed.loss, apart.loss, 1e-12 * std::abs(apart.loss));
    for (std::size_t p = 0; p < apart.gradients.size(); ++p) {
        ASSERT_EQ(static_cast<bool>(apart.gradients[p]), static_cast<bool>(packed.gradients[p]));
        if (!apart.gradients[p]) { continue; }
        for (std::int64_t i = 0; i < apart.gradients[p].elements(); ++i) {
            ASSERT_NEAR(packed.gradients[p].as<double>()[i], apart.gradients[p].as<double>()[i], 1e-12)
                << model.parameters().list()[p].name << " at " << i;
        }
    }
}

TEST_P(Packed, LogitsInF32AndBf16AreThoseOfEachAlone) {
    Context context(2);
    const Model model = Model::random(read_model_config(config_text(GetParam())), {.seed = 3});
    const Documents d = some_documents();
    const auto all = static_cast<std::int64_t>(d.ids.size()), count = static_cast<std::int64_t>(d.bounds.size());
    for (const DType type : {DType::f32, DType::bf16}) {
        const ForwardResult packed = model.forward(
            context, {.input_ids = View(d.ids.data(), {1, all}), .cu_seqlens = View(d.bounds.data(), {count})},
            {.dtype = type});
        for (std::size_t n = 0; n + 1 < d.bounds.size(); ++n) {
            const ForwardResult alone = model.forward(context, {.input_ids = d.row(d.ids, n)}, {.dtype = type});
            for (std::int64_t i = 0; i < alone.logits.elements(); ++i) {
                ASSERT_NEAR(packed.logits.as<float>()[d.bounds[n] * 13 + i], alone.logits.as<float>()[i],
                            type == DType::f32 ? 1e-6 : 2e-2);
            }
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Models, Packed, ::testing::ValuesIn(packed_cases()),
                         [](const auto& test) { return test.param.name; });

TEST(PackedInputs, WhatDoesNotFitIsRefused) {
    Context context(1);
    const Model model = Model::random(read_model_config(config_text(packed_cases()[0])), {});
    const std::vector<std::int64_t> ids = {1, 2, 3, 4};
    const auto refused = [&](const std::vector<std::int64_t>& bounds, const Shape& shape, const std::string& saying) {
        try {
            static_cast<void>(model.forward(
                context, {.input_ids = View(ids.data(), shape),
                          .cu_seqlens = View(bounds.data(), {static_cast<std::int64_t>(bounds.size())})}));
            ADD_FAILURE() << "accepted where it should say: " << saying;
        } catch (const Error& error) {
            EXPECT_NE(std::string(error.what()).find(saying), std::string::npos) << error.what();
        }
    };
    refused({0, 5}, {1, 4}, "[forward] cu_seqlens: expected the number of tokens, 4, at the end, got 5");
    refused({1, 4}, {1, 4}, "got 1 at 0");
    refused({0, 2, 2, 4}, {1, 4}, "got 2 at 2");
    refused({0, 3, 1, 4}, {1, 4}, "growing");
    refused({0}, {1, 4}, "[sequences + 1]");
    refused({0, 2}, {2, 2}, "one row");
}

}  // namespace
}  // namespace heed
