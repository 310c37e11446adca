#include <heed/inspect.h>

#include "ops/attention_checks.h"
#include "reference/attention.h"

#include <cmath>
#include <limits>

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

HiddenBy hidden_by(const AttentionProblem& p, const Sequence& s, const ScorePlace& at, double bias) {
    const AttentionOptions& o = p.options;
    const std::int64_t query = p.query_position(s, at.row), key = p.key_position(s, at.column);
    if (o.causal && key > query) { return HiddenBy::causal; }
    if ((o.window.left >= 0 && key < query - o.window.left) || (o.window.right >= 0 && key > query + o.window.right)) {
        return HiddenBy::window;
    }
    if (o.allow &&
        static_cast<const std::uint8_t*>(
            o.allow.data())[AttentionProblem::broadcast(o.allow, at.batch, at.head, at.row, at.column)] == 0) {
        return HiddenBy::mask;
    }
    if (o.pattern && !o.pattern.allows(at.batch, at.head, query, key)) { return HiddenBy::pattern; }
    return std::isinf(bias) && bias < 0 ? HiddenBy::bias : HiddenBy::nothing;
}

/// q . k; each product goes where it is wanted.
double dot(const AttentionProblem& p, const ScorePlace& at, std::vector<double>* products) {
    const std::int64_t q = at.batch * p.q.stride(0) + at.head * p.q.stride(1) + at.row * p.q.stride(2);
    const std::int64_t k = at.batch * p.k.stride(0) + at.head / p.group() * p.k.stride(1) + at.column * p.k.stride(2);
    double sum = 0;
    for (std::int64_t d = 0; d < p.head_size; ++d) {
        const double product = read_number(p.q.dtype(), p.q.data(), q + d * p.q.stride(3)) *
                               read_number(p.k.dtype(), p.k.data(), k + d * p.k.stride(3));
        sum += product;
        if (products != nullptr) { products->push_back(product); }
    }
    return sum;
}

ScoreParts parts_at(const AttentionProblem& p, const Sequence& s, const ScorePlace& at, bool products) {
    const AttentionOptions& o = p.options;
    ScoreParts parts;
    parts.scale = p.scale;
    if (at.row >= s.queries || at.column >= s.keys) {
        parts.hidden_by = HiddenBy::length;
        if (products) { parts.products.assign(static_cast<std::size_t>(p.head_size), 0); }
        return parts;
    }
    parts.dot = dot(p, at, products ? &parts.products : nullptr);
    parts.scaled = p.scale * parts.dot;
    parts.capped = o.softcap > 0 ? o.softcap * std::tanh(parts.scaled / o.softcap) : parts.scaled;
    if (o.bias) {
        parts.bias = read_number(o.bias.dtype(), o.bias.data(),
                                 AttentionProblem::broadcast(o.bias, at.batch, at.head, at.row, at.column));
    }
    if (o.alibi_slopes) {
        const std::int64_t distance = p.query_position(s, at.row) - p.key_position(s, at.column);
        parts.alibi = -p.slope(at.batch, at.head) * std::abs(static_cast<double>(distance));
    }
    parts.score = parts.capped + parts.bias + parts.alibi;
    parts.hidden_by = hidden_by(p, s, at, parts.bias);
    return parts;
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
    reference::SoftmaxRow row;
    for (const ScorePlace& at : places) {
        const Sequence s = problem.sequence(at.batch);
        ScoreParts parts = parts_at(problem, s, at, wanted.products);
        if (wanted.weight && at.row < s.queries) {
            row.compute(problem, s, at.batch, at.head, at.row);
            parts.log_sum = row.lse;
            parts.sink = row.sink_weight;
            if (parts.hidden_by == HiddenBy::nothing) {
                parts.weight = row.weight[static_cast<std::size_t>(at.column)];
            }
        } else if (wanted.weight) {
            parts.log_sum = -std::numeric_limits<double>::infinity();
        }
        result.push_back(std::move(parts));
    }
    return result;
}

}  // namespace heed
