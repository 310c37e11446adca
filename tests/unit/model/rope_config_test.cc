/// Rotary settings from config.json: files of transformers 5, older spellings, layers of two kinds, hostile text.
#include <heed/error.h>
#include <heed/positions.h>

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

namespace heed::testing {
namespace {

using namespace rope_scaling;

std::string stored(const std::string& name) {
    std::ifstream file(std::string(HEED_TEST_DATA) + "/configs/" + name + ".json");
    EXPECT_TRUE(file.good()) << name;
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

std::string error_of(const std::string& json) {
    try {
        static_cast<void>(rope_from_config(json));
    } catch (const Error& error) { return error.what(); }
    return "";
}

/// A Llama of head size 8 with more keys.
std::string llama(const std::string& more) {
    return R"({"model_type":"llama","hidden_size":32,"num_attention_heads":4,"max_position_embeddings":128)" +
           (more.empty() ? "" : "," + more) + "}";
}

const Rope& only(const RopeConfig& config) {
    EXPECT_EQ(config.kinds.size(), 1U);
    EXPECT_EQ(config.kinds.at(0).layer_type, "");
    return config.kinds.at(0).rope;
}

TEST(RopeConfig, FilesOfTransformers) {
    const RopeConfig llama_file = rope_from_config(stored("llama"));
    EXPECT_EQ(name_of(only(llama_file).scaling), "none");
    EXPECT_EQ(only(llama_file).size, llama_file.head_size);
    EXPECT_EQ(only(llama_file).pairing, Pairing::halves);

    const Rope yarn = only(rope_from_config(stored("llama-yarn")));
    ASSERT_TRUE(std::holds_alternative<Yarn>(yarn.scaling));
    EXPECT_EQ(std::get<Yarn>(yarn.scaling).factor, 4);
    EXPECT_EQ(std::get<Yarn>(yarn.scaling).trained, 16);

    const Rope llama3 = only(rope_from_config(stored("llama-llama3")));
    ASSERT_TRUE(std::holds_alternative<Llama3>(llama3.scaling));
    EXPECT_EQ(llama3.theta, 500000);
    EXPECT_EQ(std::get<Llama3>(llama3.scaling).trained, 32);

    EXPECT_EQ(name_of(only(rope_from_config(stored("llama-linear"))).scaling), "linear");
    EXPECT_EQ(name_of(only(rope_from_config(stored("llama-dynamic"))).scaling), "dynamic");
    for (const char* name : {"mistral-window", "qwen2", "qwen3", "gemma2-softcap"}) {
        EXPECT_EQ(only(rope_from_config(stored(name))).pairing, Pairing::halves) << name;
    }
    for (const char* name : {"deepseek-v2-mla", "deepseek-v3-mla"}) {
        const Rope rope = only(rope_from_config(stored(name)));
        EXPECT_EQ(rope.size, 8) << name;
        EXPECT_EQ(rope.pairing, Pairing::interleaved) << name;
    }
    const RopeConfig neox = rope_from_config(stored("gpt-neox"));
    EXPECT_EQ(only(neox).size, neox.head_size / 4);
    for (const char* name : {"gpt2", "bert", "bloom-alibi", "t5", "bart", "marian"}) {
        EXPECT_NE(error_of(stored(name)).find("rotary positions"), std::string::npos) << name;
    }
}

TEST(RopeConfig, OlderSpellings) {
    EXPECT_EQ(only(rope_from_config(llama(""))).theta, 10000);  // the first Llama's files say nothing at all
    EXPECT_EQ(only(rope_from_config(llama(R"("rope_theta":5e5,"rope_scaling":null)"))).theta, 500000);
    const RopeConfig linear = rope_from_config(llama(R"("rope_scaling":{"type":"linear","factor":4.0})"));
    EXPECT_EQ(std::get<Linear>(only(linear).scaling).factor, 4);
    EXPECT_EQ(linear.max_positions, 128);
    const Rope dynamic = only(rope_from_config(llama(R"("rope_scaling":{"rope_type":"dynamic","factor":2})")));
    EXPECT_EQ(std::get<DynamicNtk>(dynamic.scaling).trained, 128);
    // No factor: the longest length over the trained one.
    const Rope yarn = only(rope_from_config(llama(
        R"("rope_scaling":{"type":"yarn","original_max_position_embeddings":32,"finetuned":true,"truncate":false})")));
    EXPECT_EQ(std::get<Yarn>(yarn.scaling).factor, 4);
    EXPECT_FALSE(std::get<Yarn>(yarn.scaling).truncate);
    // Phi-3 keeps the trained length at the top, and called the type su.
    const Rope su = only(rope_from_config(llama(
        R"("original_max_position_embeddings":64,"rope_scaling":{"type":"su","short_factor":[1,1,1,1],"long_factor":[2,2,2,2]})")));
    EXPECT_EQ(std::get<LongRope>(su.scaling).trained, 64);
    EXPECT_EQ(std::get<LongRope>(su.scaling).factor, 2);
    const Rope neox = only(rope_from_config(
        R"({"model_type":"gpt_neox","hidden_size":64,"num_attention_heads":4,"rotary_pct":0.25,"rotary_emb_base":20000})"));
    EXPECT_EQ(neox.size, 4);
    EXPECT_EQ(neox.theta, 20000);
    const Rope gptj = only(rope_from_config(R"({"model_type":"gptj","n_embd":64,"n_head":4,"rotary_dim":8})"));
    EXPECT_EQ(gptj.size, 8);
    EXPECT_EQ(gptj.pairing, Pairing::interleaved);
    EXPECT_EQ(only(rope_from_config(llama(R"("partial_rotary_factor":0.5)"))).size, 4);
}

TEST(RopeConfig, TwoKindsOfLayers) {
    const RopeConfig nested = rope_from_config(llama(
        R"("layer_types":["sliding_attention","full_attention"],"rope_parameters":{
            "full_attention":{"rope_type":"linear","factor":8.0,"rope_theta":1000000.0},
            "sliding_attention":{"rope_type":"default","rope_theta":10000.0}})"));
    ASSERT_EQ(nested.kinds.size(), 2U);
    EXPECT_EQ(nested.layer_types, (std::vector<std::string>{"sliding_attention", "full_attention"}));
    // The older spelling of the same.
    const RopeConfig flat = rope_from_config(llama(
        R"("rope_theta":1000000.0,"rope_local_base_freq":10000.0,"rope_scaling":{"rope_type":"linear","factor":8.0})"));
    ASSERT_EQ(flat.kinds.size(), 2U);
    for (std::size_t n = 0; n < 2; ++n) {
        EXPECT_EQ(flat.kinds[n].layer_type, nested.kinds[n].layer_type);
        EXPECT_EQ(rope_table(flat.kinds[n].rope), rope_table(nested.kinds[n].rope));
    }
    EXPECT_EQ(nested.kinds[1].rope.theta, 10000);
    // The text model of a larger one; a type that leaves the tail of a head still.
    const RopeConfig part = rope_from_config(
        R"({"model_type":"gemma3","text_config":)" +
        llama(
            R"("rope_parameters":{"full_attention":{"rope_type":"proportional","partial_rotary_factor":0.25,"rope_theta":1e6}})") +
        "}");
    EXPECT_EQ(part.kinds.at(0).rope.size, 8);
    EXPECT_EQ(rope_table(part.kinds.at(0).rope).frequencies, (std::vector<double>{1, 0, 0, 0}));
}

TEST(RopeConfig, RefusesByName) {
    const auto refused = [](const std::string& more, const std::string& start) {
        const std::string text = error_of(llama(more));
        EXPECT_TRUE(text.starts_with("[rope_from_config] " + start)) << text;
    };
    refused(R"("rope_scaling":{"type":"magic"})", "rope_scaling.rope_type: expected default, linear,");
    refused(R"("rope_scaling":{"type":"linear","factor":0})",
            "rope_scaling.rope_type linear: [rope_table] linear.factor:");
    refused(R"("rope_scaling":{"type":"linear","factor":"4"})", "rope_scaling.factor: expected a number, got \"4\"");
    refused(R"("rope_scaling":{"type":"linear"})", "rope_scaling.factor: expected a number, got no such key");
    refused(R"("rope_scaling":{"type":"linear","rope_type":"yarn","factor":2})",
            "rope_scaling.type: expected the same");
    refused(R"("rope_scaling":{"type":7})", "rope_scaling.type: expected a string, got 7");
    refused(R"("rope_scaling":[])", "rope_scaling: expected an object or null, got []");
    refused(R"("rope_scaling":{"type":"default","mrope_section":[1,2]})", "rope_scaling.\"mrope_section\": expected");
    refused(R"("rope_scaling":{"type":"llama3","factor":8,"low_freq_factor":1,"high_freq_factor":4})",
            "rope_scaling.original_max_position_embeddings: expected a length, got no such key");
    refused(R"("rope_scaling":{"type":"longrope","factor":2,"short_factor":[1],"long_factor":[1,1,1,1]})",
            "rope_scaling.rope_type longrope: [rope_table] longrope.short_factors: expected 4 numbers");
    refused(R"("rope_scaling":{"type":"longrope","factor":2,"short_factor":[1,"a"],"long_factor":[1]})",
            "rope_scaling.short_factor: expected a list of numbers, got \"a\" in it");
    refused(R"("rope_scaling":{"type":"yarn","factor":2,"original_max_position_embeddings":-5})",
            "rope_scaling.original_max_position_embeddings: expected a whole number from 1");
    refused(R"("rope_scaling":{"type":"yarn","factor":2,"original_max_position_embeddings":1e300})",
            "rope_scaling.original_max_position_embeddings: expected a whole number from 1");
    refused(R"("rope_theta":0)", "rope_type default: [rope_table] rope.theta: expected a positive number, got 0");
    refused(R"("rope_theta":"big")", "rope_theta: expected a number, got \"big\"");
    refused(R"("rope_theta":1,"rope_theta":2)", "json: expected every key once, got \"rope_theta\" twice");
    refused(R"("rope_scaling":{"factor":1,"factor":2})", "json: expected every key once, got \"factor\" twice");
    refused(R"("head_dim":7)", "head_dim: expected an even number of rotated numbers, 2 or more, got 7");
    refused(R"("partial_rotary_factor":1.5)", "partial_rotary_factor: expected more than 0, up to 1, got 1.5");
    refused(R"("rotary_dim":10)", "rotary_dim: expected an even number up to the head size 8, got 10");
    refused(R"("rope_local_base_freq":-1)", "rope_local_base_freq: expected a positive number");
    refused(R"("rope_parameters":{"rope_type":"default"},"rope_scaling":{"type":"linear","factor":2})",
            "rope_scaling: expected none beside rope_parameters");
    refused(R"("rope_parameters":{"middle_attention":{}})",
            "rope_parameters.\"middle_attention\": expected a kind of layer");
    refused(R"("layer_types":[1])", "layer_types: expected a list of strings, got 1 in it");
}

TEST(RopeConfig, KnowsOnlyTypesThatWereChecked) {
    const auto of_type = [](const std::string& type) {
        return R"({"model_type":")" + type + R"(","head_dim":64,"rope_theta":1e4})";
    };
    EXPECT_EQ(only(rope_from_config(of_type("glm"))).pairing, Pairing::interleaved);
    EXPECT_EQ(only(rope_from_config(of_type("glm"))).size, 32);  // half of a head, unless the file says otherwise
    EXPECT_EQ(error_of(of_type("glimmer_7")),
              "[rope_from_config] model_type: expected a type whose rotation was checked against transformers, got "
              "\"glimmer_7\"");
    EXPECT_EQ(error_of(R"({"model_type":"some_vision_model","text_config":)" + of_type("glimmer_7") + "}"),
              "[rope_from_config] text_config.model_type: expected a type whose rotation was checked against "
              "transformers, got \"glimmer_7\"");
    EXPECT_EQ(only(rope_from_config(R"({"model_type":"llama4","text_config":)" + of_type("llama4_text") + "}")).pairing,
              Pairing::interleaved);
    // What their files leave unsaid differs by layer, or is scaled.
    EXPECT_TRUE(error_of(of_type("gemma3_text")).starts_with("[rope_from_config] rope_parameters: expected settings"));
    EXPECT_TRUE(error_of(of_type("gpt_oss")).starts_with("[rope_from_config] rope_parameters: expected how a model"));
    EXPECT_EQ(error_of(R"({"model_type":"falcon","head_dim":64,"alibi":true})"),
              "[rope_from_config] alibi: expected false, for a model with rotary positions, got true");
    EXPECT_EQ(error_of(R"({"model_type":"esm","head_dim":64,"position_embedding_type":"absolute"})"),
              "[rope_from_config] position_embedding_type: expected rope or rotary, for a model with rotary positions, "
              "got \"absolute\"");
}

TEST(RopeConfig, HeadsOfTheirOwnSize) {
    EXPECT_EQ(only(rope_from_config(
                       R"({"model_type":"jetmoe","hidden_size":2048,"num_attention_heads":32,"kv_channels":128})"))
                  .size,
              128);
    EXPECT_EQ(
        only(rope_from_config(
                 R"({"model_type":"zamba2","hidden_size":2560,"num_attention_heads":32,"attention_head_dim":160})"))
            .size,
        160);
    const std::string parameters =
        R"("rope_parameters":{"full_attention":{"rope_type":"proportional","partial_rotary_factor":0.25,"rope_theta":1e6},
        "sliding_attention":{"rope_type":"default","rope_theta":1e4}}})";
    const std::string gemma = R"({"model_type":"gemma4_text","head_dim":256,)";
    const std::string layers = R"("layer_types":["sliding_attention","full_attention","full_attention"],)";
    for (const std::string& large : {std::string(R"("global_head_dim":512,)"),
                                     layers + R"("per_layer_config":{"01":{"head_dim":512},"2":{"head_dim":512}},)"}) {
        const RopeConfig config = rope_from_config(gemma + large + parameters);
        ASSERT_EQ(config.kinds.size(), 2U);
        EXPECT_EQ(config.kinds[0].rope.size, 512);
        EXPECT_EQ(config.kinds[1].rope.size, 256);
    }
    EXPECT_EQ(error_of(gemma + layers + R"("per_layer_config":{"01":{"head_dim":512}},)" + parameters),
              "[rope_from_config] per_layer_config: expected one head_dim for all layers of kind \"full_attention\", "
              "got 256 and 512");
}

