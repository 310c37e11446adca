#pragma once
/// Who computes an operation, and why not the others.
///
///     for (const heed::Explanation& e : heed::explain(context, [&](heed::Context& dry) { heed::matmul(dry, a, b, c);
///     })) {
///         std::cout << e.operation << ": " << e.kernel << '\n';
///     }

#include <functional>
#include <string>
#include <vector>

#include <heed/dtype.h>

namespace heed {

class Context;

struct KernelVerdict {
    std::string kernel{};
    bool fits = false;
    std::string reason{};  ///< why it runs, could run, or cannot
};

struct Explanation {
    std::string kernel{};                   ///< the one that would run
    std::vector<KernelVerdict> verdicts{};  ///< best first, the reference last
    std::string operation{};                ///< the function it is for: "matmul"
};

/// What the operations called in `calls` would run, in order, with these very tensors, strides and options. `calls`
/// gets the context and calls any functions on it; their arguments are checked as always (Error), nothing is computed
/// and nothing written. An operation that is made of others (mla_attend) gives an entry for each of them. For
/// operations: caches take tokens in even then. Nobody else may use the context meanwhile.
HEED_API std::vector<Explanation> explain(Context& context, const std::function<void(Context&)>& calls);

}  // namespace heed
