#include "cpu/attention_isa.h"
#include "cpu/isa/tables.h"

namespace heed::cpu {
namespace {

struct Avx512 {
    static constexpr int lanes = 16;
    static constexpr int registers = 32;
    static constexpr bool bf16_products = false;
};

}  // namespace

const AttentionFunctions avx512_attention = functions<Avx512>();

}  // namespace heed::cpu
