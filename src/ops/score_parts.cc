#include <heed/inspect.h>

#include "ops/attention_checks.h"
#include "reference/score_parts.h"

namespace heed {
namespace {

void check_place(Caller function, const AttentionProblem& p, const ScorePlace& place) {
    const auto check = [&](const char* name, std::int64_t index, std::int64_t extent) {
        if (index < 0 || index >= extent) {
            refuse(function, std::string("places.") + name, "0 to " + std::to_string(extent - 1),
                   std::to_string(index));
        }
    };
    check("batch", place.batch, p.batch);
    check("head", place.head, p.heads);
    check("row", place.row, p.queries);
    check("column", place.column, p.keys);
}

}  // namespace

std::string_view name_of(HiddenBy reason) {
    switch (reason) {
        case HiddenBy::length: return "length";
        case HiddenBy::causal: return "causal";
        case HiddenBy::window: return "window";
        case HiddenBy::mask: return "mask";
        case HiddenBy::pattern: return "pattern";
        case HiddenBy::bias: return "bias";
        case HiddenBy::nothing: break;
    }
    return "nothing";
}

std::vector<ScoreParts> score_parts(const View& q, const View& k, std::span<const ScorePlace> places,
                                    const AttentionOptions& options, const ScorePartsOptions& wanted) {
    const Caller function("score_parts");
    const AttentionProblem problem = checked_scores(function, q, k, options);
    if (problem.packed) { refuse(function, "cu_seqlens_q", "none: ask for one sequence at a time", "a tensor"); }
    for (const ScorePlace& place : places) { check_place(function, problem, place); }
    std::vector<ScoreParts> result;
    result.reserve(places.size());
    for (const ScorePlace& place : places) { result.push_back(reference::score_parts(problem, place, wanted)); }
    return result;
}

}  // namespace heed
