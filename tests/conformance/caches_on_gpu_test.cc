/// Caches of every kind and storage on a GPU beside the same on the CPU: what they answer, what they store, forks.

#include <gtest/gtest.h>

#include <heed/cache.h>

#include "support/random.h"

#include <cmath>
#include <string>

namespace heed::conformance {
namespace {

constexpr Device caches_gpu{DeviceKind::cuda, 0};

/// A tensor where a context computes.
Tensor brought(const Context& context, const Tensor& x) { return x.to(context.device()); }

double largest_difference(const Tensor& a, const Tensor& b) {
    const Tensor x = a.to(Device{}), y = b.to(Device{});
    double largest = 0;
    for (std::int64_t n = 0; n < x.elements(); ++n) {
        const double d = std::fabs(static_cast<double>(x.as<float>()[n]) - static_cast<double>(y.as<float>()[n]));
        largest = std::max(largest, std::isfinite(d) ? d : 1e300);
    }
    return largest;
}

struct CachesCase {
    const char* name;
    CacheConfig config;
    double tolerance = 2e-5;
};

std::vector<CachesCase> caches_cases() {
    CacheConfig c;
    c.layers = 1;
    c.kv_heads = 2;
    c.head_size = 40;
    c.value_size = 24;
    c.page_size = 5;
    c.pages = 30;
    std::vector<CachesCase> all;
    // On the CPU weights of stored bytes are rounded on their way.
    for (const auto& [storage, tolerance] : {std::pair{CacheStorage::f32, 2e-5}, std::pair{CacheStorage::bf16, 2e-5},
                                             std::pair{CacheStorage::i8, 2e-2}, std::pair{CacheStorage::i4, 2e-5}}) {
        c.storage = storage;
        all.push_back({"attention", c, tolerance});
    }
    CacheConfig latent = c;
    latent.kind = CacheKind::latent;
    latent.kv_heads = 1;
    latent.value_size = 32;
    for (const auto& [storage, tolerance] : {std::pair{CacheStorage::f32, 2e-5}, std::pair{CacheStorage::i8, 2e-2}}) {
        latent.storage = storage;
        all.push_back({"latent", latent, tolerance});
    }
    CacheConfig linear = c;
    linear.kind = CacheKind::linear;
    linear.storage = CacheStorage::f32;
    all.push_back({"linear", linear, 1e-4});
    CacheConfig infini = linear;
    infini.kind = CacheKind::infini;
    infini.segment = 7;
    all.push_back({"infini", infini, 1e-4});
    return all;
}

/// Steps of two caches, the second of which is a fork of the first from some step on.
std::vector<Tensor> answers(Context& context, const CachesCase& test) {
    CacheConfig c = test.config;
    c.device = context.device();
    const CachePool pool(c);
    Cache first = pool.create(), second = pool.create();
    testing::Random random(6);
    const auto drawn = [&](const Shape& shape) {
        return brought(context, testing::random_tensor(random, DType::f32, shape));
    };
    const std::int64_t heads = 4, plain = 12;
    const Tensor up_key = drawn({heads, plain, c.value_size}), up_value = drawn({heads, 9, c.value_size});
    const Tensor gates = drawn({heads});
    std::vector<Tensor> results;
    for (int step = 0; step < 6; ++step) {
        if (step == 3) { second = first.fork(); }
        const std::int64_t more = step == 0 ? 9 : 2, tokens = 2 * more;
        const CacheBatch batch{.caches = {&first, &second}};
        const bool latent = c.kind == CacheKind::latent;
        const Tensor q = drawn({1, heads, tokens, latent ? plain + c.head_size - c.value_size : c.head_size});
        const Tensor k = drawn({1, c.kv_heads, tokens, c.head_size});
        const Tensor v = drawn({1, c.kv_heads, tokens, c.value_size});
        Tensor out(DType::f32, {1, heads, tokens, latent ? 9 : c.value_size}, context.device());
        switch (c.kind) {
            case CacheKind::attention: cached_attend(context, batch, q, k, v, out, {.causal = true}); break;
            case CacheKind::latent:
                cached_mla_attend(context, batch, q, k, {up_key, up_value}, out, {.causal = true});
                break;
            case CacheKind::linear: cached_linear_attend(context, batch, q, k, v, out); break;
            case CacheKind::infini: cached_infini_attend(context, batch, q, k, v, gates, out); break;
        }
        context.synchronise();
        results.push_back(std::move(out));
    }
    if (c.kind == CacheKind::attention) {
        results.push_back(second.keys(0, 0, 15));
        results.push_back(second.values(0, 0, 15));
    }
    return results;
}

TEST(CachesOnTheGpu, AnswerAndStoreAsOnTheCpu) {
    if (devices().size() < 2) { GTEST_SKIP() << "no GPU, or heed built without CUDA"; }
    Context cpu(2), gpu(caches_gpu);
    for (const CachesCase& test : caches_cases()) {
        SCOPED_TRACE(std::string(test.name) + " in " + std::string(name_of(test.config.storage)));
        const std::vector<Tensor> here = answers(cpu, test), there = answers(gpu, test);
        ASSERT_EQ(here.size(), there.size());
        for (std::size_t n = 0; n < here.size(); ++n) {
            EXPECT_LE(largest_difference(here[n], there[n]), n < 6 ? test.tolerance : 0) << "result " << n;
        }
    }
}

}  // namespace
}  // namespace heed::conformance
