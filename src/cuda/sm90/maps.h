#pragma once
#include "cuda/attention_call.h"

#include <cuda.h>

#include <array>
#include <vector>

namespace heed::cuda::sm90 {

struct Extents {
    std::int64_t columns, rows, heads, batch;
    bool operator==(const Extents&) const = default;
};

/// What launches need from the driver, asked for once and kept: descriptions of tensors for the copy engine, and leave
/// for kernels to take much shared memory. Asking in every call costs the host about as much as the launch itself. One
/// for each queue; calls of a queue come one after the other.
class LaunchMemo {
public:
    /// Describes a tensor of 16-bit numbers to the copy engine: boxes of 64 columns and `box_rows` rows, 128-byte
    /// swizzle. False where the driver refuses (strides that are no multiple of 16 bytes, say).
    bool rows_map(CUtensorMap& map, const Tensor4& x, const Extents& extents, int box_rows);

    /// The bias as [columns of keys, rows of queries] tiles. False where it is none, or not of a kind that can be
    /// copied.
    bool bias_map(CUtensorMap& map, const AttentionCall& call, int box_rows);

    /// Lets a kernel have so many bytes of dynamic shared memory. False where the device has less.
    template <class Kernel>
    bool allow_shared(Kernel* kernel, int bytes) {
        return allow(reinterpret_cast<const void*>(kernel), bytes);
    }

private:
    /// All that a description says.
    struct Key {
        const void* data = nullptr;
        DType dtype = DType::f32;
        int box_rows = 0;
        std::array<std::int64_t, 3> stride{};
        Extents extents{};
        bool operator==(const Key&) const = default;
    };
    struct Described {
        bool made = false;
        Key key;
        CUtensorMap map;
    };
    bool allow(const void* kernel, int bytes);

    std::array<Described, 64> described_{};  ///< each at a place that its key says; a later one takes it over
    std::vector<const void*> allowed_;
};

}  // namespace heed::cuda::sm90
