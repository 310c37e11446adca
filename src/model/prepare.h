#pragma once
/// Weights of a model's linear layers in the form they are read in while it runs.

#include <heed/model.h>

#include "base/read_ahead.h"
#include "model/graph.h"

namespace heed {

/// Gives every linear layer of the graph its prepared weight; `stored` takes them away.
void prepare_weights(Context& context, ModelGraph& graph, WeightStorage weights);

/// The order in which a step of decoding reads prepared weights; experts, which are chosen as it goes, end it.
detail::ReadingOrder reading_order(const ModelGraph& graph);

/// Bytes of the weights that linear layers read.
std::size_t weight_bytes(const ModelGraph& graph);

}  // namespace heed
