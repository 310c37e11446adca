#pragma once
/// Elementwise dropout whose bits are a function of coordinates, as attention's are: nothing is stored, and the
/// backward pass asks for the same bits again.

#include <cstdint>
#include <optional>

#include <heed/context.h>
#include <heed/error.h>
#include <heed/view.h>

namespace heed {

/// x [...,N] is seen as rows. Element (row, column) is kept where Philox4x32-10 with key = seed and counter
/// (column/4, row mod 2^32, row / 2^32, offset), word column%4, is at least round(p * 2^32).
///
/// Calls with the same seed and offset drop the same elements. So there is no default seed: p above 0 without one is an
/// Error, as layers that all forgot theirs would all drop alike.
struct DropoutOptions {
    double p = 0;                         ///< 0 <= p < 1
    std::optional<std::uint64_t> seed{};  ///< of the run; any number, 0 among them
    std::uint32_t offset = 0;             ///< of the layer and step: advance it for every use
    View residual{};                      ///< shape of x: added afterwards
};

/// out = residual + (kept ? x / (1 - p) : 0), any float types. out may be x or residual itself. The gradient of x is
/// this same call for dout without a residual; that of residual is dout.
HEED_API void dropout(Context& context, const View& x, const MutableView& out, const DropoutOptions& options);

}  // namespace heed