TEST(RopeConfig, NumbersThatJsonDoesNotHave) {
    const Rope rope = only(rope_from_config(
        llama(R"("time_step_limit":[0.0,Infinity,-Infinity],"x":NaN,"note":"Infinity \"Infinity\" -Infinity")")));
    EXPECT_EQ(rope.size, 8);
    EXPECT_EQ(error_of(llama(R"("rope_theta":Infinity)")),
              "[rope_from_config] rope_theta: expected a number, got \"Infinity\"");
    EXPECT_TRUE(error_of(llama(R"("rope_theta":Infinitys)")).starts_with("[rope_from_config] json: expected JSON"));
    EXPECT_TRUE(error_of(llama(R"("rope_theta":1Infinity)")).starts_with("[rope_from_config] json: expected JSON"));
}

TEST(RopeConfig, HostileText) {
    const auto refused = [](const std::string& json, const std::string& start) {
        const std::string text = error_of(json);
        EXPECT_TRUE(text.starts_with("[rope_from_config] " + start)) << text;
        EXPECT_LT(text.size(), 400U);
    };
    refused("", "json: expected JSON text");
    refused("[]", "json: expected an object, got []");
    refused("{\"a\":", "json: expected JSON text");
    refused(std::string(100000, '['), "json: expected at most 32 levels");
    refused(std::string((std::size_t{16} << 20) + 1, ' '), "json: expected at most 16777216 bytes");
    refused("{\"rope_theta\":1e999}", "json: expected JSON");
    refused("{\"model_type\":\"" + std::string(1000, 'x') + "\"}", "rope_theta, rope_scaling or rope_parameters");
    refused(R"({"rope_theta":1e4})", "hidden_size: expected a whole number, or head_dim, got no such key");
    refused(R"({"rope_theta":1e4,"hidden_size":10,"num_attention_heads":3})",
            "num_attention_heads: expected a divisor");
    refused(R"({"rope_theta":1e4,"head_dim":1e18})", "head_dim: expected a whole number from 1 to 1048576");
}

}  // namespace
}  // namespace heed::testing
