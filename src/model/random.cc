#include <heed/model.h>
#include <heed/random.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "base/dispatch.h"
#include "base/refuse.h"
#include "model/model_state.h"

namespace heed {
namespace {

/// More than any machine that this runs on holds; a configuration that asks for it is a mistake.
constexpr double most_parameters = 2e11;

/// Counts what a configuration asks for without making it.
class CountingSource : public ParameterSource {
public:
    Parameter* take(const ParameterSpec& spec) override {
        double elements = 1;
        for (const std::int64_t extent : spec.shape) { elements *= static_cast<double>(extent); }
        total_ += elements;
        if (total_ > most_parameters) { refuse("Model::random", "config", "at most 2e11 parameters", "more"); }
        list_.emplace_back(spec.name, View(DType::f32, nullptr, spec.shape));
        return spec.optional ? nullptr : &list_.back();
    }

private:
    double total_ = 0;
    std::deque<Parameter> list_;
};

class RandomSource : public ParameterSource {
public:
    RandomSource(const ModelConfig& config, const RandomOptions& options, Parameters& parameters)
        : options_(options), parameters_(parameters) {
        const auto layers = static_cast<double>(config.encoder.layers.size() + config.decoder.layers.size());
        residual_ = 1 / std::sqrt(2 * layers);
        matrix_ = options.spread > 0 ? options.spread : 0.4;
        const double wide = options.spread / std::sqrt(static_cast<double>(config.d_model));
        embedding_ = config.embedding_scale > 1 ? 1 / config.embedding_scale : options.spread > 0 ? wide : 0.02;
    }

    Parameter* take(const ParameterSpec& spec) override {
        if (spec.optional) { return nullptr; }
        Tensor tensor(options_.dtype, spec.shape);
        const double width = spread(spec);
        const auto index = static_cast<std::uint32_t>(parameters_.list().size());
        const std::int64_t n = tensor.elements();
        for (std::int64_t i = 0; i < n; i += 4) {
            std::array<double, 4> numbers{};
            if (spec.init == Init::ones) { numbers.fill(1); }
            if (spec.init == Init::decay_rates) { numbers = decay_rates(i, n); }
            if (width != 0) { numbers = normals(index, i / 4, width); }
            for (std::int64_t j = i; j < std::min(i + 4, n); ++j) {
                write_number(options_.dtype, tensor.data(), j, numbers[static_cast<std::size_t>(j - i)]);
            }
        }
        return &parameters_.add(Parameter(spec.name, std::move(tensor)));
    }

private:
    double spread(const ParameterSpec& spec) const {
        switch (spec.init) {
            case Init::ones:
            case Init::decay_rates:
            case Init::zeros: return 0;
            case Init::embedding: return embedding_;
            case Init::matrix:
            case Init::residual_matrix: break;
        }
        // By default 0.02 at the width where that is customary, wider where there are fewer inputs.
        const auto inputs = static_cast<double>(spec.shape[spec.shape.rank() - 1]);
        return matrix_ / std::sqrt(inputs) * (spec.init == Init::residual_matrix ? residual_ : 1);
    }

    /// States that keep what they saw for 2 to 512 tokens, where the gate's input is 0.
    static std::array<double, 4> decay_rates(std::int64_t begin, std::int64_t states) {
        std::array<double, 4> result{};
        for (std::size_t j = 0; j < 4; ++j) {
            const double tokens = 1 + 8 * static_cast<double>(begin + static_cast<std::int64_t>(j)) /
                                          std::max(1.0, static_cast<double>(states - 1));
            result[j] = -std::log(std::exp2(tokens) * std::log(2.0));
        }
        return result;
    }

    /// Box and Muller's, from the generator that dropout uses: numbers are a function of seed, parameter and place.
    std::array<double, 4> normals(std::uint32_t parameter, std::int64_t i, double width) const {
        const auto word = static_cast<std::uint64_t>(i);
        const auto bits =
            philox4x32({static_cast<std::uint32_t>(word), static_cast<std::uint32_t>(word >> 32U), parameter, 0x6e6eU},
                       options_.seed);
        std::array<double, 4> result{};
        for (std::size_t pair = 0; pair < 4; pair += 2) {
            const double u = (static_cast<double>(bits[pair]) + 0.5) / 4294967296.0;
            const double angle = 2 * std::numbers::pi * (static_cast<double>(bits[pair + 1]) / 4294967296.0);
            const double radius = width * std::sqrt(-2 * std::log(u));
            result[pair] = radius * std::cos(angle);
            result[pair + 1] = radius * std::sin(angle);
        }
        return result;
    }

    RandomOptions options_;
    Parameters& parameters_;
    double residual_ = 1;
    double matrix_ = 0.4;
    double embedding_ = 0.02;
};

}  // namespace

Model Model::random(const ModelConfig& config, const RandomOptions& options) {
    if (!is_floating(options.dtype)) {
        refuse("Model::random", "dtype", "f32, bf16, f16 or f64", std::string(name_of(options.dtype)));
    }
    if (!(options.spread >= 0 && options.spread <= 100)) {
        refuse("Model::random", "spread", "0 to 100", std::to_string(options.spread));
    }
    auto state = std::make_shared<ModelState>();
    state->config = checked(config);
    const ModelNames names = names_of(state->config);
    CountingSource counting;
    static_cast<void>(build_graph(state->config, names, counting));
    RandomSource source(state->config, options, state->parameters);
    state->graph = build_graph(state->config, names, source);
    return Model(std::move(state));
}

void Model::assign(std::string_view name, const View& value) const {
    Parameter* parameter = state_->parameters.find(name);
    if (parameter == nullptr) { refuse("Model::assign", "name", "a parameter of the model", std::string(name)); }
    if (state_->weights != WeightStorage::stored) {
        refuse("Model::assign", "model", "stored weights", "a prepared form (set_weights)");
    }
    if (!value || !is_floating(value.dtype()) || !(value.shape() == parameter->value.shape())) {
        refuse("Model::assign", std::string(name), "floats of shape " + to_string(parameter->value.shape()),
               (value ? std::string(name_of(value.dtype())) + " " + to_string(value.shape()) : "none"));
    }
    // Copied first: the numbers may come from the parameter itself, and mapped files are not written to.
    Tensor numbers = Tensor::copy_of(value).to(Device{}).to(parameter->value.dtype());
    const Device device = parameter->value.device();
    parameter->memory = device.kind == DeviceKind::cpu ? std::move(numbers) : numbers.to(device);
    parameter->value = parameter->memory.view();
}

const ModelConfig& Model::config() const { return state_->config; }
Parameters& Model::parameters() const { return state_->parameters; }
const GenerationConfig& Model::generation() const { return state_->generation; }
const std::vector<std::string>& Model::unused_tensors() const { return state_->unused; }
const std::filesystem::path& Model::folder() const { return state_->folder; }

}  // namespace heed
