#include <heed/model.h>
#include <heed/safetensors.h>

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include <unistd.h>

namespace heed {
namespace {

class LoadModel : public ::testing::Test {
protected:
    void SetUp() override { std::filesystem::create_directories(folder_); }
    void TearDown() override { std::filesystem::remove_all(folder_); }
    void write(const std::string& name, const std::string& text) const {
        std::ofstream(folder_ / name, std::ios::binary) << text;
    }
    std::string refusal() const {
        try {
            Model::load(folder_);
        } catch (const std::exception& error) { return error.what(); }
        return "no error";
    }
    static Model made() {
        return Model::random(read_model_config(R"({"vocab": 12, "d_model": 8, "decoder": {"layers": 2,
            "attention": {"heads": 2}, "feed_forward": {"size": 6}, "positions": {"kind": "rope"}}})"));
    }
    static Tensor logits(const Model& model) {
        Context context(1);
        const std::vector<std::int64_t> ids = {3, 1, 4, 1, 5};
        return model.forward(context, {.input_ids = View(ids.data(), {1, 5})}).logits;
    }
    static bool same(const Tensor& a, const Tensor& b) {
        return a.bytes() == b.bytes() && std::memcmp(a.data(), b.data(), a.bytes()) == 0;
    }

    std::filesystem::path folder_ =
        std::filesystem::temp_directory_path() / ("heed_load_" + std::to_string(::getpid()) + "_" +
                                                  ::testing::UnitTest::GetInstance()->current_test_info()->name());
};

TEST_F(LoadModel, ReadsWhatAFolderAsksOfGeneration) {
    made().save(folder_);
    EXPECT_TRUE(Model::load(folder_).generation().rules.empty());
    write("generation_config.json", R"({"eos_token_id": [3, 4], "num_beams": 2, "early_stopping": "never",
        "bad_words_ids": [[1], [2, 5]], "suppress_tokens": [7], "typical_p": 0.5, "guidance_scale": null,
        "diversity_penalty": 0.0, "renormalize_logits": true})");
    const Model model = Model::load(folder_);
    const GenerationConfig& asked = model.generation();
    EXPECT_EQ(model.config().eos, (std::vector<std::int64_t>{3, 4}));
    EXPECT_EQ(asked.num_beams, 2);
    EXPECT_EQ(asked.early_stopping, "never");
    EXPECT_FALSE(asked.do_sample);
    EXPECT_EQ(asked.rules.bad_words_ids.at(1), (std::vector<std::int64_t>{2, 5}));
    EXPECT_EQ(asked.rules.suppress_tokens, (std::vector<std::int64_t>{7}));
    EXPECT_EQ(asked.unknown, (std::vector<std::string>{"renormalize_logits true"}));
    EXPECT_EQ(asked.unknown_sampled, (std::vector<std::string>{"typical_p 0.5"}));
    write("generation_config.json", R"({"bad_words_ids": [[1, "x"]]})");
    EXPECT_NE(refusal().find("bad_words_ids: expected lists of token ids"), std::string::npos) << refusal();
    write("generation_config.json", R"({"num_beams": 0})");
    EXPECT_NE(refusal().find("num_beams: expected an integer from 1"), std::string::npos) << refusal();
}

TEST_F(LoadModel, WhatWasSavedComesBackToTheBit) {
    const Model model = made();
    model.save(folder_);
    EXPECT_TRUE(same(logits(model), logits(Model::load(folder_))));
    EXPECT_TRUE(same(logits(model), logits(Model::load(folder_, {.copy = true}))));
    EXPECT_EQ(write_model_config(Model::load(folder_).config()), write_model_config(model.config()));
}

TEST_F(LoadModel, ShardsAreOneModel) {
    const Model model = made();
    model.save(folder_);
    const SafetensorsFile whole = SafetensorsFile::open(folder_ / "model.safetensors");
    std::vector<NamedView> parts[2];
    std::string map;
    for (std::size_t i = 0; i < whole.names().size(); ++i) {
        const std::string& name = whole.names()[i];
        parts[i % 2].push_back({name, whole.view(name)});
        map += (map.empty() ? "" : ",") + ("\"" + name + "\": \"part" + std::to_string(i % 2) + ".safetensors\"");
    }
    for (int i = 0; i < 2; ++i) {
        write_safetensors(folder_ / ("part" + std::to_string(i) + ".safetensors"), parts[i]);
    }
    std::filesystem::remove(folder_ / "model.safetensors");
    write("model.safetensors.index.json", "{\"metadata\": {\"total_size\": 1}, \"weight_map\": {" + map + "}}");
    EXPECT_TRUE(same(logits(model), logits(Model::load(folder_))));

    write("model.safetensors.index.json", R"({"weight_map": {"embedding.weight": "../part0.safetensors"}})");
    EXPECT_NE(refusal().find("expected names of files in the folder, got "), std::string::npos);
    write("model.safetensors.index.json", R"({"weight_map": {"nothing": "part0.safetensors"}})");
    EXPECT_NE(refusal().find("which the index says is there"), std::string::npos);
    write("model.safetensors.index.json", R"({"weight_map": ["part0.safetensors"]})");
    EXPECT_NE(refusal().find("weight_map: expected an object"), std::string::npos);
    write("model.safetensors.index.json", R"({"weight_map": {"embedding.weight": 3}})");
    EXPECT_NE(refusal().find("weight_map: expected file names, got 3"), std::string::npos);
}

