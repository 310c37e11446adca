/// Every model type whose rotation is known against what transformers' own code does: see data/rope_types.json and
/// make_rope_types.py beside it.
#include <heed/error.h>
#include <heed/positions.h>

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

namespace heed::testing {
namespace {

using nlohmann::json;

json stored_types() {
    std::ifstream file(std::string(HEED_TEST_DATA) + "/rope_types.json");
    EXPECT_TRUE(file.good()) << "tests/golden/data/rope_types.json";
    return json::parse(file);
}

void expect_rope(const LayerRope& layer, const json& expected, double position) {
    SCOPED_TRACE(layer.layer_type);
    const RopeTable table = rope_table(layer.rope);
    EXPECT_EQ(layer.rope.size, expected["size"]);
    EXPECT_EQ(layer.rope.pairing == Pairing::halves ? "halves" : "interleaved", expected["pairing"]);
    EXPECT_NEAR(table.attention_factor, expected["attention_factor"], 2e-6);
    for (const auto& [pair, turn] : expected["turns"].items()) {
        const auto n = static_cast<std::size_t>(std::stoul(pair));
        ASSERT_LT(n, table.frequencies.size());
        EXPECT_NEAR(std::cos(position * table.frequencies[n]), turn[0], 2e-5) << pair;
        EXPECT_NEAR(std::sin(position * table.frequencies[n]), turn[1], 2e-5) << pair;
    }
}

void expect_answer(const json& config, const json& ropes, double position) {
    RopeConfig answer{};
    ASSERT_NO_THROW(answer = rope_from_config(config.dump()));
    for (const json& rope : ropes) {  // of the kinds that the model has; its file may speak of more
        bool found = false;
        for (const LayerRope& layer : answer.kinds) {
            if (rope["layer_type"] != layer.layer_type) { continue; }
            expect_rope(layer, rope, position);
            found = true;
        }
        EXPECT_TRUE(found) << rope["layer_type"];
    }
}

TEST(RopeTypes, EveryKnownTypeTurnsAsInTransformers) {
    const json file = stored_types();
    ASSERT_GT(file["types"].size(), 150U);
    for (const auto& [type, entry] : file["types"].items()) {
        SCOPED_TRACE(type);
        expect_answer(entry["config"], entry["rope"], file["position"]);
        // As the text part of a larger model.
        expect_answer({{"model_type", "something_larger"}, {"text_config", entry["config"]}}, entry["rope"],
                      file["position"]);
    }
}

/// transformers then takes what its class for the type says: the same, or an error.
TEST(RopeTypes, FilesThatLeaveTheirSettingsOut) {
    const json file = stored_types();
    std::size_t answered = 0;
    for (const auto& [type, entry] : file["types"].items()) {
        SCOPED_TRACE(type);
        json config = entry["config"];
        for (const char* key : {"rope_parameters", "rope_theta", "rope_scaling", "partial_rotary_factor"}) {
            config.erase(key);
        }
        try {
            static_cast<void>(rope_from_config(config.dump()));
        } catch (const Error&) { continue; }
        expect_answer(config, entry["rope"], file["position"]);
        ++answered;
    }
    EXPECT_GT(answered, 100U);
}

}  // namespace
}  // namespace heed::testing
