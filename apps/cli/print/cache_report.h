#pragma once
#include <heed/cache.h>
#include <heed/sizes.h>

#include <optional>
#include <string>
#include <vector>

namespace heed::cli {

/// What caches of one model cost, for each kind of attention and each storage.
struct CacheReport {
    /// One way to keep the past.
    struct Row {
        std::string label;   ///< "GQA 8", "MLA", "linear", ...
        bool own = false;    ///< as the model is
        CacheConfig config;  ///< storage left open
        /// Bytes of one sequence, all pages of it.
        std::int64_t sequence_bytes(CacheStorage storage, std::int64_t length) const;
        std::int64_t token_bytes(CacheStorage storage) const;
        CacheConfig with(CacheStorage storage) const;
        bool is_state() const { return config.kind == CacheKind::linear || config.kind == CacheKind::infini; }
    };
    std::string name;
    bool sources = false;  ///< an encoder-decoder: as many source tokens are kept too
    std::int64_t length = 0, batch = 1, page_size = 16;
    std::optional<double> memory;  ///< bytes that caches may take
    CacheStorage drawn = CacheStorage::bf16;
    std::vector<Row> rows;

    /// How many sequences of `length` fit.
    std::int64_t fits(const Row& row, CacheStorage storage) const;
};

constexpr CacheStorage report_storages[] = {CacheStorage::f32, CacheStorage::bf16, CacheStorage::i8, CacheStorage::i4};

/// Error for an encoder, which keeps nothing.
CacheReport make_cache_report(const ModelShape& model, std::int64_t groups, std::int64_t page_size,
                              std::int64_t segment);

std::string to_text(const CacheReport& report);
std::string to_json(const CacheReport& report);
std::string to_svg(const CacheReport& report);

}  // namespace heed::cli
