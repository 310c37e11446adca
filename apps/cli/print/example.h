#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <heed/tensor.h>
#include <heed/walkthrough.h>

#include "commands/options.h"

namespace heed::cli {

/// An example for `heed walkthrough`, with the options that came with it.
struct Example {
    std::string title;
    std::vector<std::string> tokens;  ///< labels, fit for a terminal; one a token
    WalkthroughInput input;
    Settings settings;
    Tensor mask;  ///< u8 [1,1,T,T] or absent
    Tensor bias;  ///< f64 [1,1,T,T] or absent
};

/// Reads a JSON file as docs/cli.md describes it. UsageError, naming the file and the key, where it cannot be used.
Example read_example(const std::string& path);
/// x1, x2, ... for as many tokens.
std::vector<std::string> token_labels(std::int64_t count);

}  // namespace heed::cli
