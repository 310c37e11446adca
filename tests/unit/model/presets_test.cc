#include <gtest/gtest.h>
#include <heed/error.h>
#include <heed/sizes.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

namespace heed {
namespace {

// Totals agree with the published ones, which mostly have two or three digits.
TEST(Presets, Parameters) {
    struct Row {
        const char* name;
        std::int64_t total;
    };
    constexpr auto rows = std::to_array<Row>({{"transformer-base", 63'045'632},
                                              {"transformer-big", 214'171'648},
                                              {"bert-base", 109'482'240},
                                              {"bert-large", 335'141'888},
                                              {"gpt2", 124'439'808},
                                              {"gpt2-medium", 354'823'168},
                                              {"gpt2-large", 774'030'080},
                                              {"gpt2-xl", 1'557'611'200},
                                              {"gpt3-6.7b", 6'658'404'352},
                                              {"gpt3-175b", 174'604'259'328},
                                              {"llama-2-7b", 6'738'415'616},
                                              {"llama-2-13b", 13'015'864'320},
                                              {"llama-2-70b", 68'976'648'192},
                                              {"llama-3-8b", 8'030'261'248},
                                              {"llama-3-70b", 70'553'706'496},
                                              {"llama-3.1-405b", 405'853'388'800},
                                              {"mistral-7b", 7'241'732'096},
                                              {"qwen2.5-0.5b", 494'032'768},
                                              {"qwen2.5-7b", 7'615'616'512},
                                              {"qwen3-0.6b", 596'049'920},
                                              {"qwen3-8b", 8'190'735'360},
                                              {"deepseek-v2-lite", 15'706'484'224},
                                              {"deepseek-v2", 235'741'434'880},
                                              {"deepseek-v3", 671'026'419'200}});
    for (const Row& row : rows) { EXPECT_EQ(parameters(model_preset(row.name)).total, row.total) << row.name; }
}

TEST(Presets, ParametersNearThePublishedRoundNumber) {
    struct Row {
        const char* name;
        double published;
    };
    constexpr auto rows = std::to_array<Row>({{"gpt3-125m", 125e6},
                                              {"gpt3-350m", 356e6},
                                              {"gpt3-760m", 760e6},
                                              {"gpt3-2.7b", 2.65e9},
                                              {"qwen2.5-72b", 72.7e9}});
    for (const Row& row : rows) {
        EXPECT_NEAR(static_cast<double>(parameters(model_preset(row.name)).total) / row.published, 1.0, 0.003)
            << row.name;
    }
}

TEST(Presets, ActiveParameters) {
    struct Row {
        const char* name;
        double with_tables, without_lookup;  // in units of 10^7, as published figures have two decimals in billions
    };
    for (const Row& row :
         {Row{"deepseek-v2-lite", 266, 245}, Row{"deepseek-v2", 2138, 2085}, Row{"deepseek-v3", 3755, 3663}}) {
        const ParameterCount count = parameters(model_preset(row.name));
        EXPECT_EQ(std::round(static_cast<double>(count.active) / 1e7), row.with_tables) << row.name;
        EXPECT_EQ(std::round(static_cast<double>(count.active_without_lookup) / 1e7), row.without_lookup) << row.name;
    }
    const ParameterCount dense = parameters(model_preset("llama-3-8b"));
    EXPECT_EQ(dense.active, dense.total);
    EXPECT_EQ(dense.active_without_lookup, dense.total - dense.embedding);
    const ParameterCount tied = parameters(model_preset("qwen3-0.6b"));
    EXPECT_EQ(tied.active_without_lookup, tied.total);  // the table is also the head
}

TEST(Presets, CacheBytesPerTokenIn16Bits) {
    struct Row {
        const char* name;
        std::int64_t bytes;
    };
    constexpr auto rows = std::to_array<Row>({{"gpt2", 36'864},
                                              {"gpt2-xl", 307'200},
                                              {"gpt3-175b", 4'718'592},
                                              {"llama-2-7b", 524'288},
                                              {"llama-2-13b", 819'200},
                                              {"llama-2-70b", 327'680},
                                              {"llama-3-70b", 327'680},
                                              {"qwen2.5-72b", 327'680},
                                              {"llama-3-8b", 131'072},
                                              {"mistral-7b", 131'072},
                                              {"llama-3.1-405b", 516'096},
                                              {"qwen2.5-7b", 57'344},
                                              {"qwen3-8b", 147'456},
                                              {"deepseek-v2-lite", 31'104},
                                              {"deepseek-v2", 69'120},
                                              {"deepseek-v3", 70'272}});
    for (const Row& row : rows) { EXPECT_EQ(kv_bytes_per_token(model_preset(row.name), 2), row.bytes) << row.name; }
}

TEST(Presets, NamesAreKnownAndUnique) {
    const std::vector<std::string> names = model_presets();
    EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
    for (const std::string& name : names) { EXPECT_EQ(model_preset(name).name, name); }
}

TEST(Presets, UnknownNameGetsTheNearest) {
    try {
        model_preset("lama-3-8b");
        FAIL() << "no error";
    } catch (const Error& error) {
        const std::string text = error.what();
        EXPECT_EQ(text.find("[model_preset] name: expected a preset such as llama-3-8b, "), 0U) << text;
        EXPECT_NE(text.find("got 'lama-3-8b'"), std::string::npos) << text;
    }
    EXPECT_THROW(model_preset(""), Error);
    EXPECT_THROW(model_preset(std::string(1U << 20U, 'x')), Error);
}

}  // namespace
}  // namespace heed
