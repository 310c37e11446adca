#pragma once
#include "cpu/amx.h"
#include "cpu/isa/tables.h"

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace heed::cpu {

/// An instruction set that this library was built for.
struct InstructionSet {
    std::string_view name;  ///< "avx512"
    std::string_view what;  ///< for explanations
    const char* missing;    ///< null where this CPU has it, otherwise what the CPU lacks
    const Kernels* kernels;
};

/// Best first; the last one runs anywhere. Looked up once.
std::span<const InstructionSet> instruction_sets();

/// The best that this CPU has, whatever is forced.
const InstructionSet& instruction_set();

/// Rows for the list of an operation, one for each instruction set, best first. fill.operator()<kernels>(row) gets them
/// with name, what and missing in place; `how` is the beginning of what explain() says of them.
template <class Row, class Fill>
std::vector<Row> rows_of_sets(std::string_view how, Fill fill) {
    std::vector<Row> rows;
    const auto add = [&]<const Kernels & kernels>(const InstructionSet& set) {
        if (set.kernels != &kernels) { return; }
        Row& row = rows.emplace_back();
        row.name = "cpu-" + std::string(set.name);
        row.what = std::string(how) + ", " + std::string(set.what);
        row.missing = set.missing;
        fill.template operator()<kernels>(row);
    };
    for (const InstructionSet& set : instruction_sets()) {
#if defined(HEED_HAS_AVX512BF16)
        add.template operator()<amx_kernels>(set);
        add.template operator()<avx512bf16_kernels>(set);
#endif
#if defined(HEED_HAS_AVX512)
        add.template operator()<avx512_kernels>(set);
#endif
#if defined(HEED_HAS_AVX2)
        add.template operator()<avx2_kernels>(set);
#endif
#if defined(HEED_HAS_NEON)
        add.template operator()<neon_kernels>(set);
#endif
        add.template operator()<portable_kernels>(set);
    }
    return rows;
}

}  // namespace heed::cpu
