/// Whole models against transformers: see data/models and make_models.py.
#include <heed/inspect.h>
#include <heed/model.h>
#include <heed/safetensors.h>
#include <heed/search.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

namespace heed::testing {
namespace {

const std::filesystem::path& models_folder() {
    static const std::filesystem::path folder = std::filesystem::path(HEED_TEST_DATA) / "models";
    return folder;
}

std::vector<std::string> model_names() {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(models_folder())) {
        names.push_back(entry.path().filename().string());
    }
    std::ranges::sort(names);
    return names;
}

/// What transformers computed, and from what.
class Expected {
public:
    explicit Expected(const std::string& name)
        : file_(SafetensorsFile::open(models_folder() / name / "expected.safetensors")) {
        for (const char* key : {"input_ids", "attention_mask", "position_ids", "decoder_input_ids"}) {
            if (file_.contains(key)) { inputs_.emplace(key, file_.tensor(key)); }
        }
    }
    View input(const std::string& key) const {
        const auto found = inputs_.find(key);
        return found == inputs_.end() ? View() : View(found->second.view());
    }
    ForwardInputs inputs() const {
        ForwardInputs in;
        in.input_ids = input("input_ids");
        in.attention_mask = input("attention_mask");
        in.position_ids = input("position_ids");
        in.decoder_input_ids = input("decoder_input_ids");
        return in;
    }
    const SafetensorsFile& file() const { return file_; }

