#pragma once
#include "base/pool.h"
#include "kernel/kv_rows.h"
#include "kernel/kv_transfer_problem.h"

/// Rows of caches in the memory of the CPU: float32 to and from what is stored.

namespace heed::cpu {

/// x = stored row; the numbers of i8 and i4 are finite.
void write_kv_row(const KvRowLayout& layout, const float* x, char* row, float* scales);
/// The first `columns` numbers of a row.
void read_kv_row(const KvRowLayout& layout, const char* row, const float* scales, std::int64_t columns, float* x);

/// Row t of head g of [1,G,T,D], as float32.
void load_kv_row(const View& x, std::int64_t g, std::int64_t t, float* row);
/// Neither infinity nor NaN among them?
bool all_finite(const float* x, std::int64_t n);

/// Both take the pool's lock themselves.
void write_kv_rows(detail::Pool& pool, const KvWriteProblem& problem);
void gather_kv_rows(detail::Pool& pool, const KvGatherProblem& problem);

}  // namespace heed::cpu
