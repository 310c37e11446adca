/// Documents end to end: what is in a batch, and that a step on it is a step on each document alone.
#include <gtest/gtest.h>

#include <heed/train.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>

namespace heed {
namespace {

namespace fs = std::filesystem;

/// Document n is n % 26 as a letter, 1 to 40 times.
class PackedData : public testing::Test {
protected:
    void SetUp() override {
        file_ = fs::temp_directory_path() / "heed-packed-lines.jsonl";
        std::ofstream lines(file_);
        for (int n = 0; n < 50; ++n) {
            const std::string text(static_cast<std::size_t>(n * 7 % 40 + 1), static_cast<char>('a' + n % 26));
            lines << R"({"text": ")" << text << "\"}\n";
        }
    }
    void TearDown() override { fs::remove(file_); }

    TrainConfig config() const {
        TrainConfig config = task_config("copy");
        config.data = {};
        config.data.lines = file_;
        config.data.packed = true;
        config.model.vocab = 0;
        config.model.d_model = 16;
        for (LayerConfig& layer : config.model.decoder.layers) {
            layer.attention.heads = 2;
            layer.feed_forward.size = 32;
        }
        config.options.batch = 4;
        config.options.tokens = 24;
        config.options.validation_batches = 2;
        return config;
    }

    fs::path file_;
};

std::vector<std::int64_t> numbers_of(const Tensor& tensor) {
    return {tensor.as<std::int64_t>(), tensor.as<std::int64_t>() + tensor.elements()};
}

TEST_F(PackedData, EveryTokenIsThereOnceARound) {
    const auto data = open_data(config());
    std::map<std::int64_t, std::int64_t> seen;
    std::int64_t tokens = 0;
    for (int n = 0; n < 45; ++n) { tokens += n * 7 % 40 + 3; }  // the last tenth is held out; start and end of each
    std::int64_t left = tokens;
    for (std::int64_t number = 0; left > 0; ++number) {
        const TrainBatch batch = data->batch(number);
        ASSERT_EQ(batch.input_ids.elements(), 4 * 24);
        EXPECT_FALSE(batch.attention_mask);
        for (const std::int64_t id : numbers_of(batch.input_ids)) {
            if (left-- > 0) { ++seen[id]; }
        }
    }
    std::map<std::int64_t, std::int64_t> wanted;
    for (int n = 0; n < 45; ++n) {
        wanted['a' + n % 26] += n * 7 % 40 + 1;
        ++wanted[257];
        ++wanted[258];
    }
    EXPECT_EQ(seen, wanted);
}

TEST_F(PackedData, SequencesAreShortEnoughAndTheirFirstTokensAreNotAskedFor) {
    const auto data = open_data(config());
    for (std::int64_t number = 0; number < 20; ++number) {
        const TrainBatch batch = data->batch(number);
        const std::vector<std::int64_t> ids = numbers_of(batch.input_ids), labels = numbers_of(batch.labels),
                                        bounds = numbers_of(batch.cu_seqlens);
        EXPECT_EQ(bounds.front(), 0);
        EXPECT_EQ(bounds.back(), 4 * 24);
        std::int64_t asked = 0;
        for (std::size_t n = 0; n + 1 < bounds.size(); ++n) {
            ASSERT_GT(bounds[n + 1], bounds[n]);
            EXPECT_LE(bounds[n + 1] - bounds[n], 24);
            EXPECT_EQ(labels[static_cast<std::size_t>(bounds[n])], -100);
            std::int64_t letter = -1;
            for (std::int64_t t = bounds[n]; t < bounds[n + 1]; ++t) {
                const auto at = static_cast<std::size_t>(t);
                if (t > bounds[n]) { EXPECT_EQ(labels[at], ids[at]); }
                asked += t > bounds[n] ? 1 : 0;
                if (ids[at] >= 256) { continue; }
                EXPECT_TRUE(letter < 0 || letter == ids[at]) << "two documents in one sequence";
                letter = ids[at];
            }
        }
        EXPECT_EQ(batch.targets, asked);
    }
}

TEST_F(PackedData, AStepIsAStepOnEachDocumentAlone) {
    Context context(2);
    TrainConfig packed = config();
    packed.options.accumulate = 1;
    Trainer together(context, packed);
    packed.options.accumulate = 4;  // parts of whole sequences
    Trainer in_parts(context, packed);
    const TrainBatch batch = together.data().batch(0);
    const std::vector<std::int64_t> bounds = numbers_of(batch.cu_seqlens);
    double loss = 0;
    for (std::size_t n = 0; n + 1 < bounds.size(); ++n) {
        const auto row = [&](const Tensor& all) { return all.view().slice(1, bounds[n], bounds[n + 1]); };
        Tape tape(context, {.record = false});
        LossOptions options;
        options.cross_entropy.divisor = static_cast<double>(batch.targets);
        CrossEntropy result;
        static_cast<void>(
            together.model().loss(tape, {.input_ids = row(batch.input_ids)}, row(batch.labels), options, &result));
        loss += result.nll;
    }
    const StepReport one = together.train_step(), many = in_parts.train_step();
    EXPECT_NEAR(one.loss, loss, 1e-5);
    EXPECT_NEAR(many.loss, loss, 1e-5);
    EXPECT_NEAR(many.gradient_norm, one.gradient_norm, 1e-4 * one.gradient_norm);
    EXPECT_EQ(
        together.validate().targets, 2 * 4 * 24 - [&] {
            std::int64_t sequences = 0;
            for (std::int64_t n = 0; n < 2; ++n) {
                sequences += together.data().validation(n).cu_seqlens.elements() - 1;
            }
            return sequences;
        }());
}

TEST_F(PackedData, IsForLinesOfADecoder) {
    TrainConfig other = config();
    other.data.lines.clear();
    other.data.text = file_;
    EXPECT_THROW(static_cast<void>(open_data(other)), Error);
    other = config();
    other.model.kind = ModelKind::encoder_decoder;
    EXPECT_THROW(static_cast<void>(open_data(other)), Error);
}

}  // namespace
}  // namespace heed
