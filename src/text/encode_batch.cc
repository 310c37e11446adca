#include <heed/tokenizer.h>

#include "base/place.h"
#include "text/tokenizer_state.h"

namespace heed {

std::vector<std::vector<std::int64_t>> Tokenizer::encode_batch(Context& context,
                                                               std::span<const std::string_view> texts,
                                                               const EncodeOptions& options) const {
    // Texts near each other are one task, of so many bytes: short ones would be a claim each.
    constexpr std::size_t bytes_of_task = 4096;
    std::vector<std::size_t> begins = {0};
    std::size_t bytes = 0;
    for (std::size_t n = 0; n < texts.size(); ++n) {
        if (bytes >= bytes_of_task) {
            begins.push_back(n);
            bytes = 0;
        }
        bytes += texts[n].size();
    }
    std::vector<std::vector<std::int64_t>> result(texts.size());
    const auto lock = detail::pool_of(context).lock();
    const auto tasks = static_cast<std::int64_t>(begins.size());
    detail::parallel(detail::pool_of(context), tasks, tasks > 1, [&](std::int64_t task, int) {
        const auto at = static_cast<std::size_t>(task);
        const std::size_t end = at + 1 < begins.size() ? begins[at + 1] : texts.size();
        for (std::size_t n = begins[at]; n < end; ++n) { result[n] = encode(texts[n], options); }
    });
    state_->around.pad_batch(result, options);
    return result;
}

}  // namespace heed
