#include <heed/matmul.h>

#include <cstdlib>
#include <string>

#include "base/place.h"
#include "cpu/instruction_sets.h"
#include "cpu/matmul/matmul_onednn.h"
#include "support/sample.h"
#include "unit/ops/op_testing.h"

namespace heed::testing {
namespace {

/// [...] of a, b and c as doubles, by the definition, for tensors [L0,L1,M,K], [L0,L1,K,N], [L0,L1,M,N].
Tensor expected(const View& a, const View& b, const View& before, double alpha, double beta) {
    Tensor c(DType::f64, before.shape());
    const auto at = [](const View& x, std::int64_t i, std::int64_t j, std::int64_t m, std::int64_t n) {
        return get(x, (((x.extent(0) == 1 ? 0 : i) * x.extent(1) + (x.extent(1) == 1 ? 0 : j)) * x.extent(2) + m) *
                              x.extent(3) +
                          n);
    };
    const std::int64_t outer = std::max(a.extent(0), b.extent(0)), inner = std::max(a.extent(1), b.extent(1));
    for (std::int64_t i = 0; i < outer; ++i) {
        for (std::int64_t j = 0; j < inner; ++j) {
            for (std::int64_t m = 0; m < a.extent(2); ++m) {
                for (std::int64_t n = 0; n < b.extent(3); ++n) {
                    const std::int64_t to =
                        (((c.shape()[0] == 1 ? 0 : i) * c.shape()[1] + (c.shape()[1] == 1 ? 0 : j)) * a.extent(2) + m) *
                            b.extent(3) +
                        n;
                    for (std::int64_t k = 0; k < a.extent(3); ++k) {
                        c.as<double>()[to] += alpha * at(a, i, j, m, k) * at(b, i, j, k, n);
                    }
                }
            }
        }
    }
    for (std::int64_t n = 0; beta != 0 && n < c.elements(); ++n) { c.as<double>()[n] += beta * get(before, n); }
    return c;
}

double tolerance_of(DType dtype, std::int64_t depth) {
    // Partial sums grow as sqrt(K), and so does the sum of their roundings: eps * K, twice for room.
    const double sum = 1.2e-7 * static_cast<double>(depth) + 3e-7;
    switch (dtype) {
        case DType::f64: return 1e-13 * std::sqrt(static_cast<double>(depth));
        case DType::bf16: return sum + 0x1p-8;
        case DType::f16: return sum + 0x1p-11;
        default: return sum;
    }
}

TEST(Matmul, SizesAroundEveryBlock) {
    Context context(2);
    Sample sample;
    for (const std::int64_t rows : {1, 5, 13, 97}) {
        for (const std::int64_t columns : {1, 17, 64, 130, 257}) {
            for (const std::int64_t depth : {1, 7, 300}) {
                if (!sample.takes()) { continue; }
                for (const DType dtype : {DType::f32, DType::bf16}) {
                    const Tensor a = random(dtype, {1, 1, rows, depth}, 1),
                                 b = random(dtype, {1, 1, depth, columns}, 2);
                    Tensor c(DType::f32, {1, 1, rows, columns});
                    for (std::int64_t n = 0; n < c.elements(); ++n) { set(c, n, std::nan("")); }
                    matmul(context, a, b, c);
                    expect_near(c, expected(a, b, c, 1, 0), tolerance_of(DType::f32, depth),
                                to_string(Shape{rows, columns, depth}));
                    if (HasFatalFailure()) { return; }
                }
            }
        }
    }
}

TEST(Matmul, TypesTransposesAndScattered) {
    Context context(1);
    const DType types[] = {DType::f32, DType::bf16, DType::f16, DType::f64};
    Sample sample;
    for (const DType of_a : types) {
        for (const DType of_b : types) {
            for (const DType of_c : types) {
                if (of_a != of_b && of_c != DType::f32) { continue; }
                const Tensor a = random(of_a, {1, 2, 30, 41}, 1), b = random(of_b, {1, 2, 41, 70}, 2);
                const Tensor a_turned = random(of_a, {1, 2, 41, 30}, 1), b_turned = random(of_b, {1, 2, 70, 41}, 2);
                const Scattered a_far(a), b_far(b);
                Scattered c_far(of_c, {1, 2, 30, 70});
                const View as[] = {a, a_turned.view().permute({0, 1, 3, 2}), a_far.view};
                const View bs[] = {b, b_turned.view().permute({0, 1, 3, 2}), b_far.view};
                Tensor c(of_c, {1, 2, 30, 70});
                const DType least = of_a == DType::f64 || of_b == DType::f64 || of_c == DType::f64 ? of_c : DType::f32;
                const double tolerance = std::max(tolerance_of(of_c, 41), tolerance_of(least, 41));
                for (const View& x : as) {
                    for (const View& y : bs) {
                        if (!sample.takes()) { continue; }
                        const Tensor truth = expected(x, y, c, 0.5, 0);
                        matmul(context, x, y, c, {.alpha = 0.5});
                        expect_near(c, truth, tolerance);
                        matmul(context, x, y, c_far.view, {.alpha = 0.5});
                        expect_same(c_far.view, c);
                        if (HasFatalFailure()) { return; }
                    }
                }
            }
        }
    }
}

TEST(Matmul, BetaAddsToWhatIsThere) {
    Context context(1);
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
        const Tensor a = random(dtype, {1, 1, 9, 20}, 1), b = random(dtype, {1, 1, 20, 33}, 2);
        Tensor c = random(dtype, {1, 1, 9, 33}, 3);
        const Tensor truth = expected(a, b, c, -2, 0.5);
        matmul(context, a, b, c, {.alpha = -2, .beta = 0.5});
        expect_near(c, truth, 2 * tolerance_of(dtype, 20));
    }
}

TEST(Matmul, LeadingAxesRepeatAndSum) {
    Context context(2);
    for (const DType dtype : {DType::f32, DType::f64}) {
        struct Case {
            std::int64_t a[2], b[2], c[2];
        };
        for (const auto& [la, lb, lc] :
             {Case{{3, 2}, {3, 2}, {3, 2}}, Case{{3, 1}, {1, 2}, {3, 2}}, Case{{3, 2}, {1, 2}, {3, 1}},
              Case{{3, 2}, {3, 2}, {1, 1}}, Case{{1, 2}, {3, 1}, {1, 2}}}) {
            const Tensor a = random(dtype, {la[0], la[1], 6, 19}, 1), b = random(dtype, {lb[0], lb[1], 19, 21}, 2);
            Tensor c(dtype, {lc[0], lc[1], 6, 21});
            matmul(context, a, b, c);
            expect_near(c, expected(a, b, c, 1, 0), tolerance_of(dtype, 19 * 6));
        }
    }
}

TEST(Matmul, SameBitsForAnyThreadsAndAnyOtherRowsAndColumns) {
    Context one(1), three(3);
    for (const DType dtype : {DType::f32, DType::bf16}) {
        const Tensor a = random(dtype, {1, 1, 150, 701}, 1), b = random(dtype, {1, 1, 701, 330}, 2);
        Tensor whole(DType::f32, {1, 1, 150, 330}), again(DType::f32, {1, 1, 150, 330});
        matmul(one, a, b, whole);
        matmul(three, a, b, again);
        expect_same(again, whole);
        for (const std::int64_t rows : {1, 2, 13, 100}) {
            for (const std::int64_t column : {0, 3, 320}) {
                const std::int64_t end = std::min<std::int64_t>(330, column + 70);
                Tensor part(DType::f32, {1, 1, rows, end - column});
                matmul(one, a.view().slice(2, 0, rows), b.view().slice(3, column, end), part);
                expect_same(part, whole.view().slice(2, 0, rows).slice(3, column, end));
            }
        }
    }
}

/// While this lives, products run on heed's own tiles alone.
class OwnTiles {
public:
    explicit OwnTiles(Context& context) : context_(context) {
        context.set_kernel("cpu-" + std::string(cpu::instruction_set().name));
    }
    ~OwnTiles() { context_.set_kernel(""); }
    OwnTiles(const OwnTiles&) = delete;
    OwnTiles& operator=(const OwnTiles&) = delete;

private:
    Context& context_;
};

/// Rows of x further apart than they are long; the numbers between are loud.
struct Apart {
    Tensor memory;
    MutableView view;

