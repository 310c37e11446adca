#include "reference/copy_rows.h"

#include "base/dispatch.h"

#include <type_traits>

namespace heed::reference {

void copy_rows(const View& from, const MutableView& to) {
    dispatch_float(from.dtype(), [&]<class From>() {
        dispatch_float(to.dtype(), [&]<class To>() {
            for (std::int64_t b = 0; b < from.extent(0); ++b) {
                for (std::int64_t h = 0; h < from.extent(1); ++h) {
                    for (std::int64_t t = 0; t < from.extent(2); ++t) {
                        const From* x = from.as<From>() + b * from.stride(0) + h * from.stride(1) + t * from.stride(2);
                        To* y = to.as<To>() + b * to.stride(0) + h * to.stride(1) + t * to.stride(2);
                        for (std::int64_t c = 0; c < from.extent(3); ++c) {
                            if constexpr (std::is_same_v<From, To>) {
                                y[c * to.stride(3)] = x[c * from.stride(3)];
                            } else if constexpr (std::is_same_v<To, double>) {
                                y[c * to.stride(3)] = static_cast<double>(x[c * from.stride(3)]);
                            } else {
                                y[c * to.stride(3)] = To(static_cast<float>(x[c * from.stride(3)]));
                            }
                        }
                    }
                }
            }
        });
    });
}

}  // namespace heed::reference
