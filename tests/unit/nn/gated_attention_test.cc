/// Layers of linear attention with gates against the recurrence, written out.
#include <heed/nn.h>

#include <gtest/gtest.h>

#include <cmath>

namespace heed {
namespace {

constexpr std::int64_t width = 6, tokens = 9;

using GatedRows = std::vector<std::vector<double>>;

class GatedLayer {
public:
    explicit GatedLayer(const AttentionConfig& config) {
        layer.config = config;
        layer.d_model = width;
        const std::int64_t n = config.values();
        layer.q = matrix("q", config.heads * config.head_size);
        layer.k = matrix("k", config.kv_heads * config.head_size);
        layer.v = matrix("v", n * config.value_size);
        if (config.core != AttentionCore::delta) {
            layer.decay_gate = matrix("decay", config.decay_rows ? n * config.head_size : n);
            layer.decay_rate = Weight(parameter("rate", {n}));
        }
        if (config.core != AttentionCore::gated) { layer.beta = matrix("beta", n); }
        if (config.output_gate) { layer.output_gate = matrix("gate", config.outputs() * config.value_size); }
        layer.output_norm.present = true;
        layer.output_norm.options = {.kind = NormKind::rms_norm, .eps = 1e-5};
        layer.out.weight = Weight(parameter("out", {width, config.outputs() * config.value_size}));
        layer.prepare();
    }

    Parameter& parameter(const std::string& name, const Shape& shape) {
        Tensor tensor(DType::f64, shape);
        for (std::int64_t i = 0; i < tensor.elements(); ++i) { tensor.as<double>()[i] = std::sin(1.3 * ++numbers_); }
        return parameters_.add({name, std::move(tensor)});
    }
    /// Of the input, all tokens.
    GatedRows projected(const std::string& name, const Tensor& x) {
        const Tensor& w = parameters_.find(name)->memory;
        GatedRows rows(tokens, std::vector<double>(static_cast<std::size_t>(w.shape()[0])));
        for (std::int64_t t = 0; t < tokens; ++t) {
            for (std::int64_t i = 0; i < w.elements(); ++i) {
                rows[static_cast<std::size_t>(t)][static_cast<std::size_t>(i / width)] +=
                    x.as<double>()[t * width + i % width] * w.as<double>()[i];
            }
        }
        return rows;
    }
    const double* numbers(const std::string& name) { return parameters_.find(name)->memory.as<double>(); }

