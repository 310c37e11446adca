#include <heed/convert_model.h>

#include <heed/convert_heads.h>

#include "base/refuse.h"
#include "io/file.h"
#include "model/config_text.h"
#include "model/names.h"
#include "model/weight_files.h"

namespace heed {
namespace {

constexpr const char* function_name = "convert_model";

[[noreturn]] void refuse_conversion(const std::string& argument, const std::string& expected, const std::string& got) {
    refuse("convert_model", argument, expected, got);
}

/// What becomes of the heads of keys and values, and of which tensors.
struct Pooling {
    std::int64_t from = 0, to = 0;
    std::vector<std::string> ends;  ///< of the names of tensors [from * d, ...]

    bool takes(const std::string& name) const {
        return std::any_of(ends.begin(), ends.end(), [&](const std::string& end) { return name.ends_with(end); });
    }
};

const AttentionConfig& only_attention(const ModelConfig& config) {
    const AttentionConfig& first = config.decoder.layers.front().attention;
    for (const LayerConfig& layer : config.decoder.layers) {
        if (layer.attention.kv_heads != first.kv_heads) {
            refuse_conversion("kv_heads", "layers with the same number of heads", "a model whose layers differ");
        }
    }
    return first;
}

Pooling plan_pooling(const ModelConfig& config, std::int64_t kv_heads) {
    if (config.kind != ModelKind::decoder) { refuse_conversion("kv_heads", "a decoder", "another kind of model"); }
    const AttentionConfig& attention = only_attention(config);
    const AttentionNames& names = names_of(config).decoder.self;
    if (attention.latent || !names.qkv.empty() || names.k.empty()) {
        refuse_conversion("kv_heads", "a model with projections of keys and of values", config.family);
    }
    if (kv_heads < 1 || attention.kv_heads % kv_heads != 0) {
        refuse_conversion("kv_heads", "a divisor of " + std::to_string(attention.kv_heads), std::to_string(kv_heads));
    }
    Pooling pooling{attention.kv_heads, kv_heads, {}};
    for (const std::string& name : {names.k, names.v}) {
        pooling.ends.push_back("." + name + ".weight");
        pooling.ends.push_back("." + name + ".bias");
    }
    if (attention.qk_norm == QkNorm::whole) { pooling.ends.push_back("." + names.k_norm + ".weight"); }
    return pooling;
}

/// config.json for the new numbers; throws unless reading it gives them.
std::string changed_config(const std::string& text, const ConvertModelOptions& options) {
    nlohmann::json json = parse_config(function_name, text);
    if (options.kv_heads > 0) { json["num_key_value_heads"] = options.kv_heads; }
    if (options.dtype) {
        const char* name = *options.dtype == DType::bf16  ? "bfloat16"
                           : *options.dtype == DType::f16 ? "float16"
                           : *options.dtype == DType::f64 ? "float64"
                                                          : "float32";
        for (const char* key : {"torch_dtype", "dtype"}) {
            if (json.contains(key)) { json[key] = name; }
        }
    }
    std::string changed = json.dump(2) + "\n";
    if (options.kv_heads > 0 && only_attention(read_model_config(changed)).kv_heads != options.kv_heads) {
        refuse_conversion("kv_heads", "a family whose config.json has num_key_value_heads",
                          read_model_config(text).family);
    }
    return changed;
}

Tensor pooled_tensor(const Tensor& tensor, const Pooling& pooling, const std::string& name) {
    Shape shape = tensor.shape();
    if (shape.rank() < 1 || shape[0] % pooling.from != 0) {
        throw FileError("[convert_model] " + in_quotes(name) + ": expected a multiple of " +
                        std::to_string(pooling.from) + " rows, got " + to_string(shape));
    }
    shape[0] = shape[0] / pooling.from * pooling.to;
    Tensor result = Tensor::uninitialised(tensor.dtype(), shape);
    pool_heads(tensor, pooling.from, pooling.to, result.view());
    return result;
}

TensorToWrite planned_tensor(const WeightFiles& files, const std::string& name, const Pooling& pooling,
                             const ConvertModelOptions& options) {
    const SafetensorsFile* file = files.find(name);
    const SafetensorsFile::Entry& entry = file->entry(name);
    const bool converts = options.dtype && is_floating(entry.dtype);
    const bool pools = pooling.to > 0 && pooling.takes(name);
    const DType dtype = converts ? *options.dtype : entry.dtype;
    auto elements = static_cast<std::uint64_t>(entry.shape.elements());
    if (pools) {
        elements = elements / static_cast<std::uint64_t>(pooling.from) * static_cast<std::uint64_t>(pooling.to);
    }
    return {name, elements * size_of(dtype), [=, &pooling](Tensor& keep) -> View {
                keep = file->tensor(name);
                if (pools) { keep = pooled_tensor(keep, pooling, name); }
                if (converts) { keep = keep.to(dtype); }
                return keep.view();
            }};
}

void copy_texts(const std::filesystem::path& from, const std::filesystem::path& to) {
    for (const auto& entry : std::filesystem::directory_iterator(from)) {
        const std::string name = entry.path().filename().string(), extension = entry.path().extension().string();
        const bool text = extension == ".json" || extension == ".jinja" || extension == ".txt" || extension == ".model";
        if (entry.is_regular_file() && text && name != "config.json" && name != index_name) {
            std::filesystem::copy_file(entry.path(), to / name, std::filesystem::copy_options::overwrite_existing);
        }
    }
}

}  // namespace

void convert_model(const std::filesystem::path& from, const std::filesystem::path& to,
                   const ConvertModelOptions& options) {
    if (options.dtype && !is_floating(*options.dtype)) {
        refuse_conversion("dtype", "f32, bf16, f16 or f64", std::string(name_of(*options.dtype)));
    }
    if (std::filesystem::exists(to) && std::filesystem::equivalent(from, to)) {
        refuse_conversion("to", "another folder than the one that is read", "the same");
    }
    // Weights without a configuration can be converted too, as far as that needs none.
    const bool configured = options.kv_heads > 0 || std::filesystem::exists(from / "config.json");
    const std::string text = configured ? read_text_file(function_name, from / "config.json") : std::string();
    const Pooling pooling = options.kv_heads > 0 ? plan_pooling(read_model_config(text), options.kv_heads) : Pooling();
    const std::string changed = configured ? changed_config(text, options) : std::string();
    const WeightFiles files(function_name, from);
    std::vector<TensorToWrite> tensors;
    for (const auto& [name, file] : files.all()) { tensors.push_back(planned_tensor(files, name, pooling, options)); }
    std::filesystem::create_directories(to);
    copy_texts(from, to);
    write_weight_files(function_name, to, tensors, options.max_shard_bytes, files.metadata());
    if (!configured) { return; }
    AtomicFile config(function_name, to / "config.json");
    config.write(std::as_bytes(std::span(changed)));
    config.commit();
}

}  // namespace heed
