/// What looks at weights, of tensors on a GPU: the numbers that the CPU gives for the same tensors.

#include <gtest/gtest.h>

#include <heed/inspect.h>

#include "conformance/mirror.h"
#include "support/random.h"

#include <deque>

namespace heed::conformance {
namespace {

/// Tensors of a call and what it writes, on either side.
struct Looked {
    std::deque<Placed> inputs, outputs;

    explicit Looked(std::string_view layout) {
        testing::Random random(4);
        for (const Shape& shape : {Shape{2, 4, 21, 8}, Shape{2, 2, 30, 8}, Shape{1, 4, 21, 30}}) {
            inputs.emplace_back(DType::f32, shape, layout);
            for (std::int64_t n = 0; n < shape.elements(); ++n) { inputs.back().store(n, random.normal()); }
        }
        for (const Shape& shape : {Shape{1, 2, 3, 30}, Shape{1, 2, 3, 30}, Shape{2, 4, 5, 6}, Shape{2, 4, 21}}) {
            outputs.emplace_back(DType::f32, shape, layout);
        }
        outputs.emplace_back(DType::i64, Shape{2, 4, 21}, layout);
    }

    template <class Input, class Output>
    void look(Context& context, const Input& input, const Output& output) {
        const AttentionOptions options{.causal = true, .bias = input(inputs[2])};
        const AttentionSelection some{.batches = {1}, .heads = {3, 0}, .rows = {20, 0, 7}};
        const View q = input(inputs[0]), k = input(inputs[1]);
        attention_weights(context, q, k, output(outputs[0]), some, options);
        attention_scores(context, q, k, output(outputs[1]), ScoreStage::capped, some, options);
        attention_map(context, q, k, output(outputs[2]), Pooling::mean, {}, options);
        attention_statistics(context, q, k, {.entropy = output(outputs[3]), .argmax = output(outputs[4])}, options);
    }
};

TEST(LookingOnTheGpu, GivesTheNumbersOfTheCpu) {
    if (devices().size() < 2) { GTEST_SKIP() << "no GPU, or heed built without CUDA"; }
    Context cpu, gpu(Mirror::device);
    for (const std::string_view layout : {"plain", "mirrored", "inside"}) {
        Looked here(layout), there(layout);
        here.look(
            cpu, [](const Placed& x) { return x.view(); }, [](Placed& x) { return x.mutable_view(); });
        Mirror mirror;
        there.look(
            gpu, [&](const Placed& x) { return mirror.input(x); }, [&](Placed& x) { return mirror.output(x); });
        mirror.bring_back();
        for (std::size_t n = 0; n < here.outputs.size(); ++n) {
            EXPECT_EQ(here.outputs[n].numbers(), there.outputs[n].numbers()) << layout << " result " << n;
            EXPECT_TRUE(there.outputs[n].surroundings_untouched()) << layout << " result " << n;
        }
    }
}

}  // namespace
}  // namespace heed::conformance
