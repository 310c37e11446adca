#pragma once
#include <string>

namespace heed::cli {

struct PromptArguments {
    std::string path;    ///< a run of `heed train`, or a model's folder
    std::string prompt;  ///< of an encoder-decoder the source
    std::string out;     ///< SVG; empty: none
    std::string colour = "auto";
    int layer = 0, head = 0;  ///< counted from 1; 0: all
    int threads = 0;
};

/// What every head looks at while the model reads the prompt.
void inspect_prompt(const PromptArguments& arguments);

}  // namespace heed::cli
