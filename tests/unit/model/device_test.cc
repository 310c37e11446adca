#include <gtest/gtest.h>

#include <heed/model.h>
#include <heed/train.h>

#include <string>
#include <vector>

namespace heed {
namespace {

constexpr Device absent_gpu{DeviceKind::cuda, 99};

Model tiny_model() {
    return Model::random(read_model_config(R"({"vocab": 11, "d_model": 8, "decoder": {"layers": 1,
        "attention": {"heads": 2}}})"),
                         {.seed = 1});
}

template <class Action>
std::string text_of_refusal(const Action& action) {
    try {
        action();
    } catch (const Error& error) { return error.what(); }
    return "no error";
}

TEST(ModelDevice, AGpuThatIsNotThereChangesNothing) {
    const Model model = tiny_model();
    Context context(1);
    const std::vector<std::int64_t> ids = {1, 2, 3};
    const ForwardInputs inputs{.input_ids = View(ids.data(), {1, 3})};
    const Tensor before = model.forward(context, inputs).logits.clone();
    EXPECT_NE(text_of_refusal([&] { model.to(absent_gpu); }).find("device: expected"), std::string::npos);
    EXPECT_EQ(model.device(), Device{});
    model.to(Device{});
    const Tensor after = model.forward(context, inputs).logits.clone();
    for (std::int64_t n = 0; n < before.elements(); ++n) { EXPECT_EQ(before.as<float>()[n], after.as<float>()[n]); }
}

TEST(ModelDevice, PreparedWeightsAreTheCpus) {
    const Model model = tiny_model();
    Context context(1);
    model.set_weights(context, WeightStorage::int8);
    EXPECT_EQ(text_of_refusal([&] { model.to(absent_gpu); }),
              "[Model::to] device: expected cpu for weights in a form of their own (int8), got cuda:99");
}

TEST(ModelDevice, CachesOfAnAbsentGpuSaySo) {
    for (const CacheStorage storage : {CacheStorage::f32, CacheStorage::i8}) {
        for (const CacheKind kind : {CacheKind::attention, CacheKind::linear}) {
            CacheConfig config{.pages = 4};
            config.device = absent_gpu;
            config.storage = kind == CacheKind::attention ? storage : CacheStorage::f32;
            config.kind = kind;
            const std::string refusal = text_of_refusal([&] { CachePool pool(config); });
            EXPECT_NE(refusal.find("device: expected"), std::string::npos) << refusal;
            EXPECT_NE(refusal.find("cuda:99"), std::string::npos) << refusal;
        }
    }
}

TEST(ModelDevice, Names) {
    EXPECT_EQ(device_named("cpu"), Device{});
    EXPECT_EQ(device_named("cuda"), (Device{DeviceKind::cuda, 0}));
    EXPECT_EQ(device_named("cuda:12"), (Device{DeviceKind::cuda, 12}));
    for (const char* wrong : {"", "gpu", "cuda:", "cuda:-1", "cuda:1x", "cuda:99999", "CPU"}) {
        EXPECT_EQ(text_of_refusal([&] { (void)device_named(wrong); }),
                  std::string("[device_named] name: expected cpu, cuda or cuda:N, got ") + wrong);
    }
}

}  // namespace
}  // namespace heed
