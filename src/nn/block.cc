#include <heed/nn.h>

namespace heed {
namespace {

/// Which of a layer's parts drops: each has bits of its own.
enum class Part : std::uint32_t { attention = 2, feed_forward = 3 };

Value dropped(Tape& tape, const Value& x, const AttentionCall& call, Part part) {
    const DropoutPlan& plan = call.dropout;
    return dropout(tape, x, plan.p, plan.seed, plan.offset + 4 * call.place + static_cast<std::uint32_t>(part));
}

/// x joined by f(x), with the norms where the placement has them.
template <class Function>
Value joined_by(Tape& tape, Placement placement, const Value& x, const NormLayer& norm, const NormLayer& out_norm,
                const Function& f) {
    switch (placement) {
        case Placement::post: return norm.added(tape, f(x), x).out;
        case Placement::output: return add(tape, x, out_norm(tape, f(x)));
        case Placement::sandwich: return add(tape, x, out_norm(tape, f(norm(tape, x))));
        case Placement::normed: {
            const Value y = norm(tape, x);
            return add(tape, y, f(y));
        }
        case Placement::pre:
        case Placement::parallel: break;
    }
    return add(tape, x, f(norm(tape, x)));
}

}  // namespace

Value BlockLayer::operator()(Tape& tape, const Value& x, const AttentionCall& self, const AttentionCall* over) const {
    const auto attend_self = [&](const Value& y) {
        return dropped(tape, attention(tape, y, self), self, Part::attention);
    };
    const auto attend_cross = [&](const Value& y) {
        return dropped(tape, cross(tape, y, *over), *over, Part::attention);
    };
    const auto feed = [&](const Value& y) { return dropped(tape, feed_forward(tape, y), self, Part::feed_forward); };
    if (placement == Placement::parallel) {
        const Value a = attend_self(attention_norm(tape, x));
        const Value f = feed(feed_forward_norm(tape, x));
        return add(tape, add(tape, f, a), x);
    }
    if (placement == Placement::pre) {  // each sum with the norm that follows it
        SummedNorm y =
            (has_cross ? cross_norm : feed_forward_norm).added(tape, attend_self(attention_norm(tape, x)), x);
        if (has_cross) { y = feed_forward_norm.added(tape, attend_cross(y.out), y.sum); }
        return add(tape, y.sum, feed(y.out));
    }
    Value y = joined_by(tape, placement, x, attention_norm, attention_out_norm, attend_self);
    if (has_cross) { y = joined_by(tape, placement, y, cross_norm, cross_out_norm, attend_cross); }
    return joined_by(tape, placement, y, feed_forward_norm, feed_forward_out_norm, feed);
}

}  // namespace heed
