/// Short plain sequences of float32, whose heads are computed without a tile of rows: the same bits as from sequences
/// that lie end to end, which have tiles, and the numbers of the reference.

#include "cpu/instruction_sets.h"
#include "support/random.h"
#include "support/sample.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <heed/heed.h>

namespace heed::testing {
namespace {

struct Sizes {
    std::int64_t batch, heads, kv_heads, queries, keys, head_size, value_size;
};

/// Tensors [1, heads, batch * rows, size], and as [batch, heads, rows, size] in the same memory.
struct Rows {
    Tensor tensor;
    Shape shape, strides;

    Rows(Tensor numbers, const Sizes& s, std::int64_t heads, std::int64_t rows, std::int64_t size)
        : tensor(std::move(numbers)),
          shape{s.batch, heads, rows, size},
          strides{rows * size, s.batch * rows * size, size, 1} {}
    View entries() const { return View(tensor.as<float>(), shape, strides); }
    MutableView entries() { return MutableView(tensor.as<float>(), shape, strides); }
};

Rows random_rows(const Sizes& s, std::int64_t heads, std::int64_t rows, std::int64_t size, unsigned seed) {
    return Rows(random_numbers({1, heads, s.batch * rows, size}, seed), s, heads, rows, size);
}
Rows empty_rows(const Sizes& s) {
    return Rows(Tensor(DType::f32, {1, s.heads, s.batch * s.queries, s.value_size}), s, s.heads, s.queries,
                s.value_size);
}

Tensor starts(std::int64_t batch, std::int64_t rows) {
    Tensor begin(DType::i64, {batch + 1});
    for (std::int64_t n = 0; n <= batch; ++n) { begin.as<std::int64_t>()[n] = n * rows; }
    return begin;
}

void expect_same_bits(const Tensor& a, const Tensor& b, const std::string& what) {
    for (std::int64_t n = 0; n < a.elements(); ++n) {
        const float x = a.as<float>()[n];
        const float y = b.as<float>()[n];
        // NaN is NaN, whatever its sign.
        ASSERT_TRUE(std::memcmp(&x, &y, sizeof(x)) == 0 || (x != x && y != y)) << what << ", number " << n;
    }
}

/// Names of those that this CPU can run.
std::vector<std::string> kernels() {
    std::vector<std::string> names;
    for (const cpu::InstructionSet& set : cpu::instruction_sets()) {
        if (set.missing == nullptr) { names.push_back("cpu-" + std::string(set.name)); }
    }
    return names;
}

/// One call for the batch, one for the same sequences end to end.
void compare(const Sizes& s, const Rows& q, const Rows& k, const Rows& v, bool against_reference) {
    const Tensor q_starts = starts(s.batch, s.queries), k_starts = starts(s.batch, s.keys);
    for (const std::string& kernel : kernels()) {
        for (const int threads : {1, 3}) {
            const std::string what = kernel + ", " + std::to_string(s.queries) + " queries, " + std::to_string(s.keys) +
                                     " keys, " + std::to_string(s.head_size) + " and " + std::to_string(s.value_size) +
                                     ", threads " + std::to_string(threads);
            Context context(threads);
            Rows out = empty_rows(s), packed = empty_rows(s);
            Tensor lse(DType::f32, {1, s.heads, s.batch * s.queries}), packed_lse(DType::f32, lse.shape());
            const MutableView lse_of_entries(lse.as<float>(), Shape{s.batch, s.heads, s.queries},
                                             Shape{s.queries, s.batch * s.queries, 1});
            AttentionOptions options{.kernel = kernel};
            attend(context, q.entries(), k.entries(), v.entries(), {.out = out.entries(), .lse = lse_of_entries},
                   options);
            options.cu_seqlens_q = q_starts;
            options.cu_seqlens_k = k_starts;
            attend(context, q.tensor, k.tensor, v.tensor, {.out = packed.tensor, .lse = packed_lse}, options);
            expect_same_bits(out.tensor, packed.tensor, what);
            expect_same_bits(lse, packed_lse, what + ", lse");
            if (!against_reference) { continue; }
            options.kernel = "reference";
            attend(context, q.tensor, k.tensor, v.tensor, packed.tensor, options);
            for (std::int64_t n = 0; n < out.tensor.elements(); ++n) {
                ASSERT_NEAR(out.tensor.as<float>()[n], packed.tensor.as<float>()[n], 2e-6) << what << ", number " << n;
            }
        }
    }
}

TEST(ShortHeads, HaveTheBitsOfTiles) {
    Sample sample((test_stride() + 2) / 3);
    for (const std::int64_t queries : {9, 16, 17, 20, 33, 48, 64}) {
        for (const std::int64_t keys : {1, 2, 20, 63, 192}) {
            if (!sample.takes()) { continue; }
            const Sizes s{2, 2, 2, queries, keys, 64, 64};
            compare(s, random_rows(s, 2, queries, 64, 1), random_rows(s, 2, keys, 64, 2),
                    random_rows(s, 2, keys, 64, 3), true);
        }
    }
    // Sizes that fill no vectors, heads that share keys, and sizes that differ.
    for (const Sizes& s : {Sizes{2, 2, 2, 20, 21, 40, 48}, Sizes{2, 6, 2, 40, 30, 24, 16},
                           Sizes{1, 1, 1, 20, 20, 7, 80}, Sizes{2, 2, 1, 64, 64, 128, 128}}) {
        compare(s, random_rows(s, s.heads, s.queries, s.head_size, 1),
                random_rows(s, s.kv_heads, s.keys, s.head_size, 2), random_rows(s, s.kv_heads, s.keys, s.value_size, 3),
                true);
    }
}

TEST(ShortHeads, PassOnWhatIsNotFinite) {
    const Sizes s{1, 3, 3, 20, 20, 64, 64};
    constexpr float infinity = std::numeric_limits<float>::infinity();
    Rows q = random_rows(s, 3, 20, 64, 1), k = random_rows(s, 3, 20, 64, 2), v = random_rows(s, 3, 20, 64, 3);
    // A row whose every score is -infinity, one whose every score is NaN, one key that is NaN, one value that is not
    // finite.
    for (std::int64_t j = 0; j < 20; ++j) { k.tensor.as<float>()[j * 64] = 1.0F; }
    q.tensor.as<float>()[5 * 64] = -infinity;
    q.tensor.as<float>()[6 * 64 + 1] = std::nanf("");
    k.tensor.as<float>()[(20 + 7) * 64 + 2] = std::nanf("");
    v.tensor.as<float>()[(40 + 3) * 64 + 9] = infinity;
    compare(s, q, k, v, false);
}

/// More than the nearer caches hold: heads ask for those that come next.
TEST(ShortHeads, FromMemoryHaveTheBitsOfTiles) {
    const Sizes s{128, 8, 8, 20, 20, 64, 64};
    compare(s, random_rows(s, 8, 20, 64, 1), random_rows(s, 8, 20, 64, 2), random_rows(s, 8, 20, 64, 3), false);
}

/// Entries of several lengths, some without a row or a key, against each alone.
TEST(ShortHeads, OfSeveralLengthsAreThoseOfEachAlone) {
    constexpr std::int64_t batch = 5, heads = 2, rows = 30, size = 64;
    const Tensor q = random_numbers({batch, heads, rows, size}, 1), k = random_numbers({batch, heads, rows, size}, 2),
                 v = random_numbers({batch, heads, rows, size}, 3);
    Tensor query_lengths(DType::i64, {batch}), key_lengths(DType::i64, {batch});
    const std::int64_t queries[batch] = {30, 20, 9, 3, 25};
    const std::int64_t keys[batch] = {17, 30, 1, 20, 0};
    for (std::int64_t b = 0; b < batch; ++b) {
        query_lengths.as<std::int64_t>()[b] = queries[b];
        key_lengths.as<std::int64_t>()[b] = keys[b];
    }
    for (const std::string& kernel : kernels()) {
        Context context(2);
        Tensor out(DType::f32, q.shape());
        AttentionOptions options{.query_lengths = query_lengths, .key_lengths = key_lengths, .kernel = kernel};
        attend(context, q, k, v, out, options);
        for (std::int64_t b = 0; b < batch; ++b) {
            Tensor alone(DType::f32, {1, heads, rows, size});
            const auto entry = [b](const Tensor& tensor, std::int64_t count) {
                return View(tensor).slice(0, b, b + 1).slice(2, 0, count);
            };
            attend(context, entry(q, queries[b]), entry(k, keys[b]), entry(v, keys[b]),
                   MutableView(alone).slice(2, 0, queries[b]), {.kernel = kernel});
            Tensor got(DType::f32, alone.shape());
            std::memcpy(got.as<float>(), out.as<float>() + b * got.elements(),
                        static_cast<std::size_t>(got.elements()) * sizeof(float));
            expect_same_bits(got, alone, kernel + ", entry " + std::to_string(b));
        }
    }
}

}  // namespace
}  // namespace heed::testing
