#pragma once
#include "kernel/clamped_gate_problem.h"
#include "kernel/kernel.h"
#include "kernel/log_decay_problem.h"
#include "kernel/merge_problem.h"
#include "kernel/rotate_problem.h"
#include "kernel/row_sums_problem.h"

#include <vector>

namespace heed::cuda {

/// The rows of the GPU for what operations made of others need, for merging, decays of tokens and rotations by given
/// tables; none where heed is built without CUDA.
std::vector<Kernel<HeadSumProblem>> head_sum_kernels();
std::vector<Kernel<WeightedSumProblem>> weighted_sum_kernels();
std::vector<Kernel<HeadDotProblem>> head_dot_kernels();
std::vector<Kernel<SeenLatentsProblem>> seen_latents_kernels();
std::vector<Kernel<MergeProblem>> merge_kernels();
std::vector<Kernel<LogDecayProblem>> log_decay_kernels();
std::vector<Kernel<RotateProblem>> rotate_kernels();
std::vector<Kernel<ClampedGateProblem>> clamped_gate_kernels();

}  // namespace heed::cuda
