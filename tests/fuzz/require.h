#pragma once
#include <cstdlib>

/// What must hold whatever the input: libFuzzer reports an abort together with the input that led to it.
inline void require(bool condition) {
    if (!condition) { std::abort(); }
}
