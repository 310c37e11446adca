#pragma once
/// Plain matrix products for compositions.h. Two twins: matmul_onednn.cc where oneDNN is found, else matmul_absent.cc.

namespace heed::bench {

bool has_onednn();
const char* onednn_version();

enum class Transpose { no, yes };

/// c [m,n] = alpha * op(a) op(b) + beta * c, all row-major with these row strides; op transposes where asked.
/// Runs on the calling thread alone when called inside an OpenMP parallel region.
void matmul(Transpose transpose_a, Transpose transpose_b, long m, long n, long k, float alpha, const float* a, long lda,
            const float* b, long ldb, float beta, float* c, long ldc);

}  // namespace heed::bench
