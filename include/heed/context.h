#pragma once
#include <cstddef>
#include <memory>
#include <string>

#include <heed/device.h>
#include <heed/dtype.h>

namespace heed {

class Context;
namespace detail {
struct Place;
struct OwnedPlace;
Place& place_of(const Context& context);
}  // namespace detail

/// Somebody else's threads, for a context that is to start none of its own: a thread pool of the program that embeds
/// heed, an OpenMP team. Results do not depend on how many threads it has, nor on which of them does what.
class HEED_API Executor {
public:
    virtual ~Executor();
    /// How many members a run may have now, the caller among them; asked before every call that heed carries out.
    virtual int concurrency() = 0;
    /// Is the calling thread one of the executor's, inside a run? Then heed works alone on it.
    virtual bool inside() = 0;
    /// Calls member(job, w) once for each w in [0, k), for any k from 1 to `wanted`; w = 0 on the calling thread.
    /// Returns when all of them have returned. They may run side by side or one after the other; a member that comes
    /// late finds nothing left to do. `member` never throws.
    virtual void run(int wanted, void (*member)(void* job, int w), void* job) = 0;
};

/// Where a call runs: a team of threads, or a queue of a GPU, with its scratch memory, kept between calls so that the
/// second call of a shape allocates nothing. Make one, pass it to every call. Results never depend
/// on the number of threads. Calls on one context from several threads wait for each other; give each
/// thread its own context to run side by side.
///
/// The tensors of a call lie on the context's device, or the call is refused: nothing is copied behind your back.
class HEED_API Context {
public:
    /// On the CPU. threads = 0: one per core this process may use; where PyTorch is in the process, its OpenMP team
    /// instead, as many as at::get_num_threads() says at each call. Any other number: so many threads of its own.
    explicit Context(int threads = 0);
    /// On the CPU, on threads of somebody else, who outlives the context.
    explicit Context(Executor& executor);
    /// On any device. On a GPU calls check their arguments, are queued on `stream`, and return: a cudaStream_t that
    /// stays the caller's, or null for CUDA's default stream. Throws Error where the device is not to be had.
    explicit Context(Device device, void* stream = nullptr);
    ~Context();
    Context(const Context&) = delete;
    Context& operator=(const Context&) = delete;

    Device device() const;
    /// Null on the CPU.
    void* stream() const;
    /// For the calls from now on; what was queued before stays where it is. A GPU only.
    void set_stream(void* stream);
    /// Returns when everything queued is done, and throws DeviceError where it failed. On the CPU nothing is queued.
    void synchronise() const;

    /// Threads that a call from the calling thread would have now; 1 on a GPU.
    int threads() const;
    /// Whose they are, in words: "heed's own threads", "PyTorch's OpenMP team", "the caller's executor", "a GPU's
    /// queue".
    std::string runs_on() const;
    /// Scratch memory held now, all threads together.
    std::size_t workspace_bytes() const;
    /// Gives the scratch memory back.
    void release_workspace();

    /// The one kernel that every call on this context uses, of any operation: "reference", "cpu-avx2" (see the lists of
    /// kernels in the operations' headers); empty: the best that fits. A call that it does not take is an Error. The
    /// kernel in a call's own options wins over this; a new context begins with what the environment variable
    /// HEED_KERNEL said when it was made. Not while a call runs on another thread.
    void set_kernel(std::string name);

private:
    friend detail::Place& detail::place_of(const Context& context);
    std::unique_ptr<detail::OwnedPlace> place_;
};

}  // namespace heed
