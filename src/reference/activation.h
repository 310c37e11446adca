#pragma once
#include "kernel/activation_problem.h"

namespace heed::reference {

/// f(x) and f'(x) in double: the meaning of <heed/activation.h>.
double activated(Activation activation, double x);
double activation_slope(Activation activation, double x);

void activation(const ActivationProblem& problem, std::int64_t begin, std::int64_t end);
void activation_backward(const ActivationProblem& problem, std::int64_t begin, std::int64_t end);

}  // namespace heed::reference
