/// Which keys a row sees: windows, causal rows, their alignment, and the other ways to say the same.

#include "support/sample.h"
#include "unit/ops/attention_call.h"

#include <algorithm>

namespace heed::testing {
namespace {

using AttentionMasks = EveryKernel;
INSTANTIATE_TEST_SUITE_P(Kernels, AttentionMasks, ::testing::ValuesIn(EveryKernel::names()), EveryKernel::label);

TEST_P(AttentionMasks, AWindowOfNothingIsTheValueItself) {
    Call call = this->call({.H = 2, .G = 2, .T = 33, .S = 33});
    call.options.window = {.left = 0, .right = 0};
    call.forward(context);
    expect_near("out", call.out, call.v, tolerance());
}

TEST_P(AttentionMasks, AWindowAsWideAsTheSequenceIsCausal) {
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

TEST_P(AttentionMasks, EveryWayToSayCausalAgrees) {
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

TEST_P(AttentionMasks, QueriesInPiecesAreTheWhole) {
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

TEST_P(AttentionMasks, AlignmentsAgreeOnASquareAndDifferOtherwise) {
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

TEST_P(AttentionMasks, TheFirstRowsSeeNothingWhereQueriesOutnumberKeys) {
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

TEST_P(AttentionMasks, AKeyNobodySeesGetsNoGradient) {
    Call call = this->call();
    Tensor allow(DType::u8, {1, 1, 1, 9});
    std::fill_n(allow.as<std::uint8_t>(), 9, std::uint8_t{1});
    allow.as<std::uint8_t>()[4] = 0;
    call.options.allow = std::as_const(allow);
    call.both(context);
    for (std::int64_t n = 0; n < call.dk.elements(); ++n) { ASSERT_EQ(number(call.dk, n) == 0, n / 5 % 9 == 4); }
    for (std::int64_t n = 0; n < call.dv.elements(); ++n) { ASSERT_EQ(number(call.dv, n) == 0, n / 6 % 9 == 4); }
}

/// Long enough for kernels to pass many blocks of keys by together, and to join neighbouring ones.
TEST_P(AttentionMasks, PatternsOverManyBlocksAreTheirDenseMasks) {
    const Sizes sizes{.B = 1, .H = 2, .G = 1, .T = 150, .S = 3400, .D = 8, .E = 8};
    Tensor positions(DType::i64, {1, sizes.S});
    for (std::int64_t j = 0; j < sizes.S; ++j) { positions.as<std::int64_t>()[j] = (j * 7) % sizes.S; }
    Sample sample;
    for (const char* text :
         {"random_blocks(64, 54, 2, 3)", "causal & random_blocks(128, 27, 9, 1)",
          "blocks(64x64, 50:1, 51:2, 51:3, 51:4, 51:5, 52:40, 53:52)", "window(100, 30) & strided(2)",
          "causal & (prefix(70) | window(200, 0))", "causal & window(1000, -1) & window(-1, 5)",
          "document(0*1000, 1*2400)", "per_head(window(300, 0), random_blocks(64, 54, 3, 1))"}) {
        for (const bool explicit_positions : {false, true}) {
            if (!sample.takes()) { continue; }
            SCOPED_TRACE(text);
            const Pattern pattern = patterns::parse(text);
            Tensor allow(DType::boolean, {1, sizes.H, sizes.T, sizes.S});
            for (std::int64_t n = 0; n < allow.elements(); ++n) {
                const std::int64_t j = n % sizes.S;
                const std::int64_t key = explicit_positions ? positions.as<std::int64_t>()[j] : j;
                const std::int64_t query = n / sizes.S % sizes.T + sizes.S - sizes.T;
                allow.as<std::uint8_t>()[n] = pattern.allows(0, n / sizes.S / sizes.T, query, key) ? 1 : 0;
            }
            Call sparse = this->call(sizes);
            Call dense = this->call(sizes);
            sparse.options.pattern = pattern;
            dense.options.allow = std::as_const(allow);
            if (explicit_positions) { sparse.options.key_positions = std::as_const(positions); }
            sparse.both(context);
            dense.both(context);
            expect_near("out", sparse.out, dense.out, tolerance());
            expect_near("lse", sparse.lse, dense.lse, tolerance());
            expect_near("dq", sparse.dq, dense.dq, 10 * tolerance());
            expect_near("dk", sparse.dk, dense.dk, 10 * tolerance());
            expect_near("dv", sparse.dv, dense.dv, 10 * tolerance());
            expect_near("weights", sparse.weights(context), dense.weights(context), tolerance());
        }
    }
}

/// Tiles of rows that meet some chunks of the keys and not others, on threads that share what they know of a tile:
/// every gradient is written whatever stood there, and its bits do not depend on who came first.
TEST_P(AttentionMasks, SparseGradientsAreTheSameForAnyThreads) {
    for (const std::int64_t size : {64, 24}) {
        if (size == 64 && wide() && test_stride() > 1) { continue; }
        Sizes sizes{.B = 2, .H = 4, .G = 2, .T = 700, .S = 2300, .D = size, .E = size};
        if (wide()) { sizes.B = 1, sizes.H = 1, sizes.G = 1; }  // plain loops take their time
        Call call = this->call(sizes);
        call.options.pattern = patterns::parse("random_blocks(64, 36, 2, 5)");
        call.both(context);
        Call dense = this->call(sizes);
        Tensor allow(DType::boolean, {1, sizes.H, sizes.T, sizes.S});
        for (std::int64_t row = 0; row < sizes.H * sizes.T; ++row) {
            std::uint8_t* to = allow.as<std::uint8_t>() + row * sizes.S;
            call.options.pattern.row(0, row / sizes.T, row % sizes.T + sizes.S - sizes.T, 0, sizes.S, to);
        }
        dense.options.allow = std::as_const(allow);
        dense.both(context);
        expect_near("dq", call.dq, dense.dq, 10 * tolerance());
        expect_near("dk", call.dk, dense.dk, 10 * tolerance());
        expect_near("dv", call.dv, dense.dv, 10 * tolerance());
        for (const int threads : {1, 3, 7}) {
            Context team(threads);
            Tensor dq(dtype(), call.q.shape()), dk(dtype(), call.k.shape()), dv(dtype(), call.v.shape());
            for (Tensor* tensor : {&dq, &dk, &dv}) { std::memset(tensor->data(), 0xff, tensor->bytes()); }  // NaN
            attend_backward(
                team, {.q = call.q, .k = call.k, .v = call.v, .out = call.out, .lse = call.lse, .dout = call.dout},
                {.dq = dq, .dk = dk, .dv = dv}, call.options);
            expect_same_bits("dq", dq, call.dq);
            expect_same_bits("dk", dk, call.dk);
            expect_same_bits("dv", dv, call.dv);
        }
    }
}

}  // namespace
}  // namespace heed::testing
