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

TEST(ChatTemplate, WhatIsBeyondItIsRefused) {
    for (const char* text : {"{% macro x() %}{% endmacro %}", "{% if a %}", "{{ a", "{% for a %}{% endfor %}",
                             "{{ a b }}", "{% endif %}", "{{ 'x }}", "{% include 'x' %}", "{{ a ** }}"}) {
        EXPECT_THROW(ChatTemplate::from_text(text), Error) << text;
    }
    const std::vector<ChatMessage> hello = {{"user", "Hello"}};
    for (const char* text :
         {"{{ strftime_now('%d') }}", "{{ messages }}", "{{ a.b }}", "{{ 1 // 0 }}", "{{ 'a' + 1 }}",
          "{{ 'a' | magic }}", "{% for a in range(9999) %}{% for b in range(9999) %}x{% endfor %}{% endfor %}"}) {
        EXPECT_THROW(ChatTemplate::from_text(text).render(hello), Error) << text;
    }
}

}  // namespace
}  // namespace heed::testing
