/// How numbers are stored: the bounds of their error, and what attention makes of it.
#include "ops/kv_transfer.h"
#include "support/sample.h"
#include "unit/cache/cache_testing.h"

namespace heed::testing {
namespace {

constexpr CacheStorage every_storage[] = {CacheStorage::f32, CacheStorage::bf16, CacheStorage::f16, CacheStorage::i8,
                                          CacheStorage::i4};

std::vector<float> row_of_numbers(std::int64_t n, unsigned seed, double spread) {
    const Tensor x = random(DType::f32, {std::max<std::int64_t>(n, 1)}, seed, spread);
    return {x.as<float>(), x.as<float>() + n};
}

struct Stored {
    std::vector<char> row;
    std::vector<float> scales, back;
    Stored(CacheStorage storage, const std::vector<float>& x) {
        const auto n = static_cast<std::int64_t>(x.size());
        const KvRowLayout layout = kv_row_layout(storage, n);
        row.assign(static_cast<std::size_t>(layout.bytes), 0);
        scales.assign(static_cast<std::size_t>(layout.scales), 0);
        back.assign(x.size(), 0);
        write_kv_row(layout, x.data(), row.data(), scales.data());
        read_kv_row(layout, row.data(), scales.data(), n, back.data());
    }
};

TEST(CacheStorage, ErrorsStayWithinTheirBounds) {
    for (const std::int64_t n : {1, 2, 31, 32, 33, 64, 127}) {
        for (const double spread : {1e-30, 1e-3, 1.0, 1e10}) {
            const std::vector<float> x = row_of_numbers(n, static_cast<unsigned>(n), spread);
            for (const CacheStorage storage : every_storage) {
                if (storage == CacheStorage::f16 && spread > 1e4) { continue; }  // overflows
                const Stored stored(storage, x);
                for (std::size_t c = 0; c < x.size(); ++c) {
                    const std::size_t group = storage == CacheStorage::i4 ? c / 32 * 32 : 0;
                    const std::size_t behind = storage == CacheStorage::i4 ? std::min(group + 32, x.size()) : x.size();
                    double largest = 0;
                    for (std::size_t i = group; i < behind; ++i) {
                        largest = std::max(largest, std::abs(double{x[i]}));
                    }
                    double bound = 0;
                    switch (storage) {
                        case CacheStorage::f32: bound = 0; break;
                        case CacheStorage::bf16: bound = std::abs(x[c]) * 0x1p-8; break;
                        case CacheStorage::f16: bound = std::abs(x[c]) * 0x1p-11 + 0x1p-25; break;
                        case CacheStorage::i8: bound = largest / 254 * (1 + 1e-5); break;
                        case CacheStorage::i4: bound = largest / 14 * (1 + 1e-5); break;
                    }
                    ASSERT_LE(std::abs(double{stored.back[c]} - double{x[c]}), bound)
                        << name_of(storage) << " " << n << " " << spread << " column " << c;
                }
                // What was read stores as itself.
                const Stored again(storage, stored.back);
                for (std::size_t c = 0; c < x.size(); ++c) {
                    ASSERT_NEAR(again.back[c], stored.back[c], 1e-6 * std::abs(stored.back[c])) << name_of(storage);
                }
            }
        }
    }
}

TEST(CacheStorage, ZerosAndTheSmallestNumbers) {
    for (const CacheStorage storage : every_storage) {
        const Stored zeros(storage, std::vector<float>(40, 0.0F));
        EXPECT_EQ(zeros.back, std::vector<float>(40, 0.0F));
        const Stored tiny(storage, std::vector<float>(5, std::numeric_limits<float>::denorm_min()));
        for (const float x : tiny.back) { EXPECT_LE(std::abs(x), 1e-44F); }
    }
}

/// Relative error of attention's output against the same with f32 storage.
double output_error(Context& context, CacheStorage storage, bool causal = true, bool outliers = false) {
    constexpr std::int64_t size = 64, length = 256;
    CacheConfig config{
        .layers = 1, .kv_heads = 2, .head_size = size, .value_size = size, .storage = storage, .pages = 16};
    const Tensor q = random(DType::f32, {1, 4, length, size}, 1), v = random(DType::f32, {1, 2, length, size}, 3);
    Tensor k = random(DType::f32, {1, 2, length, size}, 2);
    for (std::int64_t n = 0; outliers && n < k.elements(); ++n) {
        if (n % size == 5 || n % size == 40) { k.as<float>()[n] *= 8; }
    }
    Tensor got(DType::f32, q.shape()), exact(DType::f32, q.shape());
    const CachePool pool = poisoned(config);
    Cache cache = pool.create();
    cached_attend(context, {.caches = {&cache}}, q, k, v, got, {.causal = causal});
    attend(context, q, k, v, exact, {.causal = causal});
    double error = 0, norm = 0;
    for (std::int64_t n = 0; n < got.elements(); ++n) {
        error += std::pow(get(got, n) - get(exact, n), 2);
        norm += std::pow(get(exact, n), 2);
    }
    return std::sqrt(error / norm);
}

TEST(CacheStorage, AttentionIsAsExactAsTheStorage) {
    Context context(2);
    EXPECT_LT(output_error(context, CacheStorage::f32), 1e-6);
    EXPECT_LT(output_error(context, CacheStorage::f16), 1e-3);
    EXPECT_LT(output_error(context, CacheStorage::bf16), 6e-3);
    EXPECT_LT(output_error(context, CacheStorage::i8), 0.02);
    const double four_bits = output_error(context, CacheStorage::i4);
    EXPECT_GT(four_bits, 0.02) << "a tenth of a normal number, not a rounding";
    EXPECT_LT(four_bits, 0.2);
    RecordProperty("i4", std::to_string(four_bits));
}

/// The table of docs/caches.md: a prompt, and queries that see all keys, without outliers and with them.
TEST(CacheStorage, ErrorsAreThoseThatAreDocumented) {
    Context context(2);
    const struct {
        CacheStorage storage;
        double prompt, prompt_outliers, all, all_outliers;
    } table[] = {{CacheStorage::bf16, 0.0022, 0.0041, 0.0024, 0.0056},
                 {CacheStorage::f16, 0.00028, 0.00052, 0.0003, 0.0007},
                 {CacheStorage::i8, 0.0078, 0.025, 0.0084, 0.032},
                 {CacheStorage::i4, 0.128, 0.336, 0.138, 0.437}};
    for (const auto& row : table) {
        const std::string name(name_of(row.storage));
        EXPECT_NEAR(output_error(context, row.storage), row.prompt, 0.2 * row.prompt) << name;
        EXPECT_NEAR(output_error(context, row.storage, true, true), row.prompt_outliers, 0.2 * row.prompt_outliers)
            << name;
        EXPECT_NEAR(output_error(context, row.storage, false), row.all, 0.2 * row.all) << name;
        EXPECT_NEAR(output_error(context, row.storage, false, true), row.all_outliers, 0.2 * row.all_outliers) << name;
    }
}

TEST(CacheStorage, PageSizesAgreeToTheBitInEveryStorage) {
    Context context(2);
    const Tokens tokens(100);
    for (const CacheStorage storage : every_storage) {
        std::vector<Answer> first;
        for (const std::int64_t page_size : {128, 1, 5, 16}) {
            CacheConfig config = small_config(page_size, 100);
            config.storage = storage;
            const CachePool pool = poisoned(config);
            Cache cache = pool.create();
            std::vector<Answer> answers;
            answers.push_back(step(context, cache, tokens, 0, 98));
            answers.push_back(step(context, cache, tokens, 98, 99));
            answers.push_back(step(context, cache, tokens, 99, 100));
            if (first.empty()) { first = std::move(answers); }
            for (std::size_t n = 0; n < answers.size(); ++n) {
                expect_same(answers[n], first[n], std::string(name_of(storage)));
            }
        }
    }
}

/// The kernels read what is stored; the reference reads a copy of it, widened.
TEST(CacheStorage, FusedReadingIsReadingAWidenedCopy) {
    Context context(2);
    const Tokens tokens(90);
    for (const CacheStorage storage : every_storage) {
        CacheConfig config = small_config(7, 40);
        config.storage = storage;
        const CachePool pool = poisoned(config);
        Cache cache = pool.create(), other = pool.create();
        for (const auto& [begin, end] : {std::pair<std::int64_t, std::int64_t>{0, 80}, {80, 81}, {81, 90}}) {
            expect_near(step(context, cache, tokens, begin, end),
                        step(context, other, tokens, begin, end, {.causal = true, .kernel = "reference"}), 3e-6,
                        std::string(name_of(storage)));
        }
    }
}

/// Sizes that fill whole vectors take other paths, and so do one row, eight and a hundred.
TEST(CacheStorage, WholeVectorsInEveryStorageAndPageSize) {
    Context context(2);
    constexpr std::int64_t length = 150;
    Sample sample((test_stride() + 2) / 3);
    for (const std::int64_t size : {32, 64, 80}) {
        const Tensor q = random(DType::f32, {1, 4, length, size}, 1), k = random(DType::f32, {1, 2, length, size}, 2),
                     v = random(DType::f32, {1, 2, length, size}, 3);
        for (const CacheStorage storage : every_storage) {
            if (!sample.takes()) { continue; }
            std::vector<Tensor> first;
            for (const std::int64_t page_size : {160, 1, 6, 16, 32}) {
                const CachePool pool({.kv_heads = 2,
                                      .head_size = size,
                                      .value_size = size,
                                      .storage = storage,
                                      .page_size = page_size,
                                      .pages = 320});
                Cache cache = pool.create(), other = pool.create();
                std::vector<Tensor> outs;
                for (const auto& [begin, end] :
                     {std::pair<std::int64_t, std::int64_t>{0, 133}, {133, 134}, {134, 142}, {142, 145}, {145, 150}}) {
                    const Shape shape{1, 4, end - begin, size};
                    Tensor got(DType::f32, shape), expected(DType::f32, shape);
                    const auto run = [&](Cache& which, Tensor& out, const char* kernel) {
                        cached_attend(context, {.caches = {&which}}, part(q, begin, end), part(k, begin, end),
                                      part(v, begin, end), out, {.causal = true, .kernel = kernel});
                    };
                    run(cache, got, "");
                    if (page_size == 6) {
                        run(other, expected, "reference");
                        // Some sets multiply i8 by 16-bit numbers.
                        const double tolerance = storage == CacheStorage::i8 ? 3e-5 : 5e-6;
                        expect_near(got, expected, tolerance,
                                    std::string(name_of(storage)) + " " + std::to_string(size));
                    }
                    outs.push_back(std::move(got));
                }
                if (first.empty()) { first = std::move(outs); }
                for (std::size_t n = 0; n < outs.size(); ++n) {
                    expect_same(outs[n], first[n],
                                std::string(name_of(storage)) + " pages of " + std::to_string(page_size));
                }
            }
        }
    }
}

}  // namespace
}  // namespace heed::testing
