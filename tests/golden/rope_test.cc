/// Rotary tables against those of other software: see data/rope.json.
#include <heed/positions.h>

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

namespace heed::testing {
namespace {

using nlohmann::json;

json cases() {
    std::ifstream file(std::string(HEED_TEST_DATA) + "/rope.json");
    EXPECT_TRUE(file.good()) << "tests/golden/data/rope.json";
    return json::parse(file);
}

/// The case as a config.json in either spelling.
json config_of(const json& entry, bool new_spelling) {
    json config = {{"model_type", "llama"},
                   {"head_dim", entry["head_dim"]},
                   {"hidden_size", 1024},
                   {"num_attention_heads", 8},
                   {"max_position_embeddings", entry["max_position_embeddings"]}};
    json parameters = entry["parameters"];
    if (new_spelling) {
        config["rope_parameters"] = parameters;
        return config;
    }
    config["rope_theta"] = parameters["rope_theta"];
    parameters.erase("rope_theta");
    parameters["type"] = parameters["rope_type"];
    parameters.erase("rope_type");
    config["rope_scaling"] = parameters["type"] == "default" ? json(nullptr) : parameters;
    return config;
}

TEST(RopeGolden, EveryTableMatchesInBothSpellings) {
    const json entries = cases();
    ASSERT_EQ(entries.size(), 16U);
    for (std::size_t n = 0; n < entries.size(); ++n) {
        const json& entry = entries[n];
        for (const bool new_spelling : {true, false}) {
            SCOPED_TRACE("entry " + std::to_string(n) + " " + entry["parameters"].dump().substr(0, 120));
            const RopeConfig config = rope_from_config(config_of(entry, new_spelling).dump());
            ASSERT_EQ(config.kinds.size(), 1U);
            const std::int64_t length = entry["seq_len"].is_null() ? 0 : entry["seq_len"].get<std::int64_t>();
            const RopeTable table = rope_table(config.kinds[0].rope, length);
            const auto expected = entry["inv_freq"].get<std::vector<double>>();
            ASSERT_EQ(table.frequencies.size(), expected.size());
            for (std::size_t i = 0; i < expected.size(); ++i) {
                EXPECT_NEAR(table.frequencies[i] / expected[i], 1, 1e-6) << "pair " << i;
            }
            EXPECT_NEAR(table.attention_factor, entry["attention_factor"].get<double>(), 1e-12);
        }
    }
}

}  // namespace
}  // namespace heed::testing
