#include <heed/dropout.h>
#include <heed/random.h>

#include "unit/ops/layer_ops_testing.h"

namespace heed::testing {

TEST(Dropout, IsWhatItsCoordinatesSay) {
    for (const DType dtype : all_floats()) {
        for (const Shape& shape : {Shape{1}, Shape{3, 2, 7}, Shape{5, 130}, Shape{3, 1025}}) {
            const std::int64_t columns = shape[shape.rank() - 1];
            const Tensor x = random(dtype, shape, 1), residual = random(dtype, shape, 2);
            Tensor out(dtype, shape);
            Scattered strange(dtype, shape);
            const DropoutOptions options{.p = 0.3, .seed = 0x123456789abcdefULL, .offset = 7, .residual = residual};
            dropout(test_context(), x, out, options);
            dropout(test_context(), Scattered(x).view, strange.view, options);
            expect_same(strange.view, out);
            for (std::int64_t n = 0; n < x.elements(); ++n) {
                const std::uint32_t word = dropout_word(*options.seed, 7, 0, static_cast<std::uint32_t>(n / columns),
                                                        static_cast<std::uint32_t>(n % columns));
                const double kept = word >= dropout_threshold(0.3) ? get(x, n) / 0.7 : 0;
                const double expected = kept + get(residual, n);
                ASSERT_NEAR(get(out, n), expected, 2 * tolerance_of(dtype) * (1 + std::abs(expected)));
            }
        }
    }
}

TEST(Dropout, KeepsTheShareItShouldAndTheGradientTheSameBits) {
    const std::int64_t rows = 200, columns = 500;
    Tensor ones(DType::f32, {rows, columns}), out(DType::f32, {rows, columns});
    for (std::int64_t n = 0; n < ones.elements(); ++n) { set(ones, n, 1); }
    dropout(test_context(), ones, out, {.p = 0.1, .seed = 5});
    double kept = 0;
    for (std::int64_t n = 0; n < out.elements(); ++n) { kept += get(out, n) != 0 ? 1 : 0; }
    EXPECT_NEAR(kept / static_cast<double>(out.elements()), 0.9, 0.005);
    // Linear in x, so the same call is the gradient.
    const Tensor x = random(DType::f32, {rows, columns}, 1), dout = random(DType::f32, {rows, columns}, 2);
    Tensor y(DType::f32, x.shape()), dx(DType::f32, x.shape());
    dropout(test_context(), x, y, {.p = 0.1, .seed = 5});
    dropout(test_context(), dout, dx, {.p = 0.1, .seed = 5});
    EXPECT_NEAR(dot(y, dout), dot(x, dx), 1e-2);
    dropout(test_context(), x, y, {.p = 0});
    expect_same(y, x);
    // Another offset, other bits.
    Tensor other(DType::f32, ones.shape());
    dropout(test_context(), ones, other, {.p = 0.1, .seed = 5, .offset = 1});
    std::int64_t different = 0;
    for (std::int64_t n = 0; n < out.elements(); ++n) { different += get(out, n) != get(other, n) ? 1 : 0; }
    EXPECT_GT(different, out.elements() / 10);
}

TEST(Dropout, RefusesWhatDoesNotFit) {
    Tensor x(DType::f32, {2, 3});
    EXPECT_EQ(error_text([&] { dropout(test_context(), x, x, {.p = 1}); }),
              "[dropout] p: expected 0 <= p < 1, got 1.000000");
    EXPECT_EQ(error_text([&] { dropout(test_context(), x, x, {.p = 0.5}); }),
              "[dropout] seed: expected a number, as p is above 0, got none");
    EXPECT_NO_THROW(dropout(test_context(), x, x, {.p = 0.5, .seed = 0}));
    EXPECT_EQ(error_text([&] { dropout(test_context(), x, {}, {.p = 0}); }),
              "[dropout] out: expected a tensor of shape [2, 3], got none");
}

}  // namespace heed::testing
