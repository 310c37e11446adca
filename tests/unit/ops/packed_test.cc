#include <heed/packed.h>

#include <cstring>

#include <heed/explain.h>

#include "kernel/packed_problem.h"
#include "reference/packed.h"
#include "unit/ops/layer_ops_testing.h"

namespace heed::testing {
namespace {

const DType packed_types[] = {DType::f32, DType::bf16};

Tensor by_packed_reference(const Tensor& x, const PackedMatrix& weight) {
    Tensor out(DType::f64, {x.shape()[0], weight.outputs()});
    PackedProblem problem;
    problem.panels = weight.data();
    problem.pairs = weight.dtype() == DType::bf16;
    MatmulProblem& product = problem.linear.product;
    product.rows = x.shape()[0];
    product.columns = weight.outputs();
    product.depth = weight.inputs();
    product.a = {x.dtype(), static_cast<char*>(const_cast<void*>(x.data())), weight.inputs(), 1};
    product.c = {DType::f64, static_cast<char*>(out.data()), weight.outputs(), 1};
    reference::packed_linear(problem, 0, product.rows);
    return out;
}

}  // namespace

TEST(Packed, ReferenceSeesTheWeights) {
    for (const DType dtype : packed_types) {
        for (const DType from : all_floats()) {
            const Tensor weight = random(from, {70, 33}, 1);
            const PackedMatrix packed = PackedMatrix::pack(test_context(), Scattered(weight).view, dtype);
            const Tensor kept = weight.to(dtype);
            PackedProblem problem;
            problem.panels = packed.data();
            problem.pairs = dtype == DType::bf16;
            problem.linear.product.depth = 33;
            for (std::int64_t n = 0; n < 70 * 33; ++n) {
                ASSERT_EQ(reference::packed_number(problem, n / 33, n % 33), get(kept, n)) << n;
            }
        }
    }
}

TEST(Packed, EveryKernelPacksTheSameBits) {
    Context context(3);
    for (const DType dtype : packed_types) {
        for (const DType from : all_floats()) {
            for (const Shape& shape : {Shape{1, 1}, Shape{63, 65}, Shape{130, 200}}) {
                const Tensor weight = random(from, shape, 1);
                const Scattered strange(weight);
                const auto pack = [&](Context& c, const View& rows) { return PackedMatrix::pack(c, rows, dtype); };
                context.set_kernel("reference");
                const PackedMatrix expected = pack(context, weight);
                const auto explained = explain(context, [&](Context& dry) { pack(dry, weight); });
                ASSERT_EQ(explained.size(), 1U);
                EXPECT_EQ(explained[0].operation, "PackedMatrix::pack");
                EXPECT_EQ(explained[0].kernel, "reference");
                for (const KernelVerdict& verdict : explained[0].verdicts) {
                    if (!verdict.fits) { continue; }
                    context.set_kernel(verdict.kernel);
                    const PackedMatrix packed = pack(context, strange.view);
                    ASSERT_EQ(packed.bytes(), expected.bytes());
                    EXPECT_EQ(std::memcmp(packed.data(), expected.data(), expected.bytes()), 0) << verdict.kernel;
                }
            }
        }
    }
}

TEST(Packed, LinearIsWhatItsReferenceSays) {
    for (const DType dtype : packed_types) {
        for (const Shape& shape : {Shape{1, 1}, Shape{5, 31}, Shape{64, 32}, Shape{65, 257}, Shape{300, 600}}) {
            const PackedMatrix weight = PackedMatrix::pack(test_context(), random(DType::f32, shape, 1), dtype);
            for (const std::int64_t rows : {1, 2, 3, 6, 7, 13, 100}) {
                const Tensor x = random(DType::f32, {rows, shape[1]}, 2);
                Tensor out(DType::f32, {rows, shape[0]});
                linear(test_context(), x, weight, out);
                expect_near(out, by_packed_reference(x, weight), 5e-5);
                for (const DType other : {DType::bf16, DType::f16, DType::f64}) {
                    const Tensor converted = x.to(other);
                    Tensor result(other, {rows, shape[0]});
                    linear(test_context(), converted, weight, result);
                    expect_near(result, by_packed_reference(converted, weight), std::max(5e-5, tolerance_of(other)));
                }
            }
        }
    }
}

TEST(Packed, HasTheBitsOfTheLinearOfPlainWeights) {
    const Tensor plain = random(DType::f32, {200, 700}, 1);
    const PackedMatrix weight = PackedMatrix::pack(test_context(), plain, DType::f32);
    for (const std::int64_t rows : {1, 5, 40}) {
        const Tensor x = random(DType::f32, {rows, 700}, 2);
        Tensor expected(DType::f32, {rows, 200}), out(DType::f32, {rows, 200});
        linear(test_context(), x, plain, expected);
        linear(test_context(), x, weight, out);
        expect_same(out, expected);
    }
}

TEST(Packed, BiasActivationAndStrangeLayouts) {
    for (const DType dtype : packed_types) {
        const PackedMatrix weight = PackedMatrix::pack(test_context(), random(DType::f32, {37, 70}, 1), dtype);
        const Tensor x = random(DType::f32, {2, 4, 70}, 2), bias = random(DType::f32, {37}, 3);
        Tensor plain(DType::f32, {2, 4, 37}), out(DType::f32, {2, 4, 37}), before(DType::f32, {2, 4, 37});
        linear(test_context(), x, weight, plain, {.bias = bias});
        linear(test_context(), x, weight, out,
               {.bias = bias, .activation = Activation::silu, .before_activation = before});
        expect_same(before, plain);
        Tensor expected(DType::f32, {2, 4, 37});
        activate(test_context(), Activation::silu, plain, expected);
        expect_same(out, expected);
        Scattered strange(DType::f32, {2, 4, 37}), strange_before(DType::f32, {2, 4, 37});
        linear(
            test_context(), Scattered(x).view, weight, strange.view,
            {.bias = Scattered(bias).view, .activation = Activation::silu, .before_activation = strange_before.view});
        expect_same(strange.view, out);
        expect_same(strange_before.view, before);
    }
}

TEST(Packed, ARowDependsOnNeitherThreadsNorOtherRows) {
    for (const DType dtype : packed_types) {
        const PackedMatrix weight = PackedMatrix::pack(test_context(), random(DType::f32, {300, 601}, 1), dtype);
        const Tensor x = random(DType::f32, {140, 601}, 2);
        Tensor all(DType::f32, {140, 300});
        linear(test_context(), x, weight, all);
        Context alone(1);
        for (const std::int64_t count : {1, 4, 9}) {
            for (const std::int64_t row : {0, 5, 95, 131}) {
                Tensor some(DType::f32, {count, 300});
                linear(alone, x.view().slice(0, row, row + count), weight, some);
                expect_same(some, all.view().slice(0, row, row + count));
            }
        }
    }
}

TEST(Packed, RefusesWhatDoesNotFit) {
    const Tensor plain = random(DType::f32, {4, 40}, 3);
    const PackedMatrix weight = PackedMatrix::pack(test_context(), plain, DType::f32);
    Tensor x(DType::f32, {2, 41}), out(DType::f32, {2, 4});
    EXPECT_EQ(error_text([&] { linear(test_context(), x, weight, out); }),
              "[linear] x: expected 40 columns, the inputs of weight, got [2, 41]");
    EXPECT_EQ(error_text([&] { linear(test_context(), x, PackedMatrix(), out); }),
              "[linear] weight: expected a packed matrix, got none");
    EXPECT_EQ(error_text([&] { PackedMatrix::pack(test_context(), plain, DType::f16); }),
              "[PackedMatrix::pack] dtype: expected f32 or bf16, got f16");
    EXPECT_EQ(error_text([&] {
                  PackedMatrix::pack(test_context(), Tensor(DType::f32, {0, 4}), DType::f32);
              }),
              "[PackedMatrix::pack] weight: expected at least 1 and at most 2^40 weights, got [0, 4]");
}

}  // namespace heed::testing
