#include <gtest/gtest.h>

#include <heed/train.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>

namespace heed {
namespace {

namespace fs = std::filesystem;

class Folder {
public:
    explicit Folder(const std::string& name) : path_(fs::temp_directory_path() / ("heed-train-" + name)) {
        fs::remove_all(path_);
        fs::create_directories(path_);
    }
    ~Folder() { fs::remove_all(path_); }
    const fs::path& path() const { return path_; }

private:
    fs::path path_;
};

TrainConfig tiny(const std::string& task) {
    TrainConfig config = task_config(task);
    config.model.d_model = 16;
    for (StackConfig* stack : {&config.model.encoder, &config.model.decoder}) {
        if (stack->layers.empty()) { continue; }
        stack->layers.resize(1);
        stack->layers[0].attention.heads = 2;
        stack->layers[0].feed_forward.size = 32;
    }
    config.options.batch = 4;
    config.options.steps = 8;
    config.options.validation_batches = 1;
    return config;
}

std::vector<float> weights_of(const Model& model) {
    std::vector<float> all;
    for (const Parameter& parameter : model.parameters().list()) {
        const Tensor wide = Tensor::copy_of(parameter.value).to(DType::f32);
        all.insert(all.end(), wide.as<float>(), wide.as<float>() + wide.elements());
    }
    return all;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(Schedules, HaveTheirPublishedValues) {
    TrainOptions o;
    o.schedule = Schedule::paper;
    o.learning_rate = 1;
    o.warmup = 4000;
    EXPECT_NEAR(learning_rate(o, 512, 4000), 6.98771e-4, 1e-9);
    EXPECT_NEAR(learning_rate(o, 1024, 4000), 4.94106e-4, 1e-9);
    EXPECT_NEAR(learning_rate(o, 512, 1), 1 / std::sqrt(512.0) * std::pow(4000.0, -1.5), 1e-15);
    o.schedule = Schedule::cosine;
    o.learning_rate = 2e-3;
    o.warmup = 10;
    o.steps = 110;
    o.final_rate = 0.1;
    EXPECT_DOUBLE_EQ(learning_rate(o, 64, 5), 1e-3);
    EXPECT_DOUBLE_EQ(learning_rate(o, 64, 10), 2e-3);
    EXPECT_NEAR(learning_rate(o, 64, 60), (2e-3 + 2e-4) / 2, 1e-15);
    EXPECT_NEAR(learning_rate(o, 64, 110), 2e-4, 1e-15);
    o.schedule = Schedule::constant;
    EXPECT_DOUBLE_EQ(learning_rate(o, 64, 100000), 2e-3);
}

TEST(Trainer, EveryTaskLearns) {
    for (const TaskInfo& task : tasks()) {
        Context context(2);
        TrainConfig config = tiny(task.name);
        config.options.steps = 60;
        config.options.warmup = 5;
        config.options.learning_rate = 1e-2;
        Trainer trainer(context, config);
        const double before = trainer.validate().loss;
        while (trainer.step() < config.options.steps) { trainer.train_step(); }
        EXPECT_LT(trainer.validate().loss, 0.9 * before) << task.name;
    }
}

TEST(Trainer, EveryKindOfAttentionTrains) {
    for (const std::string& kind : attention_words()) {
        Context context(2);
        TrainConfig config = tiny("copy");
        config.model.decoder.layers.resize(4, config.model.decoder.layers[0]);
        set_attention(config.model, kind);
        Trainer trainer(context, config);
        const double first = trainer.validate().loss;
        StepReport last;
        for (int n = 0; n < 60; ++n) { last = trainer.train_step(); }
        EXPECT_LT(trainer.validate().loss, first) << kind;
        EXPECT_FALSE(last.skipped) << kind;
    }
    ModelConfig config = tiny("copy").model;
    EXPECT_THROW(set_attention(config, "mhaa"), Error);
}

TEST(Trainer, ThreadsDoNotChangeABit) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
        TrainConfig config = tiny("dates");
        config.options.dtype = dtype;
        config.model.dropout = 0.1;
        config.model.attention_dropout = 0.1;
        Context one(1), three(3);
        Trainer a(one, config), b(three, config);
        for (int n = 0; n < 4; ++n) { EXPECT_EQ(a.train_step().loss, b.train_step().loss); }
        EXPECT_TRUE(same_bits(weights_of(a.model()), weights_of(b.model())));
    }
}

TEST(Trainer, AStoppedRunGoesOnWithTheSameBits) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
        const Folder folder("resume");
        TrainConfig config = tiny("induction");
        config.options.dtype = dtype;
        config.model.dropout = 0.1;
        Context context(2);
        Trainer whole(context, config);
        std::vector<double> losses;
        for (int n = 0; n < 8; ++n) { losses.push_back(whole.train_step().loss); }
        {
            Trainer first(context, config);
            for (int n = 0; n < 3; ++n) { first.train_step(); }
            first.save(folder.path() / "last.safetensors");
        }
        Trainer second(context, config);
        second.resume(folder.path() / "last.safetensors");
        EXPECT_EQ(second.step(), 3);
        for (std::size_t n = 3; n < 8; ++n) { EXPECT_EQ(second.train_step().loss, losses[n]); }
        EXPECT_TRUE(same_bits(weights_of(whole.model()), weights_of(second.model())));
    }
}

