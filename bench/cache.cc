// heed_bench_cache: decoding from caches, as ratios measured in one run.
//
//   heed_bench_cache pages   [--threads N]    paged against contiguous
//   heed_bench_cache storage [--threads N]    bf16, f16, i8 and i4 against f32
//   heed_bench_cache prefix  [--threads N]    16 sequences on one prefix, attended to once and 16 times
//   heed_bench_cache mla     [--threads N]    absorbed decoding against the time to read the latents
//   heed_bench_cache prefill [--threads N]    a prompt through a cache against the same from tensors
//   heed_bench_cache all     [--threads N]
#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <heed/cache.h>

#include "limits.h"
#include "rounds.h"

namespace {

using heed::Cache;
using heed::CacheConfig;
using heed::CachePool;
using heed::CacheStorage;
using heed::Context;
using heed::DType;
using heed::Tensor;
using heed::bench::best_of;
using heed::bench::random_tensor;

constexpr int rounds = 25;
constexpr std::int64_t heads = 32, groups = 8, size = 128;

CacheConfig config(std::int64_t length, std::int64_t page_size, CacheStorage storage) {
    return {.layers = 1,
            .kv_heads = groups,
            .head_size = size,
            .value_size = size,
            .storage = storage,
            .page_size = page_size,
            .pages = length / page_size + 2};
}

/// A cache of `length` random tokens.
struct Filled {
    CachePool pool;
    Cache cache;
    Filled(Context& context, const CacheConfig& c, std::int64_t length) : pool(c), cache(pool.create()) {
        constexpr std::int64_t chunk = 4096;
        for (std::int64_t at = 0; at < length; at += chunk) {
            const std::int64_t count = std::min(chunk, length - at);
            const Tensor k = random_tensor({1, c.kv_heads, count, c.head_size}, static_cast<unsigned>(at) + 1);
            const Tensor v = random_tensor({1, c.kv_heads, count, c.value_size}, static_cast<unsigned>(at) + 2);
            const bool latent = c.kind == heed::CacheKind::latent;
            heed::cache_append(context, {.caches = {&cache}}, k, latent ? heed::View() : v);
        }
    }
};

/// One decoding step of one sequence: a token in, one out.
struct Step {
    Tensor q, k, v, out;
    explicit Step(std::int64_t query_heads = heads, DType dtype = DType::f32)
        : q(random_tensor({1, query_heads, 1, size}, 1).to(dtype)),
          k(random_tensor({1, groups, 1, size}, 2).to(dtype)),
          v(random_tensor({1, groups, 1, size}, 3).to(dtype)),
          out(dtype, {1, query_heads, 1, size}) {}
    void operator()(Context& context, Cache& cache) {
        const std::int64_t length = cache.length();
        heed::cached_attend(context, {.caches = {&cache}}, q, k, v, out, {.causal = true});
        cache.truncate(length);
    }
};

double gigabytes(const Cache& cache) {
    return static_cast<double>(cache.length() * heed::cache_bytes_per_token(cache.pool().config())) * 1e-9;
}

double bandwidth(const Context& context) {
    static const double measured = heed::bench::best_read_bandwidth(context.threads()).gigabytes_per_second;
    return measured;
}

void head_line(Context& context, const char* what) {
    std::printf("\n%s; %d threads, memory %.1f GB/s\n", what, context.threads(), bandwidth(context));
}

void pages(Context& context) {
    constexpr std::int64_t length = 16384;
    head_line(context, "Decoding over 16,384 keys, 32 heads on 8 of 128, f32");
    Step step;
    std::vector<std::unique_ptr<Filled>> caches;
    std::vector<std::function<void()>> bodies;
    const std::int64_t sizes[] = {length + 16, 4, 16, 64, 256};
    for (const std::int64_t page_size : sizes) {
        caches.push_back(std::make_unique<Filled>(context, config(length, page_size, CacheStorage::f32), length));
        bodies.push_back([&, n = caches.size() - 1] { step(context, caches[n]->cache); });
    }
    const std::vector<double> seconds = best_of(rounds, bodies);
    std::printf("%12s %10s %10s %14s\n", "page", "ms", "GB/s", "of contiguous");
    for (std::size_t n = 0; n < bodies.size(); ++n) {
        std::printf("%12s %10.3f %10.2f %13.3fx\n", n == 0 ? "contiguous" : std::to_string(sizes[n]).c_str(),
                    seconds[n] * 1e3, gigabytes(caches[n]->cache) / seconds[n], seconds[n] / seconds[0]);
    }
}

void storage(Context& context) {
    constexpr std::int64_t length = 32768;
    std::vector<std::unique_ptr<Filled>> caches;
    const CacheStorage storages[] = {CacheStorage::f32, CacheStorage::bf16, CacheStorage::f16, CacheStorage::i8,
                                     CacheStorage::i4};
    for (const CacheStorage each : storages) {
        caches.push_back(std::make_unique<Filled>(context, config(length, 16, each), length));
    }
    for (const std::int64_t query_heads : {groups, heads}) {
        head_line(context, query_heads == groups ? "Decoding over 32,768 keys, 8 heads of 128, pages of 16"
                                                 : "Decoding over 32,768 keys, 32 heads on 8 of 128, pages of 16");
        Step step(query_heads), narrow(query_heads, DType::bf16);
        std::vector<std::string> names;
        std::vector<Cache*> read;
        std::vector<std::function<void()>> bodies;
        const auto add = [&](std::string name, Cache& cache, Step& with) {
            names.push_back(std::move(name));
            read.push_back(&cache);
            bodies.push_back([&] { with(context, cache); });
        };
        for (std::size_t n = 0; n < caches.size(); ++n) {
            add(std::string(name_of(storages[n])), caches[n]->cache, step);
            if (storages[n] == CacheStorage::bf16) { add("bf16, q too", caches[n]->cache, narrow); }
        }
        const std::vector<double> seconds = best_of(rounds, bodies);
        std::printf("%12s %10s %10s %10s %14s\n", "storage", "MB", "ms", "GB/s", "faster");
        for (std::size_t n = 0; n < bodies.size(); ++n) {
            const double bytes = gigabytes(*read[n]);
            std::printf("%12s %10.1f %10.3f %10.2f %13.2fx\n", names[n].c_str(), bytes * 1e3, seconds[n] * 1e3,
                        bytes / seconds[n], seconds[0] / seconds[n]);
        }
    }
}

void prefix(Context& context) {
    constexpr std::int64_t length = 8192, own = 64, sequences = 16;
    CacheConfig c = config(length + sequences * (own + 32), 16, CacheStorage::f32);
    c.pages += 4 * sequences;
    const Filled root(context, c, length);
    std::vector<Cache> caches;
    heed::CacheBatch batch;
    for (std::int64_t n = 0; n < sequences; ++n) { caches.push_back(root.cache.fork()); }
    for (Cache& cache : caches) { batch.caches.push_back(&cache); }
    const Tensor more = random_tensor({1, groups, sequences * own, size}, 5);
    heed::cache_append(context, batch, more, more);
    for (const std::int64_t query_heads : {groups, heads}) {
        head_line(context, query_heads == groups
                               ? "16 sequences on a prefix of 8,192 keys, 64 of their own, 8 heads of 128, f32"
                               : "16 sequences on a prefix of 8,192 keys, 64 of their own, 32 heads on 8 of 128, f32");
        const Tensor q = random_tensor({1, query_heads, sequences, size}, 1),
                     k = random_tensor({1, groups, sequences, size}, 2);
        Tensor out(DType::f32, {1, query_heads, sequences, size});
        const auto step = [&](heed::SharedPrefix share) {
            batch.share = share;
            heed::cached_attend(context, batch, q, k, k, out, {.causal = true});
            for (Cache& cache : caches) { cache.truncate(length + own); }
        };
        const std::vector<double> seconds =
            best_of(rounds, {[&] { step(heed::SharedPrefix::never); }, [&] { step(heed::SharedPrefix::automatic); }});
        std::printf("%12s %10.3f ms\n%12s %10.3f ms %9.2fx\n", "each", seconds[0] * 1e3, "once", seconds[1] * 1e3,
                    seconds[0] / seconds[1]);
    }
}

void mla(Context& context) {
    constexpr std::int64_t latent = 512, plain = 128, rotary = 64, value = 128, length = 32768;
    for (const std::int64_t mla_heads : {1, 4, 16, 128}) {
        head_line(context, "Absorbed MLA over 32,768 latents, r 512, p 64");
        const Tensor up_key = random_tensor({mla_heads, plain, latent}, 1),
                     up_value = random_tensor({mla_heads, value, latent}, 2);
        const Tensor q = random_tensor({1, mla_heads, 1, plain + rotary}, 3),
                     row = random_tensor({1, 1, 1, latent + rotary}, 4);
        Tensor out(DType::f32, {1, mla_heads, 1, value});
        std::vector<std::unique_ptr<Filled>> caches;
        std::vector<std::function<void()>> bodies;
        const CacheStorage storages[] = {CacheStorage::f32, CacheStorage::bf16, CacheStorage::i8};
        for (const CacheStorage each : storages) {
            const CacheConfig c{.kind = heed::CacheKind::latent,
                                .head_size = latent + rotary,
                                .value_size = latent,
                                .storage = each,
                                .pages = length / 16 + 2};
            caches.push_back(std::make_unique<Filled>(context, c, length));
            bodies.push_back([&, n = caches.size() - 1] {
                heed::cached_mla_attend(context, {.caches = {&caches[n]->cache}}, q, row, {up_key, up_value}, out,
                                        {.causal = true});
                caches[n]->cache.truncate(length);
            });
        }
        const std::vector<double> seconds = best_of(rounds, bodies);
        const double peak = heed::bench::peak_gflops(DType::f32, context.threads(), 0.2);
        std::printf("%4d heads %10s %10s %16s %14s %10s\n", static_cast<int>(mla_heads), "MB", "ms", "of reading them",
                    "GFLOP/s", "of peak");
        for (std::size_t n = 0; n < bodies.size(); ++n) {
            const double bytes = gigabytes(caches[n]->cache);
            const double operations = 2.0 * static_cast<double>(mla_heads * length * (2 * latent + rotary));
            const double rate = operations / seconds[n] * 1e-9;
            std::printf("%10s %10.1f %10.3f %15.2fx %14.1f %9.1f%%\n", std::string(name_of(storages[n])).c_str(),
                        bytes * 1e3, seconds[n] * 1e3, seconds[n] * bandwidth(context) / bytes, rate,
                        100 * rate / peak);
        }
    }
}

void prefill(Context& context) {
    constexpr std::int64_t length = 2048;
    head_line(context, "A prompt of 2,048 tokens, 32 heads on 8 of 128, causal, f32");
    const Tensor q = random_tensor({1, heads, length, size}, 1), k = random_tensor({1, groups, length, size}, 2),
                 v = random_tensor({1, groups, length, size}, 3);
    Tensor out(DType::f32, q.shape());
    std::vector<std::unique_ptr<CachePool>> pools;
    std::vector<std::function<void()>> bodies;
    bodies.push_back([&] { heed::attend(context, q, k, v, out, {.causal = true}); });
    const CacheStorage storages[] = {CacheStorage::f32, CacheStorage::bf16, CacheStorage::i8, CacheStorage::i4};
    for (const CacheStorage each : storages) {
        pools.push_back(std::make_unique<CachePool>(config(length, 16, each)));
        bodies.push_back([&, n = pools.size() - 1] {
            Cache cache = pools[n]->create();
            heed::cached_attend(context, {.caches = {&cache}}, q, k, v, out, {.causal = true});
        });
    }
    const std::vector<double> seconds = best_of(rounds, bodies);
    std::printf("%12s %10.2f ms\n", "tensors", seconds[0] * 1e3);
    for (std::size_t n = 1; n < bodies.size(); ++n) {
        std::printf("%12s %10.2f ms %9.3fx\n", std::string(name_of(storages[n - 1])).c_str(), seconds[n] * 1e3,
                    seconds[n] / seconds[0]);
    }
}

}  // namespace

int main(int argc, char** argv) {
    try {
        const std::pair<const char*, void (*)(Context&)> parts[] = {
            {"pages", pages}, {"storage", storage}, {"prefix", prefix}, {"mla", mla}, {"prefill", prefill}};
        const std::string command = argc > 1 ? argv[1] : "";
        int threads = 0;
        if (argc == 4 && std::string(argv[2]) == "--threads") {
            threads = std::stoi(argv[3]);
        } else if (argc != 2) {
            throw std::invalid_argument(
                "expected pages, storage, prefix, mla, prefill or all, then perhaps --threads N");
        }
        Context context(threads);
        bool known = false;
        for (const auto& [name, part] : parts) {
            if (command != name && command != "all") { continue; }
            known = true;
            part(context);
        }
        if (!known) {
            throw std::invalid_argument("expected pages, storage, prefix, mla, prefill or all, got '" + command + "'");
        }
    } catch (const std::exception& error) {
        std::fprintf(stderr, "heed_bench_cache: %s\n", error.what());
        return 2;
    }
    return 0;
}
