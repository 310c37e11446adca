#pragma once
#include "cpu/isa/tables.h"

#include <span>
#include <string>
#include <string_view>

namespace heed::cpu {

/// An instruction set that this library was built for.
struct InstructionSet {
    std::string_view name;  ///< "avx512"
    std::string_view what;  ///< for explanations
    std::string missing;    ///< empty where this CPU has it, otherwise what the CPU lacks
    const Kernels* kernels;
};

/// Best first; the last one runs anywhere. Looked up once.
std::span<const InstructionSet> instruction_sets();

/// The best that this CPU has. The environment variable HEED_KERNEL=cpu-NAME forces one for every operation; an
/// unknown or absent one is left for attention's own dispatch to refuse.
const InstructionSet& instruction_set();

}  // namespace heed::cpu
