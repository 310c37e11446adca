#include "context.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <string>

#include <heed/error.h>

#include "array.h"
#include "module.h"

namespace heed::python {

namespace {

/// How many forks lie between the first process and this one.
int forks = 0;

void watch_forks() {
    static const int watching = pthread_atfork(nullptr, nullptr, [] { ++forks; });
    static_cast<void>(watching);
}

}  // namespace

SharedContext::~SharedContext() {
    if (generation_ != forks) { context_.release(); }  // its threads are the parent's: they cannot be joined here
}

Context& SharedContext::get() {
    if (generation_ != forks) {
        context_.release();
        renew();
    }
    return *context_;
}

void SharedContext::renew() {
    watch_forks();
    generation_ = forks;
    context_ = std::make_unique<Context>(asked_);
}

Guard::Guard(std::span<const void* const> objects) {
    // A few mutexes for all objects: in the order of their addresses, each once, so that nobody waits in a circle.
    static auto& mutexes = *new std::array<std::recursive_mutex, 64>;
    std::vector<std::recursive_mutex*> needed;
    for (const void* object : objects) {
        needed.push_back(&mutexes[reinterpret_cast<std::uintptr_t>(object) / 64 % mutexes.size()]);
    }
    std::sort(needed.begin(), needed.end());
    needed.erase(std::unique(needed.begin(), needed.end()), needed.end());
    for (std::recursive_mutex* mutex : needed) { locks_.emplace_back(*mutex); }
}

Context& choose_context(const char* function, nb::handle given) {
    if (!given || given.is_none()) {
        // Never destroyed: at exit a daemon thread may still be inside a call.
        static SharedContext& everybody = *new SharedContext(0);
        return everybody.get();
    }
    SharedContext* context = nullptr;
    if (!nb::try_cast<SharedContext*>(given, context) || context == nullptr) {
        refuse(function, "context", "a heed.Context", nb::cast<std::string>(nb::repr(given)));
    }
    return context->get();
}

Context& choose_context(const char* function, nb::handle given, Device device) {
    if (device.kind == DeviceKind::cpu) { return choose_context(function, given); }
    if (given && !given.is_none()) {
        refuse(function, "context", "none for tensors of a GPU, which is asked on PyTorch's current stream",
               "a context");
    }
    // Never destroyed: at exit CUDA may be gone before a thread's memory is.
    thread_local auto& contexts = *new std::map<int, std::unique_ptr<Context>>;
    const nb::object stream =
        nb::module_::import_("torch").attr("cuda").attr("current_stream")(static_cast<int>(device.index));
    void* const handle = reinterpret_cast<void*>(nb::cast<std::uintptr_t>(stream.attr("cuda_stream")));
    std::unique_ptr<Context>& context = contexts[device.index];
    if (context == nullptr) {
        context = std::make_unique<Context>(device, handle);
    } else {
        context->set_stream(handle);
    }
    return *context;
}

Context& choose_model_context(const char* function, nb::handle given, Device device) {
    if (device.kind == DeviceKind::cpu) { return choose_context(function, given); }
    if (given && !given.is_none()) {
        refuse(function, "context", "none for a model on " + to_string(device), "a context");
    }
    // Never destroyed: at exit CUDA may be gone before a module's memory is. The GIL is held here.
    static auto& contexts = *new std::map<int, std::unique_ptr<Context>>;
    std::unique_ptr<Context>& context = contexts[device.index];
    if (context == nullptr) { context = std::make_unique<Context>(device); }
    return *context;
}

void bind_context(nb::module_& m) {
    m.def(
        "devices",
        [] {
            std::vector<std::string> names;
            for (const Device device : devices()) { names.push_back(to_string(device)); }
            return names;
        },
        "Where heed can compute on this machine, the CPU first; then GPUs, where heed is built with CUDA.\n\n"
        ">>> heed.devices()[0]\n"
        "'cpu'");
    nb::class_<SharedContext>(
        m, "Context",
        "Where a call runs: a team of threads and their scratch memory, kept between calls.\n\n"
        "Without one, calls share a context with a thread for each core; where PyTorch is loaded,\n"
        "they run on its OpenMP team, as many threads as torch.get_num_threads() says. Calls on one\n"
        "context wait for each other; give each Python thread its own to run side by side. Results\n"
        "never depend on the threads.\n\n"
        ">>> heed.Context(threads=1).threads\n"
        "1")
        .def(
            "__init__",
            [](SharedContext* self, int threads) {
                const nb::gil_scoped_release released;
                new (self) SharedContext(threads);
            },
            nb::arg("threads") = 0, nb::sig("def __init__(self, threads: int = 0) -> None"),
            "threads=0: one for each core this process may use, or PyTorch's OpenMP team. Otherwise so many of its "
            "own.")
        .def_prop_ro(
            "threads", [](SharedContext& self) { return self.get().threads(); }, "Threads, the caller's included.")
        .def_prop_ro(
            "runs_on", [](SharedContext& self) { return self.get().runs_on(); },
            "Whose threads they are: \"heed's own threads\" or \"PyTorch's OpenMP team\".\n\n"
            ">>> heed.Context(threads=2).runs_on\n"
            "\"heed's own threads\"")
        .def_prop_ro(
            "workspace_bytes",
            [](SharedContext& self) {
                std::size_t bytes = 0;
                without_gil([&] { bytes = self.get().workspace_bytes(); });
                return bytes;
            },
            "Scratch memory held now, all threads together.")
        .def(
            "release_workspace", [](SharedContext& self) { without_gil([&] { self.get().release_workspace(); }); },
            "Gives the scratch memory back.")
        .def("__repr__",
             [](SharedContext& self) { return "heed.Context(threads=" + std::to_string(self.get().threads()) + ")"; });
}

}  // namespace heed::python
