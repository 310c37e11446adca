#include <heed/gguf.h>
#include <heed/model.h>
#include <heed/tokenizer.h>

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
    SmallGguf& text(const std::string& key, const std::string& value) {
        more_.push_back(counted(key) + bytes(std::uint32_t{8}) + counted(value));
        return *this;
    }
    SmallGguf& texts(const std::string& key, const std::vector<std::string>& values) {
        std::string entry = counted(key) + bytes(std::uint32_t{9}) + bytes(std::uint32_t{8});
        entry += bytes(std::uint64_t{values.size()});
        for (const std::string& value : values) { entry += counted(value); }
        more_.push_back(entry);
        return *this;
    }
    /// type 5: i32, 6: f32.
    template <class T>
    SmallGguf& numbers(const std::string& key, std::uint32_t type, const std::vector<T>& values) {
        std::string entry = counted(key) + bytes(std::uint32_t{9}) + bytes(type) + bytes(std::uint64_t{values.size()});
        for (const T value : values) { entry += bytes(value); }
        more_.push_back(entry);
        return *this;
    }
    SmallGguf& number(const std::string& key, float value) {
        more_.push_back(counted(key) + bytes(std::uint32_t{6}) + bytes(value));
        return *this;
    }
    SmallGguf& tokenizer_count(const std::string& key, std::uint32_t value) {
        more_.push_back(counted("tokenizer.ggml." + key) + bytes(std::uint32_t{4}) + bytes(value));
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
        put(std::uint64_t{counts_.size() + more_.size() + 1});
        put_text("general.architecture");
        put(std::uint32_t{8});
        put_text(architecture_);
        for (const auto& [key, value] : counts_) {
            put_text(key);
            put(std::uint32_t{4});
            put(value);
        }
        for (const std::string& entry : more_) { out += entry; }
        std::uint64_t offset = 0;
        for (const Entry& one : tensors_) {
            put_text(one.name);
            put(std::uint32_t{one.rows > 0 ? 2U : 1U});
            put(one.columns);
            if (one.rows > 0) { put(one.rows); }
            put(std::uint32_t{0});
            put(offset);
            offset += size_of_tensor(one) * 4;
        }
        out.resize((out.size() + 31) / 32 * 32);
        for (const Entry& one : tensors_) {
            for (std::uint64_t n = 0; n < size_of_tensor(one); ++n) { put(static_cast<float>(n) / 64); }
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
    template <class T>
    static std::string bytes(T value) {
        return {reinterpret_cast<const char*>(&value), sizeof(value)};
    }
    static std::string counted(const std::string& text) { return bytes(std::uint64_t{text.size()}) + text; }
    static std::uint64_t size_of_tensor(const Entry& one) { return one.columns * std::max<std::uint64_t>(one.rows, 1); }

    std::string architecture_;
    std::map<std::string, std::uint32_t> counts_;
    std::vector<std::string> more_;
    std::vector<Entry> tensors_;
};

/// What was converted, for as long as a test looks at it.
class Converted {
public:
    explicit Converted(const SmallGguf& file)
        : folder_(std::filesystem::temp_directory_path() / ("heed_converted_" + std::to_string(::getpid()))) {
        std::filesystem::create_directories(folder_);
        try {
            no_tokenizer = convert_gguf(file.write(folder_), folder_).no_tokenizer;
        } catch (...) {
            std::filesystem::remove_all(folder_);
            throw;
        }
    }
    Converted(const Converted&) = delete;
    Converted& operator=(const Converted&) = delete;
    ~Converted() { std::filesystem::remove_all(folder_); }
    const std::filesystem::path& folder() const { return folder_; }
    std::string no_tokenizer;

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

TEST(ConvertGguf, ByteLevelTokenizersComeAlong) {
    SmallGguf file("llama");
    file.text("tokenizer.ggml.model", "gpt2").text("tokenizer.ggml.pre", "llama-bpe");
    file.texts("tokenizer.ggml.tokens", {"a", "b", "ab", "\u0120", "\u0120ab", "<|begin|>", "<tool>"});
    file.texts("tokenizer.ggml.merges", {"a b", "\u0120 ab"});
    file.numbers<std::int32_t>("tokenizer.ggml.token_type", 5, {1, 1, 1, 1, 1, 3, 4});
    file.tokenizer_count("bos_token_id", 5).text("tokenizer.chat_template", "{{ messages }}");
    const Converted converted(file);
    EXPECT_EQ(converted.no_tokenizer, "");
    const Tokenizer tokenizer(converted.folder());
    EXPECT_EQ(tokenizer.encode("ab ab<tool>b"), (std::vector<std::int64_t>{5, 2, 4, 6, 1}));
    EXPECT_EQ(tokenizer.decode(std::vector<std::int64_t>{5, 2, 4, 6}), "ab ab<tool>");
    EXPECT_TRUE(std::filesystem::exists(converted.folder() / "chat_template.jinja"));
}

TEST(ConvertGguf, PiecesWithScoresBecomeMerges) {
    SmallGguf file("llama");
    file.text("tokenizer.ggml.model", "llama");
    file.texts("tokenizer.ggml.tokens", {"<unk>", "<s>", "<0x21>", "\u2581", "a", "b", "c", "bc", "ab", "\u2581a"});
    file.numbers<float>("tokenizer.ggml.scores", 6, {0, 0, 0, -5, -6, -7, -8, -1, -2, -3});
    file.numbers<std::int32_t>("tokenizer.ggml.token_type", 5, {2, 3, 6, 1, 1, 1, 1, 1, 1, 1});
    file.tokenizer_count("bos_token_id", 1).tokenizer_count("unknown_token_id", 0);
    const Converted converted(file);
    EXPECT_EQ(converted.no_tokenizer, "");
    const Tokenizer tokenizer(converted.folder());
    // b and c merge before a and b, and the first space is made.
    EXPECT_EQ(tokenizer.encode("abc!ab"), (std::vector<std::int64_t>{1, 9, 7, 2, 8}));
    EXPECT_EQ(tokenizer.decode(std::vector<std::int64_t>{1, 9, 7, 2, 8}), "abc!ab");
}

TEST(ConvertGguf, TokenizersThatAreNotKnownAreNamed) {
    SmallGguf other("llama"), cut("llama"), broken("llama");
    other.text("tokenizer.ggml.model", "rwkv").texts("tokenizer.ggml.tokens", {"a"});
    cut.text("tokenizer.ggml.model", "gpt2").text("tokenizer.ggml.pre", "of nobody");
    cut.texts("tokenizer.ggml.tokens", {"a"}).texts("tokenizer.ggml.merges", {});
    broken.text("tokenizer.ggml.model", "llama").texts("tokenizer.ggml.tokens", {"\xFF"});
    broken.numbers<float>("tokenizer.ggml.scores", 6, {0});
    for (const auto& [file, words] : {std::pair{&other, "rwkv"}, {&cut, "of nobody"}, {&broken, "UTF-8"}}) {
        const Converted converted(*file);
        EXPECT_NE(converted.no_tokenizer.find(words), std::string::npos) << converted.no_tokenizer;
        EXPECT_FALSE(std::filesystem::exists(converted.folder() / "tokenizer.json"));
    }
}

TEST(ConvertGguf, ScalingOfRopeIsRead) {
    SmallGguf linear("llama");
    linear.text("llama.rope.scaling.type", "linear").number("llama.rope.scaling.factor", 4);
    const Model model = Model::load(Converted(linear).folder());
    ASSERT_TRUE(model.config().decoder.layers[0].attention.rope);
    const auto* scaling = std::get_if<rope_scaling::Linear>(&model.config().decoder.layers[0].attention.rope->scaling);
    ASSERT_NE(scaling, nullptr);
    EXPECT_EQ(scaling->factor, 4);
    EXPECT_THROW(Converted(SmallGguf("llama").text("llama.rope.scaling.type", "longrope")), Error);
    EXPECT_THROW(Converted(SmallGguf("llama").text("llama.rope.scaling.type", "linear")), Error);
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
