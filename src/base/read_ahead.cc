#include "base/read_ahead.h"

#include <utility>

namespace heed::detail {
namespace {

struct Reading {
    const ReadingOrder* order = nullptr;
    std::span<const std::byte> next;
};

Reading& reading() {
    static thread_local Reading of_thread;
    return of_thread;
}

}  // namespace

FollowsOrder::FollowsOrder(const ReadingOrder* order) : before_(std::exchange(reading().order, order)) {}
FollowsOrder::~FollowsOrder() { reading().order = before_; }

ReadsPart::ReadsPart(const void* part) {
    Reading& now = reading();
    if (now.order != nullptr) { now.next = now.order->after(part); }
}
ReadsPart::~ReadsPart() { reading().next = {}; }

std::span<const std::byte> upcoming() { return reading().next; }

}  // namespace heed::detail
