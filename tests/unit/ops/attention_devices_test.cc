#include <gtest/gtest.h>

#include <heed/attention.h>
#include <heed/tensor.h>

namespace heed {
namespace {

std::string message_of(const View& q, const AttentionOptions& options = {}) {
    Context context(1);
    const Tensor kv(DType::f32, {1, 1, 4, 8});
    Tensor out(DType::f32, {1, 1, 4, 8});
    try {
        attend(context, q, kv, kv, out, options);
    } catch (const Error& error) { return error.what(); }
    return "";
}

/// Memory of a GPU is never touched by a call on the CPU: the pointers below belong to nobody.
TEST(AttentionDevices, TensorsLieWhereTheContextWorks) {
    const Device gpu{DeviceKind::cuda, 1};
    void* nowhere = reinterpret_cast<void*>(std::uintptr_t{64});
    EXPECT_EQ(message_of(View(DType::f32, nowhere, {1, 1, 4, 8}, gpu)),
              "[attend] q: expected memory on cpu, as the context, got cuda:1");
    const Tensor q(DType::f32, {1, 1, 4, 8});
    EXPECT_EQ(message_of(q, {.key_lengths = View(DType::i64, nowhere, {1}, gpu)}),
              "[attend] key_lengths: expected memory on cpu, as the context, got cuda:1");
    EXPECT_EQ(message_of(q, {.bias = View(DType::f32, nowhere, {1, 1, 4, 4}, gpu)}),
              "[attend] bias: expected memory on cpu, as the context, got cuda:1");
    EXPECT_EQ(message_of(q), "");
}

}  // namespace
}  // namespace heed
