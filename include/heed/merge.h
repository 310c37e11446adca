#pragma once
/// Joins partial results of attention over disjoint sets of keys: keys split between calls, threads or machines, a
/// prefix that many sequences share, the steps of ring attention.
///
///     heed::attend(context, q, k_old, v_old, {.out = out_old, .lse = lse_old});
///     heed::attend(context, q, k_new, v_new, {.out = out_new, .lse = lse_new});
///     heed::merge(context, std::vector<heed::PartialResult>{{out_old, lse_old}, {out_new, lse_new}}, out, lse);
///
/// For N parts, each an output o_n with the lse_n that attend gave beside it:
///
///     lse = log(sum_n exp(lse_n))
///     w_n = exp(lse_n - lse)
///     out = sum_n w_n o_n
///
/// A part whose lse is -infinity saw no key: its output is not read, and merging it changes no bit of the others.
/// Where all are -infinity the result is 0 and -infinity. NaN, or +infinity, in an lse makes its row NaN. A sink (see
/// AttentionOptions) belongs in exactly one part; dropout counts keys from the start of its own part.
///
/// The order of the parts changes the result by rounding only. Sums are float32 or wider; the same bits come out for
/// any number of threads.

#include <span>

#include <heed/context.h>
#include <heed/dtype.h>
#include <heed/error.h>
#include <heed/view.h>

namespace heed {

/// out [...,E], of f32, bf16, f16 or f64, and lse [...] of f32 or f64: the same axes without the last, such as
/// [B,H,T,E] and [B,H,T]. Any strides.
struct PartialResult {
    View out;
    View lse;
};

/// out and lse of all parts together, with the shapes of theirs; types as in PartialResult, lse on request.
/// Parts may differ in type and strides. The result may take the place of a part: out may be exactly the memory of a
/// part's out (same address, shape, strides and type), and lse likewise. Any other overlap is refused.
HEED_API void merge(Context& context, std::span<const PartialResult> parts, const MutableView& out,
                    const MutableView& lse = {});

/// Shapes and types as in PartialResult. Both or either.
struct PartialGradient {
    MutableView dout;
    MutableView dlse;
};

/// Gradients of sum(dout * out) + sum(dlse * lse) for each part, from what merge was given (so a part that will be
/// differentiated must not be merged in place). dout is [...,E]; dlse [...] is optional. The gradients of a part that
/// saw no key are 0.
///
///     do_n   = w_n dout
///     dlse_n = w_n (dlse + dout . (o_n - out))
HEED_API void merge_backward(Context& context, std::span<const PartialResult> parts, const View& dout,
                             std::span<const PartialGradient> gradients, const View& dlse = {});

}  // namespace heed
