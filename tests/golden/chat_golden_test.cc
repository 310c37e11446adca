/// Chat templates against Jinja2: see make_chat.py.
#include <heed/chat.h>

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

namespace heed::testing {
namespace {

TEST(ChatGolden, RendersAsJinja) {
    std::ifstream file(std::string(HEED_TEST_DATA) + "/chat.json");
    const nlohmann::json cases = nlohmann::json::parse(file);
    ASSERT_GT(cases.size(), 50U);
    for (const nlohmann::json& one : cases) {
        SCOPED_TRACE(one["name"].get<std::string>() + " " + one["messages"].dump());
        const ChatTemplate chat = ChatTemplate::from_text(one["template"].get<std::string>(), "<s>", "</s>");
        std::vector<ChatMessage> messages;
        for (const nlohmann::json& message : one["messages"]) {
            messages.push_back({message["role"], message["content"]});
        }
        const ChatOptions options{.add_generation_prompt = one["add_generation_prompt"]};
        if (one["expected"].is_null()) {
            EXPECT_THROW(chat.render(messages, options), Error);
        } else {
            EXPECT_EQ(chat.render(messages, options), one["expected"].get<std::string>());
        }
    }
}

/// Written by tests/suites/chat_templates.py: tools, calls of tools, macros, and filters, tests and methods.
TEST(ChatGolden, RendersTemplatesWithToolsAsTransformers) {
    std::ifstream file(std::string(HEED_TEST_DATA) + "/chat_templates.json");
    const nlohmann::ordered_json all = nlohmann::ordered_json::parse(file);
    ASSERT_GT(all["cases"].size(), 50U);
    for (const nlohmann::ordered_json& one : all["cases"]) {
        const std::string& text = all["templates"][one["template"].get<std::string>()].get_ref<const std::string&>();
        const std::string messages = all["conversations"][one["conversation"].get<std::size_t>()].dump();
        SCOPED_TRACE(one["template"].get<std::string>() + " " + messages);
        const auto render = [&] {
            return ChatTemplate::from_text(text, "<s>", "</s>")
                .render_json(messages, {.variables = one["variables"].dump()});
        };
        if (one["expected"].is_null()) {
            EXPECT_THROW(render(), Error);
        } else {
            EXPECT_EQ(render(), one["expected"].get<std::string>());
        }
    }
    for (const nlohmann::ordered_json& text : all["refused"]) {
        EXPECT_THROW(ChatTemplate::from_text(text.get<std::string>()).render({}), Error) << text;
    }
}

TEST(ChatTemplate, WhatIsBeyondItIsRefused) {
    for (const char* text :
         {"{% macro x() %}", "{% if a %}", "{{ a", "{% for a %}{% endfor %}", "{{ a b }}", "{% endif %}", "{{ 'x }}",
          "{% include 'x' %}", "{{ a ** }}", "{{ 'a' | magic }}", "{{ a is magic }}", "{% break %}",
          "{% macro x(a=1, b) %}{% endmacro %}", "{% set x %}", "{{ '\\u12' }}"}) {
        EXPECT_THROW(ChatTemplate::from_text(text), Error) << text;
    }
    const std::vector<ChatMessage> hello = {{"user", "Hello"}};
    for (const char* text :
         {"{{ a.b }}", "{{ 1 // 0 }}", "{{ 'a' + 1 }}", "{{ magic() }}", "{{ 'a'.magic() }}", "{{ namespace }}",
          "{% macro f() %}{% endmacro %}{{ f(1) }}", "{% macro f(a) %}{% endmacro %}{{ f(b=1) }}"}) {
        EXPECT_THROW(ChatTemplate::from_text(text).render(hello), Error) << text;
    }
}

TEST(ChatTemplate, TemplatesThatNeverEndAreRefused) {
    for (const char* text :
         {"{% for a in range(9999) %}{% for b in range(9999) %}x{% endfor %}{% endfor %}",
          "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "{{ 'x' * 999999999 }}", "{{ range(99999999) }}",
          "{% set ns = namespace(a='xx') %}{% for i in range(60) %}{% set ns.a = ns.a ~ ns.a %}{% endfor %}",
          "{% set ns = namespace(a=[1]) %}{% for i in range(60) %}{% set ns.a = ns.a + ns.a %}{% endfor %}",
          "{% set ns = namespace(a=[1]) %}{% for i in range(60) %}{% set ns.a = [ns.a, ns.a] %}{% endfor %}"}) {
        EXPECT_THROW(ChatTemplate::from_text(text).render({}), Error) << text;
    }
}

TEST(ChatTemplate, TokensThatTheModelHasNotAreNotDefined) {
    const char* text = "{{ bos_token is defined }} {{ eos_token is defined }}";
    EXPECT_EQ(ChatTemplate::from_text(text, "", "</s>").render({}), "False True");
}

TEST(ChatTemplate, VariablesAreAJsonObject) {
    const ChatTemplate chat = ChatTemplate::from_text("{{ x }}{{ tools is none }}");
    EXPECT_EQ(chat.render({}, {.variables = R"({"x": 5})"}), "5True");
    EXPECT_THROW(chat.render({}, {.variables = "[1]"}), Error);
    EXPECT_THROW(chat.render({}, {.variables = "{"}), Error);
    EXPECT_THROW(chat.render_json("{}"), Error);
}

}  // namespace
}  // namespace heed::testing
