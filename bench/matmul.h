#pragma once
/// Plain matrix products for compositions.h. Two twins: matmul_onednn.cc where oneDNN is found, else matmul_absent.cc.

#include <heed/dtype.h>

namespace heed::bench {

bool has_onednn();
/// Whether it multiplies bf16 by instructions of this CPU.
bool has_bf16_matmul();
const char* onednn_version();

enum class Transpose { no, yes };

/// c [m,n] = alpha * op(a) op(b) + beta * c, all row-major with these row strides; op transposes where asked.
/// Runs on the calling thread alone when called inside an OpenMP parallel region.
void matmul(Transpose transpose_a, Transpose transpose_b, long m, long n, long k, float alpha, const float* a, long lda,
            const float* b, long ldb, float beta, float* c, long ldc);

/// The same of bf16 matrices, with sums in float.
void matmul(Transpose transpose_a, Transpose transpose_b, long m, long n, long k, float alpha, const bf16* a, long lda,
            const bf16* b, long ldb, float beta, float* c, long ldc);

}  // namespace heed::bench
