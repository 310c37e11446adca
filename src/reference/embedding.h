#pragma once
#include "kernel/embedding_problem.h"

namespace heed::reference {

/// The meaning of <heed/embedding.h>: rows [begin, end) of out.
void embedding(const EmbeddingProblem& problem, std::int64_t begin, std::int64_t end);
void embedding_backward(const EmbeddingProblem& problem);

}  // namespace heed::reference
