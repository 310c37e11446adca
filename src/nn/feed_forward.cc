#include <heed/nn.h>

#include "base/refuse.h"
#include "nn/experts.h"

namespace heed {
namespace {

/// Tokens of each expert, in order.
std::vector<ExpertOutput> tokens_of(const Routes& routes, std::int64_t experts) {
    std::vector<ExpertOutput> result(static_cast<std::size_t>(experts));
    for (std::int64_t n = 0; n < routes.tokens; ++n) {
        for (std::int64_t slot = 0; slot < routes.active; ++slot) {
            const auto expert =
                static_cast<std::size_t>(routes.experts[static_cast<std::size_t>(n * routes.active + slot)]);
            result[expert].tokens.push_back(n);
            result[expert].slots.push_back(slot);
        }
    }
    return result;
}

Value visit_experts(Tape& tape, const FeedForwardLayer& layer, const Value& x) {
    const Value logits = layer.router(tape, x);
    const Routes routes = route(tape, layer.config.experts, logits, layer.correction.view());
    std::vector<ExpertOutput> visited;
    std::vector<ExpertOutput> all = tokens_of(routes, layer.config.experts.routed);
    for (std::size_t e = 0; e < all.size(); ++e) {
        if (all[e].tokens.empty()) { continue; }
        all[e].rows = layer.experts[e](tape, gather_rows(tape, x, all[e].tokens));
        visited.push_back(std::move(all[e]));
    }
    return combine(tape, routes, std::move(visited), x.extent(1));
}

}  // namespace

Value FeedForwardLayer::operator()(Tape& tape, const Value& x) const {
    if (!experts.empty()) {
        const std::int64_t d = x.extent(x.shape().rank() - 1);
        const Value rows = x.reshape({x.shape().elements() / d, d});
        Value out = visit_experts(tape, *this, rows);
        if (!shared.empty()) { out = add(tape, out, shared[0](tape, rows)); }
        return out.reshape(x.shape());
    }
    if (!config.gated) { return down(tape, up(tape, x, config.activation)); }
    Value g, u;
    if (joined) {
        const Value both = joined(tape, x);
        const int last = both.shape().rank() - 1;
        const std::int64_t size = both.extent(last) / 2;
        g = both.slice(last, 0, size);
        u = both.slice(last, size, 2 * size);
    } else {
        g = gate(tape, x);
        u = up(tape, x);
    }
    if (config.experts.limit > 0) {
        return down(tape, clamped_gate(tape, g, u, config.experts.limit, config.experts.alpha));
    }
    return down(tape, gated(tape, config.activation, g, u));
}

}  // namespace heed
