#pragma once
/// Sums, products and copies of whole tensors: what ties layers together. Any float types, mixed as you like, of any
/// strides; arithmetic is float32, double where anything is f64. An output may be one of the inputs itself.

#include <heed/context.h>
#include <heed/error.h>
#include <heed/view.h>

namespace heed {

struct AddOptions {
    double alpha = 1;
    double beta = 1;
};

/// out = alpha a + beta b. a has the shape of out; b has it too, or only its last axes, and repeats along the others:
/// positions [T,N] are added to [B,T,N], a bias [N] to anything [...,N].
HEED_API void add(Context& context, const View& a, const View& b, const MutableView& out,
                  const AddOptions& options = {});

/// out = a * b, b as in add.
HEED_API void multiply(Context& context, const View& a, const View& b, const MutableView& out);

/// out = factor x.
HEED_API void scale(Context& context, const View& x, double factor, const MutableView& out);

/// out = x, of the same shape, in out's type: rounds to nearest even. Also between layouts.
HEED_API void convert(Context& context, const View& x, const MutableView& out);

/// out = value, everywhere.
HEED_API void fill(Context& context, const MutableView& out, double value);

struct SumOptions {
    double factor = 1;
    bool accumulate = false;  ///< out is added to, not set
};

/// out = factor * the sum of x over the leading axes that out lacks: the gradient of what add and multiply repeat.
/// out [N] for x [...,N]; out [T,N] for x [B,T,N]. The order of the sum depends on the shapes alone.
HEED_API void sum_leading(Context& context, const View& x, const MutableView& out, const SumOptions& options = {});

/// The sum of all elements, in double.
HEED_API double sum(Context& context, const View& x);

}  // namespace heed
