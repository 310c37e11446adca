#include <gtest/gtest.h>

#include <heed/train.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

namespace heed {
namespace {

std::string refusal(const std::string& text) {
    try {
        static_cast<void>(read_train_config(text));
    } catch (const Error& error) { return error.what(); }
    return "";
}

TEST(TrainConfigs, WhatIsWrittenReadsBackTheSame) {
    for (const TaskInfo& task : tasks()) {
        TrainConfig config = task_config(task.name);
        config.options.dtype = DType::bf16;
        config.options.schedule = Schedule::paper;
        config.options.seed = 12345678901234567890ULL;
        config.model = checked(config.model);
        const std::string text = write_train_config(config);
        EXPECT_EQ(write_train_config(read_train_config(text)), text);
    }
}

TEST(TrainConfigs, DefaultsComeFromTheTask) {
    const TrainConfig config = read_train_config(R"({"data": {"task": "sort"}, "train": {"steps": 3}})");
    EXPECT_EQ(config.options.steps, 3);
    EXPECT_EQ(config.model.kind, ModelKind::encoder);
}

TEST(TrainConfigs, MistakesNameTheirKey) {
    EXPECT_NE(refusal(R"({"data": {"task": "sort"}, "train": {"stepps": 3}})").find("stepps"), std::string::npos);
    EXPECT_NE(refusal(R"({"data": {"task": "sort"}, "train": {"steps": "3"}})").find("train.steps"), std::string::npos);
    EXPECT_NE(refusal(R"({"data": {"task": "sort"}, "train": {"dtype": "f16"}})").find("f32, bf16"), std::string::npos);
    EXPECT_NE(refusal(R"({"data": {"task": "sort"}, "model": 3})").find("model"), std::string::npos);
    EXPECT_NE(refusal(R"({"data": {"text": "x"}})").find("model"), std::string::npos);
    EXPECT_NE(refusal(R"({"extra": 1})").find("extra"), std::string::npos);
    EXPECT_NE(refusal("[]"), "");
    EXPECT_NE(refusal("{"), "");
    Context context(1);
    TrainConfig config = task_config("copy");
    config.options.accumulate = 3;
    EXPECT_THROW(Trainer(context, config), Error);
}

class DataFiles : public testing::Test {
protected:
    void SetUp() override {
        folder_ = std::filesystem::temp_directory_path() / "heed-train-data";
        std::filesystem::remove_all(folder_);
        std::filesystem::create_directories(folder_);
        config_ = task_config("grammar");
        config_.data.task.clear();
        config_.options.tokens = 16;
        config_.options.batch = 4;
    }
    void TearDown() override { std::filesystem::remove_all(folder_); }
    std::filesystem::path write(const std::string& name, const std::string& bytes) const {
        std::ofstream(folder_ / name, std::ios::binary) << bytes;
        return folder_ / name;
    }

    std::filesystem::path folder_;
    TrainConfig config_;
};

TEST_F(DataFiles, ATextOfAnyBytesGivesEveryWindowOnceARound) {
    std::string bytes;
    for (int n = 0; n < 1600; ++n) { bytes += static_cast<char>(n * n * 37 / 11 % 256); }
    config_.data.text = write("text", bytes);
    config_.data.validation_share = 0.2;
    const auto data = open_data(config_);
    EXPECT_EQ(data->vocab(), 260);
    // 1,280 bytes are 80 windows: 20 batches of 4 hold each of them once.
    std::vector<std::vector<std::int64_t>> windows;
    for (std::int64_t n = 0; n < 20; ++n) {
        const TrainBatch batch = data->batch(n), again = data->batch(n);
        ASSERT_EQ(batch.input_ids.shape(), (Shape{4, 16}));
        EXPECT_EQ(batch.targets, 4 * 15);
        for (std::int64_t r = 0; r < 4; ++r) {
            const auto* row = batch.input_ids.as<std::int64_t>() + r * 16;
            EXPECT_TRUE(std::equal(row, row + 16, again.input_ids.as<std::int64_t>() + r * 16));
            windows.emplace_back(row, row + 16);
        }
    }
    std::ranges::sort(windows);
    EXPECT_GE(std::unique(windows.begin(), windows.end()) - windows.begin(), 79);
}

TEST_F(DataFiles, LinesAndTheirMistakes) {
    std::string good;
    for (int n = 0; n < 20; ++n) {
        good += R"({"source": "ab", "target": "c"})"
                "\n";
    }
    config_.data.lines = write("lines", good);
    const TrainBatch batch = open_data(config_)->batch(0);
    EXPECT_EQ(batch.targets, 4 * 2);  // the answer and the end
    config_.data.lines = write("bad", good + "{\"sauce\": 1}\n");
    try {
        open_data(config_);
        FAIL();
    } catch (const FileError& error) {
        EXPECT_NE(std::string(error.what()).find("line 21"), std::string::npos) << error.what();
    }
    config_.data.lines = folder_ / "none";
    EXPECT_THROW(open_data(config_), FileError);
    config_.data.text = write("short", "abc");
    EXPECT_THROW(open_data(config_), Error);  // two sources
    config_.data.lines.clear();
    EXPECT_THROW(open_data(config_), Error);  // too short
}

TEST_F(DataFiles, AnEncoderIsAskedForSomeTokens) {
    config_.model = task_config("sort").model;
    config_.model.vocab = 0;
    config_.data.text = write("text", std::string(4000, 'x'));
    config_.options.tokens = 64;
    config_.options.batch = 16;
    const TrainBatch batch = open_data(config_)->batch(0);
    EXPECT_GT(batch.targets, 16 * 64 / 10);
    EXPECT_LT(batch.targets, 16 * 64 / 5);
    const auto* ids = batch.input_ids.as<std::int64_t>();
    EXPECT_GT(std::count(ids, ids + batch.input_ids.elements(), 259), batch.targets / 2);
}

}  // namespace
}  // namespace heed
