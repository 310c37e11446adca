#include <stdexcept>
#include <string>

#include <dnnl.h>

#include "matmul.h"

namespace heed::bench {

bool has_onednn() { return true; }

const char* onednn_version() {
    static const std::string version = [] {
        const dnnl_version_t* found = dnnl_version();
        return std::to_string(found->major) + '.' + std::to_string(found->minor) + '.' + std::to_string(found->patch);
    }();
    return version.c_str();
}

void matmul(Transpose transpose_a, Transpose transpose_b, long m, long n, long k, float alpha, const float* a, long lda,
            const float* b, long ldb, float beta, float* c, long ldc) {
    const auto letter = [](Transpose transpose) { return transpose == Transpose::yes ? 'T' : 'N'; };
    const dnnl_status_t status =
        dnnl_sgemm(letter(transpose_a), letter(transpose_b), m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
    if (status != dnnl_success) { throw std::runtime_error("dnnl_sgemm failed: " + std::to_string(status)); }
}

}  // namespace heed::bench