    Apart(const View& x, std::int64_t gap) : memory(x.dtype(), {x.extent(0), x.extent(1) + gap}) {
        for (std::int64_t n = 0; n < memory.elements(); ++n) { set(memory, n, std::nan("")); }
        view = memory.view().slice(1, 0, x.extent(1));
        for (std::int64_t n = 0; n < x.shape().elements(); ++n) { set(view, n, get(x, n)); }
    }
};

// Products large enough for oneDNN, where it is there: whole blocks, edges, one and several blocks of K, a remainder of
// K, either order of a, rows at any distance. Whoever computed an element, it has the bits of heed's tiles.
TEST(Matmul, OneDNNGivesTheBitsOfOurTiles) {
    Context one(1), two(2), seven(7);
    struct Case {
        std::int64_t rows, columns, depth, gap;
        double alpha;
    };
    Sample sample(std::min(4, test_stride()));
    for (const auto& [rows, columns, depth, gap, alpha] :
         {Case{128, 128, 64, 0, 1}, Case{128, 128, 256, 0, 1}, Case{257, 300, 100, 5, 0.3}, Case{300, 257, 700, 0, -1},
          Case{130, 512, 512, 512, 1}, Case{384, 129, 257, 1, 1}, Case{129, 128, 1024, 1024, 7}}) {
        for (const auto& [of_inputs, of_c] : {std::pair{DType::f32, DType::f32}, std::pair{DType::bf16, DType::f32},
                                              std::pair{DType::bf16, DType::bf16}}) {
            if (!sample.takes()) { continue; }
            const std::string what = to_string(Shape{rows, columns, depth, gap}) + std::string(name_of(of_inputs));
            const Tensor a = random(of_inputs, {rows, depth}, 1), b = random(of_inputs, {depth, columns}, 2);
            const Apart a_apart(a, gap), a_turned_apart(a.view().permute({1, 0}), gap);
            const Apart b_apart(b, gap), b_turned_apart(b.view().permute({1, 0}), gap);
            Tensor ours(of_c, {rows, columns});
            {
                const OwnTiles forced(one);
                matmul(one, a, b, ours, {.alpha = alpha});
            }
            for (Context* context : {&one, &two, &seven}) {
                for (const View& x : {View(a_apart.view), View(a_turned_apart.view).permute({1, 0})}) {
                    for (const View& y : {View(b_apart.view), View(b_turned_apart.view).permute({1, 0})}) {
                        Tensor c(of_c, {rows, columns}), turned(of_c, {columns, rows});
                        matmul(*context, x, y, c, {.alpha = alpha});
                        expect_same(c, ours, what);
                        matmul(*context, x, y, turned.view().permute({1, 0}), {.alpha = alpha});
                        expect_same(turned.view().permute({1, 0}), ours, what);
                    }
                }
            }
            if (HasFailure()) { return; }
        }
    }
}

TEST(Matmul, SameBitsWhicheverRowsAndColumnsStandBesideInLargeProducts) {
    Context one(1), seven(7);
    for (const DType dtype : {DType::f32, DType::bf16}) {
        const Tensor a = random(dtype, {400, 600}, 1), b = random(dtype, {600, 420}, 2);
        Tensor whole(DType::f32, {400, 420});
        matmul(seven, a, b, whole);
        for (const std::int64_t row : {0, 1, 77, 130}) {
            for (const std::int64_t rows : {1, 2, 16, 127, 128, 129, 270}) {
                for (const std::int64_t column : {0, 3, 150}) {
                    const std::int64_t row_end = std::min<std::int64_t>(400, row + rows);
                    for (const std::int64_t columns : {1, 128, 260}) {
                        const std::int64_t column_end = std::min<std::int64_t>(420, column + columns);
                        Tensor c(DType::f32, {row_end - row, column_end - column});
                        matmul(one, a.view().slice(0, row, row_end), b.view().slice(1, column, column_end), c);
                        expect_same(c, whole.view().slice(0, row, row_end).slice(1, column, column_end),
                                    to_string(Shape{row, rows, column, columns}));
                        if (HasFailure()) { return; }
                    }
                }
            }
        }
    }
}

TEST(Matmul, LargeProductsRepeatAndSum) {
    Context context(2);
    const Tensor a = random(DType::f32, {2, 3, 131, 70}, 1), b = random(DType::f32, {1, 3, 70, 140}, 2);
    Sample sample;
    for (const Shape& shape : {Shape{2, 1, 131, 140}, Shape{2, 3, 131, 140}, Shape{1, 1, 131, 140}}) {
        if (!sample.takes()) { continue; }
        Tensor c(DType::f32, shape), ours(DType::f32, shape);
        matmul(context, a, b, c, {.alpha = 0.5});
        expect_near(c, expected(a, b, c, 0.5, 0), tolerance_of(DType::f32, 70 * 6));
        const OwnTiles forced(context);
        matmul(context, a, b, ours, {.alpha = 0.5});
        expect_same(c, ours);
    }
}

// What the tests above rest on: that oneDNN is really asked where the build has it and its bits are ours, and that it
// is left alone where it is not meant to be.
TEST(Matmul, OneDNNTakesWholeBlocksOfLargeFloatProducts) {
    Context context(1);
    std::vector<float> a(300 * 300, 1.0F), b(300 * 300, 2.0F), c(300 * 300, -1.0F);
    const auto address = [](std::vector<float>& x) {
        return MatrixAddress{DType::f32, reinterpret_cast<char*>(x.data()), 300, 1};
    };
    MatmulProblem problem;
    problem.rows = 300, problem.columns = 200, problem.depth = 300;
    problem.a = address(a), problem.b = address(b), problem.c = address(c);
    const auto done = [&](const MatmulProblem& p) {
        const auto lock = detail::pool_of(context).lock();
        return cpu::matmul_onednn(detail::pool_of(context), p, *cpu::instruction_set().kernels);
    };
    const auto refused = [&](auto&& change) {
        MatmulProblem changed = problem;
        change(changed);
        const cpu::MatmulDone nothing = done(changed);
        return nothing.rows == 0 && nothing.columns == 0;
    };
    EXPECT_TRUE(refused([](MatmulProblem& p) { p.rows = 127; }));
    EXPECT_TRUE(refused([](MatmulProblem& p) { p.columns = 127; }));
    EXPECT_TRUE(refused([](MatmulProblem& p) { p.depth = 63; }));
    EXPECT_TRUE(refused([](MatmulProblem& p) { p.beta = 1; }));
    EXPECT_TRUE(refused([](MatmulProblem& p) { p.a.dtype = DType::bf16; }));
    EXPECT_TRUE(refused([](MatmulProblem& p) { p.a.dtype = p.b.dtype = DType::bf16; }));
    EXPECT_TRUE(refused([](MatmulProblem& p) { p.a.row_stride = 0; }));
    EXPECT_TRUE(refused([](MatmulProblem& p) { std::swap(p.b.row_stride, p.b.column_stride); }));
    EXPECT_EQ(c, std::vector<float>(300 * 300, -1.0F));
    const cpu::MatmulDone some = done(problem);
    if (some.rows == 0) { GTEST_SKIP() << "oneDNN is not in this build, or its bits are not those of our tiles here"; }
    EXPECT_EQ(some.rows, 256);
    EXPECT_EQ(some.columns, 128);
    for (std::size_t n = 0; n < c.size(); ++n) { ASSERT_EQ(c[n], n / 300 < 256 && n % 300 < 128 ? 600 : -1) << n; }
}

TEST(Matmul, NanStaysInItsRowAndColumn) {
    Context context(1);
    Tensor a = random(DType::f32, {20, 30}, 1), b = random(DType::f32, {30, 40}, 2), c(DType::f32, {20, 40});
    set(a, 7 * 30 + 4, std::nan(""));
    set(b, 5 * 40 + 38, infinity);
    matmul(context, a, b, c);
    for (std::int64_t n = 0; n < c.elements(); ++n) {
        ASSERT_EQ(std::isfinite(get(c, n)), n / 40 != 7 && n % 40 != 38) << n;
    }
}

TEST(Matmul, NanStaysInItsRowAndColumnOfALargeProduct) {
    Context context(1);
    Tensor a = random(DType::f32, {130, 80}, 1), b = random(DType::f32, {80, 140}, 2), c(DType::f32, {130, 140});
    set(a, 7 * 80 + 4, std::nan(""));
    set(b, 5 * 140 + 38, infinity);
    matmul(context, a, b, c);
    for (std::int64_t n = 0; n < c.elements(); ++n) {
        ASSERT_EQ(std::isfinite(get(c, n)), n / 140 != 7 && n % 140 != 38) << n;
    }
}

TEST(Matmul, EmptySizes) {
    Context context(1);
    Tensor a(DType::f32, {4, 0}), b(DType::f32, {0, 5}), c = random(DType::f32, {4, 5}, 1);
    const Tensor before = c.clone();
    matmul(context, a, b, c, {.beta = 1});
    expect_same(c, before);
    matmul(context, a, b, c);
    for (std::int64_t n = 0; n < c.elements(); ++n) { EXPECT_EQ(get(c, n), 0); }
    Tensor none(DType::f32, {0, 4}), some(DType::f32, {4, 3}), empty(DType::f32, {0, 3});
    EXPECT_NO_THROW(matmul(context, none, some, empty));
    Tensor no_entries(DType::f32, {0, 2, 3}), also_none(DType::f32, {0, 3, 2}), sum = random(DType::f32, {1, 2, 2}, 1);
    matmul(context, no_entries, also_none, sum);
    for (std::int64_t n = 0; n < 4; ++n) { EXPECT_EQ(get(sum, n), 0); }
}

TEST(Matmul, Errors) {
    Context context(1);
    Tensor a(DType::f32, {2, 3, 4}), b(DType::f32, {2, 4, 5}), c(DType::f32, {2, 3, 5}), flat(DType::f32, {4, 5});
    Tensor wrong(DType::f32, {3, 4, 5}), words(DType::i32, {2, 4, 5});
    const auto text = [&](const View& x, const View& y, const MutableView& z, MatmulOptions options = {}) {
        return error_text([&] { matmul(context, x, y, z, options); });
    };
    EXPECT_EQ(text({}, b, c), "[matmul] a: expected a tensor, got none");
    EXPECT_EQ(text(a, flat, c), "[matmul] b: expected 3 axes as a has, got [4, 5]");
    EXPECT_EQ(text(a, a, c), "[matmul] b: expected 4 rows, the columns of a, got [2, 3, 4]");
    EXPECT_EQ(text(a, wrong, c), "[matmul] b: expected 2 or 1 along axis 0, as in a, got [3, 4, 5]");
    EXPECT_EQ(text(a, b, b), "[matmul] c: expected a matrix of [3, 5], got [2, 4, 5]");
    EXPECT_EQ(text(a, words, c), "[matmul] b: expected f32 or bf16 or f16 or f64, got i32");
    EXPECT_EQ(text(a, b, c, {.alpha = infinity}), "[matmul] alpha: expected a finite number, got inf");
    Tensor square(DType::f32, {4, 4});
    EXPECT_EQ(text(square, square, square), "[matmul] c: expected memory apart from a, got an overlap");
}

}  // namespace
}  // namespace heed::testing
