#pragma once
/// Who computes an operation, and why not the others. Each operation has an `explain` and a list of its kernels in its
/// own header; this is what they answer with.

#include <string>
#include <vector>

#include <heed/dtype.h>

namespace heed {

struct KernelVerdict {
    std::string kernel{};
    bool fits = false;
    std::string reason{};  ///< why it runs, could run, or cannot
};

struct Explanation {
    std::string kernel{};                   ///< the one that would run
    std::vector<KernelVerdict> verdicts{};  ///< best first, the reference last
};

}  // namespace heed
