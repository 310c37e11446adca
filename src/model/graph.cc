#include "model/graph.h"

namespace heed {
namespace {

/// "model.layers.{}." with a number in place of the first {}.
std::string numbered(const std::string& pattern, std::int64_t number) {
    const std::size_t at = pattern.find("{}");
    return at == std::string::npos ? pattern : pattern.substr(0, at) + std::to_string(number) + pattern.substr(at + 2);
}

class Builder {
public:
    Builder(const ModelConfig& config, const ModelNames& names, ParameterSource& source)
        : config_(config), names_(names), source_(source), d_(config.d_model) {}

    ModelGraph build() {
        ModelGraph graph;
        graph.embedding = take(names_.embedding + ".weight", {config_.vocab, d_}, Init::embedding);
        if (config_.source_vocab > 0) {
            graph.source_embedding =
                take(names_.source_embedding + ".weight", {config_.source_vocab, d_}, Init::embedding);
        }
        if (config_.token_types > 0) {
            graph.token_types = take(names_.token_types + ".weight", {config_.token_types, d_}, Init::embedding);
        }
        if (config_.kind != ModelKind::decoder) { graph.encoder = stack(config_.encoder, names_.encoder); }
        if (config_.kind != ModelKind::encoder) { graph.decoder = stack(config_.decoder, names_.decoder); }
        if (config_.pooler) {
            graph.pooler.weight = take(names_.pooler + ".weight", {d_, d_}, Init::matrix, true);
            graph.pooler.bias = take(names_.pooler + ".bias", {d_}, Init::zeros, true);
        }
        if (config_.head) { head(*config_.head, graph); }
        return graph;
    }

private:
    Weight take(const std::string& name, const Shape& shape, Init init = Init::matrix, bool optional = false) {
        Parameter* parameter = source_.take({.name = name, .shape = shape, .init = init, .optional = optional});
        return parameter == nullptr ? Weight() : Weight(*parameter);
    }

    struct Matrix {
        std::int64_t outputs;
        std::int64_t inputs;
        bool bias;
        Init init = Init::matrix;
    };
    LinearLayer matrix(const std::string& name, const Matrix& m, bool transposed = false) {
        LinearLayer layer;
        layer.weight = transposed ? take(name + ".weight", {m.inputs, m.outputs}, m.init).permute({1, 0})
                                  : take(name + ".weight", {m.outputs, m.inputs}, m.init);
        if (m.bias) { layer.bias = take(name + ".bias", {m.outputs}, Init::zeros); }
        return layer;
    }
    LinearLayer layer_matrix(const std::string& name, const Matrix& m) { return matrix(name, m, names_.transposed); }

    NormLayer norm(const std::string& name, const NormConfig& n, std::int64_t size) {
        NormLayer layer;
        layer.options = {.kind = n.kind, .eps = n.eps, .weight_offset = n.weight_offset};
        layer.present = true;
        layer.weight = take(name + ".weight", {size}, n.weight_offset == 0 ? Init::ones : Init::zeros);
        if (n.bias && n.kind == NormKind::layer_norm) { layer.bias = take(name + ".bias", {size}, Init::zeros); }
        return layer;
    }

    void latent(AttentionLayer& a, const AttentionNames& n, const NormConfig& norms, const std::string& at) {
        const AttentionConfig& c = a.config;
        const LatentAttention& l = *c.latent;
        const std::int64_t head = l.nope_size + l.rope_size;
        // The norms inside are RMS norms whatever the stack has.
        const NormConfig inner{.kind = NormKind::rms_norm, .eps = config_.family == "heed" ? norms.eps : 1e-6};
        if (l.query_rank > 0) {
            a.q_down = matrix(at + n.q_down, {l.query_rank, d_, c.qkv_bias});
            a.q_latent_norm = norm(at + n.q_down_norm, inner, l.query_rank);
            a.q_up = matrix(at + n.q_up, {c.heads * head, l.query_rank, false});
        } else {
            a.q = matrix(at + n.q, {c.heads * head, d_, false});
        }
        a.kv_down = matrix(at + n.kv_down, {l.kv_rank + l.rope_size, d_, c.qkv_bias});
        a.kv_latent_norm = norm(at + n.kv_down_norm, inner, l.kv_rank);
        const std::int64_t each = l.nope_size + l.value_size;
        const Weight up =
            take(at + n.kv_up + ".weight", {c.heads * each, l.kv_rank}).reshape({c.heads, each, l.kv_rank});
        a.up_key = up.slice(1, 0, l.nope_size);
        a.up_value = up.slice(1, l.nope_size, each);
    }

