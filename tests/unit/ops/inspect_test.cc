/// Weights, statistics and maps against brute force over the whole weight matrix.

#include <mutex>
#include <set>
#include <stdexcept>
#include <tuple>

#include "unit/ops/attention_call.h"

namespace heed::testing {
namespace {

using Inspect = EveryKernel;
INSTANTIATE_TEST_SUITE_P(Kernels, Inspect, ::testing::ValuesIn(EveryKernel::names()), EveryKernel::label);

/// A call with a bit of everything, and rows that see nothing.
struct Rich {
    explicit Rich(Call base) : call(std::move(base)) {
        call.options.bias = bias;
        call.options.sinks = sinks;
        call.options.key_lengths = key_lengths;
        call.options.query_lengths = query_lengths;
        call.options.causal = true;
        call.options.align = Align::top_left;
        call.options.dropout = {.p = 0.5, .seed = 1};  // weights are those before dropout
    }
    Random random{41};
    Tensor bias = random_tensor(random, DType::f32, {1, 4, 40, 50});
    const Tensor sinks = filled(DType::f32, {4}, {0, -1, 1, -infinity});
    const Tensor key_lengths = filled(DType::i64, {2}, {50, 0});
    const Tensor query_lengths = filled(DType::i32, {2}, {35, 40});
    Call call;
};
constexpr Sizes rich_sizes{.T = 40, .S = 50};

/// Weights by their definition: exp(x - lse), from lse alone.
Tensor weights_from_lse(Context& context, Rich& rich) {
    Call& call = rich.call;
    call.forward(context);
    Tensor weights(DType::f64, {2, 4, 40, 50});
    for (std::int64_t n = 0; n < weights.elements(); ++n) {
        const std::int64_t j = n % 50;
        const std::int64_t i = n / 50 % 40;
        const std::int64_t h = n / 2000 % 4;
        const std::int64_t b = n / 8000;
        if (i >= rich.query_lengths.as<std::int32_t>()[b] || j >= rich.key_lengths.as<std::int64_t>()[b] || j > i) {
            continue;
        }
        double x = 0;
        for (std::int64_t c = 0; c < 5; ++c) { x += number(call.q, b, h, i, c) * number(call.k, b, h / 2, j, c); }
        x = x / std::sqrt(5.0) + number(rich.bias, 0, h, i, j);
        weights.as<double>()[n] = std::exp(x - number(call.lse, (b * 4 + h) * 40 + i));
    }
    return weights;
}

TEST_P(Inspect, WeightsAreTheirDefinition) {
    Rich rich(this->call(rich_sizes));
    const Tensor expected = weights_from_lse(context, rich);
    expect_near("weights", rich.call.weights(context), expected, tolerance());
    Tensor narrow(DType::f32, {2, 4, 40, 50});
    attention_weights(context, rich.call.q, rich.call.k, narrow, {}, rich.call.options);
    expect_near("weights in float", narrow, expected, 1e-6 + tolerance());
}

TEST_P(Inspect, ChosenWeightsAreThoseOfTheWhole) {
    Rich rich(this->call(rich_sizes));
    const Tensor whole = rich.call.weights(context);
    const AttentionSelection selection{.batches = {1, 0}, .heads = {3, 1, 1}, .rows = {39, 0, 20, 34, 35}};
    Tensor chosen(rich.call.lse_dtype(), {2, 3, 5, 50});
    attention_weights(context, rich.call.q, rich.call.k, chosen, selection, rich.call.options);
    for (std::size_t b = 0; b < 2; ++b) {
        for (std::size_t h = 0; h < 3; ++h) {
            for (std::size_t r = 0; r < 5; ++r) {
                for (std::int64_t j = 0; j < 50; ++j) {
                    const double got = number(chosen, static_cast<std::int64_t>(b), static_cast<std::int64_t>(h),
                                              static_cast<std::int64_t>(r), j);
                    ASSERT_NEAR(got, number(whole, selection.batches[b], selection.heads[h], selection.rows[r], j),
                                tolerance());
                }
            }
        }
    }
}

TEST_P(Inspect, VisitedRowsAreThoseOfTheWhole) {
    Rich rich(this->call(rich_sizes));
    const Tensor whole = rich.call.weights(context);
    const AttentionSelection selection{.batches = {1, 0}, .heads = {3, 1}, .rows = {39, 0, 20, 34, 35}};
    std::mutex mutex;
    std::set<std::tuple<std::int64_t, std::int64_t, std::int64_t>> seen;
    const auto visit = [&](const AttentionRows& part) {
        const std::lock_guard lock(mutex);
        for (std::size_t n = 0; n < part.rows.size(); ++n) {
            EXPECT_TRUE(seen.emplace(part.batch, part.head, part.rows[n]).second);
            for (std::int64_t j = 0; j < part.keys; ++j) {
                const float w = part.weights[static_cast<std::int64_t>(n) * part.stride + j];
                ASSERT_NEAR(w, number(whole, part.batch, part.head, part.rows[n], j), 1e-6 + tolerance());
            }
        }
    };
    visit_attention_weights(context, rich.call.q, rich.call.k, visit, selection, rich.call.options);
    EXPECT_EQ(seen.size(), 2U * 2U * 5U);
    seen.clear();
    visit_attention_weights(context, rich.call.q, rich.call.k, visit, {}, rich.call.options);
    EXPECT_EQ(seen.size(), 2U * 4U * 40U);
}

TEST(InspectErrors, AVisitorIsNeededAndItsExceptionsComeThrough) {
    Context context(2);
    const Tensor q(DType::f32, {1, 2, 64, 4});
    EXPECT_THROW(visit_attention_weights(context, q, q, {}), Error);
    EXPECT_THROW(visit_attention_weights(context, q, q, [](const AttentionRows&) { throw std::runtime_error("no"); }),
                 std::runtime_error);
    EXPECT_THROW(visit_attention_weights(context, q, q, [](const AttentionRows&) {}, {.rows = {64}}), Error);
}

TEST_P(Inspect, StatisticsAreThoseOfTheWeights) {
    Rich rich(this->call(rich_sizes));
    const Tensor weights = rich.call.weights(context);
    const Shape rows{2, 4, 40};
    Tensor entropy(DType::f64, rows);
    Tensor max_weight(DType::f64, rows);
    Tensor argmax(DType::i64, rows);
    Tensor window_mass(DType::f64, rows);
    Tensor first_mass(DType::f32, rows);
    attention_statistics(context, rich.call.q, rich.call.k,
                         {.entropy = entropy,
                          .max_weight = max_weight,
                          .argmax = argmax,
                          .window_mass = window_mass,
                          .first_mass = first_mass,
                          .window = {.left = 3, .right = 1}},
                         rich.call.options);
    for (std::int64_t row = 0; row < 2 * 4 * 40; ++row) {
        double sum = 0;
        double top = 0;
        double inside = 0;
        std::int64_t where = -1;
        for (std::int64_t j = 0; j < 50; ++j) {
            const double w = number(weights, row * 50 + j);
            if (w > 0) { sum -= w * std::log(w); }
            if (w > top) {
                top = w;
                where = j;
            }
            if (j >= row % 40 - 3 && j <= row % 40 + 1) { inside += w; }
        }
        ASSERT_NEAR(number(entropy, row), sum, 10 * tolerance());
        ASSERT_NEAR(number(max_weight, row), top, tolerance());
        ASSERT_NEAR(number(window_mass, row), inside, 4 * tolerance());
        ASSERT_NEAR(number(first_mass, row), number(weights, row * 50), 1e-7 + tolerance());
        ASSERT_EQ(argmax.as<std::int64_t>()[row], where);
    }
}

TEST_P(Inspect, TheFirstOfEqualWeightsIsTheLargest) {
    Call call = this->call({.B = 1, .H = 1, .G = 1, .T = 2, .S = 5});
    call.options.scale = 0;
    Tensor argmax(DType::i64, {1, 1, 2});
    attention_statistics(context, call.q, call.k, {.argmax = argmax}, call.options);
    EXPECT_EQ(argmax.as<std::int64_t>()[0], 0);
    EXPECT_EQ(argmax.as<std::int64_t>()[1], 0);
}

TEST_P(Inspect, MapsPoolTheWeights) {
    Rich rich(this->call(rich_sizes));
    const Tensor weights = rich.call.weights(context);
    for (const Pooling pooling : {Pooling::mean, Pooling::max}) {
        for (const auto& [height, width] : {std::pair{1, 1}, {5, 10}, {7, 3}, {40, 50}, {64, 90}, {13, 50}}) {
            Tensor map(DType::f64, {1, 2, height, width});
            attention_map(context, rich.call.q, rich.call.k, map, pooling, {.batches = {0}, .heads = {2, 1}},
                          rich.call.options);
            for (std::int64_t n = 0; n < map.elements(); ++n) {
                const std::int64_t column = n % width;
                const std::int64_t row = n / width % height;
                const std::int64_t head = n / (width * height) == 0 ? 2 : 1;
                const auto first = [](std::int64_t at, std::int64_t extent, std::int64_t cells) {
                    return static_cast<std::int64_t>(
                        std::floor(static_cast<double>(at * extent) / static_cast<double>(cells)));
                };
                const auto last = [](std::int64_t at, std::int64_t extent, std::int64_t cells) {
                    return static_cast<std::int64_t>(
                        std::ceil(static_cast<double>((at + 1) * extent) / static_cast<double>(cells)));
                };
                double sum = 0;
                double top = 0;
                double area = 0;
                for (std::int64_t i = first(row, 40, height); i < last(row, 40, height); ++i) {
                    for (std::int64_t j = first(column, 50, width); j < last(column, 50, width); ++j) {
                        const double w = number(weights, 0, head, i, j);
                        sum += w;
                        top = std::max(top, w);
                        area += 1;
                    }
                }
                ASSERT_NEAR(number(map, n), pooling == Pooling::mean ? sum / area : top, tolerance())
                    << height << "x" << width << " cell " << row << "," << column;
            }
        }
    }
}

TEST_P(Inspect, MemoryFollowsWhatIsAskedFor) {
    // 20,000 x 20,000 weights would be 1.6 GB; two rows of them are a few hundred kilobytes.
    Call call = this->call({.B = 1, .H = 1, .G = 1, .T = 20000, .S = 20000, .D = 2, .E = 1});
    Tensor weights(call.lse_dtype(), {1, 1, 2, 20000});
    attention_weights(context, call.q, call.k, weights, {.rows = {3, 19999}}, call.options);
    double sum = 0;
    for (std::int64_t j = 0; j < 20000; ++j) { sum += number(weights, 20000 + j); }
    EXPECT_NEAR(sum, 1, 1e-4);
    EXPECT_LT(context.workspace_bytes(), std::size_t{64} << 20);
    context.release_workspace();
    EXPECT_EQ(context.workspace_bytes(), 0U);
}

TEST(InspectErrors, NameTheArgument) {
    Context context(1);
    Call call(DType::f32, {});
    Tensor weights(DType::f32, {2, 4, 7, 9});
    const auto message = [](auto run) -> std::string {
        try {
            run();
        } catch (const Error& error) { return error.what(); }
        return "no error";
    };
    const auto ask = [&](const MutableView& to, const AttentionSelection& selection, const AttentionOptions& options) {
        return message([&] { attention_weights(context, call.q, call.k, to, selection, options); });
    };
    EXPECT_EQ(ask(weights, {}, {}), "no error");
    EXPECT_EQ(ask(weights, {.batches = {2}}, {}),
              "[attention_weights] selection.batches: expected indices from 0 to 1, got 2");
    EXPECT_EQ(ask(weights, {.heads = {-1}}, {}),
              "[attention_weights] selection.heads: expected indices from 0 to 3, got -1");
    EXPECT_EQ(ask(weights, {.rows = {7}}, {}),
              "[attention_weights] selection.rows: expected indices from 0 to 6, got 7");
    EXPECT_EQ(ask(weights, {.rows = {1, 2}}, {}),
              "[attention_weights] weights: expected [2, 4, 2, 9], got [2, 4, 7, 9]");
    EXPECT_EQ(ask({}, {}, {}), "[attention_weights] weights: expected a tensor of shape [2, 4, 7, 9], got none");
    EXPECT_EQ(ask(MutableView(DType::f32, call.k.data(), {2, 4, 7, 9}), {}, {}),
              "[attention_weights] weights: expected memory apart from the inputs, got an overlap");
    const Tensor cu = filled(DType::i32, {2}, {0, 7});
    Call one(DType::f32, {.B = 1, .T = 7, .S = 7});
    EXPECT_EQ(message([&] {
                  attention_weights(context, one.q, one.k, weights, {}, {.cu_seqlens_q = cu, .cu_seqlens_k = cu});
              }),
              "[attention_weights] cu_seqlens_q: expected none: ask for one sequence at a time, got a tensor");
    EXPECT_EQ(message([&] { attention_statistics(context, call.q, call.k, {.window = {.left = -2, .right = 0}}); }),
              "[attention_statistics] window.left: expected -1 (unlimited) or more, got -2");
    Tensor wrong(DType::f32, {2, 4, 7});
    EXPECT_EQ(message([&] { attention_statistics(context, call.q, call.k, {.argmax = wrong}); }),
              "[attention_statistics] argmax: expected i64, got f32");
    Tensor map(DType::f32, {2, 4, 3, 3});
    EXPECT_EQ(message([&] { attention_map(context, call.q, call.k, map, Pooling::mean, {.rows = {1}}); }),
              "[attention_map] selection.rows: expected an empty list, got a list of rows");
    EXPECT_EQ(message([&] { attention_map(context, call.q, call.k, wrong, Pooling::mean); }),
              "[attention_map] map: expected 4 axes [batches, heads, rows, columns], got [2, 4, 7]");
}

TEST(InspectScores, OfEveryStageLeadToTheWeights) {
    Context context(2);
    const std::int64_t T = 5, S = 7, D = 4;
    Tensor q(DType::f64, {2, 4, T, D}), k(DType::f64, {2, 2, S, D}), bias(DType::f64, {1, 4, T, S});
    for (Tensor* x : {&q, &k, &bias}) {
        for (std::int64_t n = 0; n < x->elements(); ++n) {
            x->as<double>()[n] = std::sin(static_cast<double>(n * n % 101)) * 2;
        }
    }
    const std::vector<double> slopes = {0.5, 0.25, 0.125, 0.0625};
    AttentionOptions options;
    options.causal = true;
    options.softcap = 3;
    options.bias = bias;
    options.alibi_slopes = View(slopes.data(), {4});
    const auto scores = [&](ScoreStage stage, const AttentionOptions& by, const AttentionSelection& chosen = {}) {
        const std::int64_t rows = chosen.rows.empty() ? T : static_cast<std::int64_t>(chosen.rows.size());
        Tensor result(DType::f64, {2, 4, rows, S});
        attention_scores(context, q, k, result, stage, chosen, by);
        return result;
    };
    const Tensor product = scores(ScoreStage::product, options), capped = scores(ScoreStage::capped, options);
    const Tensor biased = scores(ScoreStage::biased, options), weight = scores(ScoreStage::weight, options);
    for (std::int64_t b = 0; b < 2; ++b) {
        for (std::int64_t h = 0; h < 4; ++h) {
            for (std::int64_t i = 0; i < T; ++i) {
                double sum = 0;
                const std::int64_t at = ((b * 4 + h) * T + i) * S;
                for (std::int64_t j = 0; j < S; ++j) { sum += std::exp(biased.as<double>()[at + j]); }
                for (std::int64_t j = 0; j < S; ++j) {
                    double dot = 0;
                    for (std::int64_t c = 0; c < D; ++c) {
                        dot += q.as<double>()[((b * 4 + h) * T + i) * D + c] *
                               k.as<double>()[((b * 2 + h / 2) * S + j) * D + c];
                    }
                    EXPECT_NEAR(product.as<double>()[at + j], dot / 2, 1e-13);
                    EXPECT_NEAR(capped.as<double>()[at + j], 3 * std::tanh(dot / 6), 1e-13);
                    EXPECT_EQ(std::isinf(biased.as<double>()[at + j]), j > i + S - T);
                    EXPECT_NEAR(weight.as<double>()[at + j], std::exp(biased.as<double>()[at + j]) / sum, 1e-13);
                }
            }
        }
    }
    // Chosen rows, and lengths: what is not read is 0, or hidden.
    const std::vector<std::int64_t> lengths = {3, 7};
    AttentionOptions shorter;
    shorter.key_lengths = View(lengths.data(), {2});
    const Tensor some = scores(ScoreStage::product, shorter, {.rows = {4, 1}});
    EXPECT_EQ(some.as<double>()[0], product.as<double>()[4 * S]);
    EXPECT_EQ(some.as<double>()[S], product.as<double>()[S]);
    EXPECT_EQ(some.as<double>()[3], 0);
    EXPECT_EQ(scores(ScoreStage::biased, shorter).as<double>()[3], -std::numeric_limits<double>::infinity());
}

}  // namespace
}  // namespace heed::testing
