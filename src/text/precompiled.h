#pragma once
#include "text/pipeline.h"

namespace heed::text {

/// The table of replacements that sentencepiece models carry.
std::unique_ptr<Normalizer> read_precompiled(const JsonField& field);

}  // namespace heed::text
