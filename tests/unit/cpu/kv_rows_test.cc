/// Few rows of queries over what a cache stores, on every instruction set: the same as the reference, which reads the
/// same numbers one by one, to the rounding of float32; i8 to that of 16-bit numbers, which some sets multiply it with.

#include "cpu/instruction_sets.h"
#include "unit/cpu/attention/decode/decode_variants.h"
#include "support/random.h"
#include "support/sample.h"

#include <cmath>
#include <limits>
#include <string>

#include <gtest/gtest.h>

#include <heed/cache.h>
#include <heed/heed.h>

namespace heed::testing {
namespace {

constexpr std::int64_t stored_keys = 700;

struct StoredKeys {
    Context context{2};
    CachePool pool;
    Cache cache;
    std::int64_t value_size;

    StoredKeys(CacheStorage storage, std::int64_t groups, std::int64_t size, std::int64_t value_columns,
               float spread = 1, std::int64_t page_size = 16)
        : pool({.layers = 1,
                .kv_heads = groups,
                .head_size = size,
                .value_size = value_columns,
                .storage = storage,
                .page_size = page_size,
                .pages = stored_keys / page_size + 1}),
          cache(pool.create()),
          value_size(value_columns) {
        cache_append(context, {.caches = {&cache}}, random_numbers({1, groups, stored_keys, size}, 1),
                     random_numbers({1, groups, stored_keys, value_columns}, 2, spread));
    }
    Tensor attend(const Tensor& q, AttentionOptions options, const std::string& kernel) {
        options.kernel = kernel;
        Tensor out(q.dtype(), {1, q.shape()[1], q.shape()[2], value_size});
        cached_attend(context, {.caches = {&cache}}, q, View(), View(), out, options);
        return out;
    }
    /// Of the reference, on all sets.
    void expect_near(const Tensor& q, const AttentionOptions& options, double tolerance, const std::string& what) {
        if (pool.config().storage == CacheStorage::i8) { tolerance *= 20; }
        const Tensor expected = attend(q, options, "reference");
        for (const cpu::InstructionSet& set : cpu::instruction_sets()) {
            if (set.missing != nullptr) { continue; }
            const Tensor out = attend(q, options, "cpu-" + std::string(set.name));
            for (std::int64_t n = 0; n < out.elements(); ++n) {
                const float got = out.as<float>()[n], wanted = expected.as<float>()[n];
                ASSERT_EQ(std::isnan(got), std::isnan(wanted)) << set.name << ", " << what << ", number " << n;
                if (!std::isnan(wanted)) {
                    ASSERT_NEAR(got, wanted, tolerance) << set.name << ", " << what << ", number " << n;
                }
            }
        }
    }
};

class KvRowsOf : public ::testing::TestWithParam<CacheStorage> {};

TEST_P(KvRowsOf, EqualTheReference) {
    Sample sample;
    for (const std::int64_t size : {40, 64, 96, 128, 192}) {
        StoredKeys stored(GetParam(), 2, size, size == 192 ? 64 : size);
        for (const std::int64_t group : {1, 2, 4}) {
            for (const std::int64_t rows : {1, 2, 4}) {
                const Tensor q = random_numbers({1, 2 * group, rows, size}, 3);
                const DecodeVariants variants(2 * group, rows, stored_keys, 300);
                for (std::size_t n = 0; n < variants.size(); ++n) {
                    if (!sample.takes()) { continue; }
                    stored.expect_near(q, variants[n], 4e-6,
                                       "size " + std::to_string(size) + ", group " + std::to_string(group) + ", rows " +
                                           std::to_string(rows) + ", variant " + std::to_string(n));
                }
            }
        }
    }
}

TEST_P(KvRowsOf, EqualTheReferenceForLatents) {  // the sizes of MLA
    StoredKeys stored(GetParam(), 1, 576, 512);
    for (const std::int64_t heads : {1, 4, 7, 16}) {
        stored.expect_near(random_numbers({1, heads, 1, 576}, 3), {}, 4e-6, std::to_string(heads) + " heads");
    }
}

TEST_P(KvRowsOf, TakePagesOfAnySize) {
    const Tensor q = random_numbers({1, 4, 1, 64}, 3);
    for (const std::int64_t page_size : {1, 5, 16, 24, 1000}) {
        StoredKeys stored(GetParam(), 1, 64, 64, 1, page_size);
        stored.expect_near(q, {}, 4e-6, "pages of " + std::to_string(page_size));
    }
}

TEST_P(KvRowsOf, KeepTheirRangeOfQueriesAndValues) {
    // One key has all the weight, and then thousands share it; queries far apart within a row.
    for (const float spread : {0.0F, 1e-30F, 1e-6F, 30.0F}) {
        StoredKeys stored(GetParam(), 1, 128, 128);
        Tensor q = random_numbers({1, 4, 1, 128}, 3, spread);
        stored.expect_near(q, {}, 3e-5, "queries of " + std::to_string(spread));
        q.as<float>()[5] = 3e4F * spread;
        stored.expect_near(q, {}, 2e-3, "one of the queries large");
    }
    if (GetParam() == CacheStorage::f16) { return; }  // has no such numbers
    const Tensor q = random_numbers({1, 4, 1, 64}, 3);
    StoredKeys small(GetParam(), 1, 64, 64, 1e-30F);
    small.expect_near(q, {}, 4e-36, "small values");
    StoredKeys large(GetParam(), 1, 64, 64, 1e30F);
    large.expect_near(q, {}, 4e24, "large values");
}

TEST_P(KvRowsOf, HandOnNaNAndInfinity) {
    StoredKeys stored(GetParam(), 1, 64, 64);
    Tensor q = random_numbers({1, 4, 1, 64}, 3);
    q.as<float>()[3] = std::numeric_limits<float>::quiet_NaN();
    q.as<float>()[64 + 3] = std::numeric_limits<float>::infinity();
    stored.expect_near(q, {}, 4e-6, "queries");
    q = random_numbers({1, 4, 1, 64}, 3);
    Tensor bias = random_numbers({1, 1, 1, stored_keys}, 5);
    bias.as<float>()[77] = std::numeric_limits<float>::quiet_NaN();
    stored.expect_near(q, {.bias = bias}, 4e-6, "NaN in the bias");
    bias.as<float>()[77] = -std::numeric_limits<float>::infinity();
    stored.expect_near(q, {.bias = bias}, 4e-6, "infinity in the bias");
}

INSTANTIATE_TEST_SUITE_P(Storages, KvRowsOf,
                         ::testing::Values(CacheStorage::f32, CacheStorage::bf16, CacheStorage::f16, CacheStorage::i8,
                                           CacheStorage::i4),
                         [](const auto& each) { return std::string(name_of(each.param)); });

}  // namespace
}  // namespace heed::testing
