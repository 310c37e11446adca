#pragma once
#include <heed/context.h>
#include <nanobind/nanobind.h>

#include <initializer_list>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace heed::python {

namespace nb = nanobind;

/// A Context that survives fork(): the child has the memory but not the threads, so it makes its own on first use.
class SharedContext {
public:
    explicit SharedContext(int threads) : asked_(threads) { renew(); }
    ~SharedContext();
    SharedContext(const SharedContext&) = delete;
    SharedContext& operator=(const SharedContext&) = delete;

    Context& get();

private:
    void renew();

    int asked_;
    int generation_ = 0;
    std::unique_ptr<Context> context_;
};

/// The one that the caller gave, otherwise the process's own with a thread for each core.
Context& choose_context(const char* function, nb::handle given);

/// The same for tensors of a GPU: a context of the calling thread for that device, on PyTorch's current stream there. A
/// context that the caller gave is refused, as its threads are not asked.
Context& choose_context(const char* function, nb::handle given, Device device);

/// The same for a model: where its parameters are. On a GPU one context a device for all threads, on CUDA's own stream,
/// so that PyTorch is not asked.
Context& choose_model_context(const char* function, nb::handle given, Device device);

/// Lets other Python threads run meanwhile.
template <class Function>
void without_gil(Function&& function) {
    const nb::gil_scoped_release released;
    function();
}

/// Keeps other Python threads off these objects (caches, memories), which the library lets one thread at a time use.
/// Only without the GIL: whoever holds an object may be waiting for it.
class Guard {
public:
    explicit Guard(std::span<const void* const> objects);
    explicit Guard(std::initializer_list<const void*> objects) : Guard(std::span(objects.begin(), objects.size())) {}

private:
    std::vector<std::unique_lock<std::recursive_mutex>> locks_;
};

}  // namespace heed::python
