#include <algorithm>
#include <nlohmann/json.hpp>

#include "print/size_report.h"

namespace size_report {
namespace {

using heed::ModelShape;
using Json = nlohmann::ordered_json;

const char* name_of(heed::ModelKind kind) {
    switch (kind) {
        case heed::ModelKind::encoder: return "encoder";
        case heed::ModelKind::decoder: return "decoder";
        case heed::ModelKind::encoder_decoder: return "encoder-decoder";
    }
    return "unknown";
}

Json latent(const heed::LatentAttention& a) {
    return {{"query_rank", a.query_rank},
            {"kv_rank", a.kv_rank},
            {"nope_size", a.nope_size},
            {"rope_size", a.rope_size},
            {"value_size", a.value_size}};
}

Json shape(const ModelShape& m) {
    Json result = {{"kind", name_of(m.kind)}, {"layers", m.layers}};
    if (m.kind == heed::ModelKind::encoder_decoder) { result["encoder_layers"] = m.encoder_layers; }
    result.update({{"d_model", m.d_model}, {"heads", m.heads}});
    if (m.latent) {
        result["latent"] = latent(*m.latent);
    } else {
        result.update({{"kv_heads", m.kv_heads}, {"head_size", m.head_size}, {"value_size", m.value_size}});
    }
    result["d_ff"] = m.d_ff;
    if (m.experts) {
        result["experts"] = {{"routed", m.experts->routed},
                             {"active", m.experts->active},
                             {"shared", m.experts->shared},
                             {"d_ff", m.experts->d_ff},
                             {"dense_layers", m.experts->dense_layers}};
    }
    result.update({{"vocab", m.vocab}, {"positions", m.positions}, {"tied", m.tied}});
    return result;
}

Json parameters(const heed::ParameterCount& c) {
    return {{"embedding", c.embedding},
            {"positions", c.positions},
            {"attention", c.attention},
            {"attention_layer", c.attention_layer},
            {"ffn", c.ffn},
            {"ffn_layer", c.ffn_layer},
            {"expert_ffn_layer", c.expert_ffn_layer},
            {"norms", c.norms},
            {"head", c.head},
            {"total", c.total},
            {"active", c.active},
            {"active_without_lookup", c.active_without_lookup}};
}

Json flops(const heed::Flops& f) {
    return {{"projections", f.projections}, {"scores", f.scores}, {"ffn", f.ffn}, {"head", f.head}, {"total", f.total}};
}

Json cache(const ModelShape& m, const Setting& s) {
    return {{"bytes_per_token", heed::kv_bytes_per_token(m, s.bytes)},
            {"cross_bytes_per_source_token", heed::cross_kv_bytes_per_token(m, s.bytes)},
            {"bytes", heed::kv_cache_bytes(m, s.bytes, s.context, s.batch)}};
}

Json attention_layer(const heed::AttentionCost& c) {
    return {{"input_numbers", c.input_numbers},
            {"score_numbers", c.score_numbers},
            {"weight_numbers", c.weight_numbers},
            {"projection_flops", c.projection_flops},
            {"score_flops", c.score_flops}};
}

Json variant(const Variant& v, const Setting& s) {
    Json result = {{"kind", heed::name_of(heed::attention_kind(v.model))}, {"own", v.own}};
    if (v.model.latent) {
        result["latent"] = latent(*v.model.latent);
    } else {
        result["kv_heads"] = v.model.kv_heads;
    }
    const heed::ParameterCount count = heed::parameters(v.model);
    result.update({{"parameters", count.total},
                   {"attention_layer", count.attention_layer},
                   {"forward_flops", heed::flops_per_token(v.model, s.context).total},
                   {"training_flops", heed::training_flops_per_token(v.model, s.context).total},
                   {"flops_per_key", heed::attention_flops_per_key(v.model)},
                   {"decode_flops_per_key", heed::attention_flops_per_key(v.model, heed::LatentForm::absorbed)},
                   {"kv_cache", cache(v.model, s)}});
    return result;
}

Json model(const ModelShape& m, const Setting& s) {
    Json kinds = Json::array();
    for (const Variant& v : variants(m, s.groups)) { kinds.push_back(variant(v, s)); }
    return {{"name", m.name},
            {"shape", shape(m)},
            {"parameters", parameters(heed::parameters(m))},
            {"weight_bytes", heed::weight_bytes(m, s.bytes)},
            {"forward_flops_per_token", flops(heed::flops_per_token(m, s.context))},
            {"training_flops_per_token", flops(heed::training_flops_per_token(m, s.context))},
            {"kv_cache", cache(m, s)},
            {"attention_layer", attention_layer(heed::attention_cost(m, s.batch, s.context))},
            {"attention_kinds", std::move(kinds)}};
}

}  // namespace

std::string to_json(const std::vector<ModelShape>& models, const Setting& setting) {
    Json list = Json::array();
    for (const ModelShape& m : models) { list.push_back(model(m, setting)); }
    const Json result = {
        {"context", setting.context}, {"batch", setting.batch}, {"dtype", setting.dtype}, {"models", std::move(list)}};
    // A folder's name need not be UTF-8.
    return result.dump(2, ' ', false, Json::error_handler_t::replace);
}

}  // namespace size_report
