#pragma once
#include <string>
#include <vector>

#include <heed/attention.h>

namespace heed::testing {

/// Attention's kernels that this machine can run, and that take any problem that is not of doubles: not those of other
/// machines, which are in the list as well, nor those for some sizes only ("cpu-avx2/decode", but "cpu-avx2/tiles").
inline std::vector<std::string> runnable_kernels() {
    std::vector<std::string> names;
    for (const KernelVerdict& verdict : explain({}, {.kernel = "reference"}).verdicts) {
        const std::size_t slash = verdict.kernel.find('/');
        const bool some = slash != std::string::npos && verdict.kernel.substr(slash) != "/tiles";
        if (verdict.fits && !some) { names.push_back(verdict.kernel); }
    }
    return names;
}

}  // namespace heed::testing
