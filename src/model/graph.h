#pragma once
/// The layers of a model over its parameters.

#include <heed/nn.h>

#include <string>
#include <vector>

#include "model/names.h"

namespace heed {

/// How a parameter begins where a model is made rather than loaded.
enum class Init : std::uint8_t { matrix, residual_matrix, embedding, ones, zeros, decay_rates };

struct ParameterSpec {
    std::string name;
    Shape shape;
    Init init = Init::matrix;
    bool optional = false;
};

/// Gives the builder its parameters, from files or fresh.
class ParameterSource {
public:
    ParameterSource() = default;
    ParameterSource(const ParameterSource&) = delete;
    ParameterSource& operator=(const ParameterSource&) = delete;
    virtual ~ParameterSource() = default;
    /// Null for one that is optional and missing.
    virtual Parameter* take(const ParameterSpec& spec) = 0;
};

struct Stack {
    std::vector<BlockLayer> layers;
    NormLayer embedding_norm;
    NormLayer final_norm;
    Weight positions;           ///< learned
    Weight relative;            ///< [buckets,H]
    std::vector<double> alibi;  ///< slopes
};

struct ModelGraph {
    Weight embedding;         ///< [V,d]
    Weight source_embedding;  ///< of the encoder, where it has its own
    Weight token_types;       ///< [types,d]
    Stack encoder;
    Stack decoder;
    LinearLayer transform;
    NormLayer transform_norm;
    LinearLayer head;  ///< [V,d]
    LinearLayer pooler;
};

/// `config` is checked.
ModelGraph build_graph(const ModelConfig& config, const ModelNames& names, ParameterSource& source);

}  // namespace heed
