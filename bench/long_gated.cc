// Linear attention with a decay per token and with the delta rule: time against the length and the multiply-add peak.
#include <cmath>
#include <memory>

#include <heed/linear_attention.h>

#include "limits.h"
#include "long.h"

namespace heed::bench {
namespace {

constexpr std::int64_t size = 128;
constexpr const char* section = "gated linear attention, chunks of 64, causal, f32, F = E = 128";

struct Gated {
    const char* name;
    bool delta, each_row;
    /// Multiplications and additions a token of the products of the chunked form, C = 64.
    double forward_operations() const {
        const double state = 2.0 * size * size, inside = 64.0 * 2 * size;
        return (delta ? 3 : 2) * state + (delta ? 2 : 1) * inside;
    }
    double backward_operations() const {
        const double state = 2.0 * size * size, inside = 64.0 * size;
        return (delta ? 9 : 5) * state + (delta ? 13 : 5) * inside;
    }
};
constexpr Gated kinds[] = {{"decay per token", false, false},
                           {"decay per token and row", false, true},
                           {"delta rule, decay per token", true, false},
                           {"delta rule, decay per token and row", true, true}};

/// One sequence with gates; keys of about length 1.
struct GatedSequence {
    Tensor q, k, v, out, dq, dk, dv, log_decay, beta;

    GatedSequence(std::int64_t heads, std::int64_t length)
        : q(random_tensor({1, heads, length, size}, 1)),
          k(random_tensor({1, heads, length, size}, 2)),
          v(random_tensor({1, heads, length, size}, 3)),
          out(DType::f32, q.shape()),
          dq(DType::f32, q.shape()),
          dk(DType::f32, q.shape()),
          dv(DType::f32, q.shape()),
          log_decay(random_tensor({1, heads, length, size}, 4)),
          beta(random_tensor({1, heads, length}, 5)) {
        for (std::int64_t n = 0; n < k.elements(); ++n) {
            k.as<float>()[n] /= std::sqrt(static_cast<float>(size));
            log_decay.as<float>()[n] = -0.1F * std::abs(log_decay.as<float>()[n]);
        }
        for (std::int64_t n = 0; n < beta.elements(); ++n) {
            beta.as<float>()[n] = 1 / (1 + std::exp(beta.as<float>()[n]));
        }
    }
    LinearAttentionOptions options(const Gated& kind) const {
        LinearAttentionOptions o{.feature = FeatureMap::identity, .normalise = false};
        const View all = log_decay;
        o.log_decay = kind.each_row ? all
                                    : View(all.dtype(), all.data(), Shape{all.extent(0), all.extent(1), all.extent(2)},
                                           Shape{all.stride(0), all.stride(1), all.stride(2)});
        if (kind.delta) {
            o.rule = UpdateRule::delta;
            o.beta = beta;
        }
        return o;
    }
};

}  // namespace

void gated_against_length(Context& context, const LongSettings& settings) {
    const std::int64_t heads = settings.threads;
    const std::vector<std::int64_t> lengths = {1024, 8192, settings.quick ? 16384 : 131072};
    std::vector<std::unique_ptr<GatedSequence>> sequences;
    for (const std::int64_t length : lengths) { sequences.push_back(std::make_unique<GatedSequence>(heads, length)); }
    for (const Gated& kind : kinds) {
        std::vector<double> peaks;
        std::vector<std::function<void()>> bodies = {
            [&] { peaks.push_back(peak_gflops(DType::f32, settings.threads, 2e-3)); }};
        for (const auto& each : sequences) {
            GatedSequence& s = *each;
            bodies.push_back([&, options = s.options(kind)] { linear_attend(context, s.q, s.k, s.v, s.out, options); });
        }
        GatedSequence& middle = *sequences[1];
        bodies.push_back([&, options = middle.options(kind)] {
            linear_attend_backward(context, {.q = middle.q, .k = middle.k, .v = middle.v, .dout = middle.v},
                                   {.dq = middle.dq, .dk = middle.dk, .dv = middle.dv}, options);
        });
        const std::vector<std::vector<double>> seconds = interleaved(settings, bodies);
        const double peak = median(peaks);
        for (std::size_t n = 1; n < bodies.size(); ++n) {
            const bool backward = n == bodies.size() - 1;
            const auto length = static_cast<double>(lengths[backward ? 1 : n - 1]);
            const double token = median(seconds[n]) / length;
            const double operations = backward ? kind.backward_operations() : kind.forward_operations();
            const double share = 100 * operations * static_cast<double>(heads) / token * 1e-9 / peak;
            LongRow row{.section = section,
                        .name = std::string(kind.name) + (backward ? ", backward" : "") +
                                ", T=" + std::to_string(static_cast<std::int64_t>(length)),
                        .figures = {{"ns/token", token * 1e9}, {"% of peak", share}}};
            print(backward ? row : with_bar(row, "% of peak", share, 45, false));
        }
        const double growth =
            ratio(seconds[3], seconds[1]) * static_cast<double>(lengths[0]) / static_cast<double>(lengths[2]);
        print(with_bar({.section = section,
                        .name = std::string(kind.name) + ", longest against T=1024",
                        .figures = {{"of T=1024", growth}}},
                       "of T=1024", growth, 1.15, true));
    }
}

}  // namespace heed::bench
