/// Every kind of model by finite differences, in f64.
#include <heed/model.h>

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

namespace heed {
namespace {

struct GradientCase {
    std::string name;
    std::string config;
};

/// d_model 12, 2 layers, vocabulary 11; `attention`, `feed_forward` and `stack` are what differs.
std::string decoder_text(const std::string& attention, const std::string& feed_forward, const std::string& stack) {
    return R"({"model_type": "heed", "kind": "decoder", "vocab": 11, "d_model": 12, "decoder": {"layers": 2,
        "attention": {)" +
           attention + R"(}, "feed_forward": {)" + feed_forward + "}" + stack + "}}";
}

const std::string heads = R"("heads": 2)";
const std::string rope = R"(, "positions": {"kind": "rope"})";

std::vector<GradientCase> gradient_cases() {
    const std::string norm = R"(, "norm": {"kind": "layer_norm", "bias": true})";
    return {
        {"mha", decoder_text(heads, R"("size": 10)", rope)},
        {"learned_layer_norm",
         decoder_text(R"("heads": 2, "qkv_bias": true, "output_bias": true)", R"("size": 10, "bias": true)",
                      norm + R"(, "positions": {"kind": "learned", "rows": 16})")},
        {"gqa_qk_norm_gated", decoder_text(R"("heads": 4, "kv_heads": 2, "head_size": 4, "qk_norm": "head")",
                                           R"("size": 10, "gated": true, "activation": "silu")", rope)},
        {"mqa_window_sinks_softcap",
         decoder_text(R"("heads": 3, "kv_heads": 1, "sinks": true, "softcap": 5.0, "window": {"left": 2})",
                      R"("size": 10)", rope)},
        {"mla", decoder_text(R"("heads": 2, "latent": {"query_rank": 6, "kv_rank": 5, "nope_size": 4, "rope_size": 2,
                               "value_size": 3})",
                             R"("size": 10)", rope)},
        {"alibi_post", decoder_text(heads, R"("size": 10)", norm + R"(, "placement": "post", "final_norm": false,
                                    "positions": {"kind": "alibi"})")},
        {"relative_sandwich", decoder_text(heads, R"("size": 10)", R"(, "placement": "sandwich",
                                           "positions": {"kind": "relative", "buckets": {"count": 8}})")},
        {"output_whole_norm", decoder_text(R"("heads": 2, "qk_norm": "whole")", R"("size": 10)",
                                           R"(, "placement": "output", "positions": {"kind": "rope"})")},
        {"parallel", decoder_text(heads, R"("size": 10)", R"(, "placement": "parallel")")},
        {"linear", decoder_text(R"("heads": 2, "core": "linear")", R"("size": 10)", rope)},
        {"linear_decay",
         decoder_text(R"("heads": 2, "core": "linear", "decay": true, "normalise": false)", R"("size": 10)", "")},
        {"gated", decoder_text(R"("heads": 4, "kv_heads": 2, "head_size": 4, "core": "gated")", R"("size": 10)", rope)},
        {"gated_rows",
         decoder_text(R"("heads": 2, "core": "gated", "decay_rows": true, "output_gate": true)", R"("size": 10)", "")},
        {"delta", decoder_text(R"("heads": 2, "core": "delta", "qk_norm": "head")", R"("size": 10)", "")},
        {"gated_delta", decoder_text(R"("heads": 2, "kv_heads": 1, "value_heads": 4, "head_size": 4, "value_size": 3,
                                     "core": "gated_delta", "output_gate": true)",
                                     R"("size": 10)", rope)},
        {"infini", decoder_text(R"("heads": 2, "core": "infini", "segment": 3)", R"("size": 10)", rope)},
        {"hybrid",
         decoder_text(heads, R"("size": 10)", rope + R"(, "pattern": [{"attention": {"core": "linear"}}, {}])")},
        {"experts_softmax",
         decoder_text(heads, R"("gated": true, "experts": {"routed": 4, "active": 2, "size": 6, "shared": 1})", "")},
        {"experts_sigmoid", decoder_text(heads, R"("gated": true, "experts": {"routed": 4, "active": 2, "size": 6,
            "score": "sigmoid", "scale": 2.5, "groups": 2, "group_best": 2, "correction_bias": true})",
                                         "")},
        {"experts_chosen", decoder_text(heads, R"("gated": true, "experts": {"routed": 4, "active": 2, "size": 6,
            "score": "softmax_chosen", "router_bias": true, "bias": true, "limit": 0.05})",
                                        "")},
        {"encoder", R"({"model_type": "heed", "kind": "encoder", "vocab": 11, "d_model": 12, "token_types": 2,
            "encoder": {"layers": 2, "attention": {"heads": 2}, "feed_forward": {"size": 10}, "placement": "post",
            "norm": {"kind": "layer_norm", "bias": true}, "embedding_norm": true, "final_norm": false,
            "positions": {"kind": "learned", "rows": 16}}, "head": {"bias": true, "transform": true}})"},
        {"encoder_decoder", R"({"model_type": "heed", "kind": "encoder_decoder", "vocab": 11, "d_model": 12,
            "decoder_start": 0, "embedding_scale": 3.4, "encoder": {"layers": 1, "attention": {"heads": 2},
            "feed_forward": {"size": 10}, "positions": {"kind": "sinusoidal"}},
            "decoder": {"layers": 2, "attention": {"heads": 3}, "feed_forward": {"size": 10},
            "positions": {"kind": "sinusoidal"}}, "head": {"tied": false, "softcap": 4.0, "scale": 0.5}})"},
    };
}

