/// Memory of one device, a context of another: refused by name, before anybody looks at the memory.

#include <gtest/gtest.h>

#include <heed/attention.h>
#include <heed/error.h>
#include <heed/linear_attention.h>
#include <heed/matmul.h>
#include <heed/merge.h>
#include <heed/mla.h>
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

}  // namespace
}  // namespace heed
