#include "reference/mla.h"

#include "reference/rows.h"

#include <algorithm>

namespace heed::reference {
namespace {

bool all_zero(const View& x, std::int64_t b, std::int64_t h, std::int64_t s) {
    return std::ranges::all_of(row_of(x, b, h, s), [](double number) { return number == 0; });
}

}  // namespace

bool all_finite(const View& x) {
    return dispatch_float(x.dtype(), [&]<class T>() {
        for (std::int64_t b = 0; b < x.extent(0); ++b) {
            for (std::int64_t s = 0; s < x.extent(1); ++s) {
                const T* row = x.as<T>() + b * x.stride(0) + s * x.stride(1);
                bool finite = true;
                for (std::int64_t e = 0; e < x.extent(2); ++e) {
                    const auto number = static_cast<double>(row[e * x.stride(2)]);
                    finite = finite && number - number == 0;
                }
                if (!finite) { return false; }
            }
        }
        return true;
    });
}

Tensor seen_latents(const View& latent, const View& dkeys, const View& dvalues, std::int64_t h) {
    Tensor seen = Tensor::copy_of(latent);
    for (std::int64_t b = 0; b < latent.extent(0); ++b) {
        for (std::int64_t s = 0; s < latent.extent(1); ++s) {
            if (!all_zero(dkeys, b, h, s) || !all_zero(dvalues, b, h, s)) { continue; }
            for (std::int64_t e = 0; e < latent.extent(2); ++e) {
                write_number(seen.dtype(), seen.data(), (b * latent.extent(1) + s) * latent.extent(2) + e, 0);
            }
        }
    }
    return seen;
}

}  // namespace heed::reference
