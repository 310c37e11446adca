// Gradients of grouped-query attention, one of them checked against a finite difference.
#include <heed/attention.h>
#include <heed/random.h>
#include <heed/tensor.h>

#include <cmath>
#include <cstdio>

namespace {

constexpr std::int64_t batch = 2, heads = 4, kv_heads = 2, tokens = 24, size = 16;

heed::Tensor random_tensor(heed::Shape shape, std::uint64_t seed) {
    heed::Tensor tensor(heed::DType::f64, shape);
    for (std::int64_t n = 0; n < tensor.elements(); ++n) {
        const auto words = heed::philox4x32({static_cast<std::uint32_t>(n), 0, 0, 0}, seed);
        tensor.as<double>()[n] = words[0] / 2147483648.0 - 1;
    }
    return tensor;
}

}  // namespace

int main() {
    heed::Context context;
    heed::Tensor q = random_tensor({batch, heads, tokens, size}, 1);
    const heed::Tensor k = random_tensor({batch, kv_heads, tokens, size}, 2);
    const heed::Tensor v = random_tensor({batch, kv_heads, tokens, size}, 3);
    const heed::Tensor dout = random_tensor({batch, heads, tokens, size}, 4);
    const heed::AttentionOptions options{.causal = true, .window = {.left = 7, .right = 0}, .softcap = 5};

    heed::Tensor out(heed::DType::f64, q.shape());
    heed::Tensor lse(heed::DType::f64, {batch, heads, tokens});
    // loss = sum(dout * out), so dout is its gradient.
    const auto loss = [&] {
        heed::attend(context, q, k, v, {.out = out, .lse = lse}, options);
        double sum = 0;
        for (std::int64_t n = 0; n < out.elements(); ++n) { sum += dout.as<double>()[n] * out.as<double>()[n]; }
        return sum;
    };
    std::printf("loss = %.6f\n", loss());

    heed::Tensor dq(heed::DType::f64, q.shape());
    heed::Tensor dk(heed::DType::f64, k.shape());
    heed::Tensor dv(heed::DType::f64, v.shape());
    heed::attend_backward(context, {.q = q, .k = k, .v = v, .out = out, .lse = lse, .dout = dout},
                          {.dq = dq, .dk = dk, .dv = dv}, options);

    // A query in the middle, nudged both ways.
    constexpr std::int64_t element = ((1 * heads + 2) * tokens + 11) * size + 5;
    constexpr double step = 1e-5;
    double& nudged = q.as<double>()[element];
    const double value = nudged;
    nudged = value + step;
    const double above = loss();
    nudged = value - step;
    const double below = loss();
    const double difference = (above - below) / (2 * step);
    std::printf("dq[1, 2, 11, 5] = %.9f; by finite difference %.9f\n", dq.as<double>()[element], difference);
    return std::abs(difference - dq.as<double>()[element]) < 1e-7 ? 0 : 1;
}
