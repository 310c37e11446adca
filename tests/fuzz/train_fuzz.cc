#include <heed/error.h>
#include <heed/train.h>

#include <cmath>
#include <cstdint>
#include <string_view>

#include "require.h"

/// A run's file. Refusal by Error is the only way out besides success; what is accepted is written as it was read.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    try {
        heed::TrainConfig config = heed::read_train_config(text);
        // Sizes that a task leaves open are filled in when the model is read: from then on nothing changes.
        const std::string written = heed::write_train_config(heed::read_train_config(heed::write_train_config(config)));
        require(heed::write_train_config(heed::read_train_config(written)) == written);
        if (config.options.steps > 0 && config.options.warmup >= 0 && std::isfinite(config.options.learning_rate)) {
            require(!std::isnan(heed::learning_rate(config.options, 64, 1)));
        }
        for (const std::string& kind : heed::attention_words()) {
            heed::ModelConfig model = config.model;
            heed::set_attention(model, kind);
        }
    } catch (const heed::Error&) { return 0; }
    return 0;
}
