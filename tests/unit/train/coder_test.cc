/// What a run's model is asked with later is what it learned from: tokenizers, special tokens, files of ids.
#include <gtest/gtest.h>

#include <heed/train.h>

#include <filesystem>
#include <fstream>

namespace heed {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<std::int64_t>;

class RunData : public testing::Test {
protected:
    void SetUp() override {
        folder_ = fs::temp_directory_path() / "heed-run-data";
        fs::remove_all(folder_);
        fs::create_directories(folder_);
        config_ = task_config("copy");
        config_.data = {};
        config_.model.vocab = 0;
        config_.model.d_model = 16;
        for (LayerConfig& layer : config_.model.decoder.layers) {
            layer.attention.heads = 2;
            layer.feed_forward.size = 32;
        }
        config_.options.tokens = 16;
        config_.options.batch = 2;
        config_.options.steps = 2;
        config_.options.validation_batches = 1;
    }
    void TearDown() override { fs::remove_all(folder_); }

    fs::path write(const std::string& name, const std::string& bytes) const {
        std::ofstream(folder_ / name, std::ios::binary) << bytes;
        return folder_ / name;
    }
    fs::path lines(const std::string& line) const {
        std::string all;
        for (int n = 0; n < 20; ++n) { all += line + "\n"; }
        return write("lines.jsonl", all);
    }
    static Ids row(const Tensor& tensor) {
        const auto* first = tensor.as<std::int64_t>();
        return {first, first + tensor.shape()[1]};
    }
    std::string message() const {
        try {
            static_cast<void>(open_data(config_)->batch(0));
        } catch (const Exception& error) { return error.what(); }
        return "";
    }

    fs::path folder_;
    TrainConfig config_;
};

TEST_F(RunData, ABestModelIsAskedWithText) {
    config_.data.text = write("text", std::string(400, 'a'));
    Context context(1);
    Trainer trainer(context, config_);
    EXPECT_EQ(trainer.model().config().vocab, 260);
    EXPECT_EQ(trainer.model().config().eos, Ids{258});
    run_training(trainer, folder_ / "run");
    // The folder of the run stands for its best model.
    const Tokenizer tokenizer(folder_ / "run");
    EXPECT_EQ(tokenizer.encode("ab"), (Ids{'a', 'b'}));
    EXPECT_EQ(Model::load(folder_ / "run").config().pad, 256);
    EXPECT_EQ(Tokenizer(folder_ / "run" / "best").id_limit(), 260);
    // And the data are the same when the run's file is read again.
    std::ifstream file(folder_ / "run" / "run.json");
    const TrainConfig again = read_train_config(std::string(std::istreambuf_iterator<char>(file), {}));
    EXPECT_EQ(row(open_data(again)->batch(0).input_ids), row(trainer.data().batch(0).input_ids));
}

TEST_F(RunData, APromptIsTheBeginningOfALine) {
    config_.data.lines = lines(R"({"source": "ab", "target": "c"})");
    const auto data = open_data(config_);
    const TrainBatch batch = data->batch(0);
    EXPECT_EQ(row(batch.input_ids), (Ids{257, 'a', 'b', 'c', 258}));
    EXPECT_EQ(row(batch.labels), (Ids{-100, -100, -100, 'c', 258}));
    EXPECT_EQ(data->tokenizer()->encode("ab"), (Ids{257, 'a', 'b'}));
    config_.model = task_config("dates").model;
    config_.model.vocab = 0;
    const TrainBatch pair = open_data(config_)->batch(0);
    EXPECT_EQ(row(pair.input_ids), (Ids{'a', 'b', 258}));
    EXPECT_EQ(row(pair.labels), (Ids{'c', 258}));
}

TEST_F(RunData, AModelKeepsTheSpecialTokensThatItCameWith) {
    const Tokenizer foreign = with_special_tokens(byte_tokenizer(), {.added = {"<s>", "</s>"}, .before = {"<s>"}});
    config_.data.tokenizer = write("tokenizer.json", foreign.to_json());
    config_.data.lines = lines(R"({"source": "ab", "target": "c"})");
    config_.model.vocab = 258;
    config_.model.bos = 256;
    config_.model.eos = {257};
    config_.model.pad = std::nullopt;
    const auto data = open_data(config_);
    EXPECT_EQ(data->vocab(), 258);
    EXPECT_EQ(row(data->batch(0).input_ids), (Ids{256, 'a', 'b', 'c', 257}));
    EXPECT_EQ(data->tokenizer()->to_json(), foreign.to_json());
    // A fresh model with the same tokenizer has four tokens of its own.
    config_.model.vocab = 0;
    EXPECT_EQ(open_data(config_)->vocab(), 262);
    EXPECT_EQ(row(open_data(config_)->batch(0).input_ids), (Ids{259, 'a', 'b', 'c', 260}));
}

TEST_F(RunData, FilesOfIds) {
    std::string narrow, wide;
    for (int n = 0; n < 400; ++n) {
        narrow += static_cast<char>(n % 250);
        narrow += static_cast<char>(1);
        wide += static_cast<char>(n % 250) + std::string("\0\2\0", 3);
    }
    config_.data.token_file = write("narrow", narrow);
    const auto data = open_data(config_);
    EXPECT_EQ(data->vocab(), 256 + 250);
    EXPECT_EQ(data->tokenizer(), nullptr);
    const Ids ids = row(data->batch(0).input_ids);
    for (std::size_t n = 1; n < ids.size(); ++n) { EXPECT_EQ(ids[n] % 256, (ids[n - 1] % 256 + 1) % 250); }
    config_.data.token_file = write("wide", wide);
    config_.data.token_type = TokenType::u32;
    EXPECT_EQ(open_data(config_)->vocab(), 2 * 65536 + 250);
    config_.model.vocab = 1000;
    EXPECT_NE(message().find("expected ids below 1000, the model's vocabulary, got 131"), std::string::npos);
    config_.data.token_file = write("odd", wide + "x");
    EXPECT_NE(message().find("expected ids of 32 bits, got 1601 bytes"), std::string::npos) << message();
    // A file that somebody cuts off meanwhile is an error.
    config_.model.vocab = 0;
    config_.data.token_file = write("cut", wide);
    const auto open = open_data(config_);
    fs::resize_file(folder_ / "cut", 8);
    EXPECT_THROW(static_cast<void>(open->batch(0)), FileError);
}

TEST(TaskTokenizer, SaysWhatTasksAreEncodedAs) {
    const std::string text = "the 1st of may, '07 (a)[b]{c}?|:.";
    Ids ids = task_encode(text);
    EXPECT_EQ(task_tokenizer(ModelKind::encoder).encode(text), ids);
    EXPECT_EQ(task_tokenizer(ModelKind::encoder).encode("The 1ST of May, '07 (a)[b]{c}?|:."), ids);
    EXPECT_EQ(task_tokenizer(ModelKind::decoder).decode(ids), text);
    ids.insert(ids.begin(), 1);
    EXPECT_EQ(task_tokenizer(ModelKind::decoder).encode(text), ids);
    ids.erase(ids.begin());
    ids.push_back(2);
    EXPECT_EQ(task_tokenizer(ModelKind::encoder_decoder).encode(text), ids);
}

}  // namespace
}  // namespace heed
