#include <heed/attention.h>
#include <heed/merge.h>

#include <algorithm>
#include <cstring>

#include "unit/ops/op_testing.h"

namespace heed::testing {
namespace {

using Parts = std::vector<PartialResult>;

struct MergeResult {
    Tensor out, lse;
    operator PartialResult() const { return {out, lse}; }
};

MergeResult merged(Context& context, const Parts& parts, DType dtype = DType::f64) {
    MergeResult result{Tensor(dtype, parts[0].out.shape()), Tensor(DType::f64, parts[0].lse.shape())};
    merge(context, parts, result.out, result.lse);
    return result;
}

MergeResult random_part(DType dtype, unsigned seed) {
    return {random(dtype, {2, 3, 5, 7}, seed),
            random(dtype == DType::f64 ? DType::f64 : DType::f32, {2, 3, 5}, seed + 1, 3)};
}
MergeResult empty_part(DType dtype) {
    MergeResult part = random_part(dtype, 0);
    for (std::int64_t n = 0; n < part.out.elements(); ++n) { set(part.out, n, std::nan("")); }
    for (std::int64_t n = 0; n < part.lse.elements(); ++n) { set(part.lse, n, -infinity); }
    return part;
}

TEST(Merge, KnownNumbers) {
    Context context(1);
    for (const DType dtype : {DType::f64, DType::f32}) {
        Tensor a(dtype, {1}), b(dtype, {1}), la(dtype, {}), lb(dtype, {});
        set(a, 0, 2);
        set(la, 0, 1.3);
        set(b, 0, -1);
        set(lb, 0, 0.4);
        const MergeResult result = merged(context, {{a, la}, {b, lb}}, dtype);
        const double tolerance = dtype == DType::f64 ? 1e-10 : 2e-7;
        EXPECT_NEAR(get(result.out, 0), 1.1328485079, tolerance);
        EXPECT_NEAR(get(result.lse, 0), 1.6411538747, tolerance);
    }
}

TEST(Merge, ThreePartsInEveryOrderAndGrouping) {
    Context context(2);
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
        const MergeResult part[3] = {random_part(dtype, 1), random_part(dtype, 11), random_part(dtype, 21)};
        const MergeResult all = merged(context, {part[0], part[1], part[2]});
        // One rounding of the result to the type; the parts are exact inputs.
        const double tolerance = dtype == DType::f64 ? 1e-14 : 1e-6;
        int order[3] = {0, 1, 2};
        do {
            const MergeResult together = merged(context, {part[order[0]], part[order[1]], part[order[2]]});
            const MergeResult first = merged(context, {part[order[0]], part[order[1]]});
            const MergeResult left = merged(context, {first, part[order[2]]});
            const MergeResult right = merged(context, {part[order[2]], first});
            for (const MergeResult* result : {&together, &left, &right}) {
                expect_near(result->out, all.out, tolerance);
                expect_near(result->lse, all.lse, tolerance);
            }
        } while (std::next_permutation(order, order + 3));
    }
}

TEST(Merge, AnEmptyPartChangesNoBit) {
    Context context(1);
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
        MergeResult part = random_part(dtype, 5);
        set(part.out, 3, -0.0);
        const MergeResult empty = empty_part(dtype);
        for (const Parts& parts : {Parts{part, empty}, Parts{empty, part}, Parts{empty, part, empty}, Parts{part}}) {
            const MergeResult result = merged(context, parts, dtype);
            expect_same(result.out, part.out);
            expect_same(result.lse, part.lse);
        }
        const MergeResult nothing = merged(context, {empty, empty}, dtype);
        for (std::int64_t n = 0; n < nothing.out.elements(); ++n) { ASSERT_EQ(get(nothing.out, n), 0); }
        for (std::int64_t n = 0; n < nothing.lse.elements(); ++n) { ASSERT_EQ(get(nothing.lse, n), -infinity); }
    }
}

TEST(Merge, SplitKeysGiveTheWhole) {
    Context context(2);
    for (const DType dtype : {DType::f64, DType::f32}) {
        const Tensor q = random(dtype, {2, 4, 9, 8}, 1), k = random(dtype, {2, 2, 23, 8}, 2),
                     v = random(dtype, {2, 2, 23, 6}, 3);
        const auto attended = [&](std::int64_t begin, std::int64_t end) {
            // Positions, so that the causal mask of a part is that of the whole: some queries see nothing of the last.
            std::vector<std::int64_t> at_query(9), at_key;
            for (std::int64_t i = 0; i < 9; ++i) { at_query[static_cast<std::size_t>(i)] = i + 14; }
            for (std::int64_t j = begin; j < end; ++j) { at_key.push_back(j); }
            AttentionOptions options;
            options.causal = true;
            options.query_positions = View(static_cast<const std::int64_t*>(at_query.data()), {1, 9});
            options.key_positions = View(static_cast<const std::int64_t*>(at_key.data()), {1, end - begin});
            MergeResult r{Tensor(dtype, {2, 4, 9, 6}), Tensor(DType::f64, {2, 4, 9})};
            attend(context, q, k.view().slice(2, begin, end), v.view().slice(2, begin, end),
                   {.out = r.out, .lse = r.lse}, options);
            return r;
        };
        const MergeResult whole = attended(0, 23);
        const MergeResult parts[4] = {attended(0, 7), attended(7, 8), attended(8, 8), attended(8, 23)};
        const MergeResult result = merged(context, {parts[0], parts[1], parts[2], parts[3]}, dtype);
        const double tolerance = dtype == DType::f64 ? 1e-13 : 2e-6;
        expect_near(result.out, whole.out, tolerance);
        expect_near(result.lse, whole.lse, tolerance);
    }
}

