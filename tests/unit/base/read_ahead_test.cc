#include "base/read_ahead.h"

#include <gtest/gtest.h>

#include <heed/context.h>

#include "base/place.h"
#include "base/pool.h"

#include <atomic>
#include <span>
#include <utility>
#include <vector>

namespace heed::detail {
namespace {

int lines(ReadAhead ahead) {
    int count = 0;
    for (; !ahead.done(); ahead.ask()) { ++count; }
    return count;
}

TEST(ReadAhead, AsksForItsOwnShareAndNoMoreThanStaysNear) {
    const std::vector<std::byte> memory(std::size_t{4} << 20);
    const std::span<const std::byte> all(memory);
    EXPECT_EQ(lines({}), 0);
    EXPECT_EQ(lines({{}, 1, 2}), 0);
    EXPECT_EQ(lines({all.first(900), 1, 3}), 5);  // 300 bytes
    EXPECT_EQ(lines({all, 1, 2}), static_cast<int>(ReadAhead::most / ReadAhead::line));
    EXPECT_EQ(lines({all, 3, 3}), 0);  // no such thread
    EXPECT_EQ(lines({all.first(1), 0, 3}), 0);
}

TEST(ReadAhead, GoesByTheOrderOfTheCallingThread) {
    const std::vector<std::byte> a(100), b(200);
    const std::span<const std::byte> parts[] = {a, b};
    const ReadingOrder order(parts);
    EXPECT_TRUE(upcoming().empty());
    {
        const ReadsPart nobody_asked(a.data());
        EXPECT_TRUE(upcoming().empty());
    }
    const FollowsOrder follows(&order);
    for (const auto& [part, next] : {std::pair(&a, &b), std::pair(&b, &a)}) {
        const ReadsPart reads(part->data());
        EXPECT_EQ(upcoming().data(), next->data());
        EXPECT_EQ(upcoming().size(), next->size());
        { const FollowsOrder none(nullptr); }
        const ReadsPart unknown(&order);
        EXPECT_TRUE(upcoming().empty());
    }
    EXPECT_TRUE(upcoming().empty());
}

TEST(ReadAhead, JobsRunAsWithoutIt) {
    std::vector<std::byte> a(std::size_t{1} << 20), b(std::size_t{1} << 20);
    const std::span<const std::byte> parts[] = {a, b};
    const ReadingOrder order(parts);
    const FollowsOrder follows(&order);
    Context first(2), second(3);
    for (int n = 0; n < 100; ++n) {
        for (Context* context : {&first, &second}) {
            const ReadsPart reads(n % 3 == 0 ? nullptr : (n % 2 == 0 ? a : b).data());
            std::atomic<int> runs{0};
            parallel(pool_of(*context), 8, Effort::wake, [&](std::int64_t, int) { ++runs; });
            ASSERT_EQ(runs, 8);
        }
    }
}

}  // namespace
}  // namespace heed::detail
