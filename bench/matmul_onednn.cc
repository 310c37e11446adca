#include "matmul.h"

#include <map>
#include <stdexcept>
#include <string>
#include <tuple>

#include <dnnl.hpp>

namespace heed::bench {
namespace {

const dnnl::engine& engine() {
    static const dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
    return cpu;
}

using Key = std::tuple<Transpose, Transpose, long, long, long, float, long, long, float, long>;

/// A primitive for one size of product, with the memory objects it is called with.
struct Product {
    dnnl::matmul primitive;
    dnnl::memory a, b, c;

    explicit Product(const Key& key) {
        const auto& [transpose_a, transpose_b, m, n, k, alpha, lda, ldb, beta, ldc] = key;
        using dnnl::memory;
        const auto described = [](long rows, long columns, long stride, Transpose transpose, memory::data_type type) {
            const bool turned = transpose == Transpose::yes;
            return memory::desc({rows, columns}, type, turned ? memory::dims{1, stride} : memory::dims{stride, 1});
        };
        const memory::desc a_desc = described(m, k, lda, transpose_a, memory::data_type::bf16);
        const memory::desc b_desc = described(k, n, ldb, transpose_b, memory::data_type::bf16);
        const memory::desc c_desc = described(m, n, ldc, Transpose::no, memory::data_type::f32);
        dnnl::primitive_attr attributes;
        if (alpha != 1) { attributes.set_output_scales(0, {alpha}); }
        if (beta != 0) {
            dnnl::post_ops add;
            add.append_sum(beta);
            attributes.set_post_ops(add);
        }
        primitive = dnnl::matmul(
            dnnl::matmul::primitive_desc(dnnl::matmul::desc(a_desc, b_desc, c_desc), attributes, engine()));
        a = memory(a_desc, engine(), nullptr);
        b = memory(b_desc, engine(), nullptr);
        c = memory(c_desc, engine(), nullptr);
    }
};

}  // namespace

bool has_onednn() { return true; }

bool has_bf16_matmul() {
    static const bool works = [] {
        const dnnl::cpu_isa isa = dnnl::get_effective_cpu_isa();
        return isa == dnnl::cpu_isa::avx512_core_bf16 || isa == dnnl::cpu_isa::avx512_core_amx;
    }();
    return works;
}

const char* onednn_version() {
    static const std::string version = [] {
        const dnnl_version_t* found = dnnl_version();
        return std::to_string(found->major) + '.' + std::to_string(found->minor) + '.' + std::to_string(found->patch);
    }();
    return version.c_str();
}

void matmul(Transpose transpose_a, Transpose transpose_b, long m, long n, long k, float alpha, const float* a, long lda,
            const float* b, long ldb, float beta, float* c, long ldc) {
    const auto letter = [](Transpose transpose) { return transpose == Transpose::yes ? 'T' : 'N'; };
    const dnnl_status_t status =
        dnnl_sgemm(letter(transpose_a), letter(transpose_b), m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
    if (status != dnnl_success) { throw std::runtime_error("dnnl_sgemm failed: " + std::to_string(status)); }
}

void matmul(Transpose transpose_a, Transpose transpose_b, long m, long n, long k, float alpha, const bf16* a, long lda,
            const bf16* b, long ldb, float beta, float* c, long ldc) {
    // Making a primitive costs more than running a small one.
    thread_local std::map<Key, Product> products;
    thread_local dnnl::stream stream(engine());
    const Key key{transpose_a, transpose_b, m, n, k, alpha, lda, ldb, beta, ldc};
    Product& product = products.try_emplace(key, key).first->second;
    product.a.set_data_handle(const_cast<bf16*>(a));
    product.b.set_data_handle(const_cast<bf16*>(b));
    product.c.set_data_handle(c);
    product.primitive.execute(stream,
                              {{DNNL_ARG_SRC, product.a}, {DNNL_ARG_WEIGHTS, product.b}, {DNNL_ARG_DST, product.c}});
}

}  // namespace heed::bench
