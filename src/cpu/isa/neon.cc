#include "cpu/attention_isa.h"
#include "cpu/isa/tables.h"

namespace heed::cpu {
namespace {

struct Neon {
    static constexpr int lanes = 4;
    static constexpr int registers = 32;
    static constexpr bool bf16_products = false;
};

}  // namespace

const AttentionFunctions neon_attention = functions<Neon>();

}  // namespace heed::cpu
