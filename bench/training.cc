// heed_bench_training f32|bf16 [--threads N] [--vocab V] [--layers N] [--width N] [--heads N] [--tokens N] [--batch N]:
// full training steps of a GPT, one for each line on the standard input; seconds and loss of each on the standard
// output. bench/training calls it in turn with other software.
#include <chrono>
#include <cstdio>
#include <iostream>
#include <map>
#include <stdexcept>
#include <string>

#include <heed/train.h>

namespace {

using heed::DType;
using heed::Tensor;

struct Sizes {
    std::int64_t threads = 2, vocab = 8192, layers = 6, width = 384, heads = 6, tokens = 256, batch = 8;
};

heed::ModelConfig gpt(const Sizes& s) {
    heed::ModelConfig config;
    config.vocab = s.vocab;
    config.d_model = s.width;
    config.max_positions = s.tokens;
    heed::LayerConfig layer;
    layer.attention.heads = s.heads;
    layer.attention.qkv_bias = layer.attention.output_bias = true;
    layer.feed_forward = {.size = 4 * s.width, .bias = true, .activation = heed::Activation::gelu_tanh};
    config.decoder.layers.assign(static_cast<std::size_t>(s.layers), layer);
    config.decoder.causal = true;
    config.decoder.norm = {.kind = heed::NormKind::layer_norm, .bias = true};
    config.decoder.positions = {.kind = heed::PositionKind::learned, .rows = s.tokens};
    return config;
}

/// The same ids as bench/training gives the others: a fixed linear congruence.
heed::TrainBatch batch_of(const Sizes& s, std::int64_t number) {
    heed::TrainBatch batch;
    batch.input_ids = Tensor(DType::i64, {s.batch, s.tokens});
    std::uint64_t state = static_cast<std::uint64_t>(number) + 1;
    for (std::int64_t i = 0; i < s.batch * s.tokens; ++i) {
        state = state * 6364136223846793005ULL + 1442695040888963407ULL;
        batch.input_ids.as<std::int64_t>()[i] =
            static_cast<std::int64_t>((state >> 33U) % static_cast<std::uint64_t>(s.vocab));
    }
    batch.labels = Tensor::copy_of(batch.input_ids.view());
    return batch;
}

Sizes sizes_of(int count, char** arguments) {
    Sizes s;
    const std::map<std::string, std::int64_t*> known = {
        {"--threads", &s.threads}, {"--vocab", &s.vocab},   {"--layers", &s.layers}, {"--width", &s.width},
        {"--heads", &s.heads},     {"--tokens", &s.tokens}, {"--batch", &s.batch}};
    for (int n = 2; n + 1 < count; n += 2) {
        const auto at = known.find(arguments[n]);
        if (at == known.end()) { throw std::runtime_error(std::string("unknown: ") + arguments[n]); }
        *at->second = std::stoll(arguments[n + 1]);
    }
    return s;
}

int run(int count, char** arguments) {
    const std::string type = count > 1 ? arguments[1] : "";
    if (type != "f32" && type != "bf16") { throw std::runtime_error("expected f32 or bf16"); }
    const Sizes sizes = sizes_of(count, arguments);
    heed::Context context(static_cast<int>(sizes.threads));
    heed::TrainOptions options;
    options.dtype = type == "f32" ? DType::f32 : DType::bf16;
    options.learning_rate = 3e-4;
    options.warmup = 0;
    options.schedule = heed::Schedule::constant;
    heed::Learner learner(context, heed::Model::random(gpt(sizes), {.seed = 1}), options);
    std::printf("ready\n");
    std::fflush(stdout);
    for (std::string line; std::getline(std::cin, line);) {
        const heed::TrainBatch batch = batch_of(sizes, learner.steps());
        const auto begin = std::chrono::steady_clock::now();
        const heed::StepReport report = learner.step(batch);
        const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
        std::printf("%.6f %.5f\n", seconds.count(), report.loss);
        std::fflush(stdout);
    }
    return 0;
}

}  // namespace

int main(int count, char** arguments) {
    try {
        return run(count, arguments);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "heed_bench_training: %s\n", error.what());
        return 2;
    }
}
