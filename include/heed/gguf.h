#pragma once
/// GGUF files: what llama.cpp stores models in. Read-only.

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <heed/error.h>
#include <heed/tensor.h>

namespace heed {

/// How a tensor's numbers are stored.
enum class GgufType : std::uint32_t {
    f32 = 0,
    f16 = 1,
    q4_0 = 2,  ///< 32 numbers of 4 bits with one f16 scale: (q - 8) * scale
    q4_1 = 3,  ///< the same with a least number: q * scale + least
    q5_0 = 6,  ///< 5 bits: (q - 16) * scale
    q5_1 = 7,
    q8_0 = 8,   ///< 32 numbers of 8 bits with one f16 scale
    q2_k = 10,  ///< 256 numbers in groups whose scales are quantised themselves, as all of the K types
    q3_k = 11,
    q4_k = 12,
    q5_k = 13,
    q6_k = 14,
    iq4_nl = 20,  ///< 32 numbers, each one of sixteen values that lie closer near 0
    iq4_xs = 23,  ///< the same values, 256 numbers with quantised scales
    bf16 = 30,
    mxfp4 = 39,  ///< 32 numbers of 4 bits, E2M1, with a power of two
};

using GgufValue = std::variant<std::int64_t, double, bool, std::string, std::vector<std::int64_t>, std::vector<double>,
                               std::vector<std::string>>;

class HEED_API GgufFile {
public:
    struct Entry {
        GgufType type = GgufType::f32;
        Shape shape{};  ///< row-major: the last axis is contiguous
        std::uint64_t begin = 0, end = 0;
    };

    /// FileError where the file cannot be read or breaks the format, or holds a type that heed does not know.
    static GgufFile open(const std::filesystem::path& path);
    static GgufFile from_memory(std::span<const std::byte> bytes, std::string label = "memory");
    GgufFile(GgufFile&&) noexcept;
    GgufFile& operator=(GgufFile&&) noexcept;
    ~GgufFile();

    const std::vector<std::string>& names() const;
    bool contains(std::string_view name) const;
    const Entry& entry(std::string_view name) const;
    const std::map<std::string, GgufValue>& metadata() const;
    /// A copy: f32, f16 and bf16 as they are, quantised ones as f32.
    Tensor tensor(std::string_view name) const;

private:
    struct Contents;
    explicit GgufFile(std::unique_ptr<Contents> contents);
    std::unique_ptr<Contents> contents_;
};

struct GgufConversion {
    /// Why there is no tokenizer.json; empty: there is one.
    std::string no_tokenizer{};
};

/// Writes a folder as Hugging Face has it from a GGUF of the architecture llama, qwen2 or qwen3, so that Model::load
/// and Tokenizer take it: config.json, model.safetensors, and where the file has them tokenizer.json (byte-level BPE
/// cut as GPT-2, Llama 3 or Qwen2 do, or pieces with scores) and chat_template.jinja. Quantised tensors become f32.
/// config.json is written last.
HEED_API GgufConversion convert_gguf(const std::filesystem::path& gguf, const std::filesystem::path& folder);

}  // namespace heed
