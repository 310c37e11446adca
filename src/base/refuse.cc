#include "base/refuse.h"

namespace heed {

void refuse(const char* function, const std::string& argument, const std::string& expected, const std::string& got) {
    throw Error("[" + std::string(function) + "] " + argument + ": expected " + expected + ", got " + got);
}

void refuse(const std::string& function, const std::string& argument, const std::string& expected,
            const std::string& got) {
    refuse(function.c_str(), argument, expected, got);
}

void refuse_within(const std::string& where, const Error& error) { throw Error(where + ": " + error.what()); }

}  // namespace heed
