#include <gtest/gtest.h>

#include <heed/error.h>

#include "kernel/kernel.h"

#include <cstdlib>
#include <string>
#include <vector>

namespace heed {
namespace {

/// A problem of one number, and kernels that say who ran.
struct Number {
    int value = 0;
    std::string* ran = nullptr;
};

Kernel<Number> row_named(const char* name, const char* (*declines)(const Number&),
                         void (*forward)(detail::Place&, const Number&)) {
    return {.name = name, .what = "for tests", .declines = declines, .forward = forward};
}

const char* takes_small(const Number& n) { return n.value < 10 ? nullptr : "10 or more"; }
const char* takes_even(const Number& n) { return n.value % 2 == 0 ? nullptr : "odd"; }

std::span<const Kernel<Number>> number_kernels() {
    static const std::vector<Kernel<Number>> list = [] {
        Kernel<Number> gpu = row_named("cuda-any", nullptr, [](detail::Place&, const Number& n) { *n.ran = "gpu"; });
        gpu.device = DeviceKind::cuda;
        Kernel<Number> missing = row_named("cpu-later", nullptr, [](detail::Place&, const Number&) {});
        missing.missing = "this CPU lacks the future";
        return kernel_list<Number>(
            {{gpu, missing},
             {row_named("cpu-fast/even", takes_even, [](detail::Place&, const Number& n) { *n.ran = "even"; }),
              row_named("cpu-fast", takes_small, [](detail::Place&, const Number& n) { *n.ran = "fast"; }),
              row_named("cpu-faster", takes_small, [](detail::Place&, const Number& n) { *n.ran = "faster"; })},
             {reference_kernel<Number>([](detail::Place&, const Number& n) { *n.ran = "reference"; },
                                       [](detail::Place&, const Number& n) { *n.ran = "backwards"; })}});
    }();
    return list;
}

std::string ran(Context& context, int value, std::string_view kernel = {}) {
    std::string who;
    run_forward(context, number_kernels(), {"count", kernel}, Number{value, &who});
    return who;
}

template <class Action>
std::string text_of(Action action) {
    try {
        action();
    } catch (const Error& error) { return error.what(); }
    return "no error";
}

TEST(Choose, TakesTheFirstThatFits) {
    Context context(1);
    EXPECT_EQ(ran(context, 2), "even");
    EXPECT_EQ(ran(context, 3), "fast");
    EXPECT_EQ(ran(context, 13), "reference");
    std::string who;
    run_backward(context, number_kernels(), {"count"}, Number{2, &who});
    EXPECT_EQ(who, "backwards");  // the only one that has the pass
}

TEST(Choose, AFamilyIsForcedByItsName) {
    Context context(1);
    context.set_kernel("cpu-fast");
    EXPECT_EQ(ran(context, 2), "even");
    EXPECT_EQ(ran(context, 3), "fast");
    EXPECT_EQ(ran(context, 3, "cpu-faster"), "faster");  // the option wins over the context
    context.set_kernel("cpu-faster/odd");                // no such row here: its family
    EXPECT_EQ(ran(context, 3), "faster");
    context.set_kernel("cpu-fast/even");
    EXPECT_EQ(ran(context, 2), "even");
    EXPECT_EQ(text_of([&] { ran(context, 3); }),
              "[count] Context::set_kernel: expected a kernel that fits (cpu-fast/even does not: odd), got "
              "cpu-fast/even");
    context.set_kernel("");
    EXPECT_EQ(ran(context, 3), "fast");
}

TEST(Choose, TheEnvironmentIsReadWhenAContextIsMade) {
    const char* before = std::getenv("HEED_KERNEL");
    const std::string kept = before == nullptr ? "" : before;
    ASSERT_EQ(setenv("HEED_KERNEL", "reference", 1), 0);
    Context forced(1);
    ASSERT_EQ(kept.empty() ? unsetenv("HEED_KERNEL") : setenv("HEED_KERNEL", kept.c_str(), 1), 0);
    EXPECT_EQ(ran(forced, 2), "reference");
    forced.set_kernel("");
    EXPECT_EQ(ran(forced, 2), "even");
}

TEST(Choose, SaysWhyNobodyDoes) {
    Context context(1);
    EXPECT_EQ(text_of([&] { ran(context, 3, "abacus"); }),
              "[count] kernel: expected one of cuda-any, cpu-later, cpu-fast/even, cpu-fast, cpu-faster, reference, "
              "got abacus");
    EXPECT_EQ(text_of([&] { ran(context, 13, "cpu-fast"); }),
              "[count] kernel: expected a kernel that fits (cpu-fast/even does not: odd; cpu-fast does not: 10 or "
              "more), got cpu-fast");
    EXPECT_EQ(
        text_of([&] { ran(context, 3, "cuda-any"); }),
        "[count] kernel: expected a kernel that fits (cuda-any does not: works on memory of a GPU), got cuda-any");
    EXPECT_EQ(text_of([&] { ran(context, 3, "cpu-later"); }),
              "[count] kernel: expected a kernel that fits (cpu-later does not: this CPU lacks the future), got "
              "cpu-later");
    // Without the reference nobody takes everything.
    const auto some = number_kernels().subspan(2, 2);
    EXPECT_EQ(text_of([&] {
                  run_forward(context, some, {"count"}, Number{13, nullptr});
              }),
              "[count] kernel: expected a call that one of the kernels takes, got one that none does (cpu-fast/even "
              "does not: odd; cpu-fast does not: 10 or more)");
}

TEST(Choose, ExplainsItself) {
    const Explanation e =
        explain_kernels(number_kernels(), detail::EnvironmentPlace(), {"explain", "cpu-fast"}, Number{3, nullptr});
    EXPECT_EQ(e.kernel, "cpu-fast");
    ASSERT_EQ(e.verdicts.size(), 6U);
    EXPECT_EQ(e.verdicts[0].reason, "works on memory of a GPU");
    EXPECT_EQ(e.verdicts[1].reason, "this CPU lacks the future");
    EXPECT_EQ(e.verdicts[2].reason, "odd");
    EXPECT_EQ(e.verdicts[3].reason, "runs: for tests");
    EXPECT_EQ(e.verdicts[4].reason, "fits, but cpu-fast comes first");
    EXPECT_TRUE(e.verdicts[5].fits);
    EXPECT_EQ(names_of(number_kernels())[2], "cpu-fast/even");
}

}  // namespace
}  // namespace heed
