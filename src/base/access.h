#pragma once
/// What public classes keep to themselves, for the rest of the library: their headers name Access as a friend, and
/// no public header defines it.

#include <utility>

/// For what is declared inside a class that users see, and is none of their business: it stays out of the shared library's
/// symbols. A class that is exported exports those inside it otherwise.
#define HEED_INTERNAL __attribute__((visibility("hidden")))

namespace heed::detail {

struct Access {
    /// Behind a Cache or a Model; null where it was freed or moved.
    template <class Object>
    static auto* state(const Object& object) {
        return object.state_.get();
    }
    template <class Pattern>
    static const auto& node(const Pattern& pattern) {
        return pattern.node_;
    }
    template <class Pattern, class Node>
    static Pattern pattern(Node node) {
        return Pattern(std::move(node));
    }
};

}  // namespace heed::detail
