#pragma once
/// Texts that are looked at: a forward pass over each, of which queries and keys are kept, never a matrix of weights.

#include <compare>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <heed/model.h>

#include "look_head.h"
#include "model_folder.h"

namespace heed::web {

/// What is kept for the Look part, at most; the oldest goes first.
struct LookLimits {
    std::size_t bytes = std::size_t{2} << 30;  ///< queries, keys and hidden states of all texts together
    std::size_t texts = 4;
    std::size_t maps = 8;          ///< heads that have a map, each of at most 17 MiB
    std::int64_t tokens = 65536;   ///< of one text
    std::int64_t lens_rows = 512;  ///< tokens at the end of a text whose hidden states are kept
};

/// kind: self, or of an encoder-decoder encoder, decoder, cross.
struct HeadName {
    std::string kind = "self";
    std::int64_t layer = 0;
    std::int64_t head = 0;
    auto operator<=>(const HeadName&) const = default;
};

/// What to look at.
struct LookRequest {
    std::size_t model = 0;
    std::vector<std::int64_t> ids = {};
    std::vector<HeadName> off = {};  ///< heads that give nothing; sorted
    bool operator==(const LookRequest&) const = default;
};

struct LookedAt {
    std::string key = {};  ///< by which later requests name it
    LookRequest request = {};
    std::vector<std::int64_t> target = {};  ///< of an encoder-decoder's decoder
    ForwardResult result = {};
    std::size_t bytes = 0;
    double seconds = 0;  ///< of the forward pass
};

/// One kind of attention of a text, layer by layer.
struct LookKind {
    const char* name;
    const std::vector<AttentionInputs>* layers;
    const std::vector<std::int64_t>* rows;  ///< token ids
    const std::vector<std::int64_t>* columns;
};
std::vector<LookKind> kinds_of(const LookedAt& text);

class Looker {
public:
    Looker(std::vector<OpenModel> models, Context& context, std::mutex& mutex, const LookLimits& limits)
        : models_(std::move(models)), context_(context), mutex_(mutex), limits_(limits) {}

    const std::vector<OpenModel>& models() const { return models_; }
    const LookLimits& limits() const { return limits_; }
    Context& context() { return context_; }
    /// Held while anything is computed: one thing at a time beside the serving loop.
    std::mutex& mutex() { return mutex_; }

    /// Runs the model, or finds that this is kept. The mutex is held by the caller, here and below.
    std::shared_ptr<const LookedAt> look(const LookRequest& request);
    /// HttpError 404 "text_gone" where it is no longer kept.
    std::shared_ptr<const LookedAt> find(const std::string& key);
    std::shared_ptr<const HeadMap> map(const std::shared_ptr<const LookedAt>& text, const HeadView& head,
                                       const HeadName& name);

    struct Counts {
        std::size_t texts = 0, bytes = 0, maps = 0, map_bytes = 0;
    };
    /// At any time: nobody waits for what is being computed.
    Counts counts() const;

private:
    struct KeptMap {
        std::string text;
        HeadName name;
        std::shared_ptr<const HeadMap> map;
    };
    std::size_t check(const LookRequest& request) const;
    void make_room(std::size_t bytes);
    void run(LookedAt& text);
    void note_counts();

    std::vector<OpenModel> models_;
    Context& context_;
    std::mutex& mutex_;
    LookLimits limits_;
    std::list<std::shared_ptr<const LookedAt>> kept_;  ///< the latest first
    std::list<KeptMap> maps_;
    mutable std::mutex counts_mutex_;
    Counts counts_;
};

}  // namespace heed::web
