#pragma once
#include <string>
#include <vector>

#include <heed/tensor.h>

/// Pictures of what every head looks at.
namespace heed::cli {

/// The weights of one layer, [1,H,T,S], and what the rows and columns are.
struct HeadsOfLayer {
    std::string name;  ///< "layer 1", "layer 2, over the source"
    const Tensor* weights = nullptr;
    const std::vector<std::string>* rows = nullptr;
    const std::vector<std::string>* columns = nullptr;
};

/// One head as a heat map, with its tokens beside it.
std::string head_map(const HeadsOfLayer& layer, std::int64_t head, bool colour);

/// All heads of all layers in one SVG: a row of squares for each layer, darker where a head looks more.
std::string heads_picture(const std::string& title, const std::vector<HeadsOfLayer>& layers);

}  // namespace heed::cli
