#pragma once
#include <heed/nn.h>

#include <vector>

namespace heed {

/// Which experts each token visits.
struct Routes {
    std::int64_t tokens = 0;
    std::int64_t active = 0;
    std::vector<std::int64_t> experts;  ///< [tokens, active]
    Value weights;                      ///< [tokens, active]
};

/// From the router's logits [N,E]; correction [E] may be absent.
Routes route(Tape& tape, const ExpertConfig& config, const Value& logits, const View& correction);

/// Rows of one expert's output: row i belongs to `tokens[i]`, which has it as its `slots[i]`-th choice.
struct ExpertOutput {
    Value rows;  ///< [n,d]
    std::vector<std::int64_t> tokens;
    std::vector<std::int64_t> slots;
};

/// [N,d]: each token's weighted sum over the experts it visited.
Value combine(Tape& tape, const Routes& routes, std::vector<ExpertOutput> outputs, std::int64_t d);

/// The same by operations that every device has: rows are gathered, weighed and added to their tokens, expert by
/// expert.
Value combine_by_operations(Tape& tape, const Routes& routes, std::vector<ExpertOutput> outputs, std::int64_t d);

/// (clamp(up) + 1) g sigmoid(alpha g), g = min(gate, limit), elementwise.
Value clamped_gate(Tape& tape, const Value& gate, const Value& up, double limit, double alpha);

}  // namespace heed
