/// Calls that cannot be carried out: what is said, and that nothing has changed.
#include "unit/cache/cache_testing.h"

namespace heed::testing {
namespace {

std::string pool_error(const std::function<void(CacheConfig&)>& change) {
    CacheConfig config = small_config();
    change(config);
    return error_text([&] { CachePool pool(config); });
}

TEST(CacheErrors, Configurations) {
    EXPECT_EQ(pool_error([](CacheConfig&) {}), "");
    const auto says = [](const std::string& text, const std::string& expected) {
        EXPECT_EQ(text, "[CachePool] " + expected);
    };
    says(pool_error([](auto& c) { c.layers = 0; }), "layers: expected 1 or more, got 0");
    says(pool_error([](auto& c) { c.kv_heads = 0; }), "kv_heads: expected 1 or more, got 0");
    says(pool_error([](auto& c) { c.head_size = -1; }), "head_size: expected 1 or more, got -1");
    says(pool_error([](auto& c) { c.value_size = 0; }), "value_size: expected 1 or more, got 0");
    says(pool_error([](auto& c) { c.page_size = 0; }), "page_size: expected 1 or more, got 0");
    says(pool_error([](auto& c) { c.pages = -1; }), "pages: expected 0 or more, got -1");
    says(pool_error([](auto& c) { c.pages = std::int64_t{1} << 31; }), "pages: expected at most 2^30, got 2147483648");
    says(pool_error([](auto& c) { c.pages_per_cache = -2; }), "pages_per_cache: expected 0 or more, got -2");
    says(pool_error([](auto& c) { c.kind = static_cast<CacheKind>(9); }),
         "kind: expected attention, latent, linear or infini, got 9");
    says(pool_error([](auto& c) { c.storage = static_cast<CacheStorage>(7); }),
         "storage: expected f32, bf16, f16, i8 or i4, got 7");
    says(pool_error([](auto& c) { c.kind = CacheKind::latent; }), "kv_heads: expected 1 for a latent cache, got 2");
    says(pool_error([](auto& c) {
             c.kind = CacheKind::latent;
             c.kv_heads = 1;
             c.value_size = 9;
         }),
         "value_size: expected the latent's size r, at most head_size = r + p, got 9");
    says(pool_error([](auto& c) {
             c.kind = CacheKind::linear;
             c.storage = CacheStorage::bf16;
         }),
         "storage: expected f32 for a linear state, got bf16");
    says(pool_error([](auto& c) {
             c.kind = CacheKind::linear;
             c.states = 3;
         }),
         "states: expected a multiple of kv_heads 2, got 3");
    says(pool_error([](auto& c) {
             c.kind = CacheKind::infini;
             c.storage = CacheStorage::i8;
         }),
         "storage: expected f32, bf16 or f16 for an infini state, got i8");
    says(pool_error([](auto& c) {
             c.kind = CacheKind::infini;
             c.rope = Rope{.size = 4};
         }),
         "rope: expected none for a state, whose inputs come rotated, got one");
    says(pool_error([](auto& c) { c.sinks = 2; }), "sinks: expected 0 but for slots with rope, got 2");
    says(pool_error([](auto& c) { c.rope = Rope{.size = 8}; }), "rope.size: expected 2 to 6, got 8");
    EXPECT_NE(pool_error([](auto& c) { c.rope = Rope{.size = 4, .theta = -1}; }), "");
    says(pool_error([](auto& c) { c.head_size = std::int64_t{1} << 61; }),
         "head_size: expected at most 2^30, got 2305843009213693952");
    EXPECT_NE(pool_error([](auto& c) { c.head_size = c.kv_heads = std::int64_t{1} << 30; }).find("63 bits"),
              std::string::npos);
    EXPECT_NE(error_text([] {
                  CacheConfig config = small_config();
                  config.layers = config.kv_heads = config.head_size = std::int64_t{1} << 30;
                  (void)cache_bytes_per_token(config);
              }).find("[cache_bytes_per_token] config"),
              std::string::npos);
}

/// A pool with two caches of 6 tokens, and a call on both that works, to be broken in one place.
struct Given {
    Context context{1};
    CachePool pool = poisoned(small_config(4, 4));
    Cache a = pool.create(), b = pool.create();
    Tokens tokens{3, 5};
    Answer answer{3};
    View q, k, v;
    MutableView out, lse;
    CacheBatch batch;
    AttentionOptions options{.causal = true};

