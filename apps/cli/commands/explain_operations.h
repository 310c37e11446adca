#pragma once
#include <string>
#include <vector>

#include <heed/explain.h>

namespace heed::cli {

/// Who would run an operation other than attention, on tensors of the sizes asked for.
struct OperationQuestion {
    std::string operation;
    std::string shape;  ///< "M,N,K"
    std::string dtype = "f32";
    std::string kernel;
};

/// "attend, attend_backward, matmul, ..."
std::string operation_names();

/// One entry for each operation that it is made of. Throws UsageError where the name or the shape is wrong.
std::vector<Explanation> explain_operation(const OperationQuestion& question);

}  // namespace heed::cli
