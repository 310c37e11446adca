#include "serve.h"

#include <stdexcept>

namespace heed::web {

void serve(const ServeOptions&, const std::function<void(const std::string&)>&) {
    throw std::runtime_error("this heed was built without its server: Boost's headers were not found (libboost-dev)");
}

}  // namespace heed::web
