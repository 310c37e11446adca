#pragma once
#include "conformance/naive.h"

#include <functional>
#include <memory>
#include <string>

namespace heed::conformance {

/// Memory for everything a call writes, in the case's layouts, poisoned.
struct Outputs {
    explicit Outputs(const Problem& problem);
    Placed out, lse, dq, dk, dv, dbias, dsinks, dslopes;

    AttentionGradients gradients();
    Results results() const;
    /// Name of the first output with something written around it, or null.
    const char* written_around() const;
};

/// The same on a GPU, from copies of all tensors there; short lists stay on the host. Null where the kernel declines; a
/// backward pass that it declines is cuda-any's.
std::unique_ptr<Outputs> run_on_gpu(const Problem& problem, const std::string& kernel);

/// Forward and backward with one kernel. Null where a kernel of a GPU declines.
std::unique_ptr<Outputs> run(Context& context, const Problem& problem, const std::string& kernel);

/// Kernels may take a shorter way where nobody asks for lse: every other case has its out from such a call, made last.
bool out_without_lse(const Problem& problem);

/// The reference in double on the clean inputs: what every kernel is compared with.
Results oracle(Context& context, const Problem& problem);

/// The kernels of this build that can run on this machine and that HEED_CONFORMANCE_KERNELS (names with commas
/// between; default all) asks for.
std::vector<std::string> kernels_to_test(bool on_gpu = false);
/// HEED_CONFORMANCE_PASS=forward: for work on a kernel whose backward pass is still to come.
bool forward_only();
/// Which kernels take this problem. Where a row of a family ("cpu-avx2/decode") does, the family's own does not count:
/// it would do the same.
class Fitting {
public:
    explicit Fitting(const Problem& problem);
    bool operator()(const std::string& kernel) const;

private:
    std::vector<KernelVerdict> verdicts_;
};
bool fits(const Problem& problem, const std::string& kernel);

/// HEED_CASE (or --case N): that one alone; HEED_TEST_STRIDE=n: every n-th, beginning with `first`.
std::vector<Case> cases_to_test(int every = 1, int first = 0);

}  // namespace heed::conformance
