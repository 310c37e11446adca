/// Caches that are saved, restored and go on.
#include <heed/safetensors.h>

#include <filesystem>
#include <fstream>

#include "unit/cache/cache_testing.h"

namespace heed::testing {
namespace {

struct File {
    std::filesystem::path path =
        std::filesystem::temp_directory_path() /
        ("heed_cache_" + std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()) + ".safetensors");
    ~File() { std::filesystem::remove(path); }
};

TEST(CacheFile, ARestoredCacheGoesOnToTheBit) {
    Context context(2);
    const File file;
    const Tokens tokens(30);
    for (const CacheStorage storage :
         {CacheStorage::f32, CacheStorage::bf16, CacheStorage::f16, CacheStorage::i8, CacheStorage::i4}) {
        for (const int shape : {0, 1, 2, 3}) {  // plain, with gaps, slots, rotated on reading
            CacheConfig config = small_config();
            config.storage = storage;
            if (shape >= 2) {
                config.rope = Rope{.size = 4, .theta = 100};
                config.positions = shape == 2 ? CachePositions::slots : CachePositions::original;
                config.sinks = shape == 2 ? 2 : 0;
                if (shape == 3) { config.rope->scaling = rope_scaling::DynamicNtk{.factor = 2, .trained = 8}; }
            }
            const CachePool pool = poisoned(config);
            Cache cache = pool.create();
            step(context, cache, tokens, 0, 21);
            if (shape > 0) { cache.keep_window(2, 10); }
            cache.save(file.path);
            const CachePool elsewhere = poisoned(config);
            Cache restored = elsewhere.restore(file.path);
            EXPECT_EQ(restored.length(), cache.length());
            EXPECT_EQ(restored.positions(), cache.positions());
            EXPECT_EQ(restored.next_position(), cache.next_position());
            for (std::int64_t t = 21; t < 30; t += 3) {
                expect_same(step(context, restored, tokens, t, t + 3), step(context, cache, tokens, t, t + 3),
                            std::string(name_of(storage)) + " shape " + std::to_string(shape));
                if (shape > 0) {
                    cache.keep_window(2, 10);
                    restored.keep_window(2, 10);
                }
            }
        }
    }
}

TEST(CacheFile, IntoOtherPages) {
    Context context(1);
    const File file;
    const Tokens tokens(30);
    const CachePool pool(small_config(4, 40)), paged(small_config(7, 40)),
        contiguous(contiguous_cache(small_config(), 32));
    Cache cache = pool.create();
    step(context, cache, tokens, 0, 20);
    cache.save(file.path);
    Cache a = paged.restore(file.path), b = contiguous.restore(file.path);
    const Answer expected = step(context, cache, tokens, 20, 30);
    expect_same(step(context, a, tokens, 20, 30), expected);
    expect_same(step(context, b, tokens, 20, 30), expected);
    // A gap closes where the pages are others.
    cache.drop(3, 8);
    cache.save(file.path);
    a = paged.restore(file.path);
    b.free();  // its only page
    b = contiguous.restore(file.path);
    EXPECT_EQ(a.pages(), 4);
    EXPECT_EQ(b.positions(), cache.positions());
    const Answer after = step(context, cache, tokens, 29, 30);
    expect_near(step(context, a, tokens, 29, 30), after, 2e-6);
    expect_near(step(context, b, tokens, 29, 30), after, 2e-6);
}

TEST(CacheFile, BetweenLayersAndEmpty) {
    Context context(1);
    const File file;
    const Tokens tokens(8);
    CacheConfig config = small_config();
    config.layers = 2;
    const CachePool pool = poisoned(config);
    Cache cache = pool.create();
    cache.save(file.path);
    EXPECT_EQ(pool.restore(file.path).length(), 0);
    step(context, cache, tokens, 0, 5);
    cache.save(file.path);
    const Cache restored = pool.restore(file.path);
    EXPECT_EQ(restored.length(0), 5);
    EXPECT_EQ(restored.length(1), 0);
}

TEST(CacheFile, States) {
    Context context(1);
    const File file;
    const Tokens tokens(20);
    const Tensor gates = random(DType::f32, {heads}, 9);
    for (const CacheKind kind : {CacheKind::linear, CacheKind::infini}) {
        CacheConfig config = small_config();
        config.kind = kind;
        config.pages = 2;
        config.segment = 8;
        const CachePool pool = poisoned(config);
        Cache cache = pool.create();
        const auto run = [&](Cache& which, std::int64_t begin, std::int64_t end) {
            Tensor out(DType::f32, {1, heads, end - begin, value_size});
            const CacheBatch batch{.caches = {&which}};
            if (kind == CacheKind::linear) {
                cached_linear_attend(context, batch, part(tokens.q, begin, end), part(tokens.k, begin, end),
                                     part(tokens.v, begin, end), out);
            } else {
                cached_infini_attend(context, batch, part(tokens.q, begin, end), part(tokens.k, begin, end),
                                     part(tokens.v, begin, end), gates, out);
            }
            return out;
        };
        run(cache, 0, 11);
        cache.save(file.path);
        Cache restored = pool.restore(file.path);
        EXPECT_EQ(restored.length(), 11);
        expect_same(run(restored, 11, 20), run(cache, 11, 20));
        EXPECT_THROW((void)pool.restore(file.path), CacheFull);
    }
}

/// What pool.restore says of the file.
std::string complaint(const CachePool& pool, const std::filesystem::path& path) {
    const std::int64_t before = pool.free_pages();
    std::string text = "no complaint";
    try {
        (void)pool.restore(path);
    } catch (const std::exception& error) { text = error.what(); }
    EXPECT_EQ(pool.free_pages(), before);
    return text;
}

TEST(CacheFile, FilesThatDoNotFitAreRefused) {
    Context context(1);
    const File file;
    const Tokens tokens(10);
    const CachePool pool = poisoned(small_config());
    Cache cache = pool.create();
    step(context, cache, tokens, 0, 10);
    cache.save(file.path);
    const auto with = [&](auto change) {
        CacheConfig config = small_config();
        change(config);
        return complaint(CachePool(config), file.path);
    };
    EXPECT_EQ(with([](CacheConfig&) {}), "no complaint");
    EXPECT_NE(with([](CacheConfig& c) { c.layers = 2; }).find("layers: expected 2 as in the pool, got 1"),
              std::string::npos);
    EXPECT_NE(with([](CacheConfig& c) { c.kv_heads = 1; }).find("kv_heads: expected 1"), std::string::npos);
    EXPECT_NE(with([](CacheConfig& c) { c.head_size = 8; }).find("head_size: expected 8"), std::string::npos);
    EXPECT_NE(with([](CacheConfig& c) { c.storage = CacheStorage::i8; }).find("storage: expected i8"),
              std::string::npos);
    EXPECT_NE(with([](CacheConfig& c) { c.rope = Rope{.size = 4}; }).find("rope: expected the rotation"),
              std::string::npos);
    EXPECT_NE(with([](CacheConfig& c) { c.pages = 2; }).find("expected a pool with 3 free pages, got 2"),
              std::string::npos);
    EXPECT_NE(with([](CacheConfig& c) { c = contiguous_cache(c, 9); }).find("pages_per_cache"), std::string::npos);
    EXPECT_NE(complaint(pool, file.path.string() + ".absent").find("absent"), std::string::npos);
    write_safetensors(file.path, {{"x", tokens.q}});
    EXPECT_NE(complaint(pool, file.path).find("expected the metadata of a heed-cache"), std::string::npos);
}

TEST(CacheFile, FilesThatLieAreRefused) {
    Context context(1);
    const File file;
    const Tokens tokens(10);
    CacheConfig config = small_config();
    config.storage = CacheStorage::i8;
    const CachePool pool = poisoned(config);
    Cache cache = pool.create();
    step(context, cache, tokens, 0, 10);
    cache.drop(2, 3);
    cache.save(file.path);
    const SafetensorsFile sound = SafetensorsFile::open(file.path);
    // Each tensor and each line of metadata in turn, changed or left out.
    const auto rewritten = [&](const std::string& name, const std::function<void(Tensor&)>& change) {
        std::vector<Tensor> memory;
        std::vector<NamedView> views;
        for (const std::string& each : sound.names()) {
            Tensor tensor = sound.tensor(each);
            if (each == name) { change(tensor); }
            if (!tensor) { continue; }
            memory.push_back(std::move(tensor));
            views.push_back({each, memory.back().view()});
        }
        const File lie;
        const std::filesystem::path path = lie.path.string() + "2";
        write_safetensors(path, views, sound.metadata());
        std::string text = complaint(pool, path);
        std::filesystem::remove(path);
        return text;
    };
    for (const std::string& name : sound.names()) {
        EXPECT_NE(rewritten(name, [](Tensor& t) { t = Tensor(); }).find(name), std::string::npos)
            << name << " left out";
        EXPECT_NE(rewritten(name,
                            [](Tensor& t) {
                                t = Tensor(DType::i16, {2, 3});
                            })
                      .find(name),
                  std::string::npos)
            << name;
    }
    const auto number = [&](const char* name, std::int64_t n, std::int64_t value) {
        return rewritten(name, [&](Tensor& t) { t.as<std::int64_t>()[n] = value; });
    };
    for (const std::int64_t value : {std::int64_t{-1}, std::int64_t{8}, std::int64_t{1} << 40, std::int64_t{1} << 60}) {
        EXPECT_NE(number("tokens", 0, value), "no complaint") << value;
    }
    EXPECT_NE(number("stretches", 0, 1), "no complaint");
    EXPECT_NE(number("stretches", 2, 0), "no complaint");
    EXPECT_NE(number("stretches", 2, 9), "no complaint");
    EXPECT_NE(number("stretches", 3, std::int64_t{1} << 60), "no complaint");
    for (const float scale : {std::nanf(""), -std::numeric_limits<float>::infinity()}) {
        const auto change = [&](Tensor& t) { t.as<float>()[3] = scale; };
        EXPECT_NE(rewritten("v_scales.0", change).find("v_scales.0: expected finite numbers"), std::string::npos);
        EXPECT_NE(rewritten("k_scales.0", change).find("k_scales.0: expected finite numbers"), std::string::npos);
    }
    EXPECT_EQ(pool.free_pages(), pool.pages() - cache.pages());
    std::vector<Tensor> memory;
    std::vector<NamedView> views;
    for (const std::string& each : sound.names()) {
        memory.push_back(sound.tensor(each));
        views.push_back({each, memory.back().view()});
    }
    for (const auto& [name, value] : sound.metadata()) {
        SafetensorsMetadata metadata = sound.metadata();
        metadata[name] = "99999999999999999999";
        const std::filesystem::path path = file.path.string() + "3";
        write_safetensors(path, views, metadata);
        const std::string text = complaint(pool, path);
        std::filesystem::remove(path);
        EXPECT_NE(text, "no complaint") << name;
    }
}

TEST(CacheFile, TokensOfSinksAreChecked) {
    Context context(1);
    const File file;
    const Tokens tokens(10);
    CacheConfig config = small_config();
    config.positions = CachePositions::slots;
    config.rope = Rope{.size = 4};
    config.sinks = 3;
    const CachePool pool = poisoned(config);
    Cache cache = pool.create();
    step(context, cache, tokens, 0, 10);
    cache.drop(1, 2);
    cache.save(file.path);
    const SafetensorsFile sound = SafetensorsFile::open(file.path);
    const auto with = [&](std::vector<std::int64_t> numbers) {
        std::vector<Tensor> memory;
        std::vector<NamedView> views;
        for (const std::string& each : sound.names()) {
            memory.push_back(sound.tensor(each));
            if (each == "sink_tokens") {
                memory.back() = Tensor(DType::i64, {static_cast<std::int64_t>(numbers.size())});
                std::copy(numbers.begin(), numbers.end(), memory.back().as<std::int64_t>());
            }
            views.push_back({each, memory.back().view()});
        }
        const File lie;
        const std::filesystem::path path = lie.path.string() + "4";
        write_safetensors(path, views, sound.metadata());
        std::string text = complaint(pool, path);
        std::filesystem::remove(path);
        return text;
    };
    EXPECT_EQ(with({0, 1}), "no complaint");
    EXPECT_EQ(with({}), "no complaint");
    for (const std::vector<std::int64_t>& numbers :
         {std::vector<std::int64_t>{-1}, {0, 0}, {1, 0}, {3}, {0, 1, 2, 3}, {std::int64_t{1} << 60}}) {
        EXPECT_NE(with(numbers).find("sink_tokens: expected rising numbers below 3"), std::string::npos);
    }
}

}  // namespace
}  // namespace heed::testing
