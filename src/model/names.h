#pragma once
/// How the tensors of a family's files are called. {} stands for the number of a layer (and, of an expert, for its
/// own); a name ends in .weight and .bias unless it stands here in full.

#include <heed/model_config.h>

#include <string>
#include <vector>

namespace heed {

/// How queries, keys and values share one matrix.
enum class FusedRows : std::uint8_t {
    blocks,    ///< all queries, all keys, all values
    per_head,  ///< query, key and value of head 0, then of head 1, ...
};

/// How the matrices of experts are kept.
enum class ExpertFiles : std::uint8_t {
    each,         ///< a tensor for every expert and matrix: gate, up, down
    interleaved,  ///< one for all, [E,d,2f], columns gate and up in turn, and [E,f,d] (gpt-oss)
};

struct AttentionNames {
    std::string q{}, k{}, v{}, out{};
    std::string qkv{};
    FusedRows rows = FusedRows::blocks;
    std::string q_norm{}, k_norm{};
    std::string q_down{}, q_down_norm{}, q_up{}, kv_down{}, kv_down_norm{}, kv_up{};
    std::string sinks{};                                                      ///< in full
    std::string gates{};                                                      ///< in full
    std::string decay{}, decay_rate{}, beta{}, output_gate{}, output_norm{};  ///< decay_rate: in full
    std::string relative{};                                                   ///< of the first layer
};

struct StackNames {
    std::string layer{};  ///< in front of what follows, as "model.layers.{}."
    AttentionNames self{}, cross{};
    std::string attention_norm{}, attention_out_norm{};
    std::string cross_norm{}, cross_out_norm{};
    std::string feed_forward_norm{}, feed_forward_out_norm{};
    std::string gate{}, up{}, down{};
    std::string gate_up{};  ///< instead of gate and up: rows of gate, then of up
    std::string router{};
    std::string correction{};  ///< in full
    std::string expert_gate{}, expert_up{}, expert_down{};
    std::string shared_gate{}, shared_up{}, shared_down{};
    // Not in a layer
    std::string embedding_norm{}, final_norm{}, positions{};
};

struct ModelNames {
    std::string base{};  ///< prefix that some files leave out
    std::string embedding{}, token_types{};
    std::string source_embedding{};  ///< of an encoder with a table of its own
    StackNames encoder{}, decoder{};
    std::string head{};
    std::string head_bias{};  ///< in full
    /// In full: what the bias is called where the head is not tied to the token table, if the file has that.
    std::string untied_head_bias{};
    bool head_bias_is_row = false;    ///< [1,V]
    bool head_bias_optional = false;  ///< missing: 0
    std::string head_transform{}, head_transform_norm{};
    std::string pooler{};
    bool transposed = false;  ///< matrices of layers are [inputs, outputs] (GPT-2)
    ExpertFiles experts = ExpertFiles::each;
    std::vector<std::string> ignored{};  ///< ends of names that mean nothing to us
};

/// Of config.family.
ModelNames names_of(const ModelConfig& config);

}  // namespace heed
