#include "ops/infini_attention_steps.h"

#include "ops/host_copy.h"
#include "ops/linear_attention_kernels.h"

namespace heed {
namespace {

/// Linear attention's kernels take every problem made here: no error names this.
constexpr const char* infini_function = "infini_attend";

/// n tokens of x against no keys; or, with keys, no queries.
LinearAttentionProblem linear_problem(const InfiniProblem& infini) {
    LinearAttentionProblem p;
    p.batch = infini.batch;
    p.heads = p.kv_heads = p.states = infini.kv_heads;
    p.head_size = p.feature_size = infini.head_size;
    p.value_size = infini.value_size;
    p.options.feature = FeatureMap::elu_plus_one;
    p.options.causal = false;
    p.options.normalise = true;
    p.options.epsilon = 0;
    p.least_denominator = infini.options.epsilon;
    return p;
}

LinearAttentionProblem retrieval(const InfiniProblem& infini, const View& x, const MemoryView& memory) {
    LinearAttentionProblem p = linear_problem(infini);
    p.heads = x.extent(1);
    p.queries = x.extent(2);
    p.q = x;
    p.initial = {memory.m, memory.z};
    return p;
}

}  // namespace

Tensor gates_on_host(Context& context, InfiniProblem& problem) {
    if (problem.gates.device().kind == DeviceKind::cpu) { return {}; }
    Tensor here = host_copy(context, problem.gates);
    problem.gates = here.view();
    return here;
}

void retrieve(Context& context, const InfiniProblem& infini, const View& x, const MemoryView& memory,
              const MutableView& out) {
    LinearAttentionProblem p = retrieval(infini, x, memory);
    p.out = out;
    run_forward(context, linear_attention_kernel_list(), {infini_function}, p);
}

void retrieve_backward(Context& context, const InfiniProblem& infini, const View& x, const MemoryView& memory,
                       const View& dout, const MutableView& dx, const MutableMemoryView& dmemory) {
    LinearAttentionProblem p = retrieval(infini, x, memory);
    p.dout = dout;
    p.gradients.dq = dx;
    p.gradients.dinitial = {dmemory.m, dmemory.z};
    run_backward(context, linear_attention_kernel_list(), {infini_function}, p);
}

void fold(Context& context, const InfiniProblem& infini, const View& k, const View& v,
          const MutableMemoryView& memory) {
    LinearAttentionProblem p = linear_problem(infini);
    p.keys = k.extent(2);
    p.k = k;
    p.v = v;
    p.initial = {memory.m, memory.z};
    p.final = {memory.m, memory.z};
    run_forward(context, linear_attention_kernel_list(), {infini_function}, p);
}

void fold_backward(Context& context, const InfiniProblem& infini, const View& k, const View& v,
                   const MemoryView& dmemory, const MutableView& dk, const MutableView& dv) {
    LinearAttentionProblem p = linear_problem(infini);
    p.keys = k.extent(2);
    p.k = k;
    p.v = v;
    p.dfinal = {dmemory.m, dmemory.z};
    p.gradients.dk = dk;
    p.gradients.dv = dv;
    run_backward(context, linear_attention_kernel_list(), {infini_function}, p);
}

}  // namespace heed
