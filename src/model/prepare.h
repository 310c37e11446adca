#pragma once
/// Weights of a model's linear layers in the form they are read in while it runs.

#include <heed/model.h>

#include "model/graph.h"

namespace heed {

/// Gives every linear layer of the graph its prepared weight; `stored` takes them away.
void prepare_weights(Context& context, ModelGraph& graph, WeightStorage weights);

/// Bytes of the weights that linear layers read.
std::size_t weight_bytes(const ModelGraph& graph);

}  // namespace heed
