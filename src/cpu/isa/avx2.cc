#include "cpu/attention_isa.h"
#include "cpu/isa/tables.h"

namespace heed::cpu {
namespace {

struct Avx2 {
    static constexpr int lanes = 8;
    static constexpr int registers = 16;
    static constexpr bool bf16_products = false;
};

}  // namespace

const AttentionFunctions avx2_attention = functions<Avx2>();

}  // namespace heed::cpu
