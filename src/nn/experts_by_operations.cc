#include "nn/experts.h"

#include <heed/elementwise.h>
#include <heed/embedding.h>

#include <utility>

namespace heed {
namespace {

/// Where the rows of one expert belong: tokens, and places among all weights [tokens * active].
struct Places {
    std::vector<std::int64_t> tokens, weights;
    Places(const ExpertOutput& part, std::int64_t active) : tokens(part.tokens) {
        for (std::size_t i = 0; i < tokens.size(); ++i) { weights.push_back(tokens[i] * active + part.slots[i]); }
    }
    std::int64_t count() const { return static_cast<std::int64_t>(tokens.size()); }
};

View list_of(const std::vector<std::int64_t>& numbers) {
    return View(numbers.data(), {static_cast<std::int64_t>(numbers.size())});
}

template <class AnyView>
AnyView as_column(const AnyView& matrix) {
    return AnyView(matrix.dtype(), matrix.data(), Shape{matrix.shape().elements(), 1}, matrix.device());
}

/// The weights of an expert's rows, [n,d]: each repeated along its row.
struct RowWeights {
    Value column;
    View repeated;
    RowWeights(Tape& tape, const Value& weights, const Places& places, std::int64_t d)
        : column(tape.empty(weights.dtype(), {places.count(), 1})) {
        embedding(tape.context(), list_of(places.weights), as_column(View(weights)), column.view());
        repeated = View(column.dtype(), column.view().data(), {places.count(), d}, {1, 0}, column.view().device());
    }
};

}  // namespace

Value combine_by_operations(Tape& tape, const Routes& routes, std::vector<ExpertOutput> outputs, std::int64_t d) {
    Context& context = tape.context();
    bool needs = tape.wants({&routes.weights});
    for (const ExpertOutput& part : outputs) { needs = needs || tape.wants({&part.rows}); }
    const DType dtype = outputs.empty() ? DType::f32 : outputs[0].rows.dtype();
    Value out = tape.empty(dtype, {routes.tokens, d}, needs);
    if (out.shape().elements() > 0) { fill(context, out.view(), 0); }
    for (const ExpertOutput& part : outputs) {
        const Places places(part, routes.active);
        const RowWeights weights(tape, routes.weights, places, d);
        const Value weighed = tape.empty(dtype, {places.count(), d});
        multiply(context, part.rows, weights.repeated, weighed.view());
        embedding_backward(context, list_of(places.tokens), weighed, out.view(), {.accumulate = true});
    }
    if (!needs) { return out; }
    std::vector<Sink> sinks;
    for (const ExpertOutput& part : outputs) { sinks.emplace_back(part.rows); }
    tape.record(out, [routes, outputs = std::move(outputs), sinks = std::move(sinks), dweights = Sink(routes.weights)](
                         Tape& back, std::span<const View> g) {
        // out_n = sum over visits of w row:  drow = w dout_n,  dw = row . dout_n
        Context& queue = back.context();
        const std::int64_t width = g[0].extent(1);
        SinkMemory mw(back, dweights);
        const MutableView dw = mw.view();
        if (dw) { fill(queue, dw, 0); }
        for (std::size_t e = 0; e < outputs.size(); ++e) {
            const ExpertOutput& part = outputs[e];
            const Places places(part, routes.active);
            const Value dout = back.empty(g[0].dtype(), {places.count(), width});
            embedding(queue, list_of(places.tokens), g[0], dout.view());
            if (SinkMemory mr(back, sinks[e]); mr) {
                const RowWeights weights(back, routes.weights, places, width);
                multiply(queue, dout, weights.repeated, mr.view());
            }
            if (!dw) { continue; }
            const Value products = back.empty(DType::f32, {places.count(), width});
            multiply(queue, part.rows, dout, products.view());
            const Value sums = back.empty(DType::f32, {places.count()});
            sum_leading(queue, View(products).permute({1, 0}), sums.view());
            embedding_backward(queue, list_of(places.weights), as_column(View(sums)), as_column(dw),
                               {.accumulate = true});
        }
    });
    return out;
}

}  // namespace heed
