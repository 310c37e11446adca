#pragma once
#include <heed/attention.h>
#include <heed/tensor.h>

#include <vector>

#include "support/random.h"

namespace heed::testing {

/// What a few rows over many keys may be asked for: nothing, and one option after the other.
class DecodeVariants {
public:
    DecodeVariants(std::int64_t heads, std::int64_t rows, std::int64_t keys, std::int64_t window)
        : slopes_(random_numbers({heads}, 4, 0.01)), bias_(random_numbers({1, 1, rows, keys}, 5)), all_(6) {
        all_[1].causal = true;
        all_[2].window.left = window;
        all_[3].softcap = 5;
        all_[4].alibi_slopes = slopes_;
        all_[5].bias = bias_;
    }

    std::size_t size() const { return all_.size(); }
    const AttentionOptions& operator[](std::size_t n) const { return all_[n]; }

private:
    Tensor slopes_;
    Tensor bias_;
    std::vector<AttentionOptions> all_;
};

}  // namespace heed::testing
