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

/// What a device other than the CPU reported: a lost GPU, no memory left there, a kernel that failed.
class HEED_API DeviceError : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

}  // namespace heed
