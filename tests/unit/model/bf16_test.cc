/// Activations in bf16, with weights in f32 and in bf16: within bf16's rounding of what f32 gives.
#include <heed/model.h>

#include <gtest/gtest.h>

#include <cmath>

namespace heed {
namespace {

struct Bf16Case {
    std::string name;
    std::string config;
};

std::string small_decoder(const std::string& attention, const std::string& feed_forward, const std::string& stack) {
    return R"({"model_type": "heed", "kind": "decoder", "vocab": 29, "d_model": 32, "decoder": {"layers": 2,
        "attention": {)" +
           attention + R"(}, "feed_forward": {)" + feed_forward + "}" + stack + "}}";
}

std::vector<Bf16Case> bf16_cases() {
    const std::string heads = R"("heads": 4)", plain = R"("size": 64)", rope = R"(, "positions": {"kind": "rope"})";
    return {
        {"mha", small_decoder(heads, plain, rope)},
        {"gqa_qk_norm_gated", small_decoder(R"("heads": 4, "kv_heads": 2, "qk_norm": "head")",
                                            R"("size": 64, "gated": true, "activation": "silu")", rope)},
        {"sinks_softcap_window",
         small_decoder(R"("heads": 4, "kv_heads": 1, "sinks": true, "softcap": 5.0, "window": {"left": 3})", plain,
                       rope)},
        {"mla", small_decoder(R"("heads": 2, "latent": {"query_rank": 12, "kv_rank": 16, "nope_size": 8,
                                "rope_size": 4, "value_size": 8})",
                              plain, rope)},
        {"alibi_layer_norm", small_decoder(heads, plain, R"(, "norm": {"kind": "layer_norm", "bias": true},
                                           "positions": {"kind": "alibi"})")},
        {"relative", small_decoder(heads, plain, R"(, "positions": {"kind": "relative", "buckets": {"count": 8}})")},
        {"learned", small_decoder(heads, plain, R"(, "positions": {"kind": "learned", "rows": 16})")},
        {"linear", small_decoder(R"("heads": 4, "core": "linear")", plain, rope)},
        {"gated_delta", small_decoder(R"("heads": 4, "value_heads": 8, "core": "gated_delta")", plain, rope)},
        {"infini", small_decoder(R"("heads": 4, "core": "infini", "segment": 4)", plain, rope)},
        {"experts", small_decoder(heads, R"("gated": true, "experts": {"routed": 4, "active": 4, "size": 16})", rope)},
        {"encoder_decoder", R"({"model_type": "heed", "kind": "encoder_decoder", "vocab": 29, "d_model": 32,
            "decoder_start": 1,
            "encoder": {"layers": 1, "attention": {"heads": 4}, "positions": {"kind": "sinusoidal"}},
            "decoder": {"layers": 1, "attention": {"heads": 4}, "positions": {"kind": "sinusoidal"}}})"},
    };
}

class InBf16 : public testing::TestWithParam<Bf16Case> {};

const std::vector<std::int64_t> ids = {3, 17, 5, 28, 9, 3, 17, 11, 2, 5, 8, 13};

ForwardInputs inputs_for(const Model& model) {
    ForwardInputs inputs;
    inputs.input_ids = View(ids.data(), {2, 6});
    if (model.config().kind == ModelKind::encoder_decoder) { inputs.decoder_input_ids = View(ids.data(), {2, 6}); }
    return inputs;
}

double length_of(const Tensor& x) {
    double sum = 0;
    for (std::int64_t i = 0; i < x.elements(); ++i) { sum += std::pow(static_cast<double>(x.as<float>()[i]), 2); }
    return std::sqrt(sum);
}

/// |a - b| / |b|
double difference(const Tensor& a, const Tensor& b) {
    Tensor between = Tensor::copy_of(a.view());
    for (std::int64_t i = 0; i < a.elements(); ++i) { between.as<float>()[i] -= b.as<float>()[i]; }
    return length_of(between) / length_of(b);
}

TEST_P(InBf16, LogitsAreThoseOfF32WithinItsRounding) {
    Context context(2);
    const Model model = Model::random(read_model_config(GetParam().config), {.seed = 5, .spread = 1});
    const ForwardResult wide = model.forward(context, inputs_for(model));
    const ForwardResult narrow = model.forward(context, inputs_for(model), {.dtype = DType::bf16});
    EXPECT_LT(difference(narrow.logits, wide.logits), 0.02);
    EXPECT_GT(difference(narrow.logits, wide.logits), 0) << "computed in f32 after all";
}

TEST_P(InBf16, LossAndGradientsAreThoseOfF32WithinItsRounding) {
    Context context(2);
    const auto pass = [&](DType weights, std::vector<Tensor>& gradients) {
        // The same numbers for both: what bf16 can hold.
        const Model model =
            Model::random(read_model_config(GetParam().config), {.seed = 5, .dtype = DType::bf16, .spread = 1});
        for (Parameter& parameter : model.parameters().list()) {
            parameter.memory = Tensor::copy_of(parameter.value).to(weights);
            parameter.value = parameter.memory.view();
        }
        Tape tape(context);
        LossOptions options;
        options.forward.dtype = weights;
        CrossEntropy result;
        tape.backward(model.loss(tape, inputs_for(model), View(ids.data(), {2, 6}), options, &result));
        for (const Parameter& parameter : model.parameters().list()) {
            gradients.push_back(parameter.gradient ? Tensor::copy_of(parameter.gradient.view()).to(DType::f32)
                                                   : Tensor());
        }
        return result.loss;
    };
    std::vector<Tensor> wide, narrow;
    const double wide_loss = pass(DType::f32, wide), narrow_loss = pass(DType::bf16, narrow);
    EXPECT_NEAR(narrow_loss, wide_loss, 0.01 * wide_loss);
    for (std::size_t n = 0; n < wide.size(); ++n) {
        ASSERT_EQ(static_cast<bool>(wide[n]), static_cast<bool>(narrow[n]));
        if (wide[n] && length_of(wide[n]) > 1e-4) { EXPECT_LT(difference(narrow[n], wide[n]), 0.08) << n; }
    }
}

INSTANTIATE_TEST_SUITE_P(Models, InBf16, testing::ValuesIn(bf16_cases()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace heed