TEST(Merge, InPlaceStridesAndMixedTypes) {
    Context context(1);
    const MergeResult a = random_part(DType::bf16, 1), b = random_part(DType::f32, 2);
    const MergeResult expected = merged(context, {a, b}, DType::f32);
    Scattered a_out(a.out), a_lse(a.lse), b_out(b.out), b_lse(b.lse);
    Tensor lse(DType::f64, {2, 3, 5});
    merge(context, Parts{{a_out.view, a_lse.view}, {b_out.view, b_lse.view}}, b_out.view, b_lse.view);
    expect_same(b_out.view, expected.out);
    expect_near(b_lse.view, expected.lse, 1e-6);
    // The numbers between the rows are as they were.
    std::int64_t touched = 0;
    for (std::int64_t n = 0; n < b_out.memory.elements(); ++n) { touched += std::isnan(get(b_out.memory, n)) ? 0 : 1; }
    EXPECT_EQ(touched, b.out.elements());
}

TEST(Merge, NanStaysInItsRow) {
    Context context(1);
    for (const DType dtype : {DType::f64, DType::f32}) {
        MergeResult a = random_part(dtype, 1), b = random_part(dtype, 2);
        const MergeResult clean = merged(context, {a, b}, dtype);
        set(a.out, 7 * 4 + 2, std::nan(""));  // one element of row 4
        set(b.lse, 9, std::nan(""));          // all of row 9
        set(b.lse, 11, infinity);
        const MergeResult result = merged(context, {a, b}, dtype);
        for (std::int64_t n = 0; n < result.out.elements(); ++n) {
            const std::int64_t row = n / 7;
            const bool bad = n == 7 * 4 + 2 || row == 9 || row == 11;
            ASSERT_EQ(std::isnan(get(result.out, n)), bad) << n;
            if (!bad) { ASSERT_EQ(get(result.out, n), get(clean.out, n)); }
        }
        EXPECT_TRUE(std::isnan(get(result.lse, 9)));
        EXPECT_TRUE(std::isnan(get(result.lse, 11)));
        EXPECT_EQ(get(result.lse, 4), get(clean.lse, 4));
    }
}

TEST(Merge, Threads) {
    Context one(1), three(3);
    std::vector<MergeResult> parts;
    for (unsigned n = 0; n < 3; ++n) {
        parts.push_back({random(DType::f32, {1, 8, 200, 65}, n), random(DType::f32, {1, 8, 200}, n + 10)});
    }
    const Parts views(parts.begin(), parts.end());
    expect_same(merged(one, views, DType::f32).out, merged(three, views, DType::f32).out);
}

struct MergeGradients {
    std::vector<MergeResult> of;
    std::vector<PartialGradient> views;
    MergeGradients(const Parts& parts, DType dtype) {
        for (const PartialResult& part : parts) {
            of.push_back({Tensor(dtype, part.out.shape()), Tensor(DType::f64, part.lse.shape())});
            views.push_back({of.back().out, of.back().lse});
        }
    }
};

TEST(Merge, GradientsByFiniteDifferences) {
    Context context(1);
    std::vector<MergeResult> part;
    for (unsigned n = 0; n < 3; ++n) {
        part.push_back({random(DType::f64, {2, 3, 4}, n), random(DType::f64, {2, 3}, n + 10)});
    }
    set(part[1].lse, 2, -infinity);
    for (std::size_t n = 0; n < 3; ++n) { set(part[n].lse, 5, -infinity); }
    const Parts parts(part.begin(), part.end());
    Tensor dout = random(DType::f64, {2, 3, 4}, 30), dlse = random(DType::f64, {2, 3}, 31);
    set(dlse, 5, 0);  // of an lse that is -infinity
    const auto loss = [&] {
        MergeResult result = merged(context, parts);
        set(result.lse, 5, 0);
        return dot(result.out, dout) + dot(result.lse, dlse);
    };
    MergeGradients gradients(parts, DType::f64);
    merge_backward(context, parts, dout, gradients.views, dlse);
    for (std::size_t n = 0; n < 3; ++n) {
        expect_gradient(gradients.of[n].out, part[n].out, loss, "dout", 1e-8);
        for (std::int64_t row = 0; row < 5; ++row) {
            if (get(part[n].lse, row) == -infinity) {
                EXPECT_EQ(get(gradients.of[n].lse, row), 0);
                continue;
            }
            const double before = get(part[n].lse, row);
            set(part[n].lse, row, before + 1e-5);
            const double above = loss();
            set(part[n].lse, row, before - 1e-5);
            const double below = loss();
            set(part[n].lse, row, before);
            EXPECT_NEAR(get(gradients.of[n].lse, row), (above - below) / 2e-5, 1e-8);
        }
        EXPECT_EQ(get(gradients.of[n].lse, 5), 0);
    }
}

