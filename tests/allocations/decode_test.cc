/// Decoding asks for memory in its first step alone. A program of its own, because it counts every operator new.
#include <gtest/gtest.h>
#include <heed/cache.h>

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<long> allocations{0};

void* counted(std::size_t bytes, std::size_t alignment) {
    ++allocations;
    const std::size_t whole = (bytes + alignment - 1) / alignment * alignment;
    void* memory = std::aligned_alloc(alignment, whole == 0 ? alignment : whole);
    if (memory == nullptr) { throw std::bad_alloc(); }
    return memory;
}

}  // namespace

void* operator new(std::size_t bytes) { return counted(bytes, alignof(std::max_align_t)); }
void* operator new[](std::size_t bytes) { return counted(bytes, alignof(std::max_align_t)); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
    return counted(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
    return counted(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace heed::testing {
namespace {

Tensor numbers(const Shape& shape, unsigned seed) {
    Tensor tensor(DType::f32, shape);
    unsigned state = seed;
    for (std::int64_t n = 0; n < tensor.elements(); ++n) {
        state = state * 1664525U + 1013904223U;
        tensor.as<float>()[n] = static_cast<float>(state >> 8) * 0x1p-23F - 1;
    }
    return tensor;
}

/// Some steps of every layer, of one cache or several; what they allocated together, once the first is done.
struct Decoding {
    CacheConfig config{.layers = 3, .kv_heads = 2, .head_size = 64, .value_size = 64, .page_size = 8, .pages = 200};
    std::size_t caches = 1;
    int threads = 1;
    AttentionOptions options{.causal = true};
    bool gap = false;

    long allocated() const {
        const bool latent = config.kind == CacheKind::latent;
        constexpr std::int64_t query_heads = 4, prompt = 37, plain = 16;
        const auto count = static_cast<std::int64_t>(caches);
        const std::int64_t query_size = latent ? plain + config.head_size - config.value_size : config.head_size;
        const Tensor q = numbers({1, query_heads, count, query_size}, 1);
        const Tensor k = numbers({1, config.kv_heads, count, config.head_size}, 2);
        const Tensor v = numbers({1, config.kv_heads, count, config.value_size}, 3);
        const Tensor up_key = numbers({query_heads, plain, config.value_size}, 4);
        const Tensor up_value = numbers({query_heads, plain, config.value_size}, 5);
        Tensor out(DType::f32, {1, query_heads, count, latent ? plain : config.value_size});
        const Tensor prompt_k = numbers({1, config.kv_heads, prompt, config.head_size}, 6);
        const Tensor prompt_v = numbers({1, config.kv_heads, prompt, config.value_size}, 7);
        Context context(threads);
        const CachePool pool(config);
        std::vector<Cache> all;
        CacheBatch batch;
        for (std::size_t n = 0; n < caches; ++n) { all.push_back(pool.create()); }
        for (Cache& cache : all) {
            for (std::int64_t layer = 0; layer < config.layers; ++layer) {
                cache_append(context, {.caches = {&cache}, .layer = layer}, prompt_k, latent ? View() : View(prompt_v));
            }
            if (gap) { cache.drop(5, 11); }
            batch.caches.push_back(&cache);
        }
        const auto step = [&] {
            for (batch.layer = 0; batch.layer < config.layers; ++batch.layer) {
                if (latent) {
                    cached_mla_attend(context, batch, q, k, {up_key, up_value}, out, options);
                } else {
                    cached_attend(context, batch, q, k, v, out, options);
                }
            }
        };
        step();
        const long before = allocations;
        for (int n = 0; n < 30; ++n) { step(); }
        return allocations - before;
    }
};

constexpr CacheStorage storages[] = {CacheStorage::f32, CacheStorage::bf16, CacheStorage::f16, CacheStorage::i8,
                                     CacheStorage::i4};

TEST(DecodeAllocations, TheCounterCounts) {
    const long before = allocations;
    const Tensor tensor(DType::f32, {3});
    EXPECT_GT(allocations, before);
}

TEST(DecodeAllocations, NoneAfterTheFirstStep) {
    for (const CacheStorage storage : storages) {
        for (const std::size_t caches : {1, 5}) {
            for (const int threads : {1, 2}) {
                for (const bool gap : {false, true}) {
                    Decoding decoding{.caches = caches, .threads = threads, .gap = gap};
                    decoding.config.storage = storage;
                    // A thread gets its scratch memory when it first gets a task, in whichever step that is.
                    EXPECT_LE(decoding.allocated(), threads == 1 ? 0 : 2)
                        << name_of(storage) << ", " << caches << " caches, " << threads << " threads, "
                        << (gap ? "a gap" : "no gap");
                }
            }
        }
    }
}

TEST(DecodeAllocations, NoneWithRotationAndWindows) {
    for (const CachePositions positions : {CachePositions::original, CachePositions::slots}) {
        for (const bool gap : {false, true}) {
            Decoding decoding{.caches = 2, .gap = gap};
            decoding.config.rope = Rope{.size = 64};
            decoding.config.positions = positions;
            if (positions == CachePositions::slots) { decoding.config.sinks = 4; }
            EXPECT_EQ(decoding.allocated(), 0);
            decoding.options.window.left = 20;
            EXPECT_EQ(decoding.allocated(), 0);
        }
    }
}

TEST(DecodeAllocations, NoneForLatents) {
    for (const CacheStorage storage : storages) {
        for (const bool rope : {false, true}) {
            Decoding decoding{.caches = 2};
            decoding.config = {.kind = CacheKind::latent,
                               .layers = 2,
                               .head_size = 96,
                               .value_size = 64,
                               .storage = storage,
                               .page_size = 8,
                               .pages = 60};
            if (rope) { decoding.config.rope = Rope{.size = 32}; }
            EXPECT_EQ(decoding.allocated(), 0) << name_of(storage);
        }
    }
}

}  // namespace
}  // namespace heed::testing
