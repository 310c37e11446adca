/// heed on a GPU for bench/cuda/measure.py: plain functions that Python calls with the pointers of PyTorch's tensors.

#include <heed/attention.h>

#include "base/access.h"
#include "ops/attention_checks.h"
#include "ops/attention_kernels.h"

#include <chrono>
#include <exception>
#include <memory>
#include <string>
#include <vector>

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

/// Decoding from pages: caches of the same length, one query each, bf16.
struct PagedCall {
    std::int64_t caches, heads, kv_heads, keys, size;
    const void *q, *k, *v;  // [1,H,caches,D], pools [G,pages,page_size,D]
    void* out;
    std::int64_t page_size, pages;
    const std::int32_t* tables;  // [caches, keys / page_size] on the host
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

heed::KvRows rows_of(const PagedCall& c, const void* pool) {
    heed::KvRows rows;
    rows.data = static_cast<const char*>(pool);
    rows.storage = heed::CacheStorage::bf16;
    rows.row_bytes = 2 * c.size;
    rows.page_bytes = c.page_size * rows.row_bytes;
    rows.head_bytes = c.pages * rows.page_bytes;
    return rows;
}

void attend_paged(heed::Context& context, const PagedCall& c) {
    const heed::Device gpu{heed::DeviceKind::cuda, 0};
    const heed::Shape shape{1, c.heads, c.caches, c.size};
    std::vector<std::int64_t> cu_q, cu_k;
    std::vector<const std::int32_t*> tables;
    for (std::int64_t b = 0; b <= c.caches; ++b) {
        cu_q.push_back(b);
        cu_k.push_back(b * c.keys);
        tables.push_back(c.tables + b * (c.keys / c.page_size));
    }
    heed::AttentionOptions options;
    options.causal = true;
    options.cu_seqlens_q = heed::View(heed::DType::i64, cu_q.data(), {c.caches + 1});
    options.cu_seqlens_k = heed::View(heed::DType::i64, cu_k.data(), {c.caches + 1});
    heed::AttentionProblem problem = heed::checked_cached(
        {"attend", context}, heed::View(heed::DType::bf16, c.q, shape, gpu),
        {.kv_heads = c.kv_heads, .queries = c.caches, .keys = cu_k.back(), .head_size = c.size, .value_size = c.size},
        {.out = heed::MutableView(heed::DType::bf16, c.out, shape, gpu)}, options);
    const heed::KvPages pages{
        .k = rows_of(c, c.k), .v = rows_of(c, c.v), .page_size = c.page_size, .tables = tables.data()};
    problem.pages = &pages;
    heed::choose_attention_kernel(context, "attend", problem).forward(heed::detail::place_of(context), problem);
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) const char* heed_gpu_paged(void* context, const PagedCall* call) {
    return guarded([&] { attend_paged(*static_cast<heed::Context*>(context), *call); });
}

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
/// Microseconds of the host for each of `calls` calls, as a C++ program makes them: the views are there.
__attribute__((visibility("default"))) const char* heed_gpu_host_time(void* context, const Call* call,
                                                                      std::int64_t calls, double* microseconds) {
    return guarded([&] {
        heed::Context& gpu = *static_cast<heed::Context*>(context);
        const Tensors t(*call);
        const auto begin = std::chrono::steady_clock::now();
        for (std::int64_t n = 0; n < calls; ++n) {
            heed::attend(gpu, t.q, t.k, t.v, {.out = t.out, .lse = heed::MutableView()}, t.options);
        }
        const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - begin;
        *microseconds = time.count() / static_cast<double>(calls);
        gpu.synchronise();
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