TEST(Trainer, ResumeRefusesWhatIsNotItsOwn) {
    const Folder folder("refuse");
    Context context(1);
    TrainConfig config = tiny("copy");
    Trainer trainer(context, config);
    const fs::path file = folder.path() / "last.safetensors";
    trainer.save(file);
    config.options.seed = 99;
    Trainer other(context, config);
    EXPECT_THROW(other.resume(file), Error);
    // Cut anywhere, it is refused and the trainer stays as it was.
    const auto before = weights_of(trainer.model());
    std::ifstream whole(file, std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(whole)), std::istreambuf_iterator<char>());
    for (const std::size_t length : {std::size_t{0}, std::size_t{7}, bytes.size() / 2, bytes.size() - 1}) {
        std::ofstream(file, std::ios::binary | std::ios::trunc)
            .write(bytes.data(), static_cast<std::streamsize>(length));
        EXPECT_THROW(trainer.resume(file), FileError);
        EXPECT_TRUE(same_bits(before, weights_of(trainer.model())));
    }
}

TEST(Trainer, AccumulationGivesTheSameStepUpToRounding) {
    TrainConfig config = tiny("dates");
    Context context(2);
    Trainer whole(context, config);
    config.options.accumulate = 4;
    Trainer parts(context, config);
    for (int n = 0; n < 3; ++n) {
        const StepReport a = whole.train_step(), b = parts.train_step();
        EXPECT_NEAR(a.loss, b.loss, 1e-5 * a.loss);
        EXPECT_NEAR(a.gradient_norm, b.gradient_norm, 1e-4 * a.gradient_norm);
    }
}

TEST(Trainer, RecomputationChangesNothing) {
    TrainConfig config = tiny("dates");
    config.model.dropout = 0.2;
    Context context(2);
    Trainer kept(context, config);
    config.options.recompute = true;
    Trainer again(context, config);
    for (int n = 0; n < 3; ++n) { EXPECT_EQ(kept.train_step().loss, again.train_step().loss); }
}

TEST(Trainer, AStepThatIsNotFiniteIsSkippedAndCounted) {
    Context context(1);
    Trainer trainer(context, tiny("copy"));
    trainer.train_step();
    trainer.model().parameters().list().front().memory.as<float>()[20 * 16] = std::nanf("");  // the table: a letter
    const auto before = weights_of(trainer.model());
    const StepReport report = trainer.train_step();
    EXPECT_TRUE(report.skipped);
    EXPECT_EQ(trainer.skipped(), 1);
    EXPECT_EQ(trainer.step(), 2);
    EXPECT_TRUE(same_bits(before, weights_of(trainer.model())));
}

