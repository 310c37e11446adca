#pragma once
#include <string>
#include <vector>

#include <heed/attention.h>

namespace heed::testing {

/// Attention's kernels that this machine can run: the list names those of other machines, too.
inline std::vector<std::string> runnable_kernels() {
    std::vector<std::string> names;
    for (const KernelVerdict& verdict : explain({}, {.kernel = "reference"}).verdicts) {
        if (verdict.fits) { names.push_back(verdict.kernel); }
    }
    return names;
}

}  // namespace heed::testing
