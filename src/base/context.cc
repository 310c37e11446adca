#include <heed/context.h>
#include <heed/error.h>

#include "base/device_api.h"
#include "base/place.h"
#include "base/refuse.h"

#include <cstdlib>
#include <string>

namespace heed {

Executor::~Executor() = default;

detail::Place& detail::place_of(const Context& context) { return *context.place_; }

std::string detail::kernel_of_environment() {
    const char* text = std::getenv(kernel_variable);
    return text == nullptr ? std::string() : std::string(text);
}

namespace {

std::unique_ptr<detail::OwnedPlace> new_place() {
    auto place = std::make_unique<detail::OwnedPlace>();
    place->force(detail::kernel_of_environment(), detail::kernel_variable);
    return place;
}

}  // namespace

Context::Context(int threads) : place_(new_place()) {
    if (threads < 0 || threads > detail::most_threads) {
        refuse("Context", "threads", "0 (one per core) to " + std::to_string(detail::most_threads),
               std::to_string(threads));
    }
    place_->own(threads == 0 ? std::make_unique<detail::Pool>() : std::make_unique<detail::Pool>(threads));
}

Context::Context(Executor& executor) : place_(new_place()) { place_->own(std::make_unique<detail::Pool>(executor)); }

Context::Context(Device device, void* stream) : place_(new_place()) {
    if (device.kind == DeviceKind::cpu) {
        if (device.index != 0) { refuse("Context", "device", "cpu", to_string(device)); }
        if (stream != nullptr) { refuse("Context", "stream", "none on the CPU", "one"); }
        place_->own(std::make_unique<detail::Pool>());
        return;
    }
    place_->device = device;
    place_->own(std::make_unique<detail::Pool>(1));
    place_->own(detail::make_queue("Context", device, stream));
}

Context::~Context() = default;

Device Context::device() const { return place_->device; }

void* Context::stream() const {
    const auto lock = place_->pool->lock();
    return place_->queue == nullptr ? nullptr : place_->queue->stream();
}

void Context::set_stream(void* stream) {
    if (place_->queue == nullptr) { refuse("Context::set_stream", "stream", "a context on a GPU", "one on the CPU"); }
    const auto lock = place_->pool->lock();
    place_->queue->set_stream(stream);
}

void Context::synchronise() const {
    const auto lock = place_->pool->lock();
    if (place_->queue != nullptr) { place_->queue->synchronise(); }
}

void Context::set_kernel(std::string name) {
    const auto lock = place_->pool->lock();
    place_->force(std::move(name), "Context::set_kernel");
}

int Context::threads() const { return place_->pool->threads_of_next(); }

std::string Context::runs_on() const { return place_->queue == nullptr ? place_->pool->runs_on() : "a GPU's queue"; }

std::size_t Context::workspace_bytes() const {
    const auto lock = place_->pool->lock();
    return place_->pool->scratch_bytes() + (place_->queue == nullptr ? 0 : place_->queue->scratch_bytes());
}

void Context::release_workspace() {
    const auto lock = place_->pool->lock();
    place_->pool->release();
    if (place_->queue != nullptr) { place_->queue->release(); }
}

}  // namespace heed