TEST(Runs, AFolderTellsTheWholeStory) {
    const Folder folder("run");
    Context context(2);
    TrainConfig config = tiny("copy");
    config.options.validate_every = 4;
    const auto log_of = [&](const fs::path& run) {
        std::ifstream file(run / "log.jsonl", std::ios::binary);
        return std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    };
    {
        Trainer trainer(context, config);
        const RunResult result = run_training(trainer, folder.path() / "whole");
        EXPECT_EQ(result.steps, 8);
        Trainer again(context, config);
        EXPECT_THROW(run_training(again, folder.path() / "whole"), Error);
    }
    // Ended after five steps and taken up again: the same log, the same weights.
    {
        Trainer trainer(context, config);
        RunOptions options;
        options.progress = [](const RunEvent& event) { return event.step.step < 5; };
        run_training(trainer, folder.path() / "parts", options);
    }
    std::ofstream(folder.path() / "parts" / "log.jsonl", std::ios::app) << "{\"step\": 6, \"loss\": 1}\n{\"st";
    Trainer trainer(context, config);
    run_training(trainer, folder.path() / "parts", {.resume = true});
    EXPECT_EQ(log_of(folder.path() / "parts"), log_of(folder.path() / "whole"));
    const Model a = Model::load(folder.path() / "whole" / "best"), b = Model::load(folder.path() / "parts" / "best");
    EXPECT_TRUE(same_bits(weights_of(a), weights_of(b)));
    EXPECT_TRUE(fs::exists(folder.path() / "whole" / "run.json"));
}

TEST(Learner, TakesAStepOfTheModelOf2017) {
    Context context(2);
    TrainOptions options;
    options.schedule = Schedule::paper;
    options.learning_rate = 1;
    options.warmup = 4000;
    options.optimiser = Optimiser::adam;
    options.weight_decay = 0;
    options.label_smoothing = 0.1;
    ModelConfig config = transformer_2017(50);
    config.decoder_start = 1;
    Learner learner(context, Model::random(config), options);
    TrainBatch batch;
    batch.input_ids = Tensor(DType::i64, {2, 5});
    batch.labels = Tensor(DType::i64, {2, 4});
    for (std::int64_t i = 0; i < 10; ++i) { batch.input_ids.as<std::int64_t>()[i] = 3 + i * 7 % 40; }
    for (std::int64_t i = 0; i < 8; ++i) { batch.labels.as<std::int64_t>()[i] = i == 7 ? -100 : 3 + i * 5 % 40; }
    const StepReport first = learner.step(batch);
    EXPECT_DOUBLE_EQ(first.learning_rate, std::pow(512.0, -0.5) * std::pow(4000.0, -1.5));
    EXPECT_FALSE(first.skipped);
    EXPECT_GT(first.gradient_norm, 0);
    double last = first.loss;
    for (int n = 0; n < 4; ++n) { last = learner.step(batch).loss; }
    EXPECT_LT(last, first.loss);
}

TEST(Learner, RefusesBatchesThatDoNotFit) {
    Context context(1);
    TrainOptions options;
    options.accumulate = 2;
    options.batch = 4;
    Learner learner(context, Model::random(tiny("copy").model), options);
    EXPECT_THROW(static_cast<void>(learner.step({})), Error);
    TrainBatch odd;
    odd.input_ids = Tensor(DType::i64, {3, 4});
    odd.labels = Tensor(DType::i64, {3, 4});
    EXPECT_THROW(static_cast<void>(learner.step(odd)), Error);
    const auto refused = [&](const auto& change) {
        TrainBatch batch;
        batch.input_ids = Tensor(DType::i64, {1, 4});
        batch.labels = Tensor(DType::i64, {1, 4});
        batch.cu_seqlens = Tensor(DType::i64, {3});
        batch.cu_seqlens.as<std::int64_t>()[1] = 1;
        batch.cu_seqlens.as<std::int64_t>()[2] = 4;
        change(batch);
        EXPECT_THROW(static_cast<void>(learner.step(batch)), Error);
    };
    refused([](TrainBatch& b) { b.cu_seqlens.as<std::int64_t>()[2] = 400; });
    refused([](TrainBatch& b) { b.cu_seqlens.as<std::int64_t>()[1] = -3; });
    refused([](TrainBatch& b) { b.cu_seqlens = Tensor(DType::i32, {2}); });
    refused([](TrainBatch& b) { b.labels = Tensor(DType::i32, {1, 4}); });
    refused([](TrainBatch& b) { b.labels = Tensor(DType::i64, {2, 4}); });
    refused([](TrainBatch& b) { b.attention_mask = Tensor(DType::i64, {1, 4}); });
    refused([](TrainBatch& b) { b.input_ids.as<std::int64_t>()[0] = 99999; });
    EXPECT_EQ(learner.steps(), 0);
}

}  // namespace
}  // namespace heed
