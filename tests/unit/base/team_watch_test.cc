#include <gtest/gtest.h>

#include "base/team_watch.h"

namespace heed::detail {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr TeamWatch::Clock::time_point start{std::chrono::hours(1)};

TEST(TeamWatch, ATeamThatIsThereInTimeTakesEverything) {
    TeamWatch watch;
    for (int n = 0; n < 100; ++n) {
        const auto now = start + n * microseconds(100);
        ASSERT_TRUE(watch.takes_small_jobs(now));
        ASSERT_TRUE(watch.takes_large_jobs(now));
        watch.begins(now);
        watch.has_run(true, microseconds(5), now + microseconds(20));
    }
}

TEST(TeamWatch, WhoWasAsleepIsAwakeForTheNext) {
    TeamWatch watch;
    watch.begins(start);
    watch.has_run(true, microseconds(80), start + microseconds(100));
    EXPECT_TRUE(watch.takes_small_jobs(start + microseconds(200)));  // while they poll
    EXPECT_FALSE(watch.takes_small_jobs(start + milliseconds(3)));   // they sleep again, and waking them took long
    EXPECT_TRUE(watch.takes_small_jobs(start + milliseconds(10)));   // it may be different by now
    EXPECT_TRUE(watch.takes_large_jobs(start + microseconds(200)));
}

TEST(TeamWatch, SmallJobsKeepOffATeamThatLosesItsCores) {
    TeamWatch watch;
    watch.begins(start);
    watch.has_run(true, microseconds(0), start);
    watch.begins(start + microseconds(50));
    watch.has_run(true, microseconds(500), start + microseconds(600));
    EXPECT_FALSE(watch.takes_small_jobs(start + milliseconds(20)));
    EXPECT_TRUE(watch.takes_large_jobs(start + milliseconds(1)));
    EXPECT_TRUE(watch.takes_small_jobs(start + milliseconds(30)));
}

TEST(TeamWatch, LargeOnesDoAfterThreeInARow) {
    TeamWatch watch;
    auto now = start;
    watch.begins(now);
    watch.has_run(false, milliseconds(4), now);  // asleep: does not count
    for (int n = 0; n < 3; ++n) {
        EXPECT_TRUE(watch.takes_large_jobs(now));
        watch.begins(now += microseconds(10));
        watch.has_run(false, milliseconds(4), now += milliseconds(5));
    }
    EXPECT_FALSE(watch.takes_large_jobs(now + milliseconds(199)));
    EXPECT_TRUE(watch.takes_large_jobs(now + milliseconds(201)));
    watch.begins(now += microseconds(10));
    watch.has_run(false, microseconds(1), now += milliseconds(1));  // in time: the count begins anew
    watch.begins(now += microseconds(10));
    watch.has_run(false, milliseconds(4), now += milliseconds(5));
    EXPECT_TRUE(watch.takes_large_jobs(now + milliseconds(300)));
}

}  // namespace
}  // namespace heed::detail
