#include <heed/chat.h>

#include <nanobind/stl/string.h>

#include "keywords.h"
#include "module.h"

namespace heed::python {

namespace {

std::string json_of(nb::handle value) {
    return nb::cast<std::string>(nb::module_::import_("json").attr("dumps")(value, nb::arg("ensure_ascii") = false));
}

std::string render_(const ChatTemplate& self, nb::handle messages, bool add_generation_prompt, nb::handle tools,
                    const nb::kwargs& variables) {
    nb::dict all;
    all.update(variables);
    if (!tools.is_none()) { all["tools"] = tools; }
    const std::string conversation = json_of(messages);
    const ChatOptions options{.add_generation_prompt = add_generation_prompt, .variables = json_of(all)};
    nb::gil_scoped_release release;
    return self.render_json(conversation, options);
}

}  // namespace

void bind_chat(nb::module_& m) {
    nb::class_<ChatTemplate>(m, "ChatTemplate",
                             R"doc(Conversations as the text that a model was trained on.

The chat template of a model's folder, rendered as transformers renders it.

>>> chat = heed.ChatTemplate.from_text("{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}")
>>> chat.render([{"role": "user", "content": "Hello"}])
'[user] Hello\n')doc")
        .def(
            "__init__",
            [](ChatTemplate* self, nb::handle path) {
                const nb::object text = nb::module_::import_("os").attr("fspath")(path);
                new (self) ChatTemplate(
                    ChatTemplate::from_folder(std::filesystem::path(to_text("ChatTemplate", "path", text))));
            },
            nb::arg("path"), nb::sig("def __init__(self, path: str | os.PathLike[str]) -> None"))
        .def_static(
            "from_text",
            [](const std::string& text, std::string bos_token, std::string eos_token) {
                return ChatTemplate::from_text(text, std::move(bos_token), std::move(eos_token));
            },
            nb::arg("text"), nb::arg("bos_token") = "", nb::arg("eos_token") = "",
            "From the text of a template; tokens that are empty are not defined in it.")
        .def("render", render_, nb::arg("messages"), nb::arg("add_generation_prompt") = true,
             nb::arg("tools") = nb::none(), nb::arg("variables"),
             nb::sig("def render(self, messages: Sequence[dict[str, Any]], add_generation_prompt: bool = True, tools: "
                     "Sequence[dict[str, Any]] | None = None, **variables: Any) -> str"),
             "The text of a conversation. Further variables go to the template, such as enable_thinking=False.");
}

}  // namespace heed::python
