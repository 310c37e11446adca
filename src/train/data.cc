#include "train/data.h"

#include "base/refuse.h"

namespace heed {

std::unique_ptr<TrainData> open_data(const TrainConfig& config) {
    const DataConfig& data = config.data;
    const int sources = (data.task.empty() ? 0 : 1) + (data.text.empty() ? 0 : 1) + (data.lines.empty() ? 0 : 1) +
                        (data.token_file.empty() ? 0 : 1);
    if (sources != 1) {
        refuse("open_data", "data", "one of task, text, lines and token_file", std::to_string(sources));
    }
    if (!(data.validation_share > 0 && data.validation_share < 1)) {
        refuse("open_data", "validation_share", "more than 0 and less than 1", std::to_string(data.validation_share));
    }
    if (data.packed && data.lines.empty()) {
        refuse("open_data", "packed", "false for data that are no lines", "true");
    }
    if (!data.task.empty()) { return open_task(config); }
    if (!data.lines.empty()) { return open_lines(config); }
    return open_text(config);
}

}  // namespace heed
