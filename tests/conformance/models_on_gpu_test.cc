/// Whole models on a GPU beside the same on the CPU: losses while they learn, the tokens that they say, what is saved.

#include <gtest/gtest.h>

#include <heed/search.h>
#include <heed/train.h>

#include "support/random.h"

#include <cmath>
#include <filesystem>
#include <memory>
#include <string>

namespace heed::conformance {
namespace {

constexpr Device models_gpu{DeviceKind::cuda, 0};

struct SmallModel {
    const char* name;
    const char* config;
    bool has_weights = true;  ///< of attention, to look at
};
const SmallModel small_models[] = {
    {"gpt", R"({"vocab": 61, "d_model": 64, "decoder": {"layers": 3, "attention": {"heads": 4, "qkv_bias": true,
        "output_bias": true}, "positions": {"kind": "learned", "rows": 64}, "norm": {"kind": "layer_norm"},
        "feed_forward": {"size": 256, "activation": "gelu_tanh", "bias": true}}, "head": {"tied": true}})"},
    {"llama", R"({"vocab": 61, "d_model": 64, "decoder": {"layers": 3, "attention": {"heads": 8, "kv_heads": 2},
        "positions": {"kind": "rope"}, "norm": {"kind": "rms_norm"},
        "feed_forward": {"size": 176, "activation": "silu", "gated": true}}})"},
    {"alibi with a window", R"({"vocab": 61, "d_model": 48, "decoder": {"layers": 2, "attention": {"heads": 3,
        "window": {"left": 7, "right": 0}}, "positions": {"kind": "alibi"}}})"},
    {"sinusoids, dropout", R"({"vocab": 61, "d_model": 64, "dropout": 0.1, "attention_dropout": 0.1, "decoder":
        {"layers": 2, "attention": {"heads": 2}, "positions": {"kind": "sinusoidal"}}})"},
    {"encoder-decoder", R"({"kind": "encoder_decoder", "vocab": 61, "d_model": 64, "decoder_start": 1, "pad": 0,
        "encoder": {"layers": 2, "attention": {"heads": 4}, "positions": {"kind": "relative"}},
        "decoder": {"layers": 2, "attention": {"heads": 4}, "positions": {"kind": "relative"}}})"},
    {"experts", R"({"vocab": 61, "d_model": 48, "decoder": {"layers": 2, "attention": {"heads": 4}, "positions":
        {"kind": "rope"}, "norm": {"kind": "rms_norm"}, "feed_forward": {"size": 64, "activation": "silu", "gated": true,
        "experts": {"routed": 6, "active": 2, "size": 40, "shared": 1}}}})"},
    {"experts with a limit", R"({"vocab": 61, "d_model": 48, "decoder": {"layers": 2, "attention": {"heads": 4},
        "positions": {"kind": "rope"}, "feed_forward": {"size": 64, "activation": "silu", "gated": true, "experts":
        {"routed": 4, "active": 2, "size": 40, "score": "softmax_chosen", "bias": true, "limit": 0.5}}}})"},
    {"mla", R"({"vocab": 61, "d_model": 64, "decoder": {"layers": 2, "attention": {"heads": 4, "latent": {"query_rank":
        24, "kv_rank": 32, "nope_size": 16, "rope_size": 8, "value_size": 12}}, "positions": {"kind": "rope"}}})"},
    {"linear with decays", R"({"vocab": 61, "d_model": 64, "decoder": {"layers": 2, "attention": {"heads": 4, "core":
        "linear", "decay": true}, "positions": {"kind": "rope"}}})",
     false},
    {"gated delta", R"({"vocab": 61, "d_model": 64, "decoder": {"layers": 2, "attention": {"heads": 2, "value_heads": 4,
        "core": "gated_delta", "output_gate": true}, "positions": {"kind": "rope"}}})",
     false},
    {"gated rows", R"({"vocab": 61, "d_model": 64, "decoder": {"layers": 2, "attention": {"heads": 4, "kv_heads": 2,
        "core": "gated", "decay_rows": true}, "positions": {"kind": "rope"}}})",
     false},
    {"infini", R"({"vocab": 61, "d_model": 64, "decoder": {"layers": 2, "attention": {"heads": 4, "kv_heads": 2, "core":
        "infini", "segment": 8, "update": "delta"}, "positions": {"kind": "rope"}}})",
     false},
    {"hybrid", R"({"vocab": 61, "d_model": 64, "decoder": {"layers": 3, "attention": {"heads": 4}, "positions": {"kind":
        "rope"}, "pattern": [{"attention": {"core": "linear"}}, {"attention": {"core": "infini", "segment": 8}}, {}]}})",
     false},
};

