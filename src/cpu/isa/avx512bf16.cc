#include "cpu/attention_isa.h"
#include "cpu/isa/tables.h"

namespace heed::cpu {
namespace {

struct Avx512Bf16 {
    static constexpr int lanes = 16;
    static constexpr int registers = 32;
    static constexpr bool bf16_products = true;
};

}  // namespace

const AttentionFunctions avx512bf16_attention = functions<Avx512Bf16>();

}  // namespace heed::cpu
