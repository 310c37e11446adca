#pragma once
#include <heed/model.h>
#include <heed/serving.h>

namespace heed {

/// What a draft model remembers of a text.
struct DraftState {
    CachedSequence sequence{};
};

/// Guesses of what comes next: from the text itself, or from a smaller model.
class Drafts {
public:
    Drafts(const Model& model, const Speculation& speculation, const DecodingOptions& options);

    struct Ask {
        std::span<const std::int64_t> text{};
        DraftState* state = nullptr;
        std::int64_t most = 0;
        const SamplingOptions* sampling = nullptr;
        std::uint64_t sequence = 0;
        std::int64_t made = 0;
    };
    std::vector<std::int64_t> propose(Context& context, const Ask& ask);
    void forget(DraftState& state) { state.sequence = CachedSequence(); }

private:
    std::vector<std::int64_t> from_text(const Ask& ask, std::int64_t count) const;
    std::vector<std::int64_t> from_model(Context& context, const Ask& ask, std::int64_t count);

    Speculation speculation_;
    std::optional<Decoding> decoding_;
};

}  // namespace heed
