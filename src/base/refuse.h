#pragma once
#include <heed/error.h>

#include <string>

namespace heed {

/// The one way to refuse a call: throws Error with "[function] argument: expected ..., got ...". tools/check_layers
/// sees to it that nobody words such an error by hand.
[[noreturn]] void refuse(const char* function, const std::string& argument, const std::string& expected,
                         const std::string& got);
[[noreturn]] void refuse(const std::string& function, const std::string& argument, const std::string& expected,
                         const std::string& got);

/// The same error, of something inside of `where`: "where: ..."
[[noreturn]] void refuse_within(const std::string& where, const Error& error);

}  // namespace heed
