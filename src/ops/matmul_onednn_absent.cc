#include "ops/matmul_onednn.h"

namespace heed {

MatmulDone matmul_onednn(detail::Pool&, const MatmulProblem&, const cpu::Kernels&) { return {}; }

}  // namespace heed
