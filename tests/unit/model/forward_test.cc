/// What a forward pass lets one see and change: heads with factors, early logits, the last tokens alone.
#include <heed/model.h>

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace heed {
namespace {

/// d_model 12, 2 layers, vocabulary 11.
std::string decoder_with(const std::string& attention) {
    return R"({"model_type": "heed", "kind": "decoder", "vocab": 11, "d_model": 12, "decoder": {"layers": 2,
        "attention": {)" +
           attention + R"(}, "feed_forward": {"size": 10}, "positions": {"kind": "rope"}}})";
}

const std::string three_heads = R"("heads": 3, "head_size": 4)";

struct ForwardCase {
    std::string name;
    std::string attention;
    std::int64_t heads;
};

std::vector<ForwardCase> forward_cases() {
    return {{"mha", three_heads, 3},
            {"gqa", R"("heads": 4, "kv_heads": 2, "head_size": 6)", 4},
            {"mla", R"("heads": 2, "latent": {"kv_rank": 5, "nope_size": 4, "rope_size": 2, "value_size": 3})", 2},
            {"linear", R"("heads": 2, "core": "linear")", 2},
            {"gated", R"("heads": 2, "core": "gated", "decay_rows": true)", 2},
            {"gated_delta", R"("heads": 2, "value_heads": 4, "core": "gated_delta", "output_gate": true)", 4},
            {"infini", R"("heads": 2, "core": "infini", "segment": 3)", 2}};
}

const std::vector<std::int64_t> text = {1, 5, 2, 7, 3, 3, 10};
View as_row(const std::vector<std::int64_t>& ids) {
    return View(ids.data(), {1, static_cast<std::int64_t>(ids.size())});
}

Model with_zeros(const Model& model, const std::string& name, std::int64_t begin, std::int64_t end) {
    const Parameter* old = model.parameters().find(name);
    EXPECT_NE(old, nullptr) << name;
    Tensor value = Tensor::copy_of(old->value);
    const std::int64_t columns = value.shape()[1];
    for (std::int64_t i = 0; i < value.elements(); ++i) {
        if (i % columns >= begin && i % columns < end) { value.as<double>()[i] = 0; }
    }
    model.assign(name, value);
    return model;
}

Model random_model(const std::string& attention) {
    return Model::random(read_model_config(decoder_with(attention)), {.seed = 3, .dtype = DType::f64});
}

double largest_difference(const Tensor& a, const Tensor& b) {
    EXPECT_EQ(to_string(a.shape()), to_string(b.shape()));
    double most = 0;
    for (std::int64_t i = 0; i < a.elements(); ++i) {
        most = std::max(most, std::abs(a.as<double>()[i] - b.as<double>()[i]));
    }
    return most;
}

class ForwardHeads : public ::testing::TestWithParam<ForwardCase> {};
INSTANTIATE_TEST_SUITE_P(Kinds, ForwardHeads, ::testing::ValuesIn(forward_cases()),
                         [](const auto& given) { return given.param.name; });

/// A head that is off is one whose columns of the output projection are zero.
TEST_P(ForwardHeads, OffIsAColumnOfZeros) {
    Context context(2);
    const std::int64_t heads = GetParam().heads;
    const std::string out = "decoder.layers.1.attention.out.weight";
    Tensor factors(DType::f32, {2, heads});
    for (std::int64_t i = 0; i < factors.elements(); ++i) { factors.as<float>()[i] = 1; }
    const Model model = random_model(GetParam().attention);
    const ForwardInputs inputs{.input_ids = as_row(text)};
    const Tensor plain = model.forward(context, inputs).logits.clone();
    const Tensor ones = model.forward(context, inputs, {.head_factors = {.self = factors}}).logits.clone();
    EXPECT_EQ(largest_difference(plain, ones), 0);
    factors.as<float>()[heads + 1] = 0;
    const Tensor off = model.forward(context, inputs, {.head_factors = {.self = factors}}).logits.clone();
    EXPECT_GT(largest_difference(plain, off), 1e-5);
    const std::int64_t size = model.parameters().find(out)->value.shape()[1] / heads;
    const Model changed = with_zeros(model, out, size, 2 * size);
    EXPECT_LT(largest_difference(changed.forward(context, inputs).logits, off), 1e-12);
}

/// Factors between 0 and 1 scale, and the way back knows them.
TEST(ForwardOptions, HalfAHeadHasHalfItsGradient) {
    Context context(1);
    const Model model = random_model(three_heads);
    Tensor factors(DType::f64, {2, 3});
    for (std::int64_t i = 0; i < 6; ++i) { factors.as<double>()[i] = 1; }
    const auto gradient = [&](double factor) {
        factors.as<double>()[5] = factor;
        model.parameters().clear_gradients();
        Tape tape(context);
        LossOptions options;
        options.forward.head_factors.self = factors;
        const Value loss = model.loss(tape, {.input_ids = as_row(text)}, as_row(text), options);
        tape.backward(loss);
        return model.parameters().find("decoder.layers.1.attention.out.weight")->gradient.clone();
    };
    const Tensor none = gradient(0);
    const Tensor half = gradient(0.5);
    double last_none = 0, last_half = 0;
    for (std::int64_t i = 0; i < none.elements(); ++i) {
        if (i % 12 < 8) { continue; }
        last_none += std::abs(none.as<double>()[i]);
        last_half += std::abs(half.as<double>()[i]);
    }
    EXPECT_EQ(last_none, 0);
    EXPECT_GT(last_half, 0);
}

TEST(ForwardOptions, WrongFactorsAreRefused) {
    Context context(1);
    const Model model = random_model(three_heads);
    const ForwardInputs inputs{.input_ids = as_row(text)};
    const Tensor narrow(DType::f32, {2, 2}), whole(DType::i64, {2, 3}), right(DType::f32, {2, 3});
    EXPECT_THROW(model.forward(context, inputs, {.head_factors = {.self = narrow}}), Error);
    EXPECT_THROW(model.forward(context, inputs, {.head_factors = {.self = whole}}), Error);
    EXPECT_THROW(model.forward(context, inputs, {.head_factors = {.cross = right}}), Error);
    EXPECT_THROW(model.forward(context, inputs, {.hidden_last = -1}), Error);
}

/// Behind layer 1 the head says what the model would say if layer 2 added nothing.
TEST(ForwardOptions, EarlyLogitsAreThoseOfAModelWhoseLastLayerAddsNothing) {
    Context context(2);
    const Model model = random_model(three_heads);
    const ForwardInputs inputs{.input_ids = as_row(text)};
    const ForwardResult result = model.forward(context, inputs, {.hidden = true});
    Tape tape(context, {.record = false});
    const Value early = model.early_logits(tape, tape.constant(result.hidden[1].view()));
    const Tensor lens = Tensor::copy_of(early);
    EXPECT_GT(largest_difference(lens, result.logits), 1e-5);
    with_zeros(model, "decoder.layers.1.attention.out.weight", 0, 1 << 20);
    with_zeros(model, "decoder.layers.1.feed_forward.down.weight", 0, 1 << 20);
    EXPECT_LT(largest_difference(lens, model.forward(context, inputs).logits), 1e-12);
}

TEST(ForwardOptions, HiddenOfTheLastTokens) {
    Context context(2);
    const Model model = random_model(three_heads);
    const ForwardInputs inputs{.input_ids = as_row(text)};
    const ForwardResult all = model.forward(context, inputs, {.hidden = true});
    const ForwardResult last = model.forward(context, inputs, {.hidden = true, .hidden_last = 2});
    ASSERT_EQ(all.hidden.size(), last.hidden.size());
    for (std::size_t layer = 0; layer < all.hidden.size(); ++layer) {
        EXPECT_EQ(largest_difference(Tensor::copy_of(all.hidden[layer].view().slice(1, 5, 7)), last.hidden[layer]), 0);
    }
    EXPECT_EQ(model.forward(context, inputs, {.hidden = true, .hidden_last = 99}).hidden[0].shape()[1], 7);
}

/// Layers without weights leave nothing behind; the others do.
TEST(ForwardOptions, LinearLayersHaveNoQueriesToShow) {
    Context context(1);
    const Model model = random_model(R"("heads": 2, "core": "linear")");
    const ForwardResult result = model.forward(context, {.input_ids = as_row(text)}, {.attention_inputs = true});
    ASSERT_EQ(result.attention_inputs.self.size(), 2U);
    EXPECT_FALSE(result.attention_inputs.self[0]);
}

}  // namespace
}  // namespace heed
