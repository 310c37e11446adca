#pragma once
#include "kernel/quantized_problem.h"

namespace heed::reference {

/// The number at (output, input) of weights in the layout of kernel/quantized_problem.h, without its scale.
int quantized_number(const std::uint8_t* blocks, bool four_bits, std::int64_t groups, std::int64_t output,
                     std::int64_t input);
/// The scale of a group of inputs of an output.
double quantized_scale(const std::uint8_t* blocks, bool four_bits, std::int64_t groups, std::int64_t output,
                       std::int64_t group);

/// Fills panels [begin, end).
void quantize(const QuantizeProblem& problem, std::int64_t begin, std::int64_t end);
/// Outputs [begin, end).
void dequantize(const DequantizeProblem& problem, std::int64_t begin, std::int64_t end);

/// Plain loops: the meaning of linear with quantised weights, rows [begin, end).
void quantized_linear(const QuantizedProblem& problem, std::int64_t begin, std::int64_t end);

}  // namespace heed::reference
