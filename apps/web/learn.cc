#include "learn.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include <heed/infini_attention.h>
#include <heed/linear_attention.h>
#include <heed/pattern.h>
#include <heed/positions.h>
#include <heed/random.h>
#include <heed/sizes.h>
#include <heed/walkthrough.h>

#include "fields.h"

namespace heed::web {
namespace {

constexpr std::int64_t most_tokens = 24;   // what a person can look at
constexpr std::int64_t most_numbers = 32;  // numbers of a token

/// A tensor as nested lists; what is not finite becomes null.
Json nested(const View& view, int axis = 0, std::int64_t offset = 0) {
    if (axis == view.rank()) {
        double value = 0;
        if (view.dtype() == DType::f64) {
            value = view.as<double>()[offset];
        } else if (view.dtype() == DType::f32) {
            value = static_cast<double>(view.as<float>()[offset]);
        } else {
            return view.as<std::uint8_t>()[offset];
        }
        return std::isfinite(value) ? Json(value) : Json(nullptr);
    }
    Json list = Json::array();
    for (std::int64_t n = 0; n < view.extent(axis); ++n) {
        list.push_back(nested(view, axis + 1, offset + n * view.stride(axis)));
    }
    return list;
}

Json list_of(const Shape& shape) { return Json(std::vector<std::int64_t>(shape.begin(), shape.end())); }

/// Uniform in [-1, 1), the same for a seed everywhere.
Tensor random_tensor(const Shape& shape, std::uint64_t seed, std::uint32_t stream) {
    Tensor tensor(DType::f64, shape);
    for (std::int64_t n = 0; n < tensor.elements(); ++n) {
        const auto words = philox4x32({static_cast<std::uint32_t>(n), 0, stream, 0x4c4541U}, seed);
        tensor.as<double>()[n] = static_cast<double>(words[0]) / 2147483648.0 - 1.0;
    }
    return tensor;
}

std::uint64_t seed_of(const Json& request) {
    return static_cast<std::uint64_t>(integer_field(request, "seed", 0, (std::int64_t{1} << 53), 1));
}

}  // namespace

Json walkthrough_answer(const Json& request) {
    const std::string example = string_field(request, "example", 16, "teaching");
    if (example != "teaching" && example != "random") {
        throw bad_field("example", "\"teaching\" or \"random\"", example);
    }
    const std::int64_t heads = integer_field(request, "heads", 1, 8, 2);
    const std::int64_t kv_heads = integer_field(request, "kv_heads", 1, 8, heads);
    const std::int64_t d_model = integer_field(request, "d_model", 1, most_numbers, 8);
    const std::int64_t tokens = integer_field(request, "tokens", 1, most_tokens, 4);
    if (example == "random" && (heads % kv_heads != 0 || d_model % heads != 0)) {
        throw HttpError{
            400, "heads: expected a divisor of d_model and a multiple of kv_heads, got " + std::to_string(heads)};
    }
    AttentionOptions options;
    options.causal = bool_field(request, "causal", false);
    if (request.contains("scale") && !request["scale"].is_null()) {
        options.scale = number_field(request, "scale", -100, 100, 1);
    }
    options.softcap = number_field(request, "softcap", 0, 1000, 0);
    const std::int64_t left = integer_field(request, "window", -1, most_tokens, -1);
    if (left >= 0) { options.window = {.left = left, .right = options.causal ? 0 : left}; }
    options.dropout.p = number_field(request, "dropout", 0, 0.95, 0);
    options.dropout.seed = seed_of(request);
    options.dropout.offset = 1;
    std::vector<double> slopes;
    const std::int64_t example_heads = example == "teaching" ? 1 : heads;
    if (bool_field(request, "alibi", false)) {
        slopes = alibi_slopes(example_heads);
        options.alibi_slopes = View(slopes.data(), {example_heads});
    }

    const WalkthroughInput input = example == "teaching"
                                       ? teaching_example()
                                       : random_example(1, tokens, d_model, heads, kv_heads, seed_of(request));
    Context context(1);
    const Walkthrough result = walk_through(context, input, options);
    Json projections = Json::object();  // an absent one is the identity
    for (const auto& [name, matrix] : {std::pair<const char*, const Tensor&>{"queries", input.wq},
                                       {"keys", input.wk},
                                       {"values", input.wv},
                                       {"output", input.wo}}) {
        if (matrix) { projections[name] = nested(matrix); }
    }
    Json steps = Json::array();
    for (const WalkthroughStep& step : result.steps) {
        Json operands = Json::array();
        for (const Shape& shape : step.operands) { operands.push_back(list_of(shape)); }
        steps.push_back({{"name", step.name},
                         {"title", step.title},
                         {"formula", step.formula},
                         {"shape", list_of(step.shape)},
                         {"operands", operands},
                         {"values", nested(step.values)}});
    }
    Json answer = {{"heads", result.heads},
                   {"kv_heads", result.kv_heads},
                   {"scale", result.scale},
                   {"softcap", options.softcap},
                   {"dropout", options.dropout.p},
                   {"slopes", slopes},
                   {"projections", projections},
                   {"steps", steps},
                   {"visible", nested(result.visible)},
                   {"largest_difference", result.largest_difference}};
    if (result.kept) { answer["kept"] = nested(result.kept); }
    return answer;
}

Json pattern_answer(const Json& request) {
    constexpr std::int64_t most_drawn = 128, most_costed = 32768, block = 128;
    const std::string text = string_field(request, "text", 2000, "causal");
    const std::int64_t tokens = integer_field(request, "tokens", 1, most_drawn, 32);
    const std::int64_t head = integer_field(request, "head", 0, 63, 0);
    const std::int64_t length = integer_field(request, "length", 1, most_costed, 4096);
    const Pattern pattern = patterns::parse(text);
    if (pattern) { pattern.check("pattern", 1, head + 1); }
    Json rows = Json::array();
    std::vector<std::uint8_t> row(static_cast<std::size_t>(tokens), 1);
    std::int64_t seen = 0;
    for (std::int64_t i = 0; i < tokens; ++i) {
        if (pattern) { pattern.row(0, head, i, 0, tokens, row.data()); }
        std::string bits;
        for (const std::uint8_t allowed : row) { bits += allowed != 0 ? '1' : '0'; }
        seen += std::count(bits.begin(), bits.end(), '1');
        rows.push_back(bits);
    }
    const std::int64_t blocks = (length + block - 1) / block;
    std::int64_t none = 0, some = 0, all = 0;
    for (std::int64_t q = 0; q < blocks; ++q) {
        for (std::int64_t k = 0; k < blocks; ++k) {
            const Cover cover = !pattern ? Cover::all
                                         : pattern.cover({.batch = 0,
                                                          .head = head,
                                                          .query_begin = q * block,
                                                          .query_end = std::min(length, (q + 1) * block),
                                                          .key_begin = k * block,
                                                          .key_end = std::min(length, (k + 1) * block)});
            ++(cover == Cover::none ? none : cover == Cover::some ? some : all);
        }
    }
    return {{"text", pattern ? pattern.describe() : "everything"},
            {"tokens", tokens},
            {"rows", rows},
            {"seen", seen},
            {"length", length},
            {"block", block},
            {"blocks", {{"none", none}, {"some", some}, {"all", all}}}};
}

Json rope_answer(const Json& request) {
    Rope rope{.size = 2 * integer_field(request, "pairs", 1, 128, 16),
              .theta = number_field(request, "theta", 1, 1e9, 10000)};
    const double factor = number_field(request, "factor", 1, 1024, 4);
    const std::int64_t trained = integer_field(request, "trained", 1, std::int64_t{1} << 24, 2048);
    const std::int64_t length = integer_field(request, "length", 1, std::int64_t{1} << 30, 8192);
    const std::string kind = string_field(request, "scaling", 16, "none");
    const RopeTable plain = rope_table(rope);
    if (kind == "linear") {
        rope.scaling = rope_scaling::Linear{factor};
    } else if (kind == "ntk") {
        rope.scaling = rope_scaling::Ntk{factor};
    } else if (kind == "dynamic") {
        rope.scaling = rope_scaling::DynamicNtk{factor, trained};
    } else if (kind == "yarn") {
        rope_scaling::Yarn yarn;
        yarn.factor = factor;
        yarn.trained = trained;
        rope.scaling = yarn;
    } else if (kind == "llama3") {
        rope.scaling = rope_scaling::Llama3{factor, trained, 1, 4};
    } else if (kind != "none") {
        throw bad_field("scaling", "none, linear, ntk, dynamic, yarn or llama3", kind);
    }
    const RopeTable table = rope_table(rope, length);
    return {
        {"plain", plain.frequencies}, {"frequencies", table.frequencies}, {"attention_factor", table.attention_factor}};
}

Json kinds_answer(const Json& request) {
    const std::string name = string_field(request, "model", 64, "llama-3-8b");
    const std::int64_t tokens = integer_field(request, "tokens", 1, std::int64_t{1} << 24, 8192);
    const ModelShape model = model_preset(name);
    if (model.kind == ModelKind::encoder) { throw HttpError{400, "model: expected one with a cache, got " + name}; }
    Json kinds = Json::array();
    for (const AttentionKind kind : {AttentionKind::mha, AttentionKind::gqa, AttentionKind::mqa, AttentionKind::mla}) {
        const ModelShape shape = with_attention(model, kind);
        const std::int64_t bytes = kv_bytes_per_token(shape, 2);
        kinds.push_back({{"kind", name_of(kind)},
                         {"heads", shape.heads},
                         {"kv_heads", shape.latent ? 0 : shape.kv_heads},
                         {"latent", shape.latent ? shape.latent->kv_rank : 0},
                         {"rope_size", shape.latent ? shape.latent->rope_size : 0},
                         {"head_size", shape.head_size},
                         {"layers", shape.layers},
                         {"bytes_per_token", bytes},
                         {"bytes", bytes * tokens},
                         {"parameters", parameters(shape).total},
                         {"own", kind == attention_kind(model)}});
    }
    Json presets = Json::array();
    for (const std::string& preset : model_presets()) {
        if (model_preset(preset).kind != ModelKind::encoder) { presets.push_back(preset); }
    }
    return {{"model", name}, {"tokens", tokens}, {"kinds", kinds}, {"models", presets}};
}

Json sizes_answer(const Json& request) {
    const std::string name = string_field(request, "model", 64, "llama-3-8b");
    const std::int64_t tokens = integer_field(request, "tokens", 1, std::int64_t{1} << 24, 8192);
    const std::int64_t texts = integer_field(request, "texts", 1, std::int64_t{1} << 16, 1);
    const std::int64_t bytes = integer_field(request, "bytes", 1, 4, 2);
    const ModelShape model = model_preset(name);
    const ParameterCount p = parameters(model);
    const Flops f = flops_per_token(model, tokens);
    return {
        {"model", name},
        {"models", model_presets()},
        {"layers", model.layers + model.encoder_layers},
        {"heads", model.heads},
        {"d_model", model.d_model},
        {"parameters",
         {{"embedding", p.embedding},
          {"positions", p.positions},
          {"attention", p.attention},
          {"ffn", p.ffn},
          {"norms", p.norms},
          {"head", p.head},
          {"total", p.total},
          {"active", p.active}}},
        {"flops",
         {{"projections", f.projections}, {"scores", f.scores}, {"ffn", f.ffn}, {"head", f.head}, {"total", f.total}}},
        {"weight_bytes", weight_bytes(model, bytes)},
        {"cache_bytes", kv_cache_bytes(model, bytes, tokens, texts)}};
}

Json linear_answer(const Json& request) {
    const std::int64_t tokens = integer_field(request, "tokens", 1, most_tokens, 8);
    const std::int64_t size = integer_field(request, "size", 1, 16, 4);
    const double decay = number_field(request, "decay", 0, 1, 1);
    const std::uint64_t seed = seed_of(request);
    const Tensor q = random_tensor({1, 1, tokens, size}, seed, 0), k = random_tensor({1, 1, tokens, size}, seed, 1),
                 v = random_tensor({1, 1, tokens, size}, seed, 2);
    LinearAttentionOptions options;
    const View decays(&decay, Shape{1});
    if (decay < 1) { options.decay = decays; }
    Tensor s(DType::f64, {1, 1, size, size}), z(DType::f64, {1, 1, size}), out(DType::f64, {1, 1, size});
    Context context(1);
    Json steps = Json::array();
    const auto row = [&](const Tensor& tensor, std::int64_t t) {
        return View(tensor.as<double>() + t * size, {1, 1, size});
    };
    for (std::int64_t t = 0; t < tokens; ++t) {
        linear_attend_step(context, row(q, t), row(k, t), row(v, t), out, {s, z}, options);
        steps.push_back({{"q", nested(row(q, t))[0][0]},
                         {"k", nested(row(k, t))[0][0]},
                         {"v", nested(row(v, t))[0][0]},
                         {"s", nested(s)[0][0]},
                         {"z", nested(z)[0][0]},
                         {"out", nested(out)[0][0]}});
    }
    return {{"tokens", tokens}, {"size", size}, {"decay", decay}, {"steps", steps}};
}

Json infini_answer(const Json& request) {
    const std::int64_t tokens = integer_field(request, "tokens", 1, most_tokens, 12);
    const std::int64_t size = integer_field(request, "size", 1, 16, 4);
    const std::uint64_t seed = seed_of(request);
    const std::string update = string_field(request, "update", 8, "linear");
    if (update != "linear" && update != "delta") { throw bad_field("update", "\"linear\" or \"delta\"", update); }
    const double gate = number_field(request, "gate", -20, 20, 0);
    InfiniOptions options;
    options.segment = integer_field(request, "segment", 1, most_tokens, 4);
    options.update = update == "delta" ? MemoryUpdate::delta : MemoryUpdate::linear;
    const Tensor q = random_tensor({1, 1, tokens, size}, seed, 0), k = random_tensor({1, 1, tokens, size}, seed, 1),
                 v = random_tensor({1, 1, tokens, size}, seed, 2);
    Tensor out(DType::f64, {1, 1, 1, size});
    const View gates(&gate, Shape{1});
    InfiniMemory memory;
    Context context(1);
    Json steps = Json::array();
    const auto row = [&](const Tensor& tensor, std::int64_t t) {
        return View(tensor.as<double>() + t * size, {1, 1, 1, size});
    };
    for (std::int64_t t = 0; t < tokens; ++t) {
        infini_attend(context, row(q, t), row(k, t), row(v, t), gates, out, memory, options);
        steps.push_back({{"q", nested(row(q, t))[0][0][0]},
                         {"k", nested(row(k, t))[0][0][0]},
                         {"v", nested(row(v, t))[0][0][0]},
                         {"m", nested(memory.m)[0][0]},
                         {"z", nested(memory.z)[0][0]},
                         {"segments", memory.segments},
                         {"pending", memory.pending},
                         {"out", nested(out)[0][0][0]}});
    }
    return {{"tokens", tokens}, {"size", size}, {"segment", options.segment}, {"gate", gate}, {"steps", steps}};
}

void add_learn(Server& server) {
    const auto add = [&](const char* path, Json (*answer)(const Json&)) {
        server.add("POST", path, [answer](const Request& request) {
            return Response{
                .body = answer(parse_object(request.body)).dump(-1, ' ', false, Json::error_handler_t::replace)};
        });
    };
    add("/api/walkthrough", walkthrough_answer);
    add("/api/pattern", pattern_answer);
    add("/api/rope", rope_answer);
    add("/api/kinds", kinds_answer);
    add("/api/sizes", sizes_answer);
    add("/api/linear", linear_answer);
    add("/api/infini", infini_answer);
    server.add("POST", "/api/alibi", [](const Request& request) {
        const std::int64_t heads = integer_field(parse_object(request.body), "heads", 1, 256, 8);
        return Response{.body = Json{{"slopes", alibi_slopes(heads)}}.dump()};
    });
}

}  // namespace heed::web
