#include "reference/mla.h"

#include "reference/rows.h"

#include <algorithm>

namespace heed::reference {
namespace {

bool all_zero(const View& x, std::int64_t b, std::int64_t s) {
    return std::ranges::all_of(row_of(x, b, 0, s), [](double number) { return number == 0; });
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

Kernel<SeenLatentsProblem> seen_latents_kernel() {
    return reference_kernel<SeenLatentsProblem>([](detail::Place&, const SeenLatentsProblem& p) {
        const auto at = [](const auto& x, std::int64_t b, std::int64_t s, std::int64_t e) {
            return b * x.stride(0) + s * x.stride(1) + e * x.stride(2);
        };
        for (std::int64_t b = 0; b < p.latent.extent(0); ++b) {
            for (std::int64_t s = 0; s < p.latent.extent(1); ++s) {
                const bool seen = !all_zero(p.dkeys, b, s) || !all_zero(p.dvalues, b, s);
                for (std::int64_t e = 0; e < p.latent.extent(2); ++e) {
                    const double x = read_number(p.latent.dtype(), p.latent.data(), at(p.latent, b, s, e));
                    write_number(p.out.dtype(), p.out.data(), at(p.out, b, s, e), seen ? x : 0);
                }
            }
        }
    });
}

}  // namespace heed::reference
