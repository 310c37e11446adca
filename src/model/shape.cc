#include "model/shape.h"

#include "base/refuse.h"

#include <heed/error.h>

namespace heed {
namespace {

class Checker {
public:
    explicit Checker(std::string_view function) : function_(function) {}

    void range(std::string_view field, std::int64_t value, std::int64_t low, std::int64_t high) const {
        if (value < low || value > high) {
            refuse(field, std::to_string(low) + " to " + std::to_string(high), std::to_string(value));
        }
    }
    [[noreturn]] void refuse(std::string_view field, const std::string& expected, const std::string& got) const {
        heed::refuse(std::string(function_), std::string(field), expected, got);
    }

private:
    std::string_view function_;
};

void check_attention(const Checker& check, const ModelShape& model) {
    using shape_limit::width;
    check.range("heads", model.heads, 1, width);
    if (model.latent) {
        check.range("latent.query_rank", model.latent->query_rank, 0, width);
        check.range("latent.kv_rank", model.latent->kv_rank, 1, width);
        check.range("latent.nope_size", model.latent->nope_size, 1, width);
        check.range("latent.rope_size", model.latent->rope_size, 0, width);
        check.range("latent.value_size", model.latent->value_size, 1, width);
        return;
    }
    check.range("kv_heads", model.kv_heads, 1, model.heads);
    if (model.heads % model.kv_heads != 0) {
        check.refuse("kv_heads", "a divisor of the " + std::to_string(model.heads) + " heads",
                     std::to_string(model.kv_heads));
    }
    check.range("head_size", model.head_size, 1, width);
    check.range("value_size", model.value_size, 1, width);
}

void check_experts(const Checker& check, const Experts& experts) {
    using shape_limit::width;
    check.range("experts.routed", experts.routed, 1, width);
    check.range("experts.active", experts.active, 1, experts.routed);
    check.range("experts.shared", experts.shared, 0, width);
    check.range("experts.d_ff", experts.d_ff, 1, width);
    check.range("experts.dense_layers", experts.dense_layers, 0, shape_limit::layers);
}

}  // namespace

void check_shape(std::string_view function, const ModelShape& model) {
    using shape_limit::width;
    const Checker check(function);
    const bool two_stacks = model.kind == ModelKind::encoder_decoder;
    check.range("layers", model.layers, 1, shape_limit::layers);
    check.range("encoder_layers", model.encoder_layers, two_stacks ? 1 : 0, two_stacks ? shape_limit::layers : 0);
    check.range("d_model", model.d_model, 1, width);
    check_attention(check, model);
    check.range("d_ff", model.d_ff, 1, width);
    check.range("encoder_d_ff", model.encoder_d_ff, two_stacks ? 1 : 0, two_stacks ? width : 0);
    if (model.experts) {
        if (two_stacks) { check.refuse("experts", "none in an encoder-decoder", "some"); }
        check_experts(check, *model.experts);
    }
    check.range("vocab", model.vocab, 1, shape_limit::rows);
    check.range("positions", model.positions, 0, shape_limit::rows);
    check.range("position_rows", model.position_rows, 0, shape_limit::rows);
    check.range("relative_buckets", model.relative_buckets, 0, width);
    check.range("token_types", model.token_types, 0, width);
    check.range("norms_per_sublayer", model.norms_per_sublayer, 1, 2);
    check.range("classes", model.classes, 0, width);
}

}  // namespace heed