    AttentionLayer layer{};

private:
    LinearLayer matrix(const std::string& name, std::int64_t outputs) {
        LinearLayer result;
        result.weight = Weight(parameter(name, {outputs, width}));
        return result;
    }
    Parameters parameters_;
    int numbers_ = 0;
};

std::vector<double> part(const std::vector<double>& row, std::int64_t begin, std::int64_t size) {
    return {row.begin() + begin, row.begin() + begin + size};
}
std::vector<double> of_length_one(std::vector<double> x) {
    double sum = 1e-6;
    for (const double number : x) { sum += number * number; }
    for (double& number : x) { number /= std::sqrt(sum); }
    return x;
}

/// One output of one head at every token, before norm, gate and projection.
GatedRows recurrence(GatedLayer& gated, const Tensor& x, std::int64_t head) {
    const AttentionConfig& c = gated.layer.config;
    const GatedRows q = gated.projected("q", x), k = gated.projected("k", x), v = gated.projected("v", x);
    const std::int64_t n = c.values(), d = c.head_size, e = c.value_size;
    const std::int64_t state = head / (c.outputs() / n), query = head / (c.outputs() / c.heads);
    const std::int64_t key = state / (n / c.kv_heads);
    GatedRows decay, beta;
    if (c.core != AttentionCore::delta) { decay = gated.projected("decay", x); }
    if (c.core != AttentionCore::gated) { beta = gated.projected("beta", x); }
    GatedRows s(static_cast<std::size_t>(d), std::vector<double>(static_cast<std::size_t>(e)));
    GatedRows result;
    for (std::size_t t = 0; t < tokens; ++t) {
        std::vector<double> a = part(q[t], query * d, d), b = part(k[t], key * d, d);
        if (c.core != AttentionCore::gated) {
            a = of_length_one(a);
            b = of_length_one(b);
        }
        std::vector<double> value = part(v[t], state * e, e);
        for (std::size_t i = 0; i < s.size(); ++i) {
            if (decay.empty()) { break; }
            const std::int64_t gate = c.decay_rows ? state * d + static_cast<std::int64_t>(i) : state;
            const double y = decay[t][static_cast<std::size_t>(gate)];
            const double factor = std::exp(-std::exp(gated.numbers("rate")[state]) * std::log1p(std::exp(y)));
            for (double& number : s[i]) { number *= factor; }
        }
        for (std::size_t j = 0; j < value.size(); ++j) {
            double answer = 0;
            for (std::size_t i = 0; i < s.size(); ++i) { answer += s[i][j] * b[i]; }
            if (c.core == AttentionCore::gated) { continue; }
            value[j] = (value[j] - answer) / (1 + std::exp(-beta[t][static_cast<std::size_t>(state)]));
        }
        result.emplace_back(static_cast<std::size_t>(e));
        for (std::size_t i = 0; i < s.size(); ++i) {
            for (std::size_t j = 0; j < value.size(); ++j) {
                s[i][j] += b[i] * value[j];
                result[t][j] += s[i][j] * a[i] / std::sqrt(static_cast<double>(d));
            }
        }
    }
    return result;
}

/// The layer's output from those of its heads.
std::vector<double> finished(GatedLayer& gated, const Tensor& x) {
    const AttentionConfig& c = gated.layer.config;
    const std::int64_t e = c.value_size, columns = c.outputs() * e;
    const GatedRows gate = c.output_gate ? gated.projected("gate", x) : GatedRows();
    std::vector<double> result(static_cast<std::size_t>(tokens * width));
    for (std::int64_t head = 0; head < c.outputs(); ++head) {
        const GatedRows rows = recurrence(gated, x, head);
        for (std::int64_t t = 0; t < tokens; ++t) {
            const std::vector<double>& row = rows[static_cast<std::size_t>(t)];
            double square = 0;
            for (const double number : row) { square += number * number; }
            for (std::int64_t j = 0; j < e; ++j) {
                const std::int64_t column = head * e + j;
                double number = row[static_cast<std::size_t>(j)] / std::sqrt(square / static_cast<double>(e) + 1e-5);
                if (!gate.empty()) {
                    const double z = gate[static_cast<std::size_t>(t)][static_cast<std::size_t>(column)];
                    number *= z / (1 + std::exp(-z));
                }
                for (std::int64_t i = 0; i < width; ++i) {
                    result[static_cast<std::size_t>(t * width + i)] +=
                        number * gated.numbers("out")[i * columns + column];
                }
            }
        }
    }
    return result;
}

TEST(GatedAttentionLayer, IsTheRecurrence) {
    Context context(2);
    Tensor x(DType::f64, {1, tokens, width});
    for (std::int64_t i = 0; i < x.elements(); ++i) { x.as<double>()[i] = std::cos(0.7 * static_cast<double>(i)); }
    for (const AttentionCore core : {AttentionCore::gated, AttentionCore::delta, AttentionCore::gated_delta}) {
        for (const std::int64_t value_heads : {0, 4, 8}) {
            for (const bool more : {false, true}) {
                AttentionConfig config;
                config.core = core;
                config.heads = 4;
                config.kv_heads = 2;
                config.head_size = 3;
                config.value_size = 2;
                config.value_heads = value_heads;
                config.decay_rows = more;
                config.output_gate = more;
                GatedLayer gated(config);
                Tape tape(context, {.record = false});
                const Value out = gated.layer(tape, tape.constant(x.view()), {.causal = true});
                const std::vector<double> expected = finished(gated, x);
                for (std::size_t i = 0; i < expected.size(); ++i) {
                    ASSERT_NEAR(out.view().as<double>()[i], expected[i], 1e-9)
                        << static_cast<int>(core) << ", " << value_heads << " heads of values, at " << i;
                }
            }
        }
    }
}

}  // namespace
}  // namespace heed
