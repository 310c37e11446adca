#pragma once
/// Copies on a GPU of what a call reads and writes on the host, byte for byte with what lies around it.

#include <heed/tensor.h>

#include "conformance/problem.h"

#include <list>
#include <utility>
#include <vector>

namespace heed::conformance {

class Mirror {
public:
    static constexpr Device device{DeviceKind::cuda, 0};

    View input(const Placed& placed);
    /// Of any view: what lies between its first and its last byte.
    View input(const View& view);
    MutableView output(Placed& placed);
    void bring_back() const;

private:
    void* memory(const std::vector<std::byte>& bytes);
    std::list<Tensor> tensors_;
    std::vector<std::pair<Placed*, const Tensor*>> outputs_;
};

}  // namespace heed::conformance