TEST(Merge, GradientsInFloatFollowThoseInDouble) {
    Context context(2);
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
        MergeResult a = random_part(dtype, 1), b = random_part(dtype, 2);
        const MergeResult empty = empty_part(dtype);
        set(a.lse, 3, -infinity);
        for (std::int64_t e = 0; e < 7; ++e) { set(a.out, 7 * 3 + e, std::nan("")); }
        const Tensor dout = random(dtype, {2, 3, 5, 7}, 3), dlse = random(DType::f32, {2, 3, 5}, 4);
        const Parts parts = {a, empty, b};
        const MergeResult wide[3] = {{a.out.to(DType::f64), a.lse.to(DType::f64)},
                                     {empty.out.to(DType::f64), empty.lse.to(DType::f64)},
                                     {b.out.to(DType::f64), b.lse.to(DType::f64)}};
        MergeGradients got(parts, DType::f32), expected(parts, DType::f64);
        merge_backward(context, parts, dout, got.views, dlse);
        merge_backward(context, Parts{wide[0], wide[1], wide[2]}, dout.to(DType::f64), expected.views, dlse);
        for (std::size_t n = 0; n < 3; ++n) {
            expect_near(got.of[n].out, expected.of[n].out, 1e-6);
            expect_near(got.of[n].lse, expected.of[n].lse, 1e-5);
        }
        for (std::int64_t n = 0; n < empty.out.elements(); ++n) { ASSERT_EQ(get(got.of[1].out, n), 0); }
    }
}

TEST(Merge, Empty) {
    Context context(1);
    const Tensor no_rows(DType::f32, {2, 0, 4}), no_lse(DType::f32, {2, 0});
    Tensor out(DType::f32, {2, 0, 4});
    EXPECT_NO_THROW(merge(context, Parts{{no_rows, no_lse}}, out));
}

TEST(Merge, Errors) {
    Context context(1);
    const MergeResult a = random_part(DType::f32, 1), b = random_part(DType::f32, 2);
    Tensor out(DType::f32, {2, 3, 5, 7}), lse(DType::f32, {2, 3, 5}), other(DType::f32, {2, 3, 5, 8});
    const auto text = [&](const Parts& parts, const MutableView& to, const MutableView& to_lse) {
        return error_text([&] { merge(context, parts, to, to_lse); });
    };
    EXPECT_EQ(text({}, out, lse), "[merge] parts: expected at least one part, got none");
    EXPECT_EQ(text({a, {other, lse}}, out, {}), "[merge] parts[1].out: expected [2, 3, 5, 7], got [2, 3, 5, 8]");
    EXPECT_EQ(text({a, {b.out, {}}}, out, {}), "[merge] parts[1].lse: expected a tensor of shape [2, 3, 5], got none");
    EXPECT_EQ(text({a, b}, other, {}), "[merge] out: expected [2, 3, 5, 7], got [2, 3, 5, 8]");
    EXPECT_EQ(text({a, b}, {}, {}), "[merge] out: expected a tensor of shape [2, 3, 5, 7], got none");
    Tensor words(DType::i32, {2, 3, 5});
    EXPECT_EQ(text({a, b}, out, words), "[merge] lse: expected f32 or f64, got i32");
    Tensor memory(DType::f32, {2 * 3 * 5 * 7 + 7});
    const MutableView here(memory.as<float>(), {2, 3, 5, 7}), shifted(memory.as<float>() + 7, {2, 3, 5, 7});
    EXPECT_EQ(text({{here, a.lse}, b}, shifted, {}),
              "[merge] out: expected memory apart from parts[0].out, got an overlap");
    EXPECT_EQ(text({{here, a.lse}, b}, here, {}), "");
    MergeGradients gradients({a, b}, DType::f32);
    EXPECT_EQ(error_text([&] {
                  merge_backward(context, Parts{a, b}, out, std::span(gradients.views).first(1));
              }),
              "[merge_backward] gradients: expected 2, one for each part, got 1");
    EXPECT_EQ(error_text([&] {
                  merge_backward(context, Parts{a, b}, other, gradients.views);
              }),
              "[merge_backward] dout: expected [2, 3, 5, 7], got [2, 3, 5, 8]");
    gradients.views[1].dout = gradients.views[0].dout;
    EXPECT_EQ(error_text([&] {
                  merge_backward(context, Parts{a, b}, out, gradients.views);
              }),
              "[merge_backward] gradients[1].dout: expected memory apart from gradients[0].dout, got an overlap");
}

}  // namespace
}  // namespace heed::testing
