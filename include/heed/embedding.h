#pragma once
/// Rows of a table by number.

#include <heed/context.h>
#include <heed/error.h>
#include <heed/view.h>

namespace heed {

struct EmbeddingOptions {
    double scale = 1;  ///< sqrt(d_model) in the model of 2017
};

/// out [...,N] = scale * table[ids]; ids [...] i32 or i64, table [V,N]. An id outside 0..V-1 is refused.
HEED_API void embedding(Context& context, const View& ids, const View& table, const MutableView& out,
                        const EmbeddingOptions& options = {});

struct EmbeddingBackwardOptions {
    double scale = 1;
    bool accumulate = false;       ///< dtable is added to, not set
    std::int64_t padding_id = -1;  ///< this row receives nothing; -1: none
};

/// dtable[v] = scale * the sum of dout over the places where ids is v, in the order of the places.
HEED_API void embedding_backward(Context& context, const View& ids, const View& dout, const MutableView& dtable,
                                 const EmbeddingBackwardOptions& options = {});

}  // namespace heed