TrainBatch small_batch(testing::Random& random, bool mask) {
    const Shape shape{4, 33};
    TrainBatch batch;
    batch.input_ids = Tensor(DType::i64, shape);
    batch.labels = Tensor(DType::i64, shape);
    if (mask) { batch.attention_mask = Tensor(DType::u8, shape); }
    for (std::int64_t n = 0; n < shape.elements(); ++n) {
        const std::int64_t row = n / shape[1], column = n % shape[1];
        const bool there = !mask || column < shape[1] - 3 * row;
        // A sequence that can be learned, with a little noise.
        const std::int64_t id = random.chance(0.1) ? random.below(61) : (7 * column + 5 * row) % 61;
        batch.input_ids.as<std::int64_t>()[n] = there ? id : 0;
        batch.labels.as<std::int64_t>()[n] = there ? id : -100;
        if (mask) { batch.attention_mask.as<std::uint8_t>()[n] = there ? 1 : 0; }
    }
    return batch;
}

std::vector<StepReport> learned(Context& context, const Model& model, const TrainOptions& options, bool mask) {
    Learner learner(context, model, options);
    testing::Random random(5);
    std::vector<StepReport> reports;
    for (int step = 0; step < 12; ++step) { reports.push_back(learner.step(small_batch(random, mask))); }
    return reports;
}

std::vector<std::int64_t> said(Context& context, const Model& model) {
    std::vector<std::int64_t> prompt;
    for (std::int64_t n = 0; n < 9; ++n) { prompt.push_back(7 * n % 61); }
    const SearchOptions options{.max_new_tokens = 20, .min_new_tokens = 20};
    Decoding decoding(model, search_room(static_cast<std::int64_t>(prompt.size()), options));
    return search(context, decoding, prompt, options);
}

class ModelsOnTheGpu : public ::testing::TestWithParam<SmallModel> {
protected:
    void SetUp() override {
        if (devices().size() < 2) { GTEST_SKIP() << "no GPU, or heed built without CUDA"; }
        gpu = std::make_unique<Context>(models_gpu);
        config = read_model_config(GetParam().config);
    }
    Model fresh() const { return Model::random(config, {.seed = 3}); }
    std::unique_ptr<Context> gpu;
    Context cpu{2};
    ModelConfig config;
};

TEST_P(ModelsOnTheGpu, LearnAndSpeakAsOnTheCpu) {
    for (const bool mask : {false, true}) {
        const Model here = fresh(), there = fresh();
        TrainOptions options;
        options.batch = 4;
        options.learning_rate = 3e-3;
        options.warmup = 2;
        options.steps = 12;
        options.accumulate = mask ? 2 : 1;
        const std::vector<StepReport> a = learned(cpu, here, options, mask), b = learned(*gpu, there, options, mask);
        EXPECT_EQ(there.device(), models_gpu);
        for (std::size_t n = 0; n < a.size(); ++n) {
            EXPECT_NEAR(a[n].loss, b[n].loss, 2e-4 * a[n].loss) << "step " << n;
            EXPECT_NEAR(a[n].gradient_norm, b[n].gradient_norm, 5e-3 * a[n].gradient_norm) << "step " << n;
        }
        EXPECT_LT(b.back().loss, 0.95 * b.front().loss);
        // The weights of one in both places: then logits differ by roundings alone.
        Model copy = fresh();
        for (const Parameter& parameter : there.parameters().list()) { copy.assign(parameter.name, parameter.value); }
        EXPECT_EQ(said(cpu, copy), said(*gpu, there));
        there.to(Device{});
        EXPECT_EQ(said(cpu, there), said(cpu, copy));
    }
}

TEST_P(ModelsOnTheGpu, LearnInBf16AndRecompute) {
    const Model here = fresh(), there = fresh();
    TrainOptions options;
    options.batch = 4;
    options.learning_rate = 3e-3;
    options.warmup = 2;
    options.steps = 12;
    options.dtype = DType::bf16;
    options.recompute = true;
    const std::vector<StepReport> a = learned(cpu, here, options, false), b = learned(*gpu, there, options, false);
    for (std::size_t n = 0; n < a.size(); ++n) { EXPECT_NEAR(a[n].loss, b[n].loss, 0.03 * a[n].loss) << "step " << n; }
    EXPECT_LT(b.back().loss, 0.95 * b.front().loss);
}

