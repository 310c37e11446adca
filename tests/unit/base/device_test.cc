#include <gtest/gtest.h>

#include <heed/context.h>
#include <heed/device.h>
#include <heed/error.h>
#include <heed/tensor.h>

#include <string>
#include <vector>

namespace heed {
namespace {

constexpr Device gpu{DeviceKind::cuda, 1};

template <class Action>
std::string text_of_error(Action action) {
    try {
        action();
    } catch (const Error& error) { return error.what(); }
    return "no error";
}

TEST(Device, IsAPlainValueWithAName) {
    EXPECT_EQ(to_string(Device{}), "cpu");
    EXPECT_EQ(to_string(gpu), "cuda:1");
    EXPECT_EQ(Device{}, (Device{DeviceKind::cpu, 0}));
    EXPECT_FALSE(gpu == (Device{DeviceKind::cuda, 0}));
    ASSERT_FALSE(devices().empty());
    EXPECT_EQ(devices()[0], Device{});
}

TEST(Device, ViewsKeepTheirsAndAreNoLarger) {
    struct WithoutDevice {
        const void* data;
        DType dtype;
        bool present;
        Shape shape, strides;
    };
    static_assert(sizeof(View) == sizeof(WithoutDevice));
    float numbers[24] = {};
    EXPECT_EQ(View(numbers, {2, 3, 4}).device(), Device{});
    EXPECT_EQ(View().device(), Device{});
    const MutableView on_gpu(DType::f32, numbers, {2, 3, 4}, gpu);
    EXPECT_EQ(on_gpu.device(), gpu);
    EXPECT_EQ(on_gpu.permute({2, 0, 1}).device(), gpu);
    EXPECT_EQ(on_gpu.slice(1, 1, 2).device(), gpu);
    EXPECT_EQ(View(on_gpu).device(), gpu);
    EXPECT_EQ(View(DType::f32, numbers, {2}, {1}, gpu).device(), gpu);
}

TEST(Device, ContextsOfTheCpuHaveNoStream) {
    Context context(2);
    EXPECT_EQ(context.device(), Device{});
    EXPECT_EQ(context.stream(), nullptr);
    context.synchronise();
    EXPECT_EQ(text_of_error([&] { context.set_stream(nullptr); }),
              "[Context::set_stream] stream: expected a context on a GPU, got one on the CPU");
    EXPECT_GE(Context(Device{}).threads(), 1);
    int somewhere = 0;
    EXPECT_EQ(text_of_error([&] { Context on_cpu(Device{}, &somewhere); }),
              "[Context] stream: expected none on the CPU, got one");
    EXPECT_EQ(text_of_error([] {
                  Context second(Device{DeviceKind::cpu, 1});
              }),
              "[Context] device: expected cpu, got cpu:1");
}

TEST(Device, OneThatIsNotThereIsRefusedByName) {
    const Device last{DeviceKind::cuda, 99};
    for (const std::string& text : {text_of_error([&] { Context context(last); }), text_of_error([&] {
                                        Tensor tensor(DType::f32, {2, 2}, last);
                                    }),
                                    text_of_error([&] {
                                        (void)Tensor(DType::f32, {2, 2}).to(last);
                                    })}) {
        EXPECT_NE(text.find("device: expected "), std::string::npos) << text;
        EXPECT_NE(text.find(", got cuda:99"), std::string::npos) << text;
    }
}

TEST(Copy, BetweenViewsOfTheCpu) {
    Context context(1);
    Tensor from(DType::f32, {2, 3});
    for (int n = 0; n < 6; ++n) { from.as<float>()[n] = static_cast<float>(n); }
    EXPECT_EQ(from.device(), Device{});
    Tensor to(DType::f32, {3, 2});
    copy(context, from.view().permute({1, 0}), to);
    EXPECT_EQ(std::vector<float>(to.as<float>(), to.as<float>() + 6), (std::vector<float>{0, 3, 1, 4, 2, 5}));
    copy(context, to, from.view().permute({1, 0}));
    EXPECT_EQ(from.as<float>()[4], 4);
    const Tensor again = from.to(Device{});
    EXPECT_EQ(again.as<float>()[5], 5);
}

TEST(Copy, RefusesWhatDoesNotFit) {
    Context context(1);
    Tensor a(DType::f32, {2, 3}), b(DType::f64, {2, 3}), c(DType::f32, {3, 2});
    EXPECT_EQ(text_of_error([&] { copy(context, {}, a); }), "[copy] from: expected a tensor, got none");
    EXPECT_EQ(text_of_error([&] { copy(context, a, {}); }), "[copy] to: expected a tensor, got none");
    EXPECT_EQ(text_of_error([&] { copy(context, a, b); }), "[copy] to: expected f32, got f64");
    EXPECT_EQ(text_of_error([&] { copy(context, a, c); }), "[copy] to: expected [2, 3], got [3, 2]");
    EXPECT_EQ(text_of_error([&] { copy(context, a, a); }),
              "[copy] to: expected memory apart from from, got an overlap");
    EXPECT_EQ(text_of_error([&] {
                  copy(context, a, MutableView(DType::f32, a.data(), {2, 3}, gpu));
              }),
              "[copy] context: expected one on cuda:1, where the memory is, got one on cpu");
}

}  // namespace
}  // namespace heed
