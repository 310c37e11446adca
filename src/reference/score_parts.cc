#include "reference/score_parts.h"

#include "base/dispatch.h"
#include "reference/attention.h"
#include "reference/rows.h"

#include <cmath>

namespace heed::reference {
namespace {

HiddenBy hidden_by(const AttentionProblem& p, const Sequence& s, const ScorePlace& at) {
    if (sees(p, s, at.batch, at.head, at.row, at.column)) { return HiddenBy::nothing; }
    const AttentionOptions& o = p.options;
    if (at.row >= s.queries || at.column >= s.keys) { return HiddenBy::length; }
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
    return o.pattern && !o.pattern.allows(at.batch, at.head, query, key) ? HiddenBy::pattern : HiddenBy::bias;
}

/// The addends of q . k.
std::vector<double> products_of(const AttentionProblem& p, const ScorePlace& at) {
    const Row q = row_of(p.q, at.batch, at.head, at.row);
    const Row k = row_of(p.k, at.batch, at.head / p.group(), at.column);
    std::vector<double> products(q.size());
    for (std::size_t c = 0; c < q.size(); ++c) { products[c] = q[c] * k[c]; }
    return products;
}

/// Steps 1 to 3, and step 3's two addends.
void take_apart(const AttentionProblem& p, const Sequence& s, const ScorePlace& at, ScoreParts& parts) {
    const AttentionOptions& o = p.options;
    const Score score = score_of(p, s, at.batch, at.head, at.row, at.column);
    parts.dot = score.dot;
    parts.scaled = score.scaled;
    parts.capped = score.capped;
    parts.score = score.biased;
    if (o.bias) {
        parts.bias = read_number(o.bias.dtype(), o.bias.data(),
                                 AttentionProblem::broadcast(o.bias, at.batch, at.head, at.row, at.column));
    }
    if (o.alibi_slopes) {
        const std::int64_t distance = p.query_position(s, at.row) - p.key_position(s, at.column);
        parts.alibi = -p.slope(at.batch, at.head) * std::abs(static_cast<double>(distance));
    }
}

}  // namespace

ScoreParts score_parts(const AttentionProblem& p, const ScorePlace& at, const ScorePartsOptions& wanted) {
    const Sequence s = p.sequence(at.batch);
    ScoreParts parts;
    parts.scale = p.scale;
    parts.hidden_by = hidden_by(p, s, at);
    // What lies past a length is not read.
    const bool read = parts.hidden_by != HiddenBy::length;
    if (read) { take_apart(p, s, at, parts); }
    if (wanted.products) { parts.products = read ? products_of(p, at) : Row(index(p.head_size), 0); }
    if (!wanted.weight) { return parts; }
    if (at.row >= s.queries) {
        parts.log_sum = -infinity;
        return parts;
    }
    SoftmaxRow row;
    row.compute(p, s, at.batch, at.head, at.row);
    parts.log_sum = row.lse;
    parts.sink = row.sink_weight;
    if (parts.hidden_by == HiddenBy::nothing) { parts.weight = row.weight[index(at.column)]; }
    return parts;
}

}  // namespace heed::reference
