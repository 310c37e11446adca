#include <heed/embedding.h>

#include "unit/ops/layer_ops_testing.h"

namespace heed::testing {
namespace {

template <class T>
Tensor ids_of(const Shape& shape, std::int64_t classes) {
    Tensor ids(dtype_of<T>(), shape);
    for (std::int64_t n = 0; n < ids.elements(); ++n) { ids.as<T>()[n] = static_cast<T>(n * 7919 % classes); }
    return ids;
}

}  // namespace

TEST(Embedding, LooksUpEveryType) {
    for (const DType dtype : all_floats()) {
        for (const std::int64_t size : {1, 5, 16, 67}) {
            const Tensor table = random(dtype, {11, size}, 1);
            const Tensor ids = ids_of<std::int32_t>({2, 3, 4}, 11), long_ids = ids_of<std::int64_t>({2, 3, 4}, 11);
            Tensor out(dtype, {2, 3, 4, size});
            Scattered strange(dtype, {2, 3, 4, size});
            embedding(test_context(), ids, table, out, {.scale = 1.5});
            embedding(test_context(), Scattered(long_ids).view, Scattered(table).view, strange.view, {.scale = 1.5});
            expect_same(strange.view, out);
            for (std::int64_t n = 0; n < out.elements(); ++n) {
                const double expected = 1.5 * get(table, ids.as<std::int32_t>()[n / size] * size + n % size);
                ASSERT_NEAR(get(out, n), expected, tolerance_of(dtype) * (1 + std::abs(expected)));
            }
        }
    }
}

TEST(Embedding, GradientsAreSlopesAndAccumulate) {
    Tensor table = random(DType::f64, {5, 3}, 1);
    const Tensor ids = ids_of<std::int64_t>({2, 4}, 5), dout = random(DType::f64, {2, 4, 3}, 2);
    Tensor out(DType::f64, {2, 4, 3}), dtable = random(DType::f64, {5, 3}, 3);
    const auto f = [&] {
        embedding(test_context(), ids, table, out, {.scale = 2});
        return dot(out, dout);
    };
    const Tensor before = dtable.clone();
    embedding_backward(test_context(), ids, dout, dtable, {.scale = 2});
    expect_gradient(dtable, table, f, "dtable");
    Tensor twice = before.clone();
    embedding_backward(test_context(), ids, dout, twice, {.scale = 2, .accumulate = true});
    for (std::int64_t n = 0; n < 15; ++n) { ASSERT_NEAR(get(twice, n), get(before, n) + get(dtable, n), 1e-12); }
    embedding_backward(test_context(), ids, dout, twice, {.scale = 2, .padding_id = ids.as<std::int64_t>()[1]});
    for (std::int64_t n = 0; n < 15; ++n) {
        ASSERT_NEAR(get(twice, n), n / 3 == ids.as<std::int64_t>()[1] ? 0 : get(dtable, n), 1e-12);
    }
}

TEST(Embedding, GradientsOfEveryTypeAndAnyNumberOfThreads) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
        const Tensor ids = ids_of<std::int32_t>({500}, 37), dout = random(dtype, {500, 33}, 1);
        Tensor expected(DType::f64, {37, 33}), alone(dtype, {37, 33}), several(dtype, {37, 33});
        embedding_backward(test_context(), ids, dout.to(DType::f64), expected);
        Context one(1), five(5);
        embedding_backward(one, ids, dout, alone);
        embedding_backward(five, ids, dout, several);
        expect_near(alone, expected, 4 * tolerance_of(dtype));
        expect_same(alone, several);
    }
}

TEST(Embedding, RefusesWhatDoesNotFit) {
    Tensor table(DType::f32, {4, 3}), out(DType::f32, {2, 3}), ids(DType::i32, {2}), wrong(DType::f32, {2});
    ids.as<std::int32_t>()[1] = 4;
    EXPECT_EQ(error_text([&] { embedding(test_context(), ids, table, out); }),
              "[embedding] ids[1]: expected 0 to 3, got 4");
    ids.as<std::int32_t>()[1] = -1;
    EXPECT_EQ(error_text([&] { embedding(test_context(), ids, table, out); }),
              "[embedding] ids[1]: expected 0 to 3, got -1");
    EXPECT_EQ(error_text([&] { embedding(test_context(), wrong, table, out); }),
              "[embedding] ids: expected i64 or i32, got f32");
    EXPECT_EQ(error_text([&] { embedding(test_context(), ids, table, table); }),
              "[embedding] out: expected [2, 3], got [4, 3]");
}

}  // namespace heed::testing
