#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>

/// conformance [--case N] [GoogleTest's own flags]
int main(int argc, char** argv) {
    testing::InitGoogleTest(&argc, argv);
    for (int n = 1; n < argc; ++n) {
        if (std::strcmp(argv[n], "--case") == 0 && n + 1 < argc) {
            setenv("HEED_CASE", argv[++n], 1);
        } else {
            std::fprintf(stderr, "usage: conformance [--case N] [--gtest_...]\n");
            return 2;
        }
    }
    return RUN_ALL_TESTS();
}
