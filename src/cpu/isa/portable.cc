#include "cpu/attention_isa.h"
#include "cpu/isa/tables.h"

namespace heed::cpu {
namespace {

struct Portable {
    static constexpr int lanes = 4;
    static constexpr int registers = 16;
    static constexpr bool bf16_products = false;
};

}  // namespace

const AttentionFunctions portable_attention = functions<Portable>();

}  // namespace heed::cpu
