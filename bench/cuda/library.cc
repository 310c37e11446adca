/// heed on a GPU for bench/cuda/measure.py: plain functions that Python calls with the pointers of PyTorch's tensors.

#include <heed/attention.h>

#include <exception>
#include <memory>
#include <string>

namespace {

/// What measure.py fills in, field by field.
struct Call {
    std::int64_t dtype;  // of heed::DType
    std::int64_t batch, heads, kv_heads, queries, keys, size;
    const void *q, *k, *v, *dout;
    void *out, *lse, *dq, *dk, *dv;
    std::int64_t q_stride[4], k_stride[4], v_stride[4], out_stride[4];  // gradients and dout: those of their tensors
    std::int64_t causal, left, right;
    const std::int64_t* key_lengths;  // on the host, or null
    const void* bias;                 // [1,H,T,S] in the tensors' type, or null
    void* dbias;                      // the same in float32
    const void* allow;                // [1,1,T,S] bytes, or null
    double dropout, softcap;
    const float* slopes;  // [H] on the host, or null
    const char* kernel;
};

thread_local std::string last_error;

template <class Function>
const char* guarded(const Function& function) {
    try {
        function();
        return nullptr;
    } catch (const std::exception& error) {
        last_error = error.what();
        return last_error.c_str();
    }
}

heed::Shape shape(const std::int64_t* four) { return {four[0], four[1], four[2], four[3]}; }

struct Tensors {
    explicit Tensors(const Call& c) {
        const heed::Device gpu{heed::DeviceKind::cuda, 0};
        const auto type = static_cast<heed::DType>(c.dtype);
        const heed::Shape by_query{c.batch, c.heads, c.queries, c.size}, by_key{c.batch, c.kv_heads, c.keys, c.size};
        q = heed::View(type, c.q, by_query, shape(c.q_stride), gpu);
        k = heed::View(type, c.k, by_key, shape(c.k_stride), gpu);
        v = heed::View(type, c.v, by_key, shape(c.v_stride), gpu);
        out = heed::MutableView(type, c.out, by_query, shape(c.out_stride), gpu);
        lse = heed::MutableView(heed::DType::f32, c.lse, {c.batch, c.heads, c.queries}, gpu);
        dout = heed::View(type, c.dout, by_query, shape(c.out_stride), gpu);
        gradients.dq = heed::MutableView(type, c.dq, by_query, shape(c.q_stride), gpu);
        gradients.dk = heed::MutableView(type, c.dk, by_key, shape(c.k_stride), gpu);
        gradients.dv = heed::MutableView(type, c.dv, by_key, shape(c.v_stride), gpu);
        options.causal = c.causal != 0;
        options.window = {.left = c.left, .right = c.right};
        if (c.key_lengths != nullptr) { options.key_lengths = heed::View(c.key_lengths, {c.batch}); }
        if (c.bias != nullptr) { options.bias = heed::View(type, c.bias, {1, c.heads, c.queries, c.keys}, gpu); }
        if (c.dbias != nullptr) {
            gradients.dbias = heed::MutableView(heed::DType::f32, c.dbias, {1, c.heads, c.queries, c.keys}, gpu);
        }
        if (c.allow != nullptr) {
            options.allow = heed::View(heed::DType::boolean, c.allow, {1, 1, c.queries, c.keys}, gpu);
        }
        if (c.slopes != nullptr) { options.alibi_slopes = heed::View(c.slopes, {c.heads}); }
        options.dropout.p = c.dropout;
        options.dropout.seed = 42;
        options.softcap = c.softcap;
        options.kernel = c.kernel;
    }
    heed::View q, k, v, dout;
    heed::MutableView out, lse;
    heed::AttentionGradients gradients;
    heed::AttentionOptions options;
};

}  // namespace

extern "C" {

__attribute__((visibility("default"))) const char* heed_gpu_open(void** context, void* stream) {
    return guarded([&] { *context = new heed::Context(heed::Device{heed::DeviceKind::cuda, 0}, stream); });
}
__attribute__((visibility("default"))) const char* heed_gpu_set_stream(void* context, void* stream) {
    return guarded([&] { static_cast<heed::Context*>(context)->set_stream(stream); });
}
__attribute__((visibility("default"))) const char* heed_gpu_wait(void* context) {
    return guarded([&] { static_cast<heed::Context*>(context)->synchronise(); });
}
__attribute__((visibility("default"))) const char* heed_gpu_attend(void* context, const Call* call) {
    return guarded([&] {
        const Tensors t(*call);
        heed::attend(*static_cast<heed::Context*>(context), t.q, t.k, t.v,
                     {.out = t.out, .lse = call->lse != nullptr ? t.lse : heed::MutableView()}, t.options);
    });
}
__attribute__((visibility("default"))) const char* heed_gpu_backward(void* context, const Call* call) {
    return guarded([&] {
        const Tensors t(*call);
        heed::attend_backward(*static_cast<heed::Context*>(context),
                              {.q = t.q, .k = t.k, .v = t.v, .out = t.out, .lse = t.lse, .dout = t.dout}, t.gradients,
                              t.options);
    });
}
}
