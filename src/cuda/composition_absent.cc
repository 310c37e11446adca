/// heed built without CUDA: no rows.

#include "cuda/composition.h"

namespace heed::cuda {

std::vector<Kernel<HeadSumProblem>> head_sum_kernels() { return {}; }
std::vector<Kernel<WeightedSumProblem>> weighted_sum_kernels() { return {}; }
std::vector<Kernel<HeadDotProblem>> head_dot_kernels() { return {}; }
std::vector<Kernel<SeenLatentsProblem>> seen_latents_kernels() { return {}; }
std::vector<Kernel<MergeProblem>> merge_kernels() { return {}; }
std::vector<Kernel<LogDecayProblem>> log_decay_kernels() { return {}; }
std::vector<Kernel<RotateProblem>> rotate_kernels() { return {}; }
std::vector<Kernel<ClampedGateProblem>> clamped_gate_kernels() { return {}; }

}  // namespace heed::cuda
