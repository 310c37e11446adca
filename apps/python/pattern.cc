#include <heed/pattern.h>

#include <nanobind/operators.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <utility>

#include "array.h"
#include "keywords.h"
#include "module.h"

namespace heed::python {

namespace {

nb::object row_(const Pattern& pattern, std::int64_t query, std::int64_t keys, std::int64_t first_key,
                std::int64_t batch, std::int64_t head) {
    if (keys < 0) { refuse("Pattern.row", "keys", "at least 0", std::to_string(keys)); }
    const Result result = make_result("Pattern.row", "out", {}, nb::none(), DType::boolean, {keys});
    pattern.row(batch, head, query, first_key, first_key + keys, static_cast<std::uint8_t*>(result.view().data()));
    return result.object;
}

const char* cover_(const Pattern& pattern, std::pair<std::int64_t, std::int64_t> queries,
                   std::pair<std::int64_t, std::int64_t> keys, std::int64_t batch, std::int64_t head) {
    switch (pattern.cover({batch, head, queries.first, queries.second, keys.first, keys.second})) {
        case Cover::none: return "none";
        case Cover::some: return "some";
        case Cover::all: return "all";
    }
    return "";
}

Pattern blocks_(std::int64_t query_block_size, std::int64_t key_block_size,
                const std::vector<std::pair<std::int64_t, std::int64_t>>& pairs) {
    std::vector<patterns::BlockPair> list;
    for (const auto& [query, key] : pairs) { list.push_back({query, key}); }
    return patterns::blocks(query_block_size, key_block_size, list);
}

Pattern per_head_(const nb::list& pattern_of_head) {
    std::vector<Pattern> list;
    for (const nb::handle item : pattern_of_head) {
        list.push_back(item.is_none() ? Pattern() : to_pattern("per_head", "pattern_of_head", item));
    }
    return patterns::per_head(std::move(list));
}

}  // namespace

void bind_pattern(nb::module_& m) {
    nb::class_<Pattern> c(m, "Pattern",
                          R"doc(Which query may see which key: a value that composes with & (both) and | (either).

Patterns speak of positions: a query's aligned or explicit position, the key's index or explicit position. Tiles that a
pattern rules out cost nothing. Pattern() is absent: everything may be seen.

>>> heed.patterns.causal() & (heed.patterns.prefix([4]) | heed.patterns.window(511, 0))
heed.Pattern("causal & (prefix(4) | window(511, 0))"))doc");
    c.def(nb::init<>())
        .def(
            "__init__", [](Pattern* self, const std::string& text) { new (self) Pattern(patterns::parse(text)); },
            nb::arg("text"), "The pattern that a text names, as text() writes it.")
        .def("__bool__", [](const Pattern& self) { return static_cast<bool>(self); })
        .def(
            "__and__", [](const Pattern& a, const Pattern& b) { return a & b; }, nb::is_operator())
        .def(
            "__or__", [](const Pattern& a, const Pattern& b) { return a | b; }, nb::is_operator())
        .def("__str__", &Pattern::describe)
        .def("__repr__", [](const Pattern& self) { return "heed.Pattern(\"" + self.text() + "\")"; })
        .def("__getstate__", &Pattern::text)
        .def("__setstate__", [](Pattern& self, const std::string& text) { new (&self) Pattern(patterns::parse(text)); })
        .def("describe", &Pattern::describe,
             "Its text, long lists cut short: \"causal & (window(256, 0) | global(0))\".")
        .def("text", &Pattern::text, R"doc(Its whole text, which Pattern() reads back.

>>> heed.patterns.blocks(64, 64, [(0, 0), (1, 0)]).text()
'blocks(64x64, 0:0, 1:0)')doc")
        .def("allows", &Pattern::allows, nb::arg("batch"), nb::arg("head"), nb::arg("query"), nb::arg("key"),
             R"doc(May this query see this key?

>>> heed.patterns.causal().allows(batch=0, head=0, query=3, key=5)
False)doc")
        .def("row", row_, nb::arg("query"), nb::arg("keys"), nb::kw_only(), nb::arg("first_key") = 0,
             nb::arg("batch") = 0, nb::arg("head") = 0,
             nb::sig(
                 "def row(self, query: int, keys: int, *, first_key: int = 0, batch: int = 0, head: int = 0) -> Any"),
             R"doc(Which of `keys` keys from first_key on this query may see: a NumPy array [keys] of bool.

>>> heed.patterns.window(1, 1).row(2, 5)
array([False,  True,  True,  True, False]))doc")
        .def("cover", cover_, nb::arg("queries"), nb::arg("keys"), nb::kw_only(), nb::arg("batch") = 0,
             nb::arg("head") = 0,
             nb::sig("def cover(self, queries: tuple[int, int], keys: tuple[int, int], *, batch: int = 0, "
                     "head: int = 0) -> Literal['none', 'some', 'all']"),
             R"doc(What it says of a whole tile, queries [begin, end) by keys [begin, end): "none", "some" or "all".

>>> heed.patterns.causal().cover((0, 64), (64, 128))
'none')doc")
        .def_static("causal", &patterns::causal, R"doc(j <= i, where i is the query's position and j the key's.

>>> heed.patterns.causal().row(1, 3)
array([ True,  True, False]))doc")
        .def_static("window", &patterns::window, nb::arg("left"), nb::arg("right"),
                    R"doc(i - left <= j <= i + right; -1 is unlimited.

>>> heed.patterns.window(1, 0).row(2, 4)
array([False,  True,  True, False]))doc")
        .def_static("padding", &patterns::padding, nb::arg("lengths"),
                    R"doc(j < lengths[b]; one length serves every batch entry.

>>> heed.patterns.padding([2]).row(0, 4)
array([ True,  True, False, False]))doc")
        .def_static("prefix", &patterns::prefix, nb::arg("lengths"),
                    R"doc(j < lengths[b]; prefix([n]) | causal() is a prefix language model.

>>> (heed.patterns.prefix([2]) | heed.patterns.causal()).row(0, 4)
array([ True,  True, False, False]))doc")
        .def_static("document", &patterns::document, nb::arg("ids"),
                    R"doc(ids[b][i] == ids[b][j]: packed documents keep to themselves.

>>> heed.patterns.document([[0, 0, 1, 1]]).row(3, 4)
array([False, False,  True,  True]))doc")
        .def_static("strided", &patterns::strided, nb::arg("stride"), R"doc((i - j) mod stride == 0.

>>> heed.patterns.strided(2).row(3, 4)
array([False,  True, False,  True]))doc")
        .def_static("fixed", &patterns::fixed, nb::arg("stride"), nb::arg("summary"),
                    R"doc(Same block of `stride`, or one of the last `summary` columns of any block.

>>> heed.patterns.fixed(2, 1).row(2, 4)
array([False,  True,  True,  True]))doc")
        .def_static("dilated", &patterns::dilated, nb::arg("left"), nb::arg("right"), nb::arg("dilation"),
                    R"doc(j = i + n*dilation for -left <= n <= right; -1 is unlimited.

>>> heed.patterns.dilated(1, 0, 2).row(3, 4)
array([False,  True, False,  True]))doc")
        .def_static("global_tokens", &patterns::global_tokens, nb::arg("positions"),
                    R"doc(i or j is one of these positions.

>>> heed.patterns.global_tokens([0]).row(2, 3)
array([ True, False, False]))doc")
        .def_static(
            "random_blocks", &patterns::random_blocks, nb::arg("block"), nb::arg("blocks"), nb::arg("count"),
            nb::arg("seed"),
            R"doc(Each block of `block` queries sees `count` of the `blocks` blocks of keys, drawn by seed and head.

>>> int(heed.patterns.random_blocks(2, 4, 1, seed=0).row(0, 8).sum())
2)doc")
        .def_static("blocks", blocks_, nb::arg("query_block_size"), nb::arg("key_block_size"), nb::arg("pairs"),
                    R"doc(Exactly these (query block, key block) pairs.

>>> heed.patterns.blocks(2, 2, [(0, 1)]).row(0, 4)
array([False, False,  True,  True]))doc")
        .def_static("per_head", per_head_, nb::arg("pattern_of_head"),
                    nb::sig("def per_head(pattern_of_head: list[Pattern | str | None]) -> Pattern"),
                    R"doc(A pattern, or its text, for each query head; None sees everything.

>>> heed.patterns.per_head([heed.patterns.causal(), None]).row(0, 2, head=1)
array([ True,  True]))doc")
        .def_static("parse", &patterns::parse, nb::arg("text"),
                    R"doc(The pattern that a text names, as text() writes it.

>>> str(heed.patterns.parse("causal & window(8, 0)"))
'causal & window(8, 0)')doc");
}

}  // namespace heed::python