    void fused(AttentionLayer& a, const AttentionNames& n, const std::string& at) {
        const AttentionConfig& c = a.config;
        const std::int64_t q = c.heads * c.head_size, k = c.kv_heads * c.head_size, v = c.values() * c.value_size;
        a.qkv = layer_matrix(at + n.qkv, {q + k + v, d_, c.qkv_bias});
        if (n.rows == FusedRows::blocks) {
            a.q_rows = {.begin = 0, .stride = c.head_size};
            a.k_rows = {.begin = q, .stride = c.head_size};
            a.v_rows = {.begin = q + k, .stride = c.value_size};
        } else {
            const std::int64_t each = 2 * c.head_size + c.value_size;
            a.q_rows = {.begin = 0, .stride = each};
            a.k_rows = {.begin = c.head_size, .stride = each};
            a.v_rows = {.begin = 2 * c.head_size, .stride = each};
        }
    }

    void linear_gates(AttentionLayer& a, const AttentionNames& n, const NormConfig& norms, const std::string& at) {
        const AttentionConfig& c = a.config;
        const std::int64_t states = c.values();
        if (c.core != AttentionCore::delta) {
            a.decay_gate = matrix(at + n.decay, {c.decay_rows ? states * c.head_size : states, d_, true});
            a.decay_rate = take(at + n.decay_rate, {states}, Init::decay_rates);
        }
        if (c.core != AttentionCore::gated) { a.beta = matrix(at + n.beta, {states, d_, false}); }
        if (c.output_gate) { a.output_gate = matrix(at + n.output_gate, {c.outputs() * c.value_size, d_, false}); }
        a.output_norm = norm(at + n.output_norm, {.kind = NormKind::rms_norm, .eps = norms.eps}, c.value_size);
    }

    AttentionLayer attention(const AttentionConfig& config, const AttentionNames& n, const NormConfig& norms,
                             const std::string& at, bool cross) {
        AttentionLayer a;
        a.config = config;
        a.d_model = d_;
        a.cross = cross;
        if (cross) {
            a.config.rope.reset();
            a.config.window = {};
            a.config.core = AttentionCore::softmax;
            a.config.sinks = false;
        }
        const AttentionConfig& c = a.config;
        if (c.latent && !cross) {
            latent(a, n, norms, at);
        } else if (!n.qkv.empty()) {
            fused(a, n, at);
        } else {
            a.config.latent.reset();
            a.q = layer_matrix(at + n.q, {c.heads * c.head_size, d_, c.qkv_bias});
            a.k = layer_matrix(at + n.k, {c.kv_heads * c.head_size, d_, c.qkv_bias});
            a.v = layer_matrix(at + n.v, {c.values() * c.value_size, d_, c.qkv_bias});
            if (c.qk_norm != QkNorm::none) {
                const bool whole = c.qk_norm == QkNorm::whole;
                const NormConfig kind{.kind = NormKind::rms_norm, .eps = norms.eps};
                a.q_norm = norm(at + n.q_norm, kind, whole ? c.heads * c.head_size : c.head_size);
                a.k_norm = norm(at + n.k_norm, kind, whole ? c.kv_heads * c.head_size : c.head_size);
            }
        }
        a.out = layer_matrix(at + n.out, {d_, c.outputs() * c.value_size, c.output_bias, Init::residual_matrix});
        if (c.sinks) { a.sinks = take(at + n.sinks, {c.heads}, Init::zeros); }
        if (c.has_gates()) { linear_gates(a, n, norms, at); }
        if (c.core == AttentionCore::infini) { a.gates = take(at + n.gates, {c.heads}, Init::zeros); }
        a.prepare();
        return a;
    }

