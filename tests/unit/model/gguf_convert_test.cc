#include <heed/gguf.h>
#include <heed/model.h>

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>

namespace heed::testing {
namespace {

/// A small model of one layer in GGUF, f32: width 8, 2 heads of 4 for queries and 1 for keys, 12 inside, 10 tokens.
class SmallGguf {
public:
    explicit SmallGguf(std::string architecture) : architecture_(std::move(architecture)) {
        count("block_count", 1).count("embedding_length", 8).count("feed_forward_length", 12);
        count("attention.head_count", 2).count("attention.head_count_kv", 1);
        tensor("token_embd.weight", 8, 10).tensor("output_norm.weight", 8).tensor("output.weight", 8, 10);
        tensor("blk.0.attn_norm.weight", 8).tensor("blk.0.ffn_norm.weight", 8).tensor("blk.0.attn_q.weight", 8, 8);
        tensor("blk.0.attn_k.weight", 8, 4)
            .tensor("blk.0.attn_v.weight", 8, 4)
            .tensor("blk.0.attn_output.weight", 8, 8);
        tensor("blk.0.ffn_gate.weight", 8, 12)
            .tensor("blk.0.ffn_up.weight", 8, 12)
            .tensor("blk.0.ffn_down.weight", 12, 8);
    }
    SmallGguf& count(const std::string& key, std::uint32_t value) {
        counts_[architecture_ + "." + key] = value;
        return *this;
    }
    SmallGguf& tensor(const std::string& name, std::uint64_t columns, std::uint64_t rows = 0) {
        tensors_.push_back({name, columns, rows});
        return *this;
    }
    std::filesystem::path write(const std::filesystem::path& folder) const {
        std::string out;
        const auto put = [&](auto value) { out.append(reinterpret_cast<const char*>(&value), sizeof(value)); };
        const auto put_text = [&](const std::string& text) {
            put(std::uint64_t{text.size()});
            out += text;
        };
        put(0x46554747U);
        put(std::uint32_t{3});
        put(std::uint64_t{tensors_.size()});
        put(std::uint64_t{counts_.size() + 1});
        put_text("general.architecture");
        put(std::uint32_t{8});
        put_text(architecture_);
        for (const auto& [key, value] : counts_) {
            put_text(key);
            put(std::uint32_t{4});
            put(value);
        }
        std::uint64_t offset = 0;
        for (const Entry& one : tensors_) {
            put_text(one.name);
            put(std::uint32_t{one.rows > 0 ? 2U : 1U});
            put(one.columns);
            if (one.rows > 0) { put(one.rows); }
            put(std::uint32_t{0});
            put(offset);
            offset += numbers(one) * 4;
        }
        out.resize((out.size() + 31) / 32 * 32);
        for (const Entry& one : tensors_) {
            for (std::uint64_t n = 0; n < numbers(one); ++n) { put(static_cast<float>(n) / 64); }
        }
        const std::filesystem::path path = folder / "small.gguf";
        std::ofstream(path, std::ios::binary) << out;
        return path;
    }

private:
    struct Entry {
        std::string name;
        std::uint64_t columns, rows;
    };
    static std::uint64_t numbers(const Entry& one) { return one.columns * std::max<std::uint64_t>(one.rows, 1); }

    std::string architecture_;
    std::map<std::string, std::uint32_t> counts_;
    std::vector<Entry> tensors_;
};

/// What was converted, for as long as a test looks at it.
class Converted {
public:
    explicit Converted(const SmallGguf& file)
        : folder_(std::filesystem::temp_directory_path() / ("heed_converted_" + std::to_string(::getpid()))) {
        std::filesystem::create_directories(folder_);
        try {
            convert_gguf(file.write(folder_), folder_);
        } catch (...) {
            std::filesystem::remove_all(folder_);
            throw;
        }
    }
    Converted(const Converted&) = delete;
    Converted& operator=(const Converted&) = delete;
    ~Converted() { std::filesystem::remove_all(folder_); }
    const std::filesystem::path& folder() const { return folder_; }

private:
    std::filesystem::path folder_;
};

TEST(ConvertGguf, ModelsOfEveryArchitectureLoad) {
    SmallGguf qwen2("qwen2"), qwen3("qwen3");
    qwen2.tensor("blk.0.attn_q.bias", 8).tensor("blk.0.attn_k.bias", 4).tensor("blk.0.attn_v.bias", 4);
    qwen3.tensor("blk.0.attn_q_norm.weight", 4).tensor("blk.0.attn_k_norm.weight", 4);
    for (const SmallGguf& file : {SmallGguf("llama"), qwen2, qwen3}) {
        const Model model = Model::load(Converted(file).folder());
        EXPECT_EQ(model.config().vocab, 10);
    }
}

TEST(ConvertGguf, WhatAnArchitectureHasNotIsRefused) {
    EXPECT_THROW(Converted(SmallGguf("llama").tensor("blk.0.attn_q.bias", 8)), Error);
    EXPECT_THROW(Converted(SmallGguf("llama").tensor("rope_freqs.weight", 2)), Error);
    EXPECT_THROW(Converted(SmallGguf("qwen2").tensor("blk.0.attn_q_norm.weight", 4)), Error);
    EXPECT_THROW(Converted(SmallGguf("qwen2").count("attention.sliding_window", 32)), Error);
    EXPECT_THROW(Converted(SmallGguf("qwen3").count("rope.dimension_count", 2)), Error);
    EXPECT_THROW(Converted(SmallGguf("gemma2")), Error);
}

}  // namespace
}  // namespace heed::testing
