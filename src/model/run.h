#pragma once
/// One pass of tokens through a stack, on a tape: what forward, training and decoding share.

#include <heed/model.h>

#include "model/model_state.h"
#include "model/packed.h"

namespace heed {

/// i64 [rows, columns]
using Ids = Tensor;

/// A copy in i64 of i32 or i64 [B,T]; Error unless each is 0 to most - 1.
Ids read_ids(const char* argument, const View& view, std::int64_t most);
/// A mask [B,T] as u8; absent where it is absent or all ones.
Tensor read_mask(const char* argument, const View& view, const Shape& shape);

struct StackRun {
    const ModelState& model;
    const StackConfig& config;
    const Stack& stack;
    const TapeForward& options;
    View ids{};                                       ///< i64 [B,T]
    View mask{};                                      ///< u8 [B,T]; absent: all there
    View positions{};                                 ///< i64 [B,T] or [1,T]; absent: counted
    View token_types{};                               ///< i64 [B,T]; absent: 0
    std::shared_ptr<const PackedSequences> packed{};  ///< absent: a sequence a row
    Value memory{};                                   ///< of the encoder
    View memory_mask{};                               ///< u8 [B,S]
    std::vector<Tensor>* hidden = nullptr;
    std::vector<Tensor>* attention = nullptr;
    std::vector<Tensor>* cross = nullptr;
    std::vector<AttentionInputs>* inputs = nullptr;
    std::vector<AttentionInputs>* cross_inputs = nullptr;
    View head_factors{};  ///< [layers, heads]
    View cross_head_factors{};
};

/// [B,T,d] behind the last norm.
Value run_stack(Tape& tape, const StackRun& run);

/// Token and position embeddings, their norm and dropout: what the first layer sees. positions as in StackRun, given.
Value embed(Tape& tape, const StackRun& run, const View& positions);

/// Behind the last layer.
Value model_logits(Tape& tape, const ModelState& model, const Value& hidden);

}  // namespace heed