    /// gate and up: rows of one matrix, or two.
    FeedForwardLayer plain(const FeedForwardConfig& c, std::int64_t size, const StackNames& n, const std::string& at) {
        FeedForwardLayer f;
        f.config = c;
        f.config.experts = {};
        if (c.gated && !n.gate_up.empty()) {
            const LinearLayer both = layer_matrix(at + n.gate_up, {2 * size, d_, c.bias});
            f.gate.weight = both.weight.slice(0, 0, size);
            f.up.weight = both.weight.slice(0, size, 2 * size);
            if (c.bias) {
                f.gate.bias = both.bias.slice(0, 0, size);
                f.up.bias = both.bias.slice(0, size, 2 * size);
            }
        } else {
            if (c.gated) { f.gate = layer_matrix(at + n.gate, {size, d_, c.bias}); }
            f.up = layer_matrix(at + n.up, {size, d_, c.bias});
        }
        f.down = layer_matrix(at + n.down, {d_, size, c.bias, Init::residual_matrix});
        return f;
    }

    FeedForwardLayer expert_layer(const FeedForwardConfig& c) const {
        FeedForwardLayer f;
        f.config = c;
        f.config.experts = {.limit = c.experts.limit, .alpha = c.experts.alpha};
        return f;
    }

    void interleaved_experts(FeedForwardLayer& f, const StackNames& n, const std::string& at) {
        const ExpertConfig& e = f.config.experts;
        const Weight gate_up = take(at + n.expert_gate, {e.routed, d_, 2 * e.size});
        const Weight down = take(at + n.expert_down, {e.routed, e.size, d_}, Init::residual_matrix);
        Weight gate_up_bias, down_bias;
        if (e.bias) {
            gate_up_bias = take(at + n.expert_gate + "_bias", {e.routed, 2 * e.size}, Init::zeros);
            down_bias = take(at + n.expert_down + "_bias", {e.routed, d_}, Init::zeros);
        }
        for (std::int64_t i = 0; i < e.routed; ++i) {
            FeedForwardLayer expert = expert_layer(f.config);
            const Weight both = gate_up.at(i).permute({1, 0});
            expert.gate.weight = both.every(0, 2);
            expert.up.weight = both.every(1, 2);
            expert.down.weight = down.at(i).permute({1, 0});
            if (e.bias) {
                expert.gate.bias = gate_up_bias.at(i).every(0, 2);
                expert.up.bias = gate_up_bias.at(i).every(1, 2);
                expert.down.bias = down_bias.at(i);
            }
            f.experts.push_back(std::move(expert));
        }
    }

    FeedForwardLayer feed_forward(const FeedForwardConfig& c, const StackNames& n, const std::string& at) {
        const ExpertConfig& e = c.experts;
        if (e.routed == 0) { return plain(c, c.size, n, at); }
        FeedForwardLayer f;
        f.config = c;
        f.router = matrix(at + n.router, {e.routed, d_, e.router_bias});
        if (e.correction_bias) { f.correction = take(at + n.correction, {e.routed}, Init::zeros); }
        if (names_.experts == ExpertFiles::interleaved) {
            interleaved_experts(f, n, at);
        } else {
            for (std::int64_t i = 0; i < e.routed; ++i) {
                FeedForwardLayer expert = expert_layer(c);
                expert.gate = matrix(at + numbered(n.expert_gate, i), {e.size, d_, e.bias});
                expert.up = matrix(at + numbered(n.expert_up, i), {e.size, d_, e.bias});
                expert.down = matrix(at + numbered(n.expert_down, i), {d_, e.size, e.bias, Init::residual_matrix});
                f.experts.push_back(std::move(expert));
            }
        }
        if (e.shared > 0) {
            FeedForwardLayer shared = expert_layer(c);
            const std::int64_t size = e.shared * e.size;
            shared.gate = matrix(at + n.shared_gate, {size, d_, e.bias});
            shared.up = matrix(at + n.shared_up, {size, d_, e.bias});
            shared.down = matrix(at + n.shared_down, {d_, size, e.bias, Init::residual_matrix});
            f.shared.push_back(std::move(shared));
        }
        return f;
    }

