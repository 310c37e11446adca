#pragma once
/// Model folders made from others: another type, fewer heads of keys and values, shards.

#include <cstdint>
#include <filesystem>
#include <optional>

#include <heed/dtype.h>
#include <heed/error.h>

namespace heed {

struct ConvertModelOptions {
    /// Of all float tensors; absent: as they are.
    std::optional<DType> dtype{};
    /// So many heads of keys and values instead of those that the model has: each is the mean of a group (pool_heads),
    /// from where training goes on. 0: as they are. For families whose projections are separate matrices and whose
    /// config.json has num_key_value_heads; others are refused.
    std::int64_t kv_heads = 0;
    std::uint64_t max_shard_bytes = 0;  ///< as in SaveOptions
};

/// Reads folder `from` (config.json, model.safetensors or shards), writes folder `to`: config.json, weights, and copies
/// of the other texts (.json, .jinja, .txt, .model). The new configuration is checked before anything is written;
/// config.json comes last. A folder without one is taken where only types and shards are asked for.
HEED_API void convert_model(const std::filesystem::path& from, const std::filesystem::path& to,
                            const ConvertModelOptions& options = {});

}  // namespace heed
