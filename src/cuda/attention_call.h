#pragma once
/// An AttentionProblem as kernels on the device get it: plain data that travels as a kernel's parameter.

#include <heed/dtype.h>

#include "kernel/kv_pages.h"

#include <cstdint>

namespace heed::cuda {

/// A tensor of up to four axes. An axis that an option leaves out or repeats has stride 0.
struct Tensor4 {
    void* data = nullptr;
    DType dtype = DType::f32;
    std::int64_t stride[4] = {};
};

/// Keys and values in the pages of a cache, as heed::KvPages has them: the rows and all lists lie on the device. Key j
/// of entry b is row j % page_size of page table[begin[b] + j / page_size].
struct PagesOnDevice {
    KvRows k, v;
    std::int64_t page_size = 0;  ///< 0: keys and values are tensors
    const std::int32_t* table = nullptr;
    const std::int64_t* begin = nullptr;  ///< [entries]
    std::int64_t longest = 0;             ///< most keys of an entry
};

struct AttentionCall {
    std::int64_t entries = 0;  ///< B, or N packed sequences
    std::int64_t batch = 0;    ///< extent of the tensors along B
    std::int64_t heads = 0, kv_heads = 0, group = 1;
    std::int64_t queries = 0, keys = 0, head_size = 0, value_size = 0;
    double scale = 1, softcap = 0;
    bool packed = false, bottom_right = true;
    std::int64_t left = -1, right = -1;  ///< reach: causal, window and the bands of a pattern together

    Tensor4 q, k, v, out, lse;
    PagesOnDevice pages;
    Tensor4 allow, bias;                     ///< [B,H,T,S]
    Tensor4 slopes;                          ///< [B,H]
    Tensor4 sinks;                           ///< [H]
    Tensor4 query_lengths, key_lengths;      ///< [B]
    Tensor4 cu_queries, cu_keys;             ///< [N+1]
    Tensor4 query_positions, key_positions;  ///< [B,T], [B,S]
    const std::int64_t* pattern = nullptr;   ///< a program, see kernel/pattern_program.h
    std::int64_t pattern_words = 0;
    bool pattern_by_entry = false, pattern_by_head = false;  ///< its answer depends on them

    bool drops = false;
    Tensor4 keep;  ///< [B,H,T,S]
    double drop_probability = 0;
    std::uint64_t drop_seed = 0, drop_threshold = 0;
    std::uint32_t drop_offset = 0;
    float drop_factor = 1;  ///< on weights that are kept: 1 / (1 - probability)

    // backward
    Tensor4 dout, dlse, dq, dk, dv;
    Tensor4 dbias, dsinks, dslopes;
    std::int64_t dbias_extent[4] = {};
    bool slopes_per_entry = false;
    /// Of the accumulators' type, [entries, H, T] each: rowsum(dout * out) - dlse, and what each row adds to the
    /// gradient of its head's sink and slope.
    void* delta = nullptr;
    std::int64_t row_pitch = 0;  ///< of those lists: T, or more
    void* row_dsink = nullptr;
    void* row_dslope = nullptr;
    /// Where given, the sweeps of the general backward pass leave tiles of 64 rows alone whose flag is 0:
    /// [entries * heads, queries], [entries * kv_heads, keys].
    const int* spoilt = nullptr;  ///< 0: no flag is set
    const unsigned char* queries_flag = nullptr;
    const unsigned char* keys_flag = nullptr;
    std::int64_t query_flags = 0, key_flags = 0;  ///< of a head
};

/// Where the rows of one entry lie; see heed::Sequence.
struct Entry {
    std::int64_t number = 0, batch = 0, query_begin = 0, queries = 0, rows = 0, key_begin = 0, keys = 0, key_rows = 0,
                 shift = 0;
};

}  // namespace heed::cuda