    BlockLayer block(const StackConfig& s, const StackNames& n, std::size_t index) {
        const LayerConfig& c = s.layers[index];
        const std::string at = numbered(n.layer, static_cast<std::int64_t>(index));
        const bool before = s.placement != Placement::output;
        const bool behind = s.placement == Placement::output || s.placement == Placement::sandwich;
        BlockLayer b;
        b.placement = s.placement;
        if (before && c.attention.norm) { b.attention_norm = norm(at + n.attention_norm, s.norm, d_); }
        b.attention = attention(c.attention, n.self, s.norm, at, false);
        if (behind) { b.attention_out_norm = norm(at + n.attention_out_norm, s.norm, d_); }
        if (s.cross) {
            b.has_cross = true;
            if (before) { b.cross_norm = norm(at + n.cross_norm, s.norm, d_); }
            b.cross = attention(c.attention, n.cross, s.norm, at, true);
            if (behind) { b.cross_out_norm = norm(at + n.cross_out_norm, s.norm, d_); }
        }
        if (before) { b.feed_forward_norm = norm(at + n.feed_forward_norm, s.norm, d_); }
        b.feed_forward = feed_forward(c.feed_forward, n, at);
        if (behind) { b.feed_forward_out_norm = norm(at + n.feed_forward_out_norm, s.norm, d_); }
        return b;
    }

    Stack stack(const StackConfig& s, const StackNames& n) {
        Stack result;
        const PositionConfig& p = s.positions;
        const std::int64_t heads = s.layers.front().attention.heads;
        if (p.kind == PositionKind::learned) {
            result.positions = take(n.positions + ".weight", {p.rows, d_}, Init::embedding);
        }
        if (p.kind == PositionKind::relative) {
            result.relative =
                take(numbered(n.layer, 0) + n.self.relative + ".weight", {p.buckets.count, heads}, Init::embedding);
        }
        if (p.kind == PositionKind::alibi) { result.alibi = alibi_slopes(heads); }
        if (s.embedding_norm) { result.embedding_norm = norm(n.embedding_norm, s.norm, d_); }
        for (std::size_t i = 0; i < s.layers.size(); ++i) { result.layers.push_back(block(s, n, i)); }
        if (s.final_norm) { result.final_norm = norm(n.final_norm, s.norm, d_); }
        return result;
    }

    void head(const HeadConfig& h, ModelGraph& graph) {
        if (h.transform) {
            graph.transform = matrix(names_.head_transform, {d_, d_, h.transform_bias});
            graph.transform_norm = norm(names_.head_transform_norm, config_.last().norm, d_);
        }
        // A file that has the matrix means it, tied or not.
        graph.head.weight = take(names_.head + ".weight", {config_.vocab, d_}, Init::embedding, h.tied);
        if (!graph.head.weight) { graph.head.weight = graph.embedding; }
        if (h.bias) {
            const Shape shape = names_.head_bias_is_row ? Shape{1, config_.vocab} : Shape{config_.vocab};
            if (!h.tied && !names_.untied_head_bias.empty()) {
                graph.head.bias = take(names_.untied_head_bias, shape, Init::zeros, true);
            }
            if (!graph.head.bias) {
                graph.head.bias = take(names_.head_bias, shape, Init::zeros, names_.head_bias_optional);
            }
            if (graph.head.bias) { graph.head.bias = graph.head.bias.reshape({config_.vocab}); }
        }
    }

    const ModelConfig& config_;
    const ModelNames& names_;
    ParameterSource& source_;
    std::int64_t d_;
};

}  // namespace

ModelGraph build_graph(const ModelConfig& config, const ModelNames& names, ParameterSource& source) {
    return Builder(config, names, source).build();
}

}  // namespace heed
