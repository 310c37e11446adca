#include "io/gguf_blocks.h"

#include <cmath>
#include <cstring>
#include <utility>

#include "base/dispatch.h"

namespace heed {
namespace {

/// Small blocks have 32 numbers, those whose scales are quantised themselves ("K") 256.
constexpr std::size_t small = 32, large = 256;

/// The bytes of one block.
class Block {
public:
    explicit Block(const std::byte* bytes) : bytes_(bytes) {}

    int at(std::size_t n) const { return std::to_integer<int>(bytes_[n]); }
    int low(std::size_t n) const { return at(n) & 15; }
    int high(std::size_t n) const { return at(n) >> 4; }
    int signed_at(std::size_t n) const { return static_cast<std::int8_t>(bytes_[n]); }
    float half(std::size_t n) const {
        alignas(2) std::byte aligned[2];
        std::memcpy(aligned, bytes_ + n, sizeof(aligned));
        return static_cast<float>(read_number(DType::f16, aligned, 0));
    }
    Block from(std::size_t n) const { return Block(bytes_ + n); }

private:
    const std::byte* bytes_;
};

/// The 16 bytes at `from` hold the first half of the block in their low four bits, the second in the high ones.
template <class Number>
void unpack_halves(const Block& block, std::size_t from, float* to, const Number& number) {
    for (std::size_t n = 0; n < small / 2; ++n) {
        to[n] = number(block.low(from + n), n);
        to[n + small / 2] = number(block.high(from + n), n + small / 2);
    }
}

void unpack_q4_0(const Block& block, float* to) {
    const float scale = block.half(0);
    unpack_halves(block, 2, to, [&](int q, std::size_t) { return scale * static_cast<float>(q - 8); });
}

void unpack_q4_1(const Block& block, float* to) {
    const float scale = block.half(0), least = block.half(2);
    unpack_halves(block, 4, to, [&](int q, std::size_t) { return scale * static_cast<float>(q) + least; });
}

/// The fifth bits of all 32 numbers stand apart, in the order of the numbers.
int fifth_bit(const Block& block, std::size_t from, std::size_t n) {
    return (block.at(from + n / 8) >> (n % 8) & 1) << 4;
}

void unpack_q5_0(const Block& block, float* to) {
    const float scale = block.half(0);
    unpack_halves(block, 6, to,
                  [&](int q, std::size_t n) { return scale * static_cast<float>((q | fifth_bit(block, 2, n)) - 16); });
}

void unpack_q5_1(const Block& block, float* to) {
    const float scale = block.half(0), least = block.half(2);
    unpack_halves(block, 8, to,
                  [&](int q, std::size_t n) { return scale * static_cast<float>(q | fifth_bit(block, 4, n)) + least; });
}

void unpack_q8_0(const Block& block, float* to) {
    const float scale = block.half(0);
    for (std::size_t n = 0; n < small; ++n) { to[n] = scale * static_cast<float>(block.signed_at(2 + n)); }
}

constexpr int iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

void unpack_iq4_nl(const Block& block, float* to) {
    const float scale = block.half(0);
    unpack_halves(block, 2, to, [&](int q, std::size_t) { return scale * static_cast<float>(iq4_values[q]); });
}

void unpack_iq4_xs(const Block& block, float* to) {
    const float scale = block.half(0);
    const int high = block.at(2) | block.at(3) << 8;
    for (std::size_t part = 0; part < large / small; ++part) {
        const int low = block.at(4 + part / 2) >> (4 * (part % 2)) & 15;
        const float own = scale * static_cast<float>((low | (high >> (2 * part) & 3) << 4) - 32);
        unpack_halves(block, 8 + 16 * part, to + small * part,
                      [&](int q, std::size_t) { return own * static_cast<float>(iq4_values[q]); });
    }
}

/// Numbers of 4 bits (sign, two bits of exponent, one of mantissa) and a power of two for all: the microscaling format.
void unpack_mxfp4(const Block& block, float* to) {
    constexpr int doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    const auto half_scale = static_cast<float>(std::ldexp(1.0, block.at(0) - 128));
    unpack_halves(block, 1, to, [&](int q, std::size_t) { return half_scale * static_cast<float>(doubled[q]); });
}

/// 16 groups of 16: a scale and a least number of 4 bits each; numbers of 2 bits, four groups in the same bytes.
void unpack_q2_k(const Block& block, float* to) {
    const float scale = block.half(80), least = block.half(82);
    for (std::size_t n = 0; n < large; ++n) {
        const std::size_t group = n / 16, byte = n / 128 * 32 + n % 32, shift = n % 128 / 32 * 2;
        const int q = block.at(16 + byte) >> shift & 3;
        to[n] = scale * static_cast<float>(block.low(group)) * static_cast<float>(q) -
                least * static_cast<float>(block.high(group));
    }
}

/// 16 groups of 16 with scales of 6 bits; two bits of a number as in q2_k, and the third apart.
void unpack_q3_k(const Block& block, float* to) {
    const float scale = block.half(108);
    for (std::size_t n = 0; n < large; ++n) {
        const std::size_t group = n / 16, byte = n / 128 * 32 + n % 32, shift = n % 128 / 32 * 2;
        const int low = group < 8 ? block.low(96 + group) : block.high(96 + group - 8);
        const int high = block.at(104 + group % 4) >> (group / 4 * 2) & 3;
        const int third = block.at(n % 32) >> (n / 32) & 1;
        const int q = (block.at(32 + byte) >> shift & 3) - (third != 0 ? 0 : 4);
        to[n] = scale * static_cast<float>((low | high << 4) - 32) * static_cast<float>(q);
    }
}

/// The scale and the least number, 6 bits each, of a group of 32 in q4_k and q5_k.
std::pair<int, int> scale_and_least(const Block& scales, std::size_t group) {
    if (group < 4) { return {scales.at(group) & 63, scales.at(group + 4) & 63}; }
    return {scales.low(group + 4) | scales.at(group - 4) >> 6 << 4,
            scales.high(group + 4) | scales.at(group) >> 6 << 4};
}

/// q4_k, and q5_k, which has a fifth bit for each number.
void unpack_q45_k(const Block& block, float* to, bool five) {
    const float scale = block.half(0), least = block.half(2);
    const std::size_t low_bits = five ? 48 : 16;
    for (std::size_t n = 0; n < large; ++n) {
        const std::size_t group = n / 32, byte = low_bits + n / 64 * 32 + n % 32;
        const auto [own_scale, own_least] = scale_and_least(block.from(4), group);
        int q = group % 2 == 0 ? block.low(byte) : block.high(byte);
        if (five) { q |= (block.at(16 + n % 32) >> group & 1) << 4; }
        to[n] = scale * static_cast<float>(own_scale) * static_cast<float>(q) - least * static_cast<float>(own_least);
    }
}

void unpack_q6_k(const Block& block, float* to) {
    const float scale = block.half(208);
    for (std::size_t n = 0; n < large; ++n) {
        const std::size_t part = n / 128, quarter = n % 128 / 32, byte = 64 * part + quarter % 2 * 32 + n % 32;
        const int low = quarter < 2 ? block.low(byte) : block.high(byte);
        const int high = block.at(128 + 32 * part + n % 32) >> (2 * quarter) & 3;
        to[n] = scale * static_cast<float>(block.signed_at(192 + n / 16)) * static_cast<float>((low | high << 4) - 32);
    }
}

void unpack_block(GgufType type, const Block& block, float* to) {
    switch (type) {
        case GgufType::q4_0: return unpack_q4_0(block, to);
        case GgufType::q4_1: return unpack_q4_1(block, to);
        case GgufType::q5_0: return unpack_q5_0(block, to);
        case GgufType::q5_1: return unpack_q5_1(block, to);
        case GgufType::q8_0: return unpack_q8_0(block, to);
        case GgufType::q2_k: return unpack_q2_k(block, to);
        case GgufType::q3_k: return unpack_q3_k(block, to);
        case GgufType::q4_k: return unpack_q45_k(block, to, false);
        case GgufType::q5_k: return unpack_q45_k(block, to, true);
        case GgufType::q6_k: return unpack_q6_k(block, to);
        case GgufType::iq4_nl: return unpack_iq4_nl(block, to);
        case GgufType::iq4_xs: return unpack_iq4_xs(block, to);
        case GgufType::mxfp4: return unpack_mxfp4(block, to);
        case GgufType::f32:
        case GgufType::f16:
        case GgufType::bf16: return;
    }
}

}  // namespace

std::optional<GgufLayout> gguf_layout(std::uint32_t type) {
    switch (static_cast<GgufType>(type)) {
        case GgufType::f32: return GgufLayout{1, 4};
        case GgufType::f16:
        case GgufType::bf16: return GgufLayout{1, 2};
        case GgufType::q4_0:
        case GgufType::iq4_nl: return GgufLayout{small, 18};
        case GgufType::q4_1: return GgufLayout{small, 20};
        case GgufType::q5_0: return GgufLayout{small, 22};
        case GgufType::q5_1: return GgufLayout{small, 24};
        case GgufType::q8_0: return GgufLayout{small, 34};
        case GgufType::mxfp4: return GgufLayout{small, 17};
        case GgufType::q2_k: return GgufLayout{large, 84};
        case GgufType::q3_k: return GgufLayout{large, 110};
        case GgufType::q4_k: return GgufLayout{large, 144};
        case GgufType::q5_k: return GgufLayout{large, 176};
        case GgufType::q6_k: return GgufLayout{large, 210};
        case GgufType::iq4_xs: return GgufLayout{large, 136};
    }
    return std::nullopt;
}

std::string gguf_type_name(std::uint32_t type) {
    static constexpr std::pair<std::uint32_t, const char*> others[] = {
        {9, "Q8_1"},   {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"}, {19, "IQ1_S"},
        {21, "IQ3_S"}, {22, "IQ2_S"}, {24, "I8"},      {25, "I16"},    {26, "I32"},     {27, "I64"},
        {28, "F64"},   {29, "IQ1_M"}, {34, "TQ1_0"},   {35, "TQ2_0"}};
    for (const auto& [number, name] : others) {
        if (number == type) { return name; }
    }
    return "type " + std::to_string(type);
}

void unpack_gguf(GgufType type, const std::byte* from, float* to, std::int64_t blocks) {
    const GgufLayout layout = *gguf_layout(static_cast<std::uint32_t>(type));
    for (std::int64_t n = 0; n < blocks; ++n, from += layout.bytes, to += layout.numbers) {
        unpack_block(type, Block(from), to);
    }
}

}  // namespace heed
