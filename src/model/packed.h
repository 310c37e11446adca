#pragma once
/// Sequences that lie end to end in one row of tokens and do not see one another.

#include <heed/nn.h>
#include <heed/tensor.h>

namespace heed {

struct PackedSequences {
    Tensor cu_seqlens;  ///< i64 [N+1]
    Tensor positions;   ///< i64 [1,T]: each sequence counts anew
    Tensor lengths;     ///< i64 [N]
    Tensor padded;      ///< i64 [N,L]: the token at each place of a padded batch; 0 where there is none
    Tensor places;      ///< i64 [1,T]: where a token lies in that batch
    std::int64_t longest = 0;

    /// Views, good as long as this.
    PackedRows rows() const;
};

/// A checked copy of i32 or i64 [N+1] for `tokens` tokens in `rows` rows; Error unless it begins with 0, grows by at
/// least 1 and ends with all of them, which are in one row. Positions count from `first`.
PackedSequences read_packed(const View& cu_seqlens, std::int64_t rows, std::int64_t tokens, std::int64_t first = 0);

}  // namespace heed
