#pragma once
/// Short lists of a call (lengths, decays, factors) that may lie on the host: those go to the device as parameters of a
/// kernel, what lies there already is read there.

#include "base/dispatch.h"
#include "cuda/attention_call.h"
#include "cuda/queue.h"

#include <cstring>
#include <utility>
#include <vector>

namespace heed::cuda {

class SmallLists {
public:
    /// Integers, of one axis.
    void integers(const View& view, Tensor4& target) { add<std::int64_t>(view, target, DType::i64, read_integer); }
    /// Numbers of any float type, of one axis.
    void numbers(const View& view, Tensor4& target) { add<double>(view, target, DType::f64, read_number); }
    void numbers(const std::vector<double>& list, Tensor4& target) {
        if (!list.empty()) { numbers(View(list.data(), Shape{static_cast<std::int64_t>(list.size())}), target); }
    }

    /// What queue() wants of the operation's scratch memory: a multiple of 256.
    std::size_t bytes() const { return (words_.size() * sizeof(std::uint64_t) + 255) / 256 * 256; }
    void queue(CudaQueue& to, void* memory) const {
        if (words_.empty()) { return; }
        to.upload(memory, words_.data(), words_.size() * sizeof(std::uint64_t));
        for (const auto& [target, first] : targets_) { target->data = static_cast<std::uint64_t*>(memory) + first; }
    }

private:
    template <class T, class Read>
    void add(const View& view, Tensor4& target, DType dtype, const Read& read) {
        if (!view) { return; }
        if (view.device().kind == DeviceKind::cuda) {
            target.data = const_cast<void*>(view.data());  // what is only read is not written
            target.dtype = view.dtype();
            target.stride[0] = view.stride(0);
            return;
        }
        target.dtype = dtype;
        target.stride[0] = 1;
        targets_.emplace_back(&target, words_.size());
        for (std::int64_t n = 0; n < view.extent(0); ++n) {
            const T value = read(view.dtype(), view.data(), n * view.stride(0));
            std::uint64_t word = 0;
            std::memcpy(&word, &value, sizeof(word));
            words_.push_back(word);
        }
    }

    std::vector<std::uint64_t> words_;
    std::vector<std::pair<Tensor4*, std::size_t>> targets_;
};

}  // namespace heed::cuda
