#include <heed/train.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace heed {

double learning_rate(const TrainOptions& o, std::int64_t d_model, std::int64_t step) {
    const auto t = static_cast<double>(std::max<std::int64_t>(step, 1));
    const auto warmup = static_cast<double>(o.warmup);
    if (o.schedule == Schedule::paper) {
        const double late = 1 / std::sqrt(t), early = warmup > 0 ? t * std::pow(warmup, -1.5) : late;
        return o.learning_rate / std::sqrt(static_cast<double>(d_model)) * std::min(late, early);
    }
    if (t <= warmup) { return o.learning_rate * t / warmup; }
    if (o.schedule == Schedule::constant) { return o.learning_rate; }
    const double span = std::max(1.0, static_cast<double>(o.steps) - warmup);
    const double progress = std::min(1.0, (t - warmup) / span);
    const double low = o.learning_rate * o.final_rate;
    return low + (o.learning_rate - low) / 2 * (1 + std::cos(std::numbers::pi * progress));
}

}  // namespace heed
