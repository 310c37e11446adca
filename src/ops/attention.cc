#include <heed/attention.h>

#include "ops/attention_checks.h"
#include "ops/attention_kernels.h"
#include "ops/device_checks.h"

namespace heed {
namespace {

void check_options_devices(const char* function, const Context& context, const AttentionOptions& o) {
    check_devices(function, context, {{"allow", o.allow}, {"bias", o.bias}, {"keep", o.dropout.keep}});
    check_lists(function, context,
                {{"alibi_slopes", o.alibi_slopes},
                 {"sinks", o.sinks},
                 {"query_lengths", o.query_lengths},
                 {"key_lengths", o.key_lengths},
                 {"cu_seqlens_q", o.cu_seqlens_q},
                 {"cu_seqlens_k", o.cu_seqlens_k},
                 {"query_positions", o.query_positions},
                 {"key_positions", o.key_positions}});
}

}  // namespace

void attend(Context& context, const View& q, const View& k, const View& v, const MutableView& out,
            const AttentionOptions& options, const MutableView& lse) {
    check_devices("attend", context, {{"q", q}, {"k", k}, {"v", v}, {"out", out}, {"lse", lse}});
    check_options_devices("attend", context, options);
    const AttentionProblem problem = checked_forward("attend", q, k, v, out, options, lse);
    run_forward(context, attention_kernel_list(), {"attend", options.kernel}, problem);
}

void attend_backward(Context& context, const View& q, const View& k, const View& v, const View& out, const View& lse,
                     const View& dout, const AttentionGradients& gradients, const AttentionOptions& options,
                     const View& dlse) {
    check_devices("attend_backward", context,
                  {{"q", q},
                   {"k", k},
                   {"v", v},
                   {"out", out},
                   {"lse", lse},
                   {"dout", dout},
                   {"dlse", dlse},
                   {"dq", gradients.dq},
                   {"dk", gradients.dk},
                   {"dv", gradients.dv},
                   {"dbias", gradients.dbias},
                   {"dsinks", gradients.dsinks},
                   {"dalibi_slopes", gradients.dalibi_slopes}});
    check_options_devices("attend_backward", context, options);
    const AttentionProblem problem =
        checked_backward("attend_backward", q, k, v, out, lse, dout, gradients, options, dlse);
    run_backward(context, attention_kernel_list(), {"attend_backward", options.kernel}, problem);
}

Explanation explain(const AttentionShape& shape, const AttentionOptions& options) {
    const AttentionProblem problem = checked_shape("explain", shape, options);
    const detail::EnvironmentPlace place;
    return explain_kernels(attention_kernel_list(), place, {"explain", options.kernel}, problem);
}

std::vector<std::string> attention_kernels() { return names_of(attention_kernel_list()); }

}  // namespace heed
