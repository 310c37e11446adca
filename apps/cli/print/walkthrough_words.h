#pragma once
/// What `heed walkthrough` says between its numbers, in the reader's language.

#include <cstdint>
#include <string>

#include <heed/walkthrough.h>

namespace heed::cli {

/// Sizes that the second line tells.
struct WalkthroughSizes {
    std::int64_t sequences, tokens, size, heads, head_size, kv_heads;
};

class WalkthroughWords {
public:
    virtual ~WalkthroughWords() = default;

    virtual std::string two_tokens() const = 0;
    virtual std::string random(std::uint64_t seed) const = 0;
    virtual std::string heading(const std::string& example) const = 0;
    virtual std::string sizes(const WalkthroughSizes& sizes, const AttentionOptions& options) const = 0;
    virtual std::string entry(std::int64_t number) const = 0;
    virtual std::string without_scale() const = 0;
    virtual std::string with_scale() const = 0;
    virtual std::string step(const Walkthrough& walkthrough, const WalkthroughStep& step,
                             const AttentionOptions& options) const = 0;
    virtual std::string identity(const std::string& matrix) const = 0;
    virtual std::string head(std::int64_t number) const = 0;
    virtual std::string more_heads(std::int64_t count) const = 0;
    virtual std::string whole_map() const = 0;
    virtual std::string hidden() const = 0;
    virtual std::string dropped() const = 0;
    virtual std::string shapes() const = 0;
    /// The largest difference from the library's own results.
    virtual std::string checked(double difference) const = 0;
    /// `token` gives itself these weights without and with the scale.
    virtual std::string scale_matters(double scale, const std::string& token, double without, double with) const = 0;
};

/// "en" or "zh"; anything else is a UsageError.
const WalkthroughWords& walkthrough_words(const std::string& language);

}  // namespace heed::cli
