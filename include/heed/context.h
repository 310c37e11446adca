#pragma once
#include <cstddef>
#include <memory>

#include <heed/dtype.h>

namespace heed {

namespace detail {
class Pool;
}

/// Where a call runs: a team of threads and their scratch memory, kept between calls so that the
/// second call of a shape allocates nothing. Make one, pass it to every call. Results never depend
/// on the number of threads. Calls on one context from several threads wait for each other; give each
/// thread its own context to run side by side.
class HEED_API Context {
public:
    /// threads = 0: one per core this process may use.
    explicit Context(int threads = 0);
    ~Context();
    Context(const Context&) = delete;
    Context& operator=(const Context&) = delete;

    int threads() const;
    /// Scratch memory held now, all threads together.
    std::size_t workspace_bytes() const;
    /// Gives the scratch memory back.
    void release_workspace();

    detail::Pool& pool() const { return *pool_; }

private:
    std::unique_ptr<detail::Pool> pool_;
};

}  // namespace heed
