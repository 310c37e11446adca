/// Memory of one device, a context of another: refused by name, before anybody looks at the memory.

#include <gtest/gtest.h>

#include <heed/activation.h>
#include <heed/attention.h>
#include <heed/elementwise.h>
#include <heed/embedding.h>
#include <heed/error.h>
#include <heed/linear.h>
#include <heed/linear_attention.h>
#include <heed/matmul.h>
#include <heed/merge.h>
#include <heed/mla.h>
#include <heed/norm.h>
#include <heed/positions.h>

#include <functional>
#include <string>
#include <vector>

namespace heed {
namespace {

constexpr Device elsewhere{DeviceKind::cuda, 0};

std::string text_of(const std::function<void()>& action) {
    try {
        action();
    } catch (const Error& error) { return error.what(); }
    return "no error";
}

TEST(Devices, TensorsLieWhereTheContextIs) {
    Context context(1);
    std::vector<float> numbers(64, 1.0F), more(64, 1.0F), results(64, -1.0F), lse(8, 0.0F);
    const Shape shape{1, 2, 4, 8};
    const View q(numbers.data(), shape), k(more.data(), shape);
    const MutableView out(results.data(), shape);
    const View far_k(DType::f32, more.data(), shape, elsewhere);
    const MutableView far_out(DType::f32, results.data(), shape, elsewhere);
    const auto expect = [](const char* begin, const std::string& text) {
        EXPECT_EQ(text, std::string(begin) + ": expected memory on cpu, as the context, got cuda:0");
    };
    expect("[attend] k", text_of([&] { attend(context, q, far_k, k, out); }));
    expect("[attend] out", text_of([&] { attend(context, q, k, k, far_out); }));
    expect("[attend] bias", text_of([&] {
               attend(context, q, k, k, out, {.bias = View(DType::f32, more.data(), {1, 1, 4, 4}, elsewhere)});
           }));
    expect("[attend] alibi_slopes", text_of([&] {
               attend(context, q, k, k, out, {.alibi_slopes = View(DType::f32, more.data(), {2}, elsewhere)});
           }));
    expect("[linear_attend] k", text_of([&] { linear_attend(context, q, far_k, k, out); }));
    const RopeTable table = rope_table({.size = 8});
    expect("[rope] x", text_of([&] { rope(context, far_k, out, table); }));
    expect("[rope] out", text_of([&] { rope(context, k, far_out, table); }));
    expect("[matmul] b", text_of([&] { matmul(context, q, far_k.permute({0, 1, 3, 2}), out.slice(3, 0, 4)); }));
    const View lses(lse.data(), {1, 2, 4});
    expect("[merge] parts[0].out", text_of([&] { merge(context, std::vector<PartialResult>{{far_k, lses}}, out); }));
    expect("[sinusoids] out", text_of([&] {
               sinusoids(context, MutableView(DType::f32, results.data(), {4, 8}, elsewhere));
           }));
    EXPECT_EQ(results, std::vector<float>(64, -1.0F));
}

TEST(Devices, RowsLieWhereTheContextIs) {
    Context context(1);
    std::vector<float> numbers(64, 1.0F), results(64, -1.0F);
    std::vector<std::int64_t> ids(4, 0);
    const Shape shape{8, 8};
    const View x(numbers.data(), shape), far(DType::f32, numbers.data(), shape, elsewhere);
    const MutableView out(results.data(), shape), far_out(DType::f32, results.data(), shape, elsewhere);
    const auto expect = [](const char* begin, const std::string& text) {
        EXPECT_EQ(text, std::string(begin) + ": expected memory on cpu, as the context, got cuda:0");
    };
    expect("[layer_norm] x", text_of([&] { layer_norm(context, far, out); }));
    expect("[rms_norm] out", text_of([&] { rms_norm(context, x, far_out); }));
    expect("[rms_norm] residual", text_of([&] { rms_norm(context, x, out, {.residual = far}); }));
    expect("[rms_norm_backward] dout", text_of([&] { rms_norm_backward(context, x, far, {.dx = out}); }));
    expect("[activate] x", text_of([&] { activate(context, Activation::silu, far, out); }));
    expect("[gated] up", text_of([&] { gated(context, Activation::silu, x, far, out); }));
    expect("[add] b", text_of([&] { add(context, x, far, out); }));
    expect("[fill] out", text_of([&] { fill(context, far_out, 0); }));
    expect("[sum_leading] x", text_of([&] { sum_leading(context, far, out.slice(0, 0, 1)); }));
    expect("[linear] weight", text_of([&] { linear(context, x, far, out); }));
    expect("[linear_backward] dout", text_of([&] { linear_backward(context, x, x, far, {.dx = out}); }));
    const View places(DType::i64, ids.data(), {4}, elsewhere);
    expect("[embedding] table", text_of([&] { embedding(context, View(ids.data(), {4}), far, out.slice(0, 0, 4)); }));
    expect("[embedding] ids", text_of([&] { embedding(context, places, x, out.slice(0, 0, 4)); }));
    const View heads(numbers.data(), {1, 1, 4, 8});
    const MutableView turned(results.data(), {1, 1, 4, 8});
    expect("[rope] positions",
           text_of([&] { rope(context, heads, turned, rope_table({.size = 8}), {.positions = places}); }));
    EXPECT_EQ(results, std::vector<float>(64, -1.0F));
}

}  // namespace
}  // namespace heed
