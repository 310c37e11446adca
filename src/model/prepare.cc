#include "model/prepare.h"

#include <heed/elementwise.h>

#include <functional>

#include "base/refuse.h"
#include "model/model_state.h"

namespace heed {
namespace {

using Parts = std::vector<const LinearLayer*>;

std::int64_t outputs_of(const Parts& parts) {
    std::int64_t sum = 0;
    for (const LinearLayer* part : parts) { sum += part->weight.shape[0]; }
    return sum;
}

/// What the layers have, one behind the other; `of` picks weight or bias. No copy where there is one layer.
struct Rows {
    Tensor memory;
    View view;
};
Rows rows_of_layers(Context& context, const Parts& parts, const Weight LinearLayer::*of) {
    if (parts.size() == 1) { return {{}, (parts[0]->*of).view()}; }
    const View first = (parts[0]->*of).view();
    DType dtype = first.dtype();
    for (const LinearLayer* part : parts) {
        if ((part->*of).view().dtype() != dtype) { dtype = DType::f32; }
    }
    Shape shape = first.shape();
    shape[0] = outputs_of(parts);
    Rows rows{Tensor::uninitialised(dtype, shape), {}};
    std::int64_t at = 0;
    for (const LinearLayer* part : parts) {
        const View view = (part->*of).view();
        convert(context, view, rows.memory.view().slice(0, at, at + view.extent(0)));
        at += view.extent(0);
    }
    rows.view = rows.memory.view();
    return rows;
}

std::shared_ptr<const PreparedWeight> prepared(Context& context, const Parts& parts, WeightStorage weights) {
    auto result = std::make_shared<PreparedWeight>();
    const Rows rows = rows_of_layers(context, parts, &LinearLayer::weight);
    switch (weights) {
        case WeightStorage::stored: return nullptr;
        case WeightStorage::f32: result->packed = PackedMatrix::pack(context, rows.view, DType::f32); break;
        case WeightStorage::bf16: result->packed = PackedMatrix::pack(context, rows.view, DType::bf16); break;
        case WeightStorage::int8:
            result->quantized = QuantizedMatrix::quantize(context, rows.view, WeightFormat::int8);
            break;
        case WeightStorage::int4:
            result->quantized = QuantizedMatrix::quantize(context, rows.view, WeightFormat::int4);
            break;
    }
    if (parts[0]->bias) { result->bias = Tensor::copy_of(rows_of_layers(context, parts, &LinearLayer::bias).view); }
    return result;
}

/// Layers with the same input may be one product.
bool join(const Parts& parts) {
    for (const LinearLayer* part : parts) {
        if (!*part || static_cast<bool>(part->bias) != static_cast<bool>(parts[0]->bias)) { return false; }
    }
    return true;
}

/// Walks the linear layers of a model. `joined` is a layer of several in one product, `one` a layer by itself.
struct Visitor {
    std::function<void(LinearLayer&)> one;
    std::function<void(LinearLayer& joined, const std::vector<LinearLayer*>& parts)> several;

    void each(std::initializer_list<LinearLayer*> layers) const {
        for (LinearLayer* layer : layers) {
            if (*layer) { one(*layer); }
        }
    }
    void together(LinearLayer& all, const std::vector<LinearLayer*>& parts, bool possible) const {
        if (possible && join(Parts(parts.begin(), parts.end()))) {
            several(all, parts);
            return;
        }
        for (LinearLayer* layer : parts) { each({layer}); }
    }

    void attention(AttentionLayer& a) const {
        const bool plain = !a.cross && a.config.qk_norm == QkNorm::none && !a.config.latent;
        together(a.joined, {&a.q, &a.k, &a.v}, plain);
        each({&a.qkv, &a.q_down, &a.q_up, &a.kv_down, &a.output_gate, &a.out});
    }
    void feed_forward(FeedForwardLayer& f) const {
        together(f.joined, {&f.gate, &f.up}, f.config.gated);
        each({&f.down});
        for (FeedForwardLayer& expert : f.experts) { feed_forward(expert); }
        for (FeedForwardLayer& shared : f.shared) { feed_forward(shared); }
    }
    void stack(Stack& s) const {
        for (BlockLayer& block : s.layers) {
            attention(block.attention);
            if (block.has_cross) { attention(block.cross); }
            feed_forward(block.feed_forward);
        }
    }
    void model(ModelGraph& graph) const {
        stack(graph.encoder);
        stack(graph.decoder);
        each({&graph.transform, &graph.head, &graph.pooler});
    }
};

std::size_t bytes_of(const LinearLayer& layer) {
    if (layer.prepared != nullptr) { return layer.prepared->bytes(); }
    return static_cast<std::size_t>(layer.weight.shape.elements()) * size_of(layer.weight.view().dtype());
}

}  // namespace

void prepare_weights(Context& context, ModelGraph& graph, WeightStorage weights) {
    // The router's choice is a comparison, and its matrix is small: it stays as it is.
    Visitor visitor;
    visitor.one = [&](LinearLayer& layer) { layer.prepared = prepared(context, {&layer}, weights); };
    visitor.several = [&](LinearLayer& all, const std::vector<LinearLayer*>& parts) {
        all.prepared = prepared(context, Parts(parts.begin(), parts.end()), weights);
    };
    visitor.model(graph);
}

std::size_t weight_bytes(const ModelGraph& graph) {
    std::size_t sum = 0;
    Visitor visitor;
    visitor.one = [&](LinearLayer& layer) { sum += bytes_of(layer); };
    visitor.several = [&](LinearLayer& all, const std::vector<LinearLayer*>& parts) {
        if (all) {
            sum += bytes_of(all);
            return;
        }
        for (const LinearLayer* part : parts) { sum += bytes_of(*part); }
    };
    visitor.model(const_cast<ModelGraph&>(graph));  // looks only
    return sum;
}

namespace {

constexpr std::string_view storage_names[] = {"stored", "f32", "bf16", "int8", "int4"};

}  // namespace

std::string_view name_of(WeightStorage weights) { return storage_names[static_cast<std::size_t>(weights)]; }

WeightStorage weight_storage(std::string_view name) {
    for (std::size_t n = 0; n < std::size(storage_names); ++n) {
        if (storage_names[n] == name) { return static_cast<WeightStorage>(n); }
    }
    refuse("weight_storage", "weights", "stored, f32, bf16, int8 or int4", "'" + std::string(name) + "'");
}

void Model::set_weights(Context& context, WeightStorage weights) const {
    if (weights != WeightStorage::stored && device().kind != DeviceKind::cpu) {
        refuse("Model::set_weights", "weights", "stored on a GPU", std::string(name_of(weights)));
    }
    // A model that fails half way keeps what it had.
    ModelGraph graph = state_->graph;
    prepare_weights(context, graph, weights);
    state_->graph = std::move(graph);
    state_->weights = weights;
}

WeightStorage Model::weights() const { return state_->weights; }

std::size_t Model::weight_bytes() const { return heed::weight_bytes(state_->graph); }

}  // namespace heed
