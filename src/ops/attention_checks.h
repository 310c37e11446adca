#pragma once
#include "base/attention_problem.h"

namespace heed {

/// The edge: throws Error, naming `function` and the argument, or returns a problem that kernels can trust.
/// The views it lacks for other functions (v, out, lse, gradients) are left absent.
AttentionProblem checked_scores(const char* function, const View& q, const View& k, const AttentionOptions& options);
AttentionProblem checked_forward(const char* function, const View& q, const View& k, const View& v,
                                 const MutableView& out, const AttentionOptions& options, const MutableView& lse);
AttentionProblem checked_backward(const char* function, const View& q, const View& k, const View& v, const View& out,
                                  const View& lse, const View& dout, const AttentionGradients& gradients,
                                  const AttentionOptions& options, const View& dlse);

/// Shapes and options alone, with no tensor behind them.
AttentionProblem checked_shape(const char* function, const AttentionShape& shape, const AttentionOptions& options);

/// "[function] argument: expected ..., got ..."
[[noreturn]] void refuse(const char* function, const std::string& argument, const std::string& expected,
                         const std::string& got);
/// One of the listed types, or refuse.
void check_dtype(const char* function, const char* argument, const View& view, std::initializer_list<DType> allowed);
/// A view with elements has memory behind it, or refuse.
void check_memory(const char* function, const char* argument, const View& view);
/// A writable output: right shape, no element twice, apart from every listed input.
void check_output(const char* function, const char* argument, const View& output, const Shape& shape,
                  std::initializer_list<DType> allowed);

}  // namespace heed
