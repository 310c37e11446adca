#pragma once
#include <stdexcept>

#include <heed/dtype.h>

namespace heed {

/// What heed throws, besides std::bad_alloc: an Error, which is the caller's mistake, or a ResourceError, where
/// something outside the call was missing, broken or lost. Calling again as before helps only against the latter.
class HEED_API Exception : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

/// A call that cannot be carried out as asked. The message reads
/// `[function] argument: expected what, got what`; nothing was computed or written.
class HEED_API Error : public Exception {
public:
    using Exception::Exception;
};

class HEED_API ResourceError : public Exception {
public:
    using Exception::Exception;
};

/// A file that could not be read or written, or whose bytes break its format.
class HEED_API FileError : public ResourceError {
public:
    using ResourceError::ResourceError;
};

/// What a device other than the CPU reported: a lost GPU, no memory left there, a kernel that failed.
class HEED_API DeviceError : public ResourceError {
public:
    using ResourceError::ResourceError;
};

}  // namespace heed
