#pragma once
/// Sums that operations made of others need in between, of checked arguments.

#include <heed/context.h>
#include <heed/view.h>

#include <vector>

namespace heed {

/// to [B,G,S,x] = from [B,H,S,x] where G is H, repeated where H is 1, and summed over h where G is 1.
void copy_or_sum(Context& context, const View& from, const MutableView& to);

/// out [B,X,n,C] = fa[x] a + fb[x] b by head x. a, b: any float type; b may be absent, fa and fb empty (1).
void weighted_sum(Context& context, const MutableView& out, const std::vector<double>& fa, const View& a,
                  const std::vector<double>& fb, const View& b);

/// to += x, and to = x rounded to its type: tensors of any float types, of up to 4 axes.
void accumulate(Context& context, const MutableView& to, const View& x);
void store(Context& context, const View& x, const MutableView& to);

/// sum[x] += sum over batch, rows and columns of head x of d * (a - b); b may be absent.
void add_dot_difference(Context& context, const View& d, const View& a, const View& b, std::vector<double>& sum);

}  // namespace heed
