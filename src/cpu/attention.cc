#include "cpu/attention.h"

namespace heed::cpu {

std::span<const Attention> attention_list() { return {}; }

}  // namespace heed::cpu
