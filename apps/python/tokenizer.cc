#include <heed/tokenizer.h>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include "context.h"
#include "keywords.h"
#include "module.h"

namespace heed::python {

namespace {

/// A str as its UTF-8, or bytes as they are. What it shows lives as long as the object.
std::string_view text_of(const char* function, nb::handle given) {
    if (PyBytes_Check(given.ptr())) {
        return {PyBytes_AS_STRING(given.ptr()), static_cast<std::size_t>(PyBytes_GET_SIZE(given.ptr()))};
    }
    if (!PyUnicode_Check(given.ptr())) {
        throw Error(std::string("[") + function + "] text: expected str or bytes, got " +
                    nb::type_name(given.type()).c_str());
    }
    Py_ssize_t size = 0;
    const char* utf8 = PyUnicode_AsUTF8AndSize(given.ptr(), &size);
    if (utf8 == nullptr) { throw nb::python_error(); }
    return {utf8, static_cast<std::size_t>(size)};
}

std::vector<std::int64_t> ids_of(nb::handle given) {
    if (PyLong_Check(given.ptr())) { return {nb::cast<std::int64_t>(given)}; }
    std::vector<std::int64_t> ids;
    for (nb::handle id : nb::iter(given)) { ids.push_back(nb::cast<std::int64_t>(nb::int_(nb::borrow(id)))); }
    return ids;
}

nb::list list_of(const std::vector<std::int64_t>& ids) {
    nb::list result;
    for (const std::int64_t id : ids) { result.append(id); }
    return result;
}

nb::object encode_(const Tokenizer& self, nb::handle text, nb::handle pair, bool add_special_tokens,
                   bool allow_special) {
    const EncodeOptions options{.add_special_tokens = add_special_tokens, .allow_special = allow_special};
    const std::string_view first = text_of("Tokenizer.encode", text);
    const std::string_view second = pair.is_none() ? std::string_view() : text_of("Tokenizer.encode", pair);
    Encoding result;
    without_gil(
        [&] { result = pair.is_none() ? self.encode_all(first, options) : self.encode_pair(first, second, options); });
    return list_of(result.ids);
}

nb::list encode_batch_(const Tokenizer& self, nb::handle texts, bool add_special_tokens, bool allow_special,
                       nb::handle context) {
    const EncodeOptions options{.add_special_tokens = add_special_tokens, .allow_special = allow_special};
    std::vector<nb::object> held;
    std::vector<std::string_view> views;
    for (nb::handle text : nb::iter(texts)) {
        held.push_back(nb::borrow(text));
        views.push_back(text_of("Tokenizer.encode_batch", text));
    }
    Context& where = choose_context("Tokenizer.encode_batch", context);
    std::vector<std::vector<std::int64_t>> encoded;
    without_gil([&] { encoded = self.encode_batch(where, views, options); });
    nb::list result;
    for (const std::vector<std::int64_t>& ids : encoded) { result.append(list_of(ids)); }
    return result;
}

nb::object decode_(const Tokenizer& self, nb::handle ids, bool skip_special_tokens) {
    const std::string text = self.decode(ids_of(ids), skip_special_tokens);
    return nb::steal(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
}

nb::object decode_bytes_(const Tokenizer& self, nb::handle ids, bool skip_special_tokens) {
    const std::string text = self.decode_bytes(ids_of(ids), skip_special_tokens);
    return nb::bytes(text.data(), text.size());
}

Tokenizer train_(nb::handle texts, std::int64_t vocabulary, std::int64_t min_count,
                 std::vector<std::string> special_tokens, std::string pattern) {
    std::vector<nb::object> held;
    std::vector<std::string_view> views;
    for (nb::handle text : nb::iter(texts)) {
        held.push_back(nb::borrow(text));
        views.push_back(text_of("train_byte_bpe", text));
    }
    const BpeTrainOptions options{.vocabulary = vocabulary,
                                  .min_count = min_count,
                                  .special_tokens = std::move(special_tokens),
                                  .pattern = std::move(pattern)};
    std::optional<Tokenizer> result;
    without_gil([&] { result = train_byte_bpe(views, options); });
    return *result;
}

}  // namespace

void bind_tokenizer(nb::module_& m) {
    nb::class_<Tokenizer>(m, "Tokenizer",
                          R"doc(Text to ids and back, as a tokenizer.json (or the folder that has one) says.

Byte-level BPE, BPE with byte fallback, WordPiece, Unigram and WordLevel; ids and texts are those of Hugging Face's
tokenizers. Text is a str, or bytes, which need not be valid UTF-8.

>>> tokenizer = heed.train_byte_bpe(["low lower lowest"] * 9, vocabulary=262)
>>> tokenizer.encode("lower")
[257, 68, 81]
>>> tokenizer.decode([257, 68, 81])
'lower'
>>> tokenizer.decode_bytes(tokenizer.encode(b"\xff\x00low"))
b'\xff\x00low')doc")
        .def(
            "__init__",
            [](Tokenizer* self, nb::handle path) {
                const nb::object text = nb::module_::import_("os").attr("fspath")(path);
                new (self) Tokenizer(std::filesystem::path(to_text("Tokenizer", "path", text)));
            },
            nb::arg("path"), nb::sig("def __init__(self, path: str | os.PathLike[str]) -> None"))
        .def_static(
            "from_json", [](const std::string& json) { return Tokenizer::from_json(json); }, nb::arg("json"),
            "From the text of a tokenizer.json.")
        .def("encode", encode_, nb::arg("text"), nb::arg("text_pair") = nb::none(),
             nb::arg("add_special_tokens") = true, nb::arg("allow_special") = true,
             nb::sig(
                 "def encode(self, text: str | bytes, text_pair: str | bytes | None = None, add_special_tokens: bool "
                 "= True, allow_special: bool = True) -> list[int]"),
             "The ids of a text, or of two. allow_special=False: special tokens that the text spells out are letters.")
        .def("encode_batch", encode_batch_, nb::arg("texts"), nb::arg("add_special_tokens") = true,
             nb::arg("allow_special") = true, nb::arg("context") = nb::none(),
             nb::sig("def encode_batch(self, texts: Sequence[str | bytes], add_special_tokens: bool = True, "
                     "allow_special: bool = True, context: Context | None = None) -> list[list[int]]"),
             "The ids of many texts, by all threads.")
        .def("decode", decode_, nb::arg("ids"), nb::arg("skip_special_tokens") = true,
             nb::sig("def decode(self, ids: int | Sequence[int] | ArrayLike, skip_special_tokens: bool = True) -> str"),
             "The text of ids. What is not UTF-8 becomes U+FFFD.")
        .def(
            "decode_bytes", decode_bytes_, nb::arg("ids"), nb::arg("skip_special_tokens") = true,
            nb::sig("def decode_bytes(self, ids: int | Sequence[int] | ArrayLike, skip_special_tokens: bool = True) -> "
                    "bytes"),
            "The bytes of ids.")
        .def("token_to_id", &Tokenizer::id_of, nb::arg("token"), "The id of a token as the file spells it, or None.")
        .def("id_to_token", &Tokenizer::token_of, nb::arg("id"), "How the file spells a token, or None.")
        .def("to_json", &Tokenizer::to_json, "The text of its tokenizer.json.")
        .def_prop_ro("vocab_size", &Tokenizer::size, "How many tokens there are, added ones included.")
        .def("__len__", &Tokenizer::size)
        .def("__repr__",
             [](const Tokenizer& self) { return "<heed.Tokenizer with " + std::to_string(self.size()) + " tokens>"; });
    m.def("train_byte_bpe", train_, nb::arg("texts"), nb::arg("vocabulary") = 30000, nb::kw_only(),
          nb::arg("min_count") = 2, nb::arg("special_tokens") = std::vector<std::string>(), nb::arg("pattern") = "",
          nb::sig("def train_byte_bpe(texts: Sequence[str | bytes], vocabulary: int = 30000, *, min_count: int = 2, "
                  "special_tokens: Sequence[str] = (), pattern: str = '') -> Tokenizer"),
          R"doc(A byte-level BPE learned from texts.

>>> heed.train_byte_bpe(["the cat and the hat"] * 4, vocabulary=258).id_to_token(257)
'he')doc");
}

}  // namespace heed::python
