// Without oneDNN: loops in an order that the compiler vectorises, so that the naive method can still be measured.
#include "matmul.h"

#include <stdexcept>

namespace heed::bench {

bool has_onednn() { return false; }
bool has_bf16_matmul() { return false; }
const char* onednn_version() { return ""; }

void matmul(Transpose transpose_a, Transpose transpose_b, long m, long n, long k, float alpha, const float* a, long lda,
            const float* b, long ldb, float beta, float* c, long ldc) {
    const auto a_at = [&](long i, long l) { return transpose_a == Transpose::yes ? a[l * lda + i] : a[i * lda + l]; };
    for (long i = 0; i < m; ++i) {
        float* row = c + i * ldc;
        for (long j = 0; j < n; ++j) { row[j] = beta == 0 ? 0 : beta * row[j]; }
        if (transpose_b == Transpose::yes) {
            for (long j = 0; j < n; ++j) {
                float sum = 0;
                for (long l = 0; l < k; ++l) { sum += a_at(i, l) * b[j * ldb + l]; }
                row[j] += alpha * sum;
            }
        } else {
            for (long l = 0; l < k; ++l) {
                const float factor = alpha * a_at(i, l);
                for (long j = 0; j < n; ++j) { row[j] += factor * b[l * ldb + j]; }
            }
        }
    }
}

void matmul(Transpose, Transpose, long, long, long, float, const bf16*, long, const bf16*, long, float, float*, long) {
    throw std::logic_error("no bf16 matrix product without oneDNN");
}

}  // namespace heed::bench
