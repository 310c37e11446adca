/// Decoding from pages of a cache that lie on a GPU: the same bits as from tensors there, whatever the pages hold where
/// no key is.

#include <gtest/gtest.h>

#include "base/access.h"
#include "conformance/run.h"
#include "ops/attention_checks.h"
#include "ops/attention_kernels.h"
#include "support/random.h"

#include <cmath>
#include <cstring>
#include <numeric>

namespace heed::conformance {
namespace {

constexpr Device pages_gpu{DeviceKind::cuda, 0};
const char* const pages_kernel = "cuda-sm90/decode";

struct PagesCase {
    DType type;
    std::int64_t heads, kv_heads, size, page_size;
    std::vector<std::int64_t> lengths;
    std::int64_t left = -1;
};

/// Keys, or values, of several caches: in the pages of a pool [G,pages,page_size,D], and each on its own [1,G,S,D].
struct PagesAndTensors {
    Tensor pool;
    std::vector<Tensor> alone;
    std::int64_t pages = 0, row_bytes = 0;

    PagesAndTensors(testing::Random& random, const PagesCase& c, const std::vector<std::vector<std::int32_t>>& tables,
                    std::int64_t pool_pages)
        : pages(pool_pages) {
        row_bytes = c.size * static_cast<std::int64_t>(size_of(c.type));
        Tensor host(c.type, {c.kv_heads, pages, c.page_size, c.size});
        for (std::int64_t n = 0; n < host.elements(); ++n) { write_number(c.type, host.data(), n, std::nan("")); }
        for (std::size_t b = 0; b < tables.size(); ++b) {
            const Tensor rows = testing::random_tensor(random, c.type, {1, c.kv_heads, c.lengths[b], c.size});
            for (std::int64_t g = 0; g < c.kv_heads; ++g) {
                for (std::int64_t j = 0; j < c.lengths[b]; ++j) {
                    const std::int64_t page = tables[b][static_cast<std::size_t>(j / c.page_size)];
                    const std::int64_t to = (g * pages + page) * c.page_size + j % c.page_size;
                    std::memcpy(static_cast<char*>(host.data()) + to * row_bytes,
                                static_cast<const char*>(rows.data()) + (g * c.lengths[b] + j) * row_bytes,
                                static_cast<std::size_t>(row_bytes));
                }
            }
            alone.push_back(rows.to(pages_gpu));
        }
        pool = host.to(pages_gpu);
    }
    KvRows rows(const PagesCase& c) const {
        KvRows rows;
        rows.data = static_cast<const char*>(pool.data());
        rows.storage = c.type == DType::bf16 ? CacheStorage::bf16 : CacheStorage::f16;
        rows.row_bytes = row_bytes;
        rows.page_bytes = c.page_size * row_bytes;
        rows.head_bytes = pages * rows.page_bytes;
        return rows;
    }
};

/// Pages of all caches in any order, with some between them that nobody has.
std::vector<std::vector<std::int32_t>> shuffled_tables(testing::Random& random, const PagesCase& c,
                                                       std::int64_t& pool_pages) {
    std::int64_t used = 0;
    for (const std::int64_t length : c.lengths) { used += (length + c.page_size - 1) / c.page_size; }
    pool_pages = used + 3;
    std::vector<std::int32_t> order(static_cast<std::size_t>(pool_pages));
    std::iota(order.begin(), order.end(), 0);
    for (std::size_t n = order.size(); n > 1; --n) {
        std::swap(order[n - 1], order[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(n)))]);
    }
    std::vector<std::vector<std::int32_t>> tables;
    auto next = order.begin();
    for (const std::int64_t length : c.lengths) {
        const std::int64_t count = (length + c.page_size - 1) / c.page_size;
        tables.emplace_back(next, next + count);
        next += count;
    }
    return tables;
}