TEST_F(LoadModel, EveryTensorIsCheckedAndStrangersAreListed) {
    const Model model = made();
    model.save(folder_);
    const SafetensorsFile whole = SafetensorsFile::open(folder_ / "model.safetensors");
    const auto rewritten = [&](const std::string& left_out, const std::vector<NamedView>& more) {
        std::vector<NamedView> tensors = more;
        for (const std::string& name : whole.names()) {
            if (name != left_out) { tensors.push_back({name, whole.view(name)}); }
        }
        write_safetensors(folder_ / "model.safetensors", tensors);
    };
    const std::string name = "decoder.layers.1.feed_forward.up.weight";
    rewritten(name, {});
    EXPECT_NE(refusal().find(name + ": expected shape [6, 8], got no such tensor"), std::string::npos);
    const Tensor wrong(DType::f32, {8, 6}), whole_numbers(DType::i32, {6, 8}), extra(DType::f32, {2});
    rewritten(name, {{name, wrong.view()}});
    EXPECT_NE(refusal().find(name + ": expected shape [6, 8], got [8, 6]"), std::string::npos);
    rewritten(name, {{name, whole_numbers.view()}});
    EXPECT_NE(refusal().find(name + ": expected f32, bf16, f16 or f64, got i32"), std::string::npos);
    rewritten("", {{"stranger", extra.view()}});
    EXPECT_EQ(Model::load(folder_).unused_tensors(), std::vector<std::string>{"stranger"});
}

TEST_F(LoadModel, HalfPrecisionIsLoadedAsItIs) {
    const Model model = made();
    for (const DType dtype : {DType::bf16, DType::f16}) {
        std::vector<Tensor> kept;
        std::vector<NamedView> tensors;
        for (const Parameter& parameter : model.parameters().list()) {
            kept.push_back(Tensor::copy_of(parameter.value).to(dtype));
            tensors.push_back({parameter.name, View(dtype, kept.back().data(), kept.back().shape())});
        }
        model.save(folder_);
        write_safetensors(folder_ / "model.safetensors", tensors);
        const Model half = Model::load(folder_);
        EXPECT_EQ(half.parameters().list().front().value.dtype(), dtype);
        const Tensor x = logits(model), y = logits(half);
        for (std::int64_t i = 0; i < x.elements(); ++i) { EXPECT_NEAR(x.as<float>()[i], y.as<float>()[i], 0.02); }
    }
}

TEST_F(LoadModel, ClaimsThatTheFilesDoNotKeepCostNothing) {
    made().save(folder_);
    write("config.json", R"({"model_type": "mixtral", "hidden_size": 65536, "num_attention_heads": 64,
        "num_hidden_layers": 500, "intermediate_size": 1048576, "vocab_size": 100000, "num_local_experts": 16000000,
        "num_experts_per_tok": 2})");
    EXPECT_NE(refusal().find("got no such tensor"), std::string::npos);
    write("config.json", R"({"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4,
        "num_hidden_layers": 1000, "intermediate_size": 96, "vocab_size": 160})");
    EXPECT_NE(refusal().find("expected 1 to 512, got 1000"), std::string::npos);
    write("config.json", "{");
    EXPECT_NE(refusal().find("config.json: [read_model_config] json: expected JSON text"), std::string::npos);
    std::filesystem::remove(folder_ / "config.json");
    EXPECT_THROW(Model::load(folder_), FileError);
}

TEST_F(LoadModel, NewNumbersMustFit) {
    const Model model = made();
    const Tensor right(DType::f64, {12, 8}), wrong(DType::f32, {8, 12});
    EXPECT_NO_THROW(model.assign("embedding.weight", right.view()));
    EXPECT_EQ(model.parameters().find("embedding.weight")->value.dtype(), DType::f32);
    EXPECT_THROW(model.assign("embedding.weight", wrong.view()), Error);
    EXPECT_THROW(model.assign("nothing", right.view()), Error);
}

}  // namespace
}  // namespace heed
