#pragma once
#include <cstddef>
#include <memory>
#include <string>

#include <heed/dtype.h>

namespace heed {

namespace detail {
class Pool;
}

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

/// Where a call runs: a team of threads and their scratch memory, kept between calls so that the
/// second call of a shape allocates nothing. Make one, pass it to every call. Results never depend
/// on the number of threads. Calls on one context from several threads wait for each other; give each
/// thread its own context to run side by side.
class HEED_API Context {
public:
    /// threads = 0: one per core this process may use; where PyTorch is in the process, its OpenMP team instead, as
    /// many as at::get_num_threads() says at each call. Any other number: so many threads of its own.
    explicit Context(int threads = 0);
    /// On threads of somebody else, who outlives the context.
    explicit Context(Executor& executor);
    ~Context();
    Context(const Context&) = delete;
    Context& operator=(const Context&) = delete;

    /// Threads that a call from the calling thread would have now.
    int threads() const;
    /// Whose they are, in words: "heed's own threads", "PyTorch's OpenMP team", "the caller's executor".
    std::string runs_on() const;
    /// Scratch memory held now, all threads together.
    std::size_t workspace_bytes() const;
    /// Gives the scratch memory back.
    void release_workspace();

    detail::Pool& pool() const { return *pool_; }

private:
    std::unique_ptr<detail::Pool> pool_;
};

}  // namespace heed
