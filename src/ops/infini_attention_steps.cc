#include "ops/infini_attention_steps.h"

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

/// A row of any float type: where it starts and how far apart its elements are.
template <class T, class AnyView>
auto* row_at(const AnyView& view, std::int64_t b, std::int64_t h, std::int64_t t) {
    return view.template as<T>() + b * view.stride(0) + h * view.stride(1) + t * view.stride(2);
}

/// Work per element is a few instructions: threads pay off from here.
constexpr std::int64_t elements_worth_waking = 1 << 17;

double factor_of(const std::vector<double>& factors, std::int64_t head) {
    return factors.empty() ? 1 : factors[static_cast<std::size_t>(head)];
}

}  // namespace

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

void weighted_sum(Context& context, const MutableView& out, const std::vector<double>& fa, const View& a,
                  const std::vector<double>& fb, const View& b) {
    const std::int64_t heads = out.extent(1);
    const std::int64_t rows = out.extent(2);
    const std::int64_t columns = out.extent(3);
    const auto run = [&]<class Out, class A, class B>(std::int64_t entry, std::int64_t h) {
        using Wide = std::conditional_t<std::is_same_v<Out, double>, double, float>;
        const auto x = static_cast<Wide>(factor_of(fa, h));
        const auto y = static_cast<Wide>(factor_of(fb, h));
        for (std::int64_t t = 0; t < rows; ++t) {
            Out* to = row_at<Out>(out, entry, h, t);
            const A* from = row_at<A>(a, entry, h, t);
            const B* more = b ? row_at<B>(b, entry, h, t) : nullptr;
            for (std::int64_t c = 0; c < columns; ++c) {
                Wide sum = x * static_cast<Wide>(from[c * a.stride(3)]);
                if (more != nullptr) { sum += y * static_cast<Wide>(more[c * b.stride(3)]); }
                to[c * out.stride(3)] = static_cast<Out>(sum);
            }
        }
    };
    const auto lock = context.pool().lock();
    const bool wake = out.shape().elements() > elements_worth_waking;
    detail::parallel(context.pool(), out.extent(0) * heads, wake, [&](std::int64_t task, int) {
        dispatch_float(out.dtype(), [&]<class Out>() {
            dispatch_float(a.dtype(), [&]<class A>() {
                dispatch_float(b ? b.dtype() : a.dtype(),
                               [&]<class B>() { run.template operator()<Out, A, B>(task / heads, task % heads); });
            });
        });
    });
}

void add_dot_difference(Context& context, const View& d, const View& a, const View& b, std::vector<double>& sum) {
    const auto run = [&]<class D, class A>(std::int64_t h) {
        double total = 0;
        for (std::int64_t entry = 0; entry < d.extent(0); ++entry) {
            for (std::int64_t t = 0; t < d.extent(2); ++t) {
                const D* x = row_at<D>(d, entry, h, t);
                const A* y = row_at<A>(a, entry, h, t);
                const A* less = b ? row_at<A>(b, entry, h, t) : nullptr;
                for (std::int64_t c = 0; c < d.extent(3); ++c) {
                    const double other = less == nullptr ? 0 : static_cast<double>(less[c * b.stride(3)]);
                    total +=
                        static_cast<double>(x[c * d.stride(3)]) * (static_cast<double>(y[c * a.stride(3)]) - other);
                }
            }
        }
        sum[static_cast<std::size_t>(h)] += total;
    };
    const auto lock = context.pool().lock();
    const bool wake = d.shape().elements() > elements_worth_waking;
    detail::parallel(context.pool(), d.extent(1), wake, [&](std::int64_t h, int) {
        dispatch_float(d.dtype(), [&]<class D>() {
            dispatch_float(a.dtype(), [&]<class A>() { run.template operator()<D, A>(h); });
        });
    });
}

}  // namespace heed
