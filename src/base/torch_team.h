#pragma once
#include <heed/context.h>

namespace heed::detail {

/// The OpenMP team that PyTorch runs on, found in this process without being linked: every thread that calls PyTorch
/// has one, whose workers poll for milliseconds after each operation, on the cores that another pool would need.
class TorchTeam : public Executor {
public:
    /// False in a child of the process where it was found: there a team's first region hangs.
    virtual bool usable() const = 0;
};

/// Null where PyTorch is not in the process, or runs on threads that this does not know. Costs next to nothing while no
/// library is loaded.
TorchTeam* torch_team();

}  // namespace heed::detail
