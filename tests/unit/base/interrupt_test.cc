#include <gtest/gtest.h>

#include <heed/interrupt.h>
#include <heed/model.h>

#include "base/place.h"
#include "base/pool.h"

#include <atomic>
#include <thread>
#include <vector>

namespace heed {
namespace {

constexpr std::int64_t many = 1000;

/// Tasks that a run has done when one of them asks to stop; `many` where nobody does.
std::int64_t tasks_done(Context& context, std::atomic<bool>& stop, std::int64_t stop_at) {
    std::atomic<std::int64_t> done{0};
    const auto lock = detail::pool_of(context).lock();
    try {
        detail::parallel(detail::pool_of(context), many, true, [&](std::int64_t, int) {
            if (++done == stop_at) { stop = true; }
        });
    } catch (const Interrupted&) { return done; }
    return done;
}

TEST(Interruption, EndsARunBetweenTwoTasks) {
    for (const int threads : {1, 3}) {
        Context context(threads);
        std::atomic<bool> stop{false};
        {
            const Interruption here(stop);
            const std::int64_t done = tasks_done(context, stop, 10);
            EXPECT_GE(done, 10);
            EXPECT_LE(done, 10 + threads);  // each thread ends the task it is in
            EXPECT_THROW(const auto lock = detail::pool_of(context).lock(), Interrupted);
        }
        EXPECT_EQ(tasks_done(context, stop, 0), many);  // behind its scope nobody looks, and the context works
    }
}

TEST(Interruption, TheLatestCountsAndTheOneBeforeComesBack) {
    Context context(2);
    std::atomic<bool> outer{true}, inner{false};
    const Interruption here(outer);
    {
        const Interruption closer(inner);
        EXPECT_EQ(tasks_done(context, inner, 0), many);
    }
    EXPECT_THROW(const auto lock = detail::pool_of(context).lock(), Interrupted);
}

TEST(Interruption, IsTheCallingThreadsAlone) {
    std::atomic<bool> stop{true};
    const Interruption here(stop);
    std::int64_t done = 0;
    std::thread([&] {
        Context context(2);
        std::atomic<bool> unused{false};
        done = tasks_done(context, unused, 0);
    }).join();
    EXPECT_EQ(done, many);
}

TEST(Interruption, AForwardPassThatWasGivenUpCanBeMadeAgain) {
    const Model model =
        Model::random(read_model_config(R"({"model_type": "heed", "vocab": 16, "d_model": 8, "decoder": {"layers": 2,
                              "attention": {"heads": 2}}})"));
    const std::vector<std::int64_t> ids(40, 3);
    const ForwardInputs inputs{.input_ids = View(ids.data(), {1, 40})};
    Context context(2);
    const Tensor expected = model.forward(context, inputs).logits;
    std::atomic<bool> stop{true};
    {
        const Interruption here(stop);
        EXPECT_THROW(model.forward(context, inputs), Interrupted);
        stop = false;
        const Tensor again = model.forward(context, inputs).logits;
        for (std::int64_t n = 0; n < expected.elements(); ++n) {
            ASSERT_EQ(again.as<float>()[n], expected.as<float>()[n]);
        }
    }
}

}  // namespace
}  // namespace heed
