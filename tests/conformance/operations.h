#pragma once
/// The table of operations other than attention, for every device.

#include <heed/context.h>
#include <heed/view.h>

#include <functional>
#include <string>
#include <vector>

namespace heed::conformance {

using Views = std::vector<View>;
using Targets = std::vector<MutableView>;

struct Operation {
    std::string name;
    std::vector<Shape> inputs, outputs;
    std::function<void(Context&, const Views&, const Targets&)> call;
    /// How many roundings of float32, relative to the largest result, the sums of this operation may add up to.
    double sum_units = 8;
    /// Inputs (by number) that stay float32 whatever the type of the case, as lse does; and outputs.
    std::vector<std::size_t> wide_inputs{}, wide_outputs{};
};

std::vector<Operation> operations();

/// Does the operation keep this tensor in float32, or wider?
bool stays_wide(const std::vector<std::size_t>& list, std::size_t n);

/// Random numbers for tensors that a call reads; what is wrong with a result beside that in double, or nothing.
std::string distance_from(const Operation& operation, DType dtype, const std::vector<double>& got,
                          const std::vector<double>& expected, std::size_t output);

}  // namespace heed::conformance
