#pragma once
#include <heed/context.h>
#include <heed/explain.h>

#include "base/pool.h"

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heed::detail {

/// Work for a device other than the CPU, in order. Made by make_queue (base/device_api.h). The pool's lock is held
/// around every call.
class Queue {
public:
    Queue() = default;
    virtual ~Queue() = default;
    Queue(const Queue&) = delete;
    Queue& operator=(const Queue&) = delete;

    virtual void* stream() const = 0;
    virtual void set_stream(void* stream) = 0;
    /// Throws DeviceError where anything queued has failed.
    virtual void synchronise() = 0;
    /// Temporary memory on the device, 256-byte aligned, for the operation that is being queued; what one operation
    /// was given, the next may get.
    virtual void* scratch(std::size_t bytes) = 0;
    virtual std::size_t scratch_bytes() const = 0;
    virtual void release() = 0;
};

/// Where a call runs, as kernels see it. Plain data: files that are compiled once per instruction set read it.
struct Place {
    Device device{};
    Pool* pool = nullptr;    ///< never null; on a GPU the caller's own thread
    Queue* queue = nullptr;  ///< null on the CPU
    /// The kernel that every call is to use; empty: the best that fits. And who said so, for errors.
    std::string_view kernel{};
    const char* kernel_forced_by = "";
    /// Where given, operations say here who would run, and do not.
    std::vector<Explanation>* explained = nullptr;
};

/// The threads of a context and their scratch memory.
inline Pool& pool_of(const Context& context) { return *place_of(context).pool; }

/// What HEED_KERNEL says; empty: nothing. Read when a context is made, and here alone.
std::string kernel_of_environment();
constexpr const char* kernel_variable = "HEED_KERNEL";

/// The CPU as a new context would see it, without the threads: for those who only ask who would run.
struct EnvironmentPlace : Place {
    EnvironmentPlace() : name_(kernel_of_environment()) {
        kernel = name_;
        kernel_forced_by = kernel_variable;
    }

private:
    std::string name_;
};

struct OwnedPlace : Place {
    void own(std::unique_ptr<Pool> team) {
        pool_ = std::move(team);
        pool = pool_.get();
    }
    void own(std::unique_ptr<Queue> queue_of_device) {
        queue_ = std::move(queue_of_device);
        queue = queue_.get();
    }

    void force(std::string name, const char* by) {
        kernel_ = std::move(name);
        kernel = kernel_;
        kernel_forced_by = by;
    }

private:
    std::string kernel_;
    std::unique_ptr<Pool> pool_;
    std::unique_ptr<Queue> queue_;
};

}  // namespace heed::detail
