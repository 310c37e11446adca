#include <heed/convert_model.h>

#include <heed/model.h>
#include <heed/safetensors.h>

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

namespace heed {
namespace {

class ConvertModel : public ::testing::Test {
protected:
    void SetUp() override {
        std::filesystem::create_directories(folder_ / "from");
        const std::string text = R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 20,
            "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4,
            "intermediate_size": 24, "rms_norm_eps": 1e-5, "hidden_act": "silu", "torch_dtype": "float32",
            "tie_word_embeddings": false, "max_position_embeddings": 64})";
        std::ofstream(folder_ / "from" / "config.json") << text;
        std::ofstream(folder_ / "from" / "notes.txt") << "kept";
        const Model model = Model::random(read_model_config(text), {.seed = 4});
        std::vector<NamedView> tensors;
        for (const Parameter& p : model.parameters().list()) { tensors.push_back({p.name, p.value}); }
        write_safetensors(folder_ / "from" / "model.safetensors", tensors);
    }
    void TearDown() override { std::filesystem::remove_all(folder_); }
    Tensor logits(const std::string& name) const {
        Context context(1);
        const std::vector<std::int64_t> ids = {3, 1, 4, 1, 5};
        return Model::load(folder_ / name).forward(context, {.input_ids = View(ids.data(), {1, 5})}).logits;
    }
    static bool equal(const Tensor& a, const Tensor& b) {
        return a.bytes() == b.bytes() && std::memcmp(a.data(), b.data(), a.bytes()) == 0;
    }
    std::string refusal(const ConvertModelOptions& options) const {
        try {
            convert_model(folder_ / "from", folder_ / "to", options);
        } catch (const Error& error) { return error.what(); }
        return "no error";
    }

    std::filesystem::path folder_ =
        std::filesystem::temp_directory_path() / ("heed_convert_" + std::to_string(::getpid()) + "_" +
                                                  ::testing::UnitTest::GetInstance()->current_test_info()->name());
};

TEST_F(ConvertModel, ShardsAndBack) {
    convert_model(folder_ / "from", folder_ / "shards", {.max_shard_bytes = 3000});
    EXPECT_FALSE(std::filesystem::exists(folder_ / "shards" / "model.safetensors"));
    EXPECT_TRUE(std::filesystem::exists(folder_ / "shards" / "model.safetensors.index.json"));
    EXPECT_TRUE(std::filesystem::exists(folder_ / "shards" / "notes.txt"));
    std::size_t shards = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder_ / "shards")) {
        if (entry.path().extension() != ".safetensors") { continue; }
        ++shards;
        const SafetensorsFile file = SafetensorsFile::open(entry.path());
        std::uint64_t bytes = 0;
        for (const std::string& name : file.names()) { bytes += file.tensor(name).bytes(); }
        EXPECT_TRUE(bytes <= 3000 || file.names().size() == 1);
    }
    EXPECT_GT(shards, 3U);
    EXPECT_TRUE(equal(logits("from"), logits("shards")));
    // One file again, over the shards: none of them stays.
    convert_model(folder_ / "shards", folder_ / "whole", {});
    EXPECT_TRUE(equal(logits("from"), logits("whole")));
    Model::load(folder_ / "from").save(folder_ / "shards");
    EXPECT_FALSE(std::filesystem::exists(folder_ / "shards" / "model.safetensors.index.json"));
    EXPECT_TRUE(equal(logits("from"), logits("shards")));
    Model::load(folder_ / "from").save(folder_ / "shards", {.max_shard_bytes = 5000});
    EXPECT_FALSE(std::filesystem::exists(folder_ / "shards" / "model.safetensors"));
    EXPECT_TRUE(equal(logits("from"), logits("shards")));
}

TEST_F(ConvertModel, GroupsOfEqualHeadsComputeTheSame) {
    // Heads 0 and 1, 2 and 3 of keys and values become equal; then their means are they.
    const SafetensorsFile file = SafetensorsFile::open(folder_ / "from" / "model.safetensors");
    std::deque<Tensor> kept;
    std::vector<NamedView> tensors;
    for (const std::string& name : file.names()) {
        kept.push_back(file.tensor(name));
        if (name.find("k_proj") != std::string::npos || name.find("v_proj") != std::string::npos) {
            float* rows = kept.back().as<float>();
            for (const int head : {1, 3}) { std::copy_n(rows + (head - 1) * 4 * 16, 4 * 16, rows + head * 4 * 16); }
        }
        tensors.push_back({name, kept.back().view()});
    }
    write_safetensors(folder_ / "from" / "model.safetensors", tensors);
    convert_model(folder_ / "from", folder_ / "grouped", {.kv_heads = 2});
    const Model grouped = Model::load(folder_ / "grouped");
    EXPECT_EQ(grouped.config().decoder.layers[1].attention.kv_heads, 2);
    const Tensor a = logits("from"), b = logits("grouped");
    for (std::int64_t n = 0; n < a.elements(); ++n) { EXPECT_NEAR(a.as<float>()[n], b.as<float>()[n], 1e-5); }
    convert_model(folder_ / "grouped", folder_ / "one", {.dtype = DType::bf16, .kv_heads = 1});
    EXPECT_EQ(Model::load(folder_ / "one").config().decoder.layers[0].attention.kv_heads, 1);
    EXPECT_EQ(Model::load(folder_ / "one").parameters().list().front().value.dtype(), DType::bf16);
}

TEST_F(ConvertModel, RefusesAndWritesNothing) {
    EXPECT_EQ(refusal({.kv_heads = 3}), "[convert_model] kv_heads: expected a divisor of 4, got 3");
    EXPECT_EQ(refusal({.dtype = DType::i32}), "[convert_model] dtype: expected f32, bf16, f16 or f64, got i32");
    EXPECT_FALSE(std::filesystem::exists(folder_ / "to"));
    EXPECT_THROW(convert_model(folder_ / "from", folder_ / "from", {.kv_heads = 2}), Error);
    std::ofstream(folder_ / "from" / "config.json") << R"({"model_type": "gpt2", "vocab_size": 20, "n_embd": 16,
        "n_head": 4, "n_layer": 2, "n_positions": 32})";
    EXPECT_EQ(refusal({.kv_heads = 2}),
              "[convert_model] kv_heads: expected a model with projections of keys and of values, got gpt2");
    EXPECT_FALSE(std::filesystem::exists(folder_ / "to"));
}

}  // namespace
}  // namespace heed
