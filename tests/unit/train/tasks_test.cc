#include <gtest/gtest.h>

#include <heed/train.h>

#include <algorithm>
#include <cstdlib>
#include <set>

namespace heed {
namespace {

TEST(Tasks, ExamplesAreTheSameForASeedAndDifferOtherwise) {
    for (const TaskInfo& task : tasks()) {
        const TaskExample a = task_example(task.name, 7, 3, false), b = task_example(task.name, 7, 3, false);
        EXPECT_EQ(a.source, b.source);
        EXPECT_EQ(a.target, b.target);
        std::set<std::string> seen;
        for (std::int64_t n = 0; n < 50; ++n) {
            const TaskExample example = task_example(task.name, 7, n, false);
            seen.insert(example.source + "|" + example.target);
        }
        EXPECT_GT(seen.size(), 40U) << task.name;
    }
}

TEST(Tasks, EveryTextCanBeWrittenInTheAlphabet) {
    for (const TaskInfo& task : tasks()) {
        for (std::int64_t n = 0; n < 200; ++n) {
            const TaskExample example = task_example(task.name, 1, n, n % 2 == 0);
            for (const std::string& text : {example.source, example.target}) {
                EXPECT_EQ(task_decode(task_encode(text)), text) << task.name;
            }
        }
    }
    EXPECT_THROW(task_encode("A"), Error);
    EXPECT_THROW(task_example("datess", 1, 0, false), Error);
}

TEST(Tasks, HeldOutDatesAreDaysThatTrainingNeverSees) {
    std::set<std::string> training, held_out;
    for (std::int64_t n = 0; n < 3000; ++n) {
        training.insert(task_example("dates", 1, n, false).target);
        held_out.insert(task_example("dates", 2, n, true).target);
    }
    for (const std::string& day : held_out) { EXPECT_FALSE(training.contains(day)) << day; }
    EXPECT_GT(held_out.size(), 1000U);
}

// The calendar is checked against an independent rule: Zeller's congruence gives the weekday that some texts name.
TEST(Tasks, WeekdaysBelongToTheirDates) {
    const char* const names[] = {"saturday", "sunday", "monday", "tuesday", "wednesday", "thursday", "friday"};
    int checked = 0;
    for (std::int64_t n = 0; n < 2000; ++n) {
        const TaskExample example = task_example("dates", 3, n, false);
        int y = std::atoi(example.target.substr(0, 4).c_str()), m = std::atoi(example.target.substr(5, 2).c_str());
        const int d = std::atoi(example.target.substr(8, 2).c_str());
        if (m < 3) {
            m += 12;
            y -= 1;
        }
        const std::string name = names[(d + 13 * (m + 1) / 5 + y % 100 + y % 100 / 4 + y / 400 + 5 * (y / 100)) % 7];
        const bool whole = example.source.find("day,") != std::string::npos;
        if (!whole) { continue; }
        EXPECT_TRUE(example.source.starts_with(name)) << example.source << " " << example.target;
        ++checked;
    }
    EXPECT_GT(checked, 100);
}

TEST(Tasks, AnswersAreRight) {
    for (std::int64_t n = 0; n < 100; ++n) {
        const TaskExample sort = task_example("sort", 1, n, false);
        EXPECT_TRUE(std::ranges::is_sorted(sort.target));
        EXPECT_TRUE(std::ranges::is_permutation(sort.source, sort.target));
        const TaskExample induction = task_example("induction", 1, n, false);
        const std::string& s = induction.source;
        for (std::size_t t = 0; t < induction.target.size(); t += 2) {
            EXPECT_EQ(s[s.find(induction.target[t]) + 1], induction.target[t + 1]) << s;
            EXPECT_EQ(induction.asked.substr(t, 2), "01");
        }
        const TaskExample brackets = task_example("brackets", 1, n, false);
        std::string stack;
        ASSERT_EQ(brackets.source.size(), brackets.target.size());
        for (std::size_t t = 0; t < brackets.source.size(); ++t) {
            const char c = brackets.source[t] == '?' ? brackets.target[t] : brackets.source[t];
            const std::string open = "([{", close = ")]}";
            if (open.find(c) != std::string::npos) {
                stack += c;
            } else {
                ASSERT_FALSE(stack.empty());
                EXPECT_EQ(open.find(stack.back()), close.find(c)) << brackets.source;
                stack.pop_back();
            }
        }
        EXPECT_TRUE(stack.empty());
    }
}

}  // namespace
}  // namespace heed