TEST_P(ModelsOnTheGpu, EveryRunGivesTheSameBits) {
    TrainOptions options;
    options.batch = 4;
    const Model one = fresh(), two = fresh();
    const std::vector<StepReport> a = learned(*gpu, one, options, true), b = learned(*gpu, two, options, true);
    for (std::size_t n = 0; n < a.size(); ++n) {
        EXPECT_EQ(a[n].loss, b[n].loss);
        EXPECT_EQ(a[n].gradient_norm, b[n].gradient_norm);
    }
}

TEST_P(ModelsOnTheGpu, WhatIsSavedThereGoesOnHere) {
    const std::filesystem::path folder = std::filesystem::temp_directory_path() / "heed_models_on_gpu";
    std::filesystem::create_directories(folder);
    TrainOptions options;
    options.batch = 4;
    const Model there = fresh(), here = fresh();
    testing::Random random(9);
    Learner first(*gpu, there, options);
    for (int step = 0; step < 3; ++step) { (void)first.step(small_batch(random, false)); }
    first.save(folder / "state.safetensors");
    there.save(folder / "model");
    Learner second(cpu, here, options);
    second.resume(folder / "state.safetensors");
    const TrainBatch next = small_batch(random, false);
    const double expected = first.step(next).loss;
    EXPECT_NEAR(second.step(next).loss, expected, 2e-5 * expected);
    // And from the CPU to the GPU.
    second.save(folder / "state.safetensors");
    const Model again = fresh();
    Learner third(*gpu, again, options);
    third.resume(folder / "state.safetensors");
    const TrainBatch last = small_batch(random, false);
    EXPECT_NEAR(second.step(last).loss, third.step(last).loss, 1e-4);
    const Model loaded = Model::load(folder / "model", {.device = models_gpu});
    EXPECT_EQ(loaded.device(), models_gpu);
    std::filesystem::remove_all(folder);
}

TEST_P(ModelsOnTheGpu, ForwardShowsWhatTheCpuShows) {
    const Model here = fresh(), there = fresh();
    there.to(models_gpu);
    testing::Random random(2);
    const TrainBatch batch = small_batch(random, true);
    ForwardInputs inputs;
    inputs.input_ids = batch.input_ids.view();
    inputs.attention_mask = batch.attention_mask.view();
    if (config.kind == ModelKind::encoder_decoder) { inputs.decoder_input_ids = batch.input_ids.view(); }
    const ForwardOptions options{.hidden = true, .attention = GetParam().has_weights};
    const ForwardResult a = here.forward(cpu, inputs, options), b = there.forward(*gpu, inputs, options);
    const std::vector<NamedView> x = a.named(), y = b.named();
    ASSERT_EQ(x.size(), y.size());
    for (std::size_t n = 0; n < x.size(); ++n) {
        double difference = 0;
        for (std::int64_t i = 0; i < x[n].view.shape().elements(); ++i) {
            const double d = std::fabs(static_cast<double>(x[n].view.as<float>()[i] - y[n].view.as<float>()[i]));
            difference = std::max(difference, std::isfinite(d) ? d : 1e300);
        }
        EXPECT_LT(difference, 2e-4) << x[n].name;
    }
}

std::string model_name(const ::testing::TestParamInfo<SmallModel>& model) {
    std::string name = model.param.name;
    std::erase_if(name, [](char c) { return c == ' ' || c == ',' || c == '-'; });
    return name;
}
INSTANTIATE_TEST_SUITE_P(Small, ModelsOnTheGpu, ::testing::ValuesIn(small_models), model_name);

TEST(ModelsOnAnotherDevice, AreRefusedWithReasons) {
    if (devices().size() < 2) { GTEST_SKIP() << "no GPU, or heed built without CUDA"; }
    Context gpu(models_gpu), cpu(1);
    const Model model = Model::random(read_model_config(small_models[0].config), {.seed = 1});
    const std::vector<std::int64_t> ids = {1, 2, 3};
    const ForwardInputs inputs{.input_ids = View(ids.data(), {1, 3})};
    EXPECT_THROW((void)model.forward(gpu, inputs), Error);
    model.to(models_gpu);
    EXPECT_THROW((void)model.forward(cpu, inputs), Error);
    EXPECT_THROW(model.set_weights(cpu, WeightStorage::int8), Error);
    Decoding decoding(model);
    CachedSequence sequence = decoding.create();
    EXPECT_THROW((void)decoding.step(cpu, {.sequences = {&sequence}, .tokens = ids, .counts = {3}}), Error);
}

}  // namespace
}  // namespace heed::conformance
