#pragma once
#include <algorithm>
#include <cstdlib>

namespace heed::testing {

/// HEED_TEST_STRIDE=n: tests that walk through many similar cases take one in n, in builds that run slowly (sanitizers
/// without optimisation, an emulator).
inline int test_stride() {
    const char* text = std::getenv("HEED_TEST_STRIDE");
    return text == nullptr ? 1 : std::max(1, std::atoi(text));
}

/// Takes the first of every `stride` cases.
class Sample {
public:
    explicit Sample(int stride = test_stride()) : stride_(stride) {}
    bool takes() { return count_++ % stride_ == 0; }

private:
    int stride_;
    int count_ = 0;
};

}  // namespace heed::testing