class ModelGradients : public ::testing::TestWithParam<GradientCase> {};

double loss_of(Context& context, const Model& model, const ForwardInputs& in, const View& labels) {
    Tape tape(context, {.record = false});
    LossOptions options;
    options.cross_entropy.label_smoothing = 0.1;
    return model.loss(tape, in, labels, options).view().as<double>()[0];
}

TEST_P(ModelGradients, AgreeWithFiniteDifferences) {
    Context context(1);
    const Model model = Model::random(read_model_config(GetParam().config), {.seed = 7, .dtype = DType::f64});
    // Wider than a model begins with, so that no path is drowned in rounding.
    std::uint64_t state = 1;
    const auto next = [&] {
        state = state * 6364136223846793005ULL + 1442695040888963407ULL;
        return static_cast<double>(state >> 11U) * 0x1p-53 - 0.5;
    };
    for (Parameter& parameter : model.parameters().list()) {
        for (std::int64_t i = 0; i < parameter.memory.elements(); ++i) { parameter.memory.as<double>()[i] += next(); }
    }
    const std::vector<std::int64_t> ids = {1, 5, 3, 9, 2, 7, 4, 4, 8, 0, 6, 10, 3, 1};
    const std::vector<std::int64_t> target = {2, 6, 3, 3, 9, 1, 10, 5};
    ForwardInputs in;
    in.input_ids = View(ids.data(), {2, 7});
    const View labels = model.config().kind == ModelKind::encoder_decoder ? View(target.data(), {2, 4}) : in.input_ids;
    Tape tape(context);
    LossOptions options;
    options.cross_entropy.label_smoothing = 0.1;
    options.forward.recompute = GetParam().name == "mha" || GetParam().name == "encoder_decoder";
    const Value loss = model.loss(tape, in, labels, options);
    tape.backward(loss);
    EXPECT_NEAR(loss.view().as<double>()[0], loss_of(context, model, in, labels), 1e-12);
    const double step = 2e-6;
    for (Parameter& parameter : model.parameters().list()) {
        // Along a random direction, all of the parameter at once.
        const std::int64_t n = parameter.memory.elements();
        std::vector<double> direction, before(parameter.memory.as<double>(), parameter.memory.as<double>() + n);
        double expected = 0;
        for (std::int64_t i = 0; i < n; ++i) {
            direction.push_back(next());
            if (parameter.gradient) { expected += direction.back() * parameter.gradient.as<double>()[i]; }
        }
        const auto moved = [&](double by) {
            for (std::int64_t i = 0; i < n; ++i) {
                parameter.memory.as<double>()[i] =
                    before[static_cast<std::size_t>(i)] + by * direction[static_cast<std::size_t>(i)];
            }
            return loss_of(context, model, in, labels);
        };
        const double got = (moved(step) - moved(-step)) / (2 * step);
        moved(0);
        EXPECT_NEAR(expected, got, 1e-7 + 1e-6 * std::abs(got)) << parameter.name;
    }
}

INSTANTIATE_TEST_SUITE_P(Kinds, ModelGradients, ::testing::ValuesIn(gradient_cases()),
                         [](const auto& chosen) { return chosen.param.name; });

}  // namespace
}  // namespace heed