    /// Is row t of batch entry b of this tensor one that the mask allows?
    bool compared(const std::string& tensor, std::int64_t b, std::int64_t t) const {
        const bool source = !inputs_.contains("decoder_input_ids") || tensor.starts_with("encoder_");
        const View mask = input("attention_mask");
        return !source || !mask || mask.as<std::int64_t>()[b * mask.extent(1) + t] != 0;
    }

private:
    SafetensorsFile file_;
    std::map<std::string, Tensor> inputs_;
};

/// Largest difference over the rows that count; [B,T,d] or [B,H,T,S].
double difference(const Expected& expected, const std::string& name, const View& got) {
    const Tensor want = expected.file().tensor(name);
    EXPECT_EQ(to_string(want.shape()), to_string(got.shape())) << name;
    if (!(want.shape() == got.shape())) { return INFINITY; }
    const Tensor have = Tensor::copy_of(got);
    const Shape& s = want.shape();
    const int row_axis = s.rank() - 2;
    double most = 0;
    for (std::int64_t i = 0; i < want.elements(); ++i) {
        std::int64_t rest = i / s[s.rank() - 1];
        const std::int64_t t = rest % s[row_axis];
        rest /= s[row_axis];
        if (!expected.compared(name, s.rank() == 4 ? rest / s[1] : rest, t)) { continue; }
        const double each = std::abs(static_cast<double>(want.as<float>()[i]) - have.as<float>()[i]);
        most = std::max(most, std::isnan(each) ? INFINITY : each);
    }
    return most;
}

class Models : public ::testing::TestWithParam<std::string> {
protected:
    Context context_{2};
    Model model_ = Model::load(models_folder() / GetParam());
    Expected expected_{GetParam()};
};

void compare_forward(Context& context, const Model& model, const Expected& expected, const std::string& kernel) {
    const ForwardResult result =
        model.forward(context, expected.inputs(), {.hidden = true, .attention = true, .kernel = kernel});
    std::size_t compared = 0;
    for (const NamedView& each : result.named()) {
        EXPECT_TRUE(expected.file().contains(each.name)) << each.name;
        EXPECT_LT(difference(expected, each.name, each.view), 2e-4) << each.name << " " << kernel;
        ++compared;
    }
    for (const std::string& name : expected.file().names()) {
        const bool output = name == "logits" || name == "encoder_last_hidden_state" || name.starts_with("hidden.") ||
                            (!name.starts_with("grad.") && name.find("attention.") != std::string::npos);
        compared -= output ? 1 : 0;
    }
    EXPECT_EQ(compared, 0U) << "as many tensors as transformers gave";
}

TEST_P(Models, LogitsHiddenStatesAndAttention) {
    EXPECT_TRUE(model_.unused_tensors().empty()) << model_.unused_tensors().front();
    compare_forward(context_, model_, expected_, "");
    compare_forward(context_, model_, expected_, "reference");
}

/// Weights that are computed afterwards from queries and keys that were kept are those of the pass.
void compare_inputs(Context& context, const std::vector<AttentionInputs>& inputs, const std::vector<Tensor>& weights) {
    ASSERT_EQ(inputs.size(), weights.size());
    for (std::size_t layer = 0; layer < inputs.size(); ++layer) {
        Tensor again = Tensor::uninitialised(DType::f32, weights[layer].shape());
        attention_weights(context, inputs[layer].q, inputs[layer].k, again.view(), {}, inputs[layer].options);
        for (std::int64_t i = 0; i < again.elements(); ++i) {
            ASSERT_EQ(again.as<float>()[i], weights[layer].as<float>()[i]) << "layer " << layer << " at " << i;
        }
    }
}

TEST_P(Models, WeightsFollowFromQueriesAndKeys) {
    const ForwardResult result =
        model_.forward(context_, expected_.inputs(), {.attention = true, .attention_inputs = true});
    compare_inputs(context_, result.attention_inputs.self, result.attention);
    compare_inputs(context_, result.attention_inputs.encoder, result.encoder_attention);
    compare_inputs(context_, result.attention_inputs.decoder, result.decoder_attention);
    compare_inputs(context_, result.attention_inputs.cross, result.cross_attention);
}

TEST_P(Models, GreedyAndBeamTokenForToken) {
    for (const std::string& name : expected_.file().names()) {
        if (name != "greedy" && !name.starts_with("beam")) { continue; }
        const Tensor want = expected_.file().tensor(name);
        const View ids = expected_.input("input_ids").slice(0, 0, 1), mask = expected_.input("attention_mask");
        const bool decoder = model_.config().kind == ModelKind::decoder;
        SearchOptions options;
        options.max_new_tokens = want.shape()[1] - (decoder ? ids.extent(1) : 1);
        options.min_new_tokens = options.max_new_tokens;
        options.num_beams = name == "greedy" ? 1 : std::stoll(name.substr(4));
        options.early_stopping = EarlyStopping::yes;
        const Tensor got = search_rows(context_, model_, ids, mask ? mask.slice(0, 0, 1) : View(), options);
        ASSERT_EQ(to_string(want.shape()), to_string(got.shape())) << name;
        for (std::int64_t i = 0; i < want.elements(); ++i) {
            ASSERT_EQ(want.as<std::int64_t>()[i], got.as<std::int64_t>()[i]) << name << " at " << i;
        }
    }
}

TEST_P(Models, LossAndGradients) {
    if (!expected_.file().contains("loss")) { GTEST_SKIP() << "no gradients in this file"; }
    ForwardInputs in;
    in.input_ids = expected_.input("input_ids").slice(0, 0, 1);
    const View mask = expected_.input("attention_mask");
    if (mask) { in.attention_mask = mask.slice(0, 0, 1); }
    const View target = expected_.input("decoder_input_ids");
    const View labels = target ? target.slice(0, 0, 1) : in.input_ids;
    for (const bool recompute : {false, true}) {
        model_.parameters().clear_gradients();
        Tape tape(context_);
        LossOptions options;
        options.forward.recompute = recompute;
        const Value loss = model_.loss(tape, in, labels, options);
        tape.backward(loss);
        const double want = expected_.file().tensor("loss").as<float>()[0];
        EXPECT_NEAR(loss.view().as<float>()[0], want, 1e-4 * want);
        std::size_t gradients = 0;
        for (const std::string& name : expected_.file().names()) {
            if (!name.starts_with("grad.")) { continue; }
            ++gradients;
            const Parameter* parameter = model_.parameters().find(name.substr(5));
            ASSERT_NE(parameter, nullptr) << name;
            const Tensor reference = expected_.file().tensor(name);
            ASSERT_EQ(to_string(reference.shape()), to_string(parameter->value.shape())) << name;
            double most = 0, apart = 0;
            for (std::int64_t i = 0; i < reference.elements(); ++i) {
                const double x = reference.as<float>()[i];
                const double y = parameter->gradient ? parameter->gradient.as<float>()[i] : 0;
                most = std::max(most, std::abs(x));
                apart = std::max(apart, std::abs(x - y));
            }
            EXPECT_LE(apart, 1e-3 * most + 1e-6) << name << (recompute ? " recomputed" : "");
        }
        EXPECT_GT(gradients, 3U);
    }
}

INSTANTIATE_TEST_SUITE_P(Golden, Models, ::testing::ValuesIn(model_names()), [](const auto& chosen) {
    std::string name = chosen.param;
    std::ranges::replace(name, '-', '_');
    return name;
});

}  // namespace
}  // namespace heed::testing
