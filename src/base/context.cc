#include <heed/context.h>
#include <heed/error.h>

#include "base/pool.h"

#include <string>

namespace heed {

Executor::~Executor() = default;

Context::Context(int threads) {
    if (threads < 0 || threads > detail::most_threads) {
        throw Error("[Context] threads: expected 0 (one per core) to " + std::to_string(detail::most_threads) +
                    ", got " + std::to_string(threads));
    }
    pool_ = threads == 0 ? std::make_unique<detail::Pool>() : std::make_unique<detail::Pool>(threads);
}

Context::Context(Executor& executor) : pool_(std::make_unique<detail::Pool>(executor)) {}

Context::~Context() = default;

int Context::threads() const { return pool_->threads_of_next(); }

std::string Context::runs_on() const { return pool_->runs_on(); }

std::size_t Context::workspace_bytes() const {
    const auto lock = pool_->lock();
    return pool_->scratch_bytes();
}

void Context::release_workspace() {
    const auto lock = pool_->lock();
    pool_->release();
}

}  // namespace heed
