// Which heads look sharply and which spread out? Entropy of every row of attention over 4,096 tokens, without the
// 4,096 x 4,096 matrix of any head.
#include <heed/inspect.h>
#include <heed/random.h>
#include <heed/tensor.h>

#include <cmath>
#include <cstdio>
#include <string>

namespace {

constexpr std::int64_t heads = 6, tokens = 4096, size = 32;

/// Head h is `sharpness` to the power h times as large as head 0, so its weights are more peaked.
heed::Tensor random_heads(std::uint64_t seed, double sharpness) {
    heed::Tensor tensor(heed::DType::f32, {1, heads, tokens, size});
    for (std::int64_t n = 0; n < tensor.elements(); ++n) {
        const auto words = heed::philox4x32({static_cast<std::uint32_t>(n), 0, 0, 0}, seed);
        const std::int64_t head = n / (tokens * size);
        const double scale = std::pow(sharpness, static_cast<double>(head));
        tensor.as<float>()[n] = static_cast<float>((words[0] / 2147483648.0 - 1) * scale);
    }
    return tensor;
}

double mean_of_head(const heed::Tensor& rows, std::int64_t head) {
    double sum = 0;
    for (std::int64_t row = 0; row < tokens; ++row) { sum += rows.as<double>()[head * tokens + row]; }
    return sum / static_cast<double>(tokens);
}

}  // namespace

int main() {
    const heed::Tensor q = random_heads(1, 1.6);
    const heed::Tensor k = random_heads(2, 1.6);
    heed::Tensor entropy(heed::DType::f64, {1, heads, tokens});
    heed::Tensor largest(heed::DType::f64, {1, heads, tokens});
    heed::Tensor nearby(heed::DType::f64, {1, heads, tokens});

    heed::Context context;
    heed::attention_statistics(
        context, q, k,
        {.entropy = entropy, .max_weight = largest, .window_mass = nearby, .window = {.left = 63, .right = 0}},
        {.causal = true});

    std::printf("head  entropy  as if over  largest  last 64\n");
    for (std::int64_t head = 0; head < heads; ++head) {
        const double nats = mean_of_head(entropy, head);
        std::printf("%4d  %7.3f  %7.0f keys  %6.1f%%  %6.1f%%  %s\n", static_cast<int>(head), nats, std::exp(nats),
                    100 * mean_of_head(largest, head), 100 * mean_of_head(nearby, head),
                    std::string(static_cast<std::size_t>(nats * 4), '#').c_str());
    }
}