void check_pages(Context& context, const PagesCase& c) {
    testing::Random random(11);
    const auto count = static_cast<std::int64_t>(c.lengths.size());
    std::int64_t pool_pages = 0;
    const auto tables = shuffled_tables(random, c, pool_pages);
    const PagesAndTensors k(random, c, tables, pool_pages), v(random, c, tables, pool_pages);
    const Tensor q = testing::random_tensor(random, c.type, {1, c.heads, count, c.size}).to(pages_gpu);
    Tensor out = Tensor(c.type, {1, c.heads, count, c.size}).to(pages_gpu);
    Tensor lse = Tensor(DType::f32, {1, c.heads, count}).to(pages_gpu);

    std::vector<std::int64_t> cu_q{0}, cu_k{0};
    for (const std::int64_t length : c.lengths) {
        cu_q.push_back(cu_q.back() + 1);
        cu_k.push_back(cu_k.back() + length);
    }
    AttentionOptions options;
    options.causal = true;
    options.window.left = c.left;
    options.cu_seqlens_q = View(DType::i64, cu_q.data(), {count + 1});
    options.cu_seqlens_k = View(DType::i64, cu_k.data(), {count + 1});
    AttentionProblem problem = checked_cached(
        {"attend", context}, q,
        {.kv_heads = c.kv_heads, .queries = count, .keys = cu_k.back(), .head_size = c.size, .value_size = c.size},
        {.out = out, .lse = lse}, options);
    std::vector<const std::int32_t*> lists;
    for (const auto& table : tables) { lists.push_back(table.data()); }
    const KvPages pages{.k = k.rows(c), .v = v.rows(c), .page_size = c.page_size, .tables = lists.data()};
    problem.pages = &pages;
    problem.options.kernel = pages_kernel;
    choose_attention_kernel(context, "attend", problem).forward(detail::place_of(context), problem);
    context.synchronise();

    AttentionOptions one;
    one.causal = true;
    one.window.left = c.left;
    one.kernel = pages_kernel;
    Tensor same_out = Tensor(c.type, out.shape()).to(pages_gpu),
           same_lse = Tensor(DType::f32, lse.shape()).to(pages_gpu);
    for (std::int64_t b = 0; b < count; ++b) {
        const auto n = static_cast<std::size_t>(b);
        attend(context, q.view().slice(2, b, b + 1), k.alone[n], v.alone[n],
               {.out = same_out.view().slice(2, b, b + 1), .lse = same_lse.view().slice(2, b, b + 1)}, one);
    }
    context.synchronise();
    const auto equal = [](const Tensor& a, const Tensor& b) {
        const Tensor x = a.to(Device{}), y = b.to(Device{});
        return std::memcmp(x.data(), y.data(), x.bytes()) == 0;
    };
    EXPECT_TRUE(equal(out, same_out) && equal(lse, same_lse))
        << c.heads << " heads over " << c.kv_heads << ", size " << c.size << ", pages of " << c.page_size << ", "
        << count << " caches";
    const Tensor host = lse.to(Device{});
    for (std::int64_t n = 0; n < host.elements(); ++n) {
        EXPECT_EQ(std::isinf(host.as<float>()[n]), c.lengths[static_cast<std::size_t>(n % count)] == 0);
    }
}

TEST(PagesOnTheGpu, SameBitsAsTensors) {
    const std::vector<std::string> kernels = kernels_to_test(true);
    if (kernels.empty()) { GTEST_SKIP() << "no GPU, or heed built without CUDA"; }
    Context context(pages_gpu);
    for (const DType type : {DType::bf16, DType::f16}) {
        for (const std::int64_t size : {64, 128}) {
            for (const std::int64_t page_size : {1, 5, 16, 64, 1000}) {
                check_pages(context, {type, 4, 4, size, page_size, {1, 17, 300}});
                check_pages(context, {type, 32, 8, size, page_size, {2500, 0, 16, 4097}});
                check_pages(context, {type, 20, 1, size, page_size, {40, 9000}, 700});
            }
        }
    }
}

}  // namespace
}  // namespace heed::conformance
