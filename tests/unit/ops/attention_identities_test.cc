/// What must hold of attention whatever computes it: identities that relate one call to another.

#include "unit/ops/attention_call.h"

#include <algorithm>

namespace heed::testing {
namespace {

using AttentionIdentities = EveryKernel;
INSTANTIATE_TEST_SUITE_P(Kernels, AttentionIdentities, ::testing::ValuesIn(EveryKernel::names()), EveryKernel::label);

/// Rows of `from` along `axis` in another order.
Tensor reordered(const Tensor& from, int axis, const std::vector<std::int64_t>& order) {
    Shape shape = from.shape();
    shape[axis] = static_cast<std::int64_t>(order.size());
    Tensor result(from.dtype(), shape);
    const Shape strides = from.shape().row_major();
    for (std::int64_t n = 0; n < result.elements(); ++n) {
        std::int64_t rest = n;
        std::int64_t offset = 0;
        for (int a = shape.rank() - 1; a >= 0; --a) {
            const std::int64_t index = rest % shape[a];
            rest /= shape[a];
            offset += (a == axis ? order[static_cast<std::size_t>(index)] : index) * strides[a];
        }
        write_number(result.dtype(), result.data(), n, number(from, offset));
    }
    return result;
}

TEST_P(AttentionIdentities, RowsOfWeightsSumToOne) {
    Call call = this->call();
    call.options.causal = true;
    const Tensor weights = call.weights(context);
    for (std::int64_t row = 0; row < weights.elements() / 9; ++row) {
        double sum = 0;
        for (std::int64_t j = 0; j < 9; ++j) { sum += number(weights, row * 9 + j); }
        ASSERT_NEAR(sum, 1, tolerance());
    }
}

TEST_P(AttentionIdentities, ASinkTakesItsShare) {
    Call call = this->call();
    const Tensor sinks = filled(DType::f64, {4}, {0.5, -1, 2, -infinity});
    call.options.sinks = sinks;
    call.forward(context);
    const Tensor weights = call.weights(context);
    for (std::int64_t row = 0; row < weights.elements() / 9; ++row) {
        double sum = 0;
        for (std::int64_t j = 0; j < 9; ++j) { sum += number(weights, row * 9 + j); }
        ASSERT_NEAR(sum + std::exp(number(sinks, row / 7 % 4) - number(call.lse, row)), 1, tolerance());
    }
}

TEST_P(AttentionIdentities, GradientOfScoresSumsToTheGradientOfLse) {
    // dbias is the gradient of the scores; a row of it sums to 0, and to dlse where that is given.
    Random random(3);
    const Tensor bias = random_tensor(random, DType::f32, {2, 4, 7, 9});
    for (const bool with_dlse : {false, true}) {
        Call call = this->call();
        call.options.bias = bias;
        call.options.dropout = {.p = 0.3, .seed = 8};
        if (with_dlse) { call.dlse = random_tensor(random, DType::f32, {2, 4, 7}); }
        call.both(context);
        for (std::int64_t row = 0; row < 2 * 4 * 7; ++row) {
            double sum = 0;
            for (std::int64_t j = 0; j < 9; ++j) { sum += number(call.dbias, row * 9 + j); }
            ASSERT_NEAR(sum, with_dlse ? number(call.dlse, row) : 0, 10 * tolerance());
        }
    }
}

TEST_P(AttentionIdentities, AConstantAddedToABiasRowChangesOnlyLse) {
    Random random(4);
    const Tensor bias = random_tensor(random, DType::f64, {2, 4, 7, 9});
    Tensor raised = bias.clone();
    for (std::int64_t n = 0; n < raised.elements(); ++n) {
        raised.as<double>()[n] += 0.25 * static_cast<double>(n / 9 % 5);
    }
    Call a = this->call();
    a.options.bias = bias;
    a.both(context);
    Call b = this->call();
    b.options.bias = raised;
    b.both(context);
    expect_near("out", b.out, a.out, tolerance());
    expect_near("dq", b.dq, a.dq, 10 * tolerance());
    expect_near("dk", b.dk, a.dk, 10 * tolerance());
    expect_near("dv", b.dv, a.dv, 10 * tolerance());
    expect_near("dbias", b.dbias, a.dbias, 10 * tolerance());
    for (std::int64_t row = 0; row < 2 * 4 * 7; ++row) {
        ASSERT_NEAR(number(b.lse, row) - number(a.lse, row), 0.25 * static_cast<double>(row % 5), 4 * tolerance());
    }
}

TEST_P(AttentionIdentities, GroupedHeadsEqualExpandedHeads) {
    Call grouped = this->call({.H = 6, .G = 2});
    grouped.options.causal = true;
    grouped.both(context);
    Call expanded = this->call({.H = 6, .G = 2});
    expanded.options.causal = true;
    const std::vector<std::int64_t> each_thrice{0, 0, 0, 1, 1, 1};
    expanded.k = reordered(expanded.k, 1, each_thrice);
    expanded.v = reordered(expanded.v, 1, each_thrice);
    expanded.both(context);
    expect_near("out", grouped.out, expanded.out, tolerance());
    expect_near("dq", grouped.dq, expanded.dq, tolerance());
    const auto summed = [](const Tensor& of, const Shape& shape) {
        Tensor sum(DType::f64, shape);
        const std::int64_t plane = shape[2] * shape[3];
        for (std::int64_t n = 0; n < of.elements(); ++n) {
            const std::int64_t b = n / (6 * plane);
            const std::int64_t h = n / plane % 6;
            sum.as<double>()[(b * 2 + h / 3) * plane + n % plane] += number(of, n);
        }
        return sum;
    };
    expect_near("dk", grouped.dk, summed(expanded.dk, grouped.dk.shape()), 10 * tolerance());
    expect_near("dv", grouped.dv, summed(expanded.dv, grouped.dv.shape()), 10 * tolerance());
}

TEST_P(AttentionIdentities, HeadsAreIndependent) {
    const std::vector<std::int64_t> order{2, 0, 3, 1};
    Call a = this->call({.G = 4});
    a.both(context);
    Call b = this->call({.G = 4});
    for (Tensor* t : {&b.q, &b.k, &b.v, &b.dout}) { *t = reordered(*t, 1, order); }
    b.both(context);
    expect_same_bits("out", b.out, reordered(a.out, 1, order));
    expect_same_bits("dq", b.dq, reordered(a.dq, 1, order));
    expect_same_bits("dk", b.dk, reordered(a.dk, 1, order));
    expect_same_bits("dv", b.dv, reordered(a.dv, 1, order));
}

TEST_P(AttentionIdentities, OrderOfKeysDoesNotMatter) {
    const std::vector<std::int64_t> order{4, 8, 0, 2, 7, 1, 3, 6, 5};
    Random random(5);
    const Tensor bias = random_tensor(random, DType::f32, {1, 4, 7, 9});
    Tensor allow(DType::u8, {2, 1, 7, 9});
    for (std::int64_t n = 0; n < allow.elements(); ++n) { allow.as<std::uint8_t>()[n] = random.chance(0.7) ? 1 : 0; }
    const Tensor bias_moved = reordered(bias, 3, order);
    const Tensor allow_moved = reordered(allow, 3, order);
    Call a = this->call();
    a.options.bias = bias;
    a.options.allow = std::as_const(allow);
    a.both(context);
    Call b = this->call();
    b.k = reordered(b.k, 2, order);
    b.v = reordered(b.v, 2, order);
    b.options.bias = bias_moved;
    b.options.allow = allow_moved;
    b.both(context);
    expect_near("out", b.out, a.out, tolerance());
    expect_near("lse", b.lse, a.lse, tolerance());
    expect_near("dq", b.dq, a.dq, 10 * tolerance());
    expect_near("dk", b.dk, reordered(a.dk, 2, order), 10 * tolerance());
    expect_near("dbias", b.dbias, reordered(a.dbias, 3, order), 10 * tolerance());
}

TEST_P(AttentionIdentities, OrderOfKeysDoesNotMatterWithTheirPositions) {
    const std::vector<std::int64_t> order{4, 8, 0, 2, 7, 1, 3, 6, 5};
    Tensor positions(DType::i64, {1, 9});
    for (std::size_t n = 0; n < 9; ++n) { positions.as<std::int64_t>()[n] = order[n]; }
    const Tensor slopes = filled(DType::f32, {4}, {0.5, 0.25, 0.125, 0.0625});
    Call a = this->call();
    a.options.causal = true;
    a.options.window.left = 4;
    a.options.alibi_slopes = slopes;
    a.both(context);
    Call b = this->call();
    b.options = a.options;
    b.options.key_positions = std::as_const(positions);
    b.k = reordered(b.k, 2, order);
    b.v = reordered(b.v, 2, order);
    b.both(context);
    expect_near("out", b.out, a.out, tolerance());
    expect_near("dk", b.dk, reordered(a.dk, 2, order), 10 * tolerance());
    expect_near("dalibi_slopes", b.dslopes, a.dslopes, 100 * tolerance());
}

/// (O, LSE) of two disjoint sets of keys, merged in double.
void merge(const Call& part, std::vector<double>& out, std::vector<double>& lse) {
    const std::int64_t size = part.out.shape()[3];
    for (std::size_t row = 0; row < lse.size(); ++row) {
        const double other = number(part.lse, static_cast<std::int64_t>(row));
        const double top = std::max(lse[row], other);
        if (top == -infinity) { continue; }
        const double both = top + std::log(std::exp(lse[row] - top) + std::exp(other - top));
        for (std::int64_t e = 0; e < size; ++e) {
            double& o = out[row * static_cast<std::size_t>(size) + static_cast<std::size_t>(e)];
            o = std::exp(lse[row] - both) * o +
                std::exp(other - both) * number(part.out, static_cast<std::int64_t>(row) * size + e);
        }
        lse[row] = both;
    }
}

TEST_P(AttentionIdentities, PartsOfTheKeysMergeToTheWholeInAnyOrder) {
    Call whole = this->call({.S = 20});
    const Tensor sinks = filled(DType::f64, {4}, {0.5, -1, 2, 0});
    whole.options.sinks = sinks;
    whole.forward(context);
    std::vector<std::vector<std::int64_t>> cuts{{0, 3}, {3, 14}, {14, 20}, {20, 20}};
    do {
        std::vector<double> out(static_cast<std::size_t>(whole.out.elements()), 0);
        std::vector<double> lse(static_cast<std::size_t>(whole.lse.elements()), -infinity);
        for (const auto& cut : cuts) {
            Call part = this->call({.S = 20});
            part.k = Tensor::copy_of(part.k.view().slice(2, cut[0], cut[1]));
            part.v = Tensor::copy_of(part.v.view().slice(2, cut[0], cut[1]));
            if (cut[0] == 3) { part.options.sinks = sinks; }  // in exactly one part
            part.forward(context);
            merge(part, out, lse);
        }
        expect_near("out", whole.out, filled(DType::f64, whole.out.shape(), out), 4 * tolerance());
        expect_near("lse", whole.lse, filled(DType::f64, whole.lse.shape(), lse), 4 * tolerance());
    } while (std::next_permutation(cuts.begin(), cuts.end()));
}

TEST_P(AttentionIdentities, ASinkOfMinusInfinityIsNone) {
    Call a = this->call();
    a.both(context);
    const Tensor sinks = filled(DType::f32, {4}, {-infinity, -infinity, -infinity, -infinity});
    Call b = this->call();
    b.options.sinks = sinks;
    b.both(context);
    expect_same_bits("out", b.out, a.out);
    expect_same_bits("lse", b.lse, a.lse);
    expect_same_bits("dq", b.dq, a.dq);
    for (std::int64_t h = 0; h < 4; ++h) { EXPECT_EQ(number(b.dsinks, h), 0); }
}

TEST_P(AttentionIdentities, OneKeyGivesItsValueWhateverTheScore) {
    Call call = this->call({.S = 1});
    call.options.scale = 1e3;
    call.both(context);
    for (std::int64_t n = 0; n < call.out.elements(); ++n) {
        const std::int64_t h = n / (7 * 6) % 4;
        ASSERT_NEAR(number(call.out, n), number(call.v, n / (4 * 7 * 6), h / 2, 0, n % 6), tolerance());
    }
    for (std::int64_t n = 0; n < call.dq.elements(); ++n) {
        ASSERT_NEAR(number(call.dq, n), 0, 1e3 * 10 * tolerance());
    }
}

TEST_P(AttentionIdentities, AWindowOfNothingIsTheValueItself) {
    Call call = this->call({.H = 2, .G = 2, .T = 33, .S = 33});
    call.options.window = {.left = 0, .right = 0};
    call.forward(context);
    expect_near("out", call.out, call.v, tolerance());
}

TEST_P(AttentionIdentities, AWindowAsWideAsTheSequenceIsCausal) {
    Call a = this->call({.T = 33, .S = 33});
    a.options.causal = true;
    a.both(context);
    Call b = this->call({.T = 33, .S = 33});
    b.options.causal = true;
    b.options.window.left = 33;
    b.both(context);
    expect_same_bits("out", b.out, a.out);
    expect_same_bits("dk", b.dk, a.dk);
    Call c = this->call({.T = 33, .S = 33});
    c.options.window.right = 0;
    c.both(context);
    expect_near("out", c.out, a.out, tolerance());
    expect_near("dq", c.dq, a.dq, 10 * tolerance());
}

TEST_P(AttentionIdentities, EveryWayToSayCausalAgrees) {
    const Sizes sizes{.T = 20, .S = 37};
    Call a = this->call(sizes);
    a.options.causal = true;
    a.both(context);
    Tensor allow(DType::boolean, {1, 1, 20, 37});
    Tensor bias(DType::f32, {1, 1, 20, 37});
    for (std::int64_t i = 0; i < 20; ++i) {
        for (std::int64_t j = 0; j < 37; ++j) {
            const bool sees = j <= i + 17;
            allow.as<std::uint8_t>()[i * 37 + j] = sees ? 1 : 0;
            bias.as<float>()[i * 37 + j] = sees ? 0 : -std::numeric_limits<float>::infinity();
        }
    }
    std::vector<Call> others;
    for (int n = 0; n < 4; ++n) { others.push_back(this->call(sizes)); }
    others[0].options.allow = std::as_const(allow);
    others[1].options.bias = std::as_const(bias);
    others[2].options.pattern = patterns::causal();
    others[3].options.window = {.left = -1, .right = 0};
    for (Call& other : others) {
        other.both(context);
        expect_near("out", other.out, a.out, tolerance());
        expect_near("lse", other.lse, a.lse, tolerance());
        expect_near("dq", other.dq, a.dq, 10 * tolerance());
        expect_near("dk", other.dk, a.dk, 10 * tolerance());
        expect_near("dv", other.dv, a.dv, 10 * tolerance());
    }
}

TEST_P(AttentionIdentities, AlibiIsABias) {
    const Tensor slopes = filled(DType::f64, {4}, {0.5, 0.25, 0.125, 0.0625});
    Tensor bias(DType::f64, {1, 4, 7, 9});
    for (std::int64_t h = 0; h < 4; ++h) {
        for (std::int64_t i = 0; i < 7; ++i) {
            for (std::int64_t j = 0; j < 9; ++j) {
                bias.as<double>()[(h * 7 + i) * 9 + j] = -number(slopes, h) * std::abs(static_cast<double>(i + 2 - j));
            }
        }
    }
    Call a = this->call();
    a.options.alibi_slopes = slopes;
    a.both(context);
    Call b = this->call();
    b.options.bias = std::as_const(bias);
    b.both(context);
    expect_near("out", b.out, a.out, tolerance());
    expect_near("lse", b.lse, a.lse, tolerance());
    expect_near("dk", b.dk, a.dk, 10 * tolerance());
}

TEST_P(AttentionIdentities, PackedSequencesAreAPaddedBatch) {
    // Three sequences of 5, 0 and 8 queries over 9, 4 and 6 keys.
    const Tensor cu_q = filled(DType::i32, {4}, {0, 5, 5, 13});
    const Tensor cu_k = filled(DType::i32, {4}, {0, 9, 13, 19});
    const Tensor query_lengths = filled(DType::i64, {3}, {5, 0, 8});
    const Tensor key_lengths = filled(DType::i64, {3}, {9, 4, 6});
    Random random(6);
    const Tensor bias = random_tensor(random, DType::f32, {3, 4, 8, 9});
    Call padded = this->call({.B = 3, .T = 8, .S = 9});
    padded.options.align = Align::top_left;
    padded.options.causal = true;
    padded.options.bias = bias;
    padded.options.dropout = {.p = 0.2, .seed = 77};
    Call packed = this->call({.B = 1, .T = 13, .S = 19});
    packed.options = padded.options;
    padded.options.query_lengths = query_lengths;
    padded.options.key_lengths = key_lengths;
    packed.options.cu_seqlens_q = cu_q;
    packed.options.cu_seqlens_k = cu_k;
    const auto rows = [](const Tensor& cu, const Tensor& from, const Tensor& to, std::int64_t n, auto each) {
        const std::int64_t size = from.shape()[3];
        const std::int64_t begin = cu.as<std::int32_t>()[n];
        for (std::int64_t h = 0; h < from.shape()[1]; ++h) {
            for (std::int64_t t = begin; t < cu.as<std::int32_t>()[n + 1]; ++t) {
                for (std::int64_t c = 0; c < size; ++c) {
                    each((h * from.shape()[2] + t) * size + c,
                         ((n * to.shape()[1] + h) * to.shape()[2] + t - begin) * size + c);
                }
            }
        }
    };
    for (std::int64_t n = 0; n < 3; ++n) {
        for (const auto& [from, to, cu] :
             {std::tuple{&packed.q, &padded.q, &cu_q}, std::tuple{&packed.dout, &padded.dout, &cu_q},
              std::tuple{&packed.k, &padded.k, &cu_k}, std::tuple{&packed.v, &padded.v, &cu_k}}) {
            rows(*cu, *from, *to, n, [f = from, t = to](std::int64_t a, std::int64_t b) {
                write_number(t->dtype(), t->data(), b, number(*f, a));
            });
        }
    }
    padded.both(context);
    packed.both(context);
    for (std::int64_t n = 0; n < 3; ++n) {
        for (const auto& [from, to, cu] :
             {std::tuple{&packed.out, &padded.out, &cu_q}, std::tuple{&packed.dq, &padded.dq, &cu_q},
              std::tuple{&packed.dk, &padded.dk, &cu_k}, std::tuple{&packed.dv, &padded.dv, &cu_k}}) {
            rows(*cu, *from, *to, n, [f = from, t = to, this](std::int64_t a, std::int64_t b) {
                ASSERT_NEAR(number(*f, a), number(*t, b), 10 * tolerance());
            });
        }
    }
    expect_near("dbias", packed.dbias, padded.dbias, 10 * tolerance());
}

TEST_P(AttentionIdentities, QueriesInPiecesAreTheWhole) {
    Call whole = this->call({.T = 37, .S = 37});
    whole.options.causal = true;
    whole.forward(context);
    for (const auto& [begin, end] : {std::pair{0, 5}, {5, 6}, {6, 36}, {36, 37}}) {
        Call part = this->call({.T = 37, .S = 37});
        part.options.causal = true;
        part.q = Tensor::copy_of(part.q.view().slice(2, begin, end));
        part.k = Tensor::copy_of(part.k.view().slice(2, 0, end));  // what decoding has seen so far
        part.v = Tensor::copy_of(part.v.view().slice(2, 0, end));
        part.forward(context);
        expect_near("out", part.out, whole.out.view().slice(2, begin, end), tolerance());
        expect_near("lse", part.lse, whole.lse.view().slice(2, begin, end), tolerance());
    }
}

TEST_P(AttentionIdentities, AlignmentsAgreeOnASquareAndDifferOtherwise) {
    for (const std::int64_t queries : {9, 1}) {
        Call bottom = this->call({.T = queries, .S = 9});
        bottom.options.causal = true;
        bottom.forward(context);
        Call top = this->call({.T = queries, .S = 9});
        top.options.causal = true;
        top.options.align = Align::top_left;
        top.forward(context);
        if (queries == 9) {
            expect_same_bits("out", top.out, bottom.out);
            continue;
        }
        // One query: top_left sees the first key alone, bottom_right all of them.
        Call all = this->call({.T = 1, .S = 9});
        all.forward(context);
        expect_near("out", bottom.out, all.out, tolerance());
        for (std::int64_t h = 0; h < 4; ++h) {
            ASSERT_NEAR(number(top.out, 0, h, 0, 0), number(top.v, 0, h / 2, 0, 0), tolerance());
        }
    }
}

TEST_P(AttentionIdentities, TheFirstRowsSeeNothingWhereQueriesOutnumberKeys) {
    Call call = this->call({.T = 9, .S = 4});
    call.options.causal = true;
    call.both(context);
    for (std::int64_t n = 0; n < call.out.elements(); ++n) {
        if (n / 6 % 9 < 5) { ASSERT_EQ(number(call.out, n), 0); }
    }
    for (std::int64_t n = 0; n < call.lse.elements(); ++n) { ASSERT_EQ(number(call.lse, n) == -infinity, n % 9 < 5); }
    for (std::int64_t n = 0; n < call.dq.elements(); ++n) {
        if (n / 5 % 9 < 5) { ASSERT_EQ(number(call.dq, n), 0); }
    }
}

TEST_P(AttentionIdentities, AKeyNobodySeesGetsNoGradient) {
    Call call = this->call();
    Tensor allow(DType::u8, {1, 1, 1, 9});
    std::fill_n(allow.as<std::uint8_t>(), 9, std::uint8_t{1});
    allow.as<std::uint8_t>()[4] = 0;
    call.options.allow = std::as_const(allow);
    call.both(context);
    for (std::int64_t n = 0; n < call.dk.elements(); ++n) { ASSERT_EQ(number(call.dk, n) == 0, n / 5 % 9 == 4); }
    for (std::int64_t n = 0; n < call.dv.elements(); ++n) { ASSERT_EQ(number(call.dv, n) == 0, n / 6 % 9 == 4); }
}

TEST_P(AttentionIdentities, ADistantSoftcapIsNone) {
    Call a = this->call();
    a.both(context);
    Call b = this->call();
    b.options.softcap = 1e7;
    b.both(context);
    expect_near("out", b.out, a.out, tolerance() + 1e-10);
    expect_near("dq", b.dq, a.dq, 10 * tolerance() + 1e-10);
}

}  // namespace
}  // namespace heed::testing
