/// Caches of latents and of states.
#include "unit/cache/cache_testing.h"

namespace heed::testing {
namespace {

constexpr std::int64_t latent = 7, plain_part = 5, rotary = 4, mla_value = 6, mla_heads = 3;

struct Mla {
    Tensor up_key = random(DType::f32, {mla_heads, plain_part, latent}, 1, 0.5);
    Tensor up_value = random(DType::f32, {mla_heads, mla_value, latent}, 2, 0.5);
    Tensor q = random(DType::f32, {1, mla_heads, 30, plain_part + rotary}, 3);
    Tensor rows = random(DType::f32, {1, 1, 30, latent + rotary}, 4);
    MlaWeights weights() const { return {up_key, up_value}; }

    static CacheConfig config(CacheStorage storage = CacheStorage::f32) {
        return {.kind = CacheKind::latent,
                .head_size = latent + rotary,
                .value_size = latent,
                .storage = storage,
                .page_size = 4,
                .pages = 40};
    }
    /// [1,S,r+p]
    static View flat(const View& x) {
        return View(x.dtype(), x.data(), Shape{1, x.extent(2), x.extent(3)}, Shape{0, x.stride(2), x.stride(3)});
    }
};

struct MlaAnswer {
    Tensor out, lse;
    explicit MlaAnswer(std::int64_t count)
        : out(DType::f32, {1, mla_heads, count, mla_value}), lse(DType::f32, {1, mla_heads, count}) {}
};

TEST(CacheKinds, LatentsAreAbsorbedMla) {
    Context context(2);
    const Mla mla;
    EXPECT_EQ(cache_bytes_per_token(Mla::config()), (latent + rotary) * 4);
    for (const auto& [storage, tolerance] : {std::pair(CacheStorage::f32, 3e-6), std::pair(CacheStorage::bf16, 0.03),
                                             std::pair(CacheStorage::i8, 0.03), std::pair(CacheStorage::i4, 0.5)}) {
        const CachePool pool = poisoned(Mla::config(storage));
        Cache cache = pool.create();
        for (const auto& [begin, end] : {std::pair<std::int64_t, std::int64_t>{0, 21}, {21, 22}, {22, 29}, {29, 30}}) {
            MlaAnswer got(end - begin), absorbed(end - begin), expanded(end - begin);
            cached_mla_attend(context, {.caches = {&cache}}, part(mla.q, begin, end), part(mla.rows, begin, end),
                              mla.weights(), {.out = got.out, .lse = got.lse}, {.causal = true});
            const View all = Mla::flat(part(mla.rows, 0, end));
            mla_attend_absorbed(context, part(mla.q, begin, end), all, mla.weights(),
                                {.out = absorbed.out, .lse = absorbed.lse}, {.causal = true});
            mla_attend(context, part(mla.q, begin, end), all.slice(2, 0, latent), all.slice(2, latent, latent + rotary),
                       mla.weights(), {.out = expanded.out, .lse = expanded.lse}, {.causal = true});
            expect_near(got.out, absorbed.out, tolerance, std::string(name_of(storage)));
            expect_near(got.lse, absorbed.lse, tolerance, std::string(name_of(storage)));
            if (storage == CacheStorage::f32) { expect_near(got.out, expanded.out, 1e-5); }
        }
        expect_near(cache.values(0, 3, 9), part(mla.rows, 3, 9).slice(3, 0, latent), tolerance);
    }
}

TEST(CacheKinds, OnlyTheRotaryPartOfALatentTurns) {
    Context context(1);
    const Mla mla;
    for (const RopeScaling& scaling :
         {RopeScaling(), RopeScaling(rope_scaling::DynamicNtk{.factor = 2, .trained = 6})}) {
        CacheConfig config = Mla::config();
        config.rope = Rope{.size = rotary, .theta = 50, .pairing = Pairing::interleaved, .scaling = scaling};
        const CachePool pool = poisoned(config);
        Cache cache = pool.create();
        for (const auto& [begin, end] : {std::pair<std::int64_t, std::int64_t>{0, 9}, {9, 10}}) {
            const RopeTable table = rope_table(*config.rope, end);
            Tensor q = joined({part(mla.q, begin, end)}), rows = joined({part(mla.rows, 0, end)});
            const MutableView q_part = q.view().slice(3, plain_part, plain_part + rotary);
            const MutableView row_part = rows.view().slice(3, latent, latent + rotary);
            rope(context, q_part, q_part, table, {.first = begin});
            rope(context, row_part, row_part, table);
            MlaAnswer got(end - begin), expected(end - begin);
            mla_attend_absorbed(context, q, Mla::flat(rows), mla.weights(), {.out = expected.out, .lse = expected.lse},
                                {.causal = true});
            cached_mla_attend(context, {.caches = {&cache}}, part(mla.q, begin, end), part(mla.rows, begin, end),
                              mla.weights(), {.out = got.out, .lse = got.lse}, {.causal = true});
            expect_near(got.out, expected.out, 5e-6);
            expect_near(got.lse, expected.lse, 5e-6);
        }
    }
}

TEST(CacheKinds, LatentsThatShareAPrefix) {
    Context context(1);
    const Mla mla;
    const CachePool pool = poisoned(Mla::config());
    Cache root = pool.create();
    cache_append(context, {.caches = {&root}}, part(mla.rows, 0, 22), {});
    Cache caches[3] = {root.fork(), root.fork(), root.fork()};
    MlaAnswer results[2] = {MlaAnswer(3), MlaAnswer(3)};
    for (const SharedPrefix share : {SharedPrefix::never, SharedPrefix::always}) {
        MlaAnswer& result = results[share == SharedPrefix::always ? 1 : 0];
        cached_mla_attend(context, {.caches = {&caches[0], &caches[1], &caches[2]}, .share = share},
                          part(mla.q, 22, 25), part(mla.rows, 22, 25), mla.weights(),
                          {.out = result.out, .lse = result.lse}, {.causal = true});
        for (Cache& cache : caches) { cache.truncate(22); }
    }
    expect_near(results[1].out, results[0].out, 3e-6);
}

CacheConfig linear_config() {
    CacheConfig config = small_config();
    config.kind = CacheKind::linear;
    config.pages = 3;
    config.layers = 2;
    return config;
}
CacheConfig infini_config(CacheStorage storage = CacheStorage::f32) {
    CacheConfig config = linear_config();
    config.kind = CacheKind::infini;
    config.segment = 4;
    config.storage = storage;
    return config;
}

/// The tokens of a cache of states in one go, and the same from the operation.
struct StateKind {
    CacheConfig config;
    std::function<void(Context&, const CacheBatch&, const View&, const View&, const View&, const MutableView&)> cached;
    std::function<void(Context&, const Tokens&, const MutableView&)> whole;
};
std::vector<StateKind> state_kinds(const View& gates) {
    return {
        {linear_config(),
         [](Context& context, const CacheBatch& batch, const View& q, const View& k, const View& v,
            const MutableView& out) { cached_linear_attend(context, batch, q, k, v, out); },
         [](Context& context, const Tokens& t, const MutableView& out) { linear_attend(context, t.q, t.k, t.v, out); }},
        {infini_config(),
         [gates](Context& context, const CacheBatch& batch, const View& q, const View& k, const View& v,
                 const MutableView& out) { cached_infini_attend(context, batch, q, k, v, gates, out); },
         [gates](Context& context, const Tokens& t, const MutableView& out) {
             InfiniMemory memory;
             infini_attend(context, t.q, t.k, t.v, gates, out, memory, {.segment = 4});
         }}};
}

TEST(CacheKinds, StatesAreCachesOfOneSize) {
    Context context(1);
    const Tensor gates = random(DType::f32, {heads}, 9);
    for (const StateKind& kind : state_kinds(gates)) {
        const CachePool pool = poisoned(kind.config);
        EXPECT_EQ(cache_bytes_per_token(kind.config), 0);
        EXPECT_EQ(pool.bytes(), 3 * cache_bytes_per_page(kind.config));
        const Tokens tokens[3] = {Tokens(14, 1), Tokens(14, 2), Tokens(14, 3)};
        Tensor expected[3];
        for (int n = 0; n < 3; ++n) {
            expected[n] = Tensor(DType::f32, {1, heads, 14, value_size});
            kind.whole(context, tokens[n], expected[n]);
        }
        Cache a = pool.create(), b = pool.create();
        EXPECT_EQ(pool.free_pages(), 3);
        std::int64_t at_a = 0, at_b = 0;
        for (const auto& [count_a, count_b] : {std::pair<std::int64_t, std::int64_t>{5, 1}, {1, 0}, {2, 9}, {1, 1}}) {
            for (const std::int64_t layer : {0, 1}) {
                const Tokens& first = tokens[layer];
                Tensor out(DType::f32, {1, heads, count_a + count_b, value_size});
                kind.cached(context, {.caches = {&a, &b}, .tokens = {count_a, count_b}, .layer = layer},
                            joined({part(first.q, at_a, at_a + count_a), part(tokens[2].q, at_b, at_b + count_b)}),
                            joined({part(first.k, at_a, at_a + count_a), part(tokens[2].k, at_b, at_b + count_b)}),
                            joined({part(first.v, at_a, at_a + count_a), part(tokens[2].v, at_b, at_b + count_b)}),
                            out);
                expect_near(part(out, 0, count_a), part(expected[layer], at_a, at_a + count_a), 1e-5);
                expect_near(part(out, count_a, count_a + count_b), part(expected[2], at_b, at_b + count_b), 1e-5);
            }
            at_a += count_a;
            at_b += count_b;
        }
        EXPECT_EQ(a.length(), 9);
        EXPECT_EQ(b.length(1), 11);
        EXPECT_EQ(pool.free_pages(), 1);
        EXPECT_EQ(a.bytes(), cache_bytes_per_page(kind.config));
        // A fork, its copy on write, and a pool that has no state left.
        Cache fork = a.fork(), third = a.fork();
        EXPECT_EQ(pool.free_pages(), 1);
        Tensor x(DType::f32, {1, heads, 1, value_size}), y(DType::f32, {1, heads, 1, value_size});
        const auto once = [&](Cache& cache, Tensor& out) {
            kind.cached(context, {.caches = {&cache}}, part(tokens[0].q, 9, 10), part(tokens[0].k, 9, 10),
                        part(tokens[0].v, 9, 10), out);
        };
        once(fork, x);
        expect_near(x, part(expected[0], 9, 10), 1e-5);
        EXPECT_THROW(once(third, y), CacheFull);
        EXPECT_EQ(third.length(), 9);
        third.free();
        once(a, y);
        expect_same(x, y);
        // Back to the beginning, and nowhere else.
        EXPECT_THROW(a.truncate(4), Error);
        EXPECT_THROW(a.drop(0, 1), Error);
        EXPECT_THROW(a.keep_window(1, 2), Error);
        EXPECT_THROW((void)a.keys(0, 0, 1), Error);
        EXPECT_THROW((void)a.positions(), Error);
        a.truncate(0);
        EXPECT_EQ(pool.free_pages(), 1);
        EXPECT_EQ(a.length(), 0);
        Tensor again(DType::f32, {1, heads, 14, value_size});
        kind.cached(context, {.caches = {&a}}, tokens[1].q, tokens[1].k, tokens[1].v, again);
        expect_near(again, expected[1], 1e-5);
    }
}

TEST(CacheKinds, AFeatureFunctionThatThrowsLeavesTheStates) {
    Context context(1);
    const Tokens tokens(6, 1), other(6, 2);
    const CachePool pool = poisoned(linear_config());
    Cache a = pool.create(), b = pool.create();
    int left = 1000000;
    LinearAttentionOptions options{.feature = FeatureMap::function};
    options.feature_function.map = [&](std::span<const double> x, std::span<double> y) {
        if (--left < 0) { throw std::runtime_error("no more"); }
        for (std::size_t n = 0; n < x.size(); ++n) { y[n] = x[n] * x[n]; }
    };
    const auto run = [&](std::int64_t begin, std::int64_t end, Tensor& out) {
        cached_linear_attend(context, {.caches = {&a, &b}},
                             joined({part(tokens.q, begin, end), part(other.q, begin, end)}),
                             joined({part(tokens.k, begin, end), part(other.k, begin, end)}),
                             joined({part(tokens.v, begin, end), part(other.v, begin, end)}), out, options);
    };
    Tensor first(DType::f32, {1, heads, 6, value_size}), once(DType::f32, {1, heads, 6, value_size}),
        again(DType::f32, {1, heads, 6, value_size});
    run(0, 3, first);
    Cache keep_a = a.fork(), keep_b = b.fork();
    keep_a.free();
    keep_b.free();
    left = 20;  // enough for the first of the two
    EXPECT_THROW(run(3, 6, once), std::runtime_error);
    EXPECT_EQ(a.length(0), 3);
    left = 1000000;
    run(3, 6, again);
    Tensor expected(DType::f32, {1, heads, 6, value_size});
    linear_attend(context, tokens.q, tokens.k, tokens.v, expected, options);
    expect_near(part(again, 0, 3), part(expected, 3, 6), 1e-5);
}

}  // namespace
}  // namespace heed::testing
