#include <heed/model.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/refuse.h"
#include "io/file.h"
#include "model/generation_file.h"
#include "model/model_state.h"
#include "model/weight_files.h"

namespace heed {
namespace {

/// Errors about a file's text name the file.
template <class Function>
auto in_file(const std::filesystem::path& path, const Function& function) {
    try {
        return function();
    } catch (const Error& error) { refuse_within(path.string(), error); }
}

std::string replaced_end(const std::string& name, std::string_view end, std::string_view by) {
    return name.ends_with(end) ? name.substr(0, name.size() - end.size()) + std::string(by) : std::string();
}

class FileSource : public ParameterSource {
public:
    FileSource(const WeightFiles& files, const ModelNames& names, const LoadOptions& options, Parameters& parameters)
        : files_(files), names_(names), options_(options), parameters_(parameters) {}

    Parameter* take(const ParameterSpec& spec) override {
        const std::string name = name_in_files(spec.name);
        if (name.empty()) {
            if (spec.optional) { return nullptr; }
            problem(spec.name + ": expected shape " + to_string(spec.shape) + ", got no such tensor");
            return missing(spec);
        }
        if (Parameter* again = parameters_.find(name)) { return again; }
        const SafetensorsFile& file = *files_.find(name);
        const SafetensorsFile::Entry& entry = file.entry(name);
        if (!is_floating(entry.dtype)) {
            problem(name + ": expected f32, bf16, f16 or f64, got " + std::string(name_of(entry.dtype)));
            return missing(spec);
        }
        if (!(entry.shape == spec.shape)) {
            problem(name + ": expected shape " + to_string(spec.shape) + ", got " + to_string(entry.shape));
            return missing(spec);
        }
        if (options_.copy || !file.is_aligned(name)) { return &parameters_.add(Parameter(name, file.tensor(name))); }
        return &parameters_.add(Parameter(name, file.view(name)));
    }

    /// Throws where something was missing or of another shape.
    void finish() const {
        if (problems_.empty()) { return; }
        std::string text = "[Model::load] tensors:";
        for (const std::string& each : problems_) { text += "\n  " + each; }
        throw FileError(text);
    }

private:
    /// Files of the base model alone leave the prefix out, others have it; BERT's oldest call weight and bias gamma and
    /// beta.
    std::string name_in_files(const std::string& name) const {
        std::vector<std::string> candidates = {name};
        if (!names_.base.empty()) {
            if (name.starts_with(names_.base)) {
                candidates.push_back(name.substr(names_.base.size()));
            } else {
                candidates.push_back(names_.base + name);
            }
        }
        for (std::size_t i = 0, n = candidates.size(); i < n; ++i) {
            candidates.push_back(replaced_end(candidates[i], "LayerNorm.weight", "LayerNorm.gamma"));
            candidates.push_back(replaced_end(candidates[i], "LayerNorm.bias", "LayerNorm.beta"));
        }
        for (const std::string& each : candidates) {
            if (!each.empty() && files_.find(each) != nullptr) { return each; }
        }
        return {};
    }

    /// A few problems are shown together; a model that fits nothing is not gone through to the end.
    void problem(std::string text) {
        problems_.push_back(std::move(text));
        if (problems_.size() >= 8) { finish(); }
    }
    Parameter* missing(const ParameterSpec& spec) {
        placeholders_.emplace_back(spec.name, View(DType::f32, nullptr, spec.shape));
        return &placeholders_.back();
    }

    const WeightFiles& files_;
    const ModelNames& names_;
    const LoadOptions& options_;
    Parameters& parameters_;
    std::vector<std::string> problems_;
    std::deque<Parameter> placeholders_;
};

/// generation_config.json, or what an older folder's config.json says of generation.
void load_generation(const std::filesystem::path& folder, ModelState& state) {
    const auto path = folder / "generation_config.json";
    if (std::filesystem::exists(path)) {
        state.generation_text = read_text_file("Model::load", path);
        in_file(path, [&] { state.generation = read_generation_config(state.generation_text, state.config); });
    } else if (!state.config_text.empty()) {
        in_file(folder / "config.json",
                [&] { state.generation = read_generation_config(state.config_text, state.config); });
    }
}

}  // namespace

Model Model::load(const std::filesystem::path& path, const LoadOptions& options) {
    auto state = std::make_shared<ModelState>();
    const std::filesystem::path folder = model_folder(path);
    const auto config_path = folder / "config.json";
    const std::string text = read_text_file("Model::load", config_path);
    state->config = in_file(config_path, [&] { return read_model_config(text); });
    if (state->config.family != "heed") { state->config_text = text; }
    load_generation(folder, *state);
    const ModelNames names = names_of(state->config);
    WeightFiles files("Model::load", folder);
    FileSource source(files, names, options, state->parameters);
    state->graph = build_graph(state->config, names, source);
    source.finish();
    for (const auto& [name, index] : files.all()) {
        const bool ignored =
            std::ranges::any_of(names.ignored, [&](const std::string& end) { return name.ends_with(end); });
        if (!ignored && state->parameters.find(name) == nullptr) { state->unused.push_back(name); }
    }
    state->files = files.take();
    state->folder = folder;
    Model model(std::move(state));
    if (options.weights != WeightStorage::stored) {
        Context context;
        model.set_weights(context, options.weights);
    }
    model.to(options.device);
    return model;
}

void Model::save(const std::filesystem::path& folder, const SaveOptions& options) const {
    std::error_code failed;
    std::filesystem::create_directories(folder, failed);
    if (failed) {
        throw FileError("[Model::save] " + folder.string() + ": expected a folder, got " + failed.message());
    }
    std::vector<TensorToWrite> tensors;
    for (const Parameter& parameter : state_->parameters.list()) {
        const View value = parameter.value;
        const auto bytes = static_cast<std::uint64_t>(value.shape().elements()) * size_of(value.dtype());
        tensors.push_back({parameter.name, bytes, [value](Tensor& memory) {
                               if (value.device().kind == DeviceKind::cpu) { return value; }
                               memory = Tensor::copy_of(value).to(Device{});
                               return View(memory.view());
                           }});
    }
    const std::string text = state_->config_text.empty() ? write_model_config(state_->config) : state_->config_text;
    AtomicFile config("Model::save", folder / "config.json");
    config.write(std::as_bytes(std::span(text)));
    write_weight_files("Model::save", folder, tensors, options.max_shard_bytes, {{"format", "pt"}});
    if (!state_->generation_text.empty()) {
        AtomicFile generation("Model::save", folder / "generation_config.json");
        generation.write(std::as_bytes(std::span(state_->generation_text)));
        generation.commit();
    }
    config.commit();
}

}  // namespace heed