    Given() {
        const Tokens first(6, 1);
        step(context, a, first, 0, 6);
        step(context, b, first, 0, 5);
        q = View(tokens.q);
        k = View(tokens.k);
        v = View(tokens.v);
        out = answer.out.view();
        lse = answer.lse.view();
        batch = {.caches = {&a, &b}, .tokens = {2, 1}};
    }
    void call() { cached_attend(context, batch, q, k, v, {.out = out, .lse = lse}, options); }
};

void refused(const std::function<void(Given&)>& change, const std::string& expected) {
    Given given;
    change(given);
    const std::int64_t before = given.pool.free_pages();
    for (std::int64_t n = 0; n < given.answer.out.elements(); ++n) { given.answer.out.as<float>()[n] = 77; }
    EXPECT_EQ(error_text([&] { given.call(); }), "[cached_attend] " + expected);
    EXPECT_EQ(given.pool.free_pages(), before);
    if (given.a) { EXPECT_EQ(given.a.length(), 6); }
    if (given.b) { EXPECT_EQ(given.b.length(), 5); }
    for (std::int64_t n = 0; n < given.answer.out.elements(); ++n) { ASSERT_EQ(given.answer.out.as<float>()[n], 77); }
}

TEST(CacheErrors, CallsThatWork) {
    Given given;
    given.call();
    EXPECT_EQ(given.a.length(), 8);
    EXPECT_EQ(given.b.length(), 6);
}

TEST(CacheErrors, Batches) {
    refused([](Given& g) { g.batch.caches = {}; }, "caches: expected at least one, got none");
    refused([](Given& g) { g.batch.caches[1] = nullptr; }, "caches[1]: expected a cache, got a null pointer");
    refused([](Given& g) { g.b.free(); }, "caches[1]: expected a cache, got one that was freed, moved or never made");
    refused([](Given& g) { g.batch.caches[1] = &g.a; }, "caches: expected every cache once, got one of them twice");
    refused([](Given& g) { g.batch.layer = 1; }, "layer: expected 0 to 0, got 1");
    refused([](Given& g) { g.batch.tokens = {3}; }, "tokens: expected 2 numbers, one a cache, got 1");
    refused([](Given& g) { g.batch.tokens = {2, 2}; }, "tokens[1]: expected 0 to 1 of the T = 3, got 2");
    refused([](Given& g) { g.batch.tokens = {-1, 4}; }, "tokens[0]: expected 0 to 3 of the T = 3, got -1");
    refused([](Given& g) { g.batch.tokens = {1, 1}; }, "tokens: expected a sum of T = 3, got 2");
    refused([](Given& g) { g.batch.tokens = {}; },
            "tokens: expected the tokens of each cache, as T is not a multiple of 2, got 3");
    refused([](Given& g) { g.batch.share = static_cast<SharedPrefix>(5); },
            "share: expected automatic, never or always, got 5");
    const CachePool other = poisoned(small_config());
    Cache foreign = other.create();
    refused([&](Given& g) { g.batch.caches[1] = &foreign; },
            "caches[1]: expected a cache of the pool of caches[0], got another pool's");
    CacheConfig linear = small_config();
    linear.kind = CacheKind::linear;
    const CachePool states = poisoned(linear);
    Cache state = states.create();
    refused(
        [&](Given& g) {
            g.batch.caches = {&state, &g.b};
        },
        "caches[0]: expected a cache of kind attention, got linear");
}

TEST(CacheErrors, Tensors) {
    const Tensor wrong(DType::f32, {1, 3, 3, key_size}), half(DType::bf16, {1, groups, 3, key_size});
    refused([](Given& g) { g.q = View(); }, "q: expected a tensor [1,H,T,D], got none");
    refused([](Given& g) { g.q = g.q.slice(3, 0, 4); }, "q: expected [1, 4, 3, 6], got [1, 4, 3, 4]");
    refused([&](Given& g) { g.q = wrong; }, "k: expected 3 or 1 heads for the 3 of q, got 2");
    refused([](Given& g) { g.k = View(); }, "k: expected a tensor [1, 2, 3, 6], got none");
    refused([](Given& g) { g.v = View(); }, "v: expected a tensor [1, 2, 3, 5], got none");
    refused([&](Given& g) { g.k = half; }, "k: expected f32, got bf16");
    refused([](Given& g) { g.v = g.v.slice(2, 0, 2); }, "v: expected [1, 2, 3, 5], got [1, 2, 2, 5]");
    refused([](Given& g) { g.out = MutableView(); }, "out: expected a tensor of shape [1, 4, 3, 5], got none");
    refused([](Given& g) { g.lse = g.lse.slice(1, 0, 2); }, "lse: expected [1, 4, 3], got [1, 2, 3]");
    refused(
        [](Given& g) {
            g.q = View(DType::f32, g.out.data(), {1, heads, 3, key_size});
        },
        "out: expected memory apart from q, got an overlap");
    refused(
        [](Given& g) {
            g.k = View(DType::f32, g.out.data(), {1, groups, 3, key_size}, {0, 1, 2, 3});
        },
        "out: expected memory apart from k, got an overlap");
}

TEST(CacheErrors, Options) {
    const std::vector<std::int64_t> numbers{0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    const auto view = [&](const Shape& shape) { return View(DType::i64, numbers.data(), shape); };
    refused([&](Given& g) { g.options.cu_seqlens_q = view({3}); },
            "cu_seqlens_q: expected none, as the caches know, got a tensor");
    refused([&](Given& g) { g.options.key_lengths = view({2}); },
            "key_lengths: expected none, as the caches know, got a tensor");
    refused(
        [&](Given& g) {
            g.options.key_positions = view({1, 3});
        },
        "key_positions: expected none, as the caches know, got a tensor");
    refused([](Given& g) { g.options.align = Align::top_left; }, "align: expected bottom_right, got top_left");
    refused(
        [&](Given& g) {
            g.options.query_positions = view({1, 4});
        },
        "query_positions: expected [1, 3], got [1, 4]");
    const Tensor bias(DType::f32, {2, 1, 2, 7});
    refused([&](Given& g) { g.options.bias = bias; },
            "bias: expected each axis of [2, 4, 2, 8] or 1, got [2, 1, 2, 7]");
    const Tensor wider(DType::f32, {2, 1, 2, 9});
    refused([&](Given& g) { g.options.bias = wider; },
            "bias: expected each axis of [2, 4, 2, 8] or 1, got [2, 1, 2, 9]");
    refused([](Given& g) { g.options.softcap = -1; }, "softcap: expected 0 (none) or a positive number, got -1.000000");
    refused([](Given& g) { g.options.kernel = "fast"; }, error_text([] {
                                                             Given g;
                                                             g.options.kernel = "fast";
                                                             g.call();
                                                         }).substr(16));
    // With positions of slots there is nothing to say, and layers agree.
    CacheConfig config = small_config();
    config.positions = CachePositions::slots;
    const CachePool slots = poisoned(config);
    Cache cache = slots.create();
    Context context(1);
    const Tokens tokens(3);
    EXPECT_EQ(error_text([&] {
                  cache_append(context, {.caches = {&cache}}, tokens.k, tokens.v, view({1, 3}));
              }),
              "[cache_append] positions: expected none where positions are slots, got a tensor");
    config = small_config();
    config.layers = 2;
    const CachePool layers = poisoned(config);
    Cache other = layers.create();
    cache_append(context, {.caches = {&other}}, tokens.k, tokens.v);
    EXPECT_EQ(error_text([&] {
                  cache_append(context, {.caches = {&other}, .layer = 1}, tokens.k, tokens.v,
                               View(DType::i64, numbers.data() + 1, {1, 3}));
              }),
              "[cache_append] positions[0]: expected that of the layers before, 0, got 1");
    EXPECT_EQ(error_text([&] { other.drop(0, 1); }),
              "[Cache::drop] cache: expected every layer at one length, got a step that some layers have not seen");
}

TEST(CacheErrors, AFullPoolChangesNothing) {
    Given given;
    const Tensor before = given.a.keys(0, 0, 6);
    const Tokens many(8, 3);
    // a has room for 2, b for 3; the pool for none.
    EXPECT_EQ(given.pool.free_pages(), 0);
    Answer answer(8);
    const auto call = [&] {
        cached_attend(given.context, {.caches = {&given.a, &given.b}, .tokens = {2, 6}}, many.q, many.k, many.v,
                      answer.out, {.causal = true});
    };
    try {
        call();
        FAIL() << "expected CacheFull";
    } catch (const CacheFull& full) {
        EXPECT_EQ(full.needed, 1);
        EXPECT_EQ(full.free, 0);
        EXPECT_STREQ(full.what(), "[cached_attend] caches: expected a pool with 1 free pages, got 0 of 4");
    }
    EXPECT_EQ(given.a.length(), 6);
    EXPECT_EQ(given.b.length(), 5);
    expect_same(given.a.keys(0, 0, 6), before);
    // A fork's first word needs a page of its own.
    Cache fork = given.a.fork();
    EXPECT_THROW(step(given.context, fork, many, 0, 1), CacheFull);
    // Preempted: b goes, and a goes on.
    given.b.free();
    EXPECT_EQ(given.pool.free_pages(), 2);
    step(given.context, fork, many, 0, 1);
    step(given.context, given.a, many, 0, 6);
    EXPECT_EQ(given.a.length(), 12);
}

TEST(CacheErrors, AContiguousCacheHasACapacity) {
    Context context(1);
    const Tokens tokens(12);
    const CachePool pool = poisoned(contiguous_cache(small_config(), 10, 2));
    Cache cache = pool.create();
    step(context, cache, tokens, 0, 8);
    EXPECT_EQ(error_text([&] { step(context, cache, tokens, 8, 11); }),
              "[cached_attend] caches[0]: expected at most 10 tokens (pages_per_cache 1), got 11");
    EXPECT_EQ(cache.length(), 8);
    cache.drop(1, 4);
    EXPECT_EQ(cache.pages(), 1);
    step(context, cache, tokens, 8, 12);
    EXPECT_EQ(cache.positions(), (std::vector<std::int64_t>{0, 4, 5, 6, 7, 8, 9, 10, 11}));
}

TEST(CacheErrors, Handles) {
    const std::string gone = "expected a cache, got one that was freed, moved or never made";
    Cache none;
    EXPECT_FALSE(none);
    EXPECT_EQ(error_text([&] { (void)none.length(); }), "[Cache::length] cache: " + gone);
    EXPECT_EQ(error_text([&] { none.free(); }), "[Cache::free] cache: " + gone);
    EXPECT_EQ(error_text([&] { (void)none.fork(); }), "[Cache::fork] cache: " + gone);
    EXPECT_EQ(error_text([&] { none.truncate(0); }), "[Cache::truncate] cache: " + gone);
    EXPECT_EQ(error_text([&] { none.drop(0, 0); }), "[Cache::drop] cache: " + gone);
    EXPECT_EQ(error_text([&] { none.keep_window(0, 0); }), "[Cache::keep_window] cache: " + gone);
    EXPECT_EQ(error_text([&] { none.save("x"); }), "[Cache::save] cache: " + gone);
    EXPECT_EQ(error_text([&] { (void)none.pages(); }), "[Cache::pages] cache: " + gone);
    EXPECT_EQ(error_text([&] { (void)none.shared_pages(); }), "[Cache::shared_pages] cache: " + gone);
    EXPECT_EQ(error_text([&] { (void)none.positions(); }), "[Cache::positions] cache: " + gone);
    EXPECT_EQ(error_text([&] { (void)none.next_position(); }), "[Cache::next_position] cache: " + gone);
    EXPECT_EQ(error_text([&] { (void)none.pool(); }), "[Cache::pool] cache: " + gone);
    Given given;
    EXPECT_EQ(error_text([&] { given.a.truncate(7); }), "[Cache::truncate] length: expected 0 to 6, got 7");
    EXPECT_EQ(error_text([&] { given.a.truncate(-1); }), "[Cache::truncate] length: expected 0 to 6, got -1");
    EXPECT_EQ(error_text([&] { given.a.drop(2, 7); }), "[Cache::drop] end: expected 0 to 6, got 7");
    EXPECT_EQ(error_text([&] { given.a.drop(3, 2); }), "[Cache::drop] begin: expected 0 to 2, got 3");
    EXPECT_EQ(error_text([&] { given.a.keep_window(-1, 2); }),
              "[Cache::keep_window] sinks: expected 0 or more, got -1");
    EXPECT_EQ(error_text([&] { given.a.keep_window(1, -2); }),
              "[Cache::keep_window] recent: expected 0 or more, got -2");
    EXPECT_EQ(error_text([&] { (void)given.a.keys(0, 0, 7); }), "[Cache::keys] end: expected 0 to 6, got 7");
    EXPECT_EQ(error_text([&] { (void)given.a.values(0, 4, 3); }), "[Cache::values] begin: expected 0 to 3, got 4");
    EXPECT_EQ(error_text([&] { (void)given.a.keys(1, 0, 1); }), "[Cache::keys] layer: expected 0 to 0, got 1");
    EXPECT_EQ(error_text([&] { (void)given.a.length(-1); }), "[Cache::length] layer: expected 0 to 0, got -1");
    Cache moved = std::move(given.a);
    EXPECT_EQ(moved.length(), 6);
    moved.free();
    EXPECT_EQ(error_text([&] { moved.free(); }), "[Cache::free] cache: " + gone);
    // The memory lives as long as somebody has a part of it.
    Cache last;
    {
        const CachePool pool = poisoned(small_config());
        last = pool.create();
    }
    Context context(1);
    step(context, last, Tokens(5), 0, 5);
    EXPECT_EQ(last.pool().free_pages(), 62);
}

TEST(CacheErrors, NumbersThatCannotBeScaled) {
    Context context(1);
    for (const CacheStorage storage : {CacheStorage::i8, CacheStorage::i4}) {
        CacheConfig config = small_config();
        config.storage = storage;
        const CachePool pool = poisoned(config);
        Cache cache = pool.create();
        Tokens tokens(3);
        tokens.v.as<float>()[7] = std::numeric_limits<float>::infinity();
        EXPECT_EQ(error_text([&] { step(context, cache, tokens, 0, 3); }),
                  "[cached_attend] v: expected finite numbers for storage " + std::string(name_of(storage)) +
                      ", got infinity or NaN in token 1 of head 0");
        tokens.k.as<float>()[key_size * 3] = std::nanf("");
        EXPECT_EQ(error_text([&] { step(context, cache, tokens, 0, 3); }),
                  "[cached_attend] k: expected finite numbers for storage " + std::string(name_of(storage)) +
                      ", got infinity or NaN in token 0 of head 1");
        EXPECT_EQ(cache.length(), 0);
        EXPECT_EQ(pool.free_pages(), 64);
    }
}

TEST(CacheErrors, NothingHiddenIsRead) {
    // NaN in a dropped token, and in the page's rows behind the last, reach nobody.
    Context context(1);
    Tokens tokens(12);
    for (std::int64_t d = 0; d < key_size; ++d) { tokens.k.as<float>()[5 * key_size + d] = std::nanf(""); }
    for (std::int64_t d = 0; d < value_size; ++d) { tokens.v.as<float>()[5 * value_size + d] = std::nanf(""); }
    const CachePool pool = poisoned(small_config(4, 3));
    Cache cache = pool.create();
    step(context, cache, tokens, 0, 10);
    cache.drop(5, 6);
    const Answer got = step(context, cache, tokens, 10, 12);
    for (std::int64_t n = 0; n < got.out.elements(); ++n) { ASSERT_TRUE(std::isfinite(get(got.out, n))); }
    cache.truncate(5);
    const Answer fewer = step(context, cache, tokens, 11, 12);
    for (std::int64_t n = 0; n < fewer.out.elements(); ++n) { ASSERT_TRUE(std::isfinite(get(fewer.out, n))); }
}

TEST(CacheErrors, MlaAndStates) {
    Context context(1);
    const CachePool pool = poisoned({.kind = CacheKind::latent, .head_size = 11, .value_size = 7, .pages = 4});
    Cache cache = pool.create();
    const Tensor up_key = random(DType::f32, {2, 5, 8}, 1), up_value = random(DType::f32, {2, 6, 8}, 2),
                 q = random(DType::f32, {1, 2, 3, 9}, 3), rows = random(DType::f32, {1, 1, 3, 11}, 4);
    Tensor out(DType::f32, {1, 2, 3, 6});
    EXPECT_EQ(error_text([&] {
                  cached_mla_attend(context, {.caches = {&cache}}, q, rows, {up_key, up_value}, out);
              }),
              "[cached_mla_attend] up_key: expected r 7 and p 4 as in the pool, got r 8 and p 4");
    EXPECT_EQ(error_text([&] { cache_append(context, {.caches = {&cache}}, rows, rows); }),
              "[cache_append] v: expected none for a latent cache, whose rows are k alone, got a tensor");
    CacheConfig config = small_config();
    config.kind = CacheKind::infini;
    const CachePool states = poisoned(config);
    Cache state = states.create();
    const Tokens tokens(3);
    const Tensor gates(DType::f32, {heads});
    Answer answer(3);
    EXPECT_EQ(error_text([&] {
                  cached_infini_attend(context, {.caches = {&state}}, tokens.q, tokens.k, tokens.v, gates, answer.out,
                                       {.memory_k = tokens.k});
              }),
              "[cached_infini_attend] memory_k: expected none without memory_keys, got a tensor");
    EXPECT_EQ(states.free_pages(), 64);
    config.kind = CacheKind::linear;
    const CachePool linear = poisoned(config);
    Cache other = linear.create();
    EXPECT_EQ(error_text([&] {
                  cached_linear_attend(context, {.caches = {&other}}, tokens.q, tokens.k, tokens.v, answer.out,
                                       {.normalise = false});
              }),
              "[cached_linear_attend] normalise: expected true as in the pool, got false");
    EXPECT_EQ(
        error_text([&] { cached_attend(context, {.caches = {&other}}, tokens.q, tokens.k, tokens.v, answer.out); }),
        "[cached_attend] caches[0]: expected a cache of kind attention, got linear");
}

}  // namespace
}  // namespace heed::testing
