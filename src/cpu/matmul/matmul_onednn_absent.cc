#include "cpu/matmul/matmul_onednn.h"

namespace heed::cpu {

const char* declines_onednn(const MatmulProblem&) { return "this heed is built without oneDNN"; }

MatmulDone matmul_onednn(detail::Pool&, const MatmulProblem&, const Kernels&) { return {}; }

}  // namespace heed::cpu
