#pragma once
#include <stdexcept>

#include <heed/dtype.h>

namespace heed {

/// A call that cannot be carried out as asked. The message reads
/// `[function] argument: what was expected, what came`; nothing was computed or written.
class HEED_API Error : public std::invalid_argument {
public:
    using std::invalid_argument::invalid_argument;
};

/// A file that could not be read or written, or whose bytes break its format.
class HEED_API FileError : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

}  // namespace heed
