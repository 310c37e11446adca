#pragma once
#include <heed/positions.h>

#include <cstdint>
#include <string_view>

namespace heed {

/// How the models of one model_type rotate, as far as their files leave it unsaid.
struct RopeFamily {
    enum class Settings : std::uint8_t {
        optional,  ///< without any, theta and share are those below
        needed,    ///< without any, transformers scales in a way of its own
        by_layer,  ///< kinds of layers differ, and the file says how
    };

    std::string_view type;
    Pairing pairing = Pairing::halves;
    Settings settings = Settings::optional;
    double theta = 10000;
    double share = 1;  ///< of a head that turns
};

/// Null for a type that was not checked against transformers: tests/golden/make_rope_types.py asks each of its types.
const RopeFamily* find_rope_family(std::string_view type);

}  // namespace heed
