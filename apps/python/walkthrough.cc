#include <heed/walkthrough.h>

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "array.h"
#include "context.h"
#include "keywords.h"
#include "module.h"
#include "signatures.h"

namespace heed::python {

namespace {

nb::tuple to_tuple(const Shape& shape) {
    return nb::tuple(nb::cast(std::vector<std::int64_t>(shape.begin(), shape.end())));
}

nb::object to_python(const Walkthrough& walkthrough) {
    const nb::module_ pictures = nb::module_::import_("heed._pictures");
    nb::list steps;
    for (const WalkthroughStep& step : walkthrough.steps) {
        nb::list operands;
        for (const Shape& shape : step.operands) { operands.append(to_tuple(shape)); }
        steps.append(pictures.attr("WalkthroughStep")(step.name, step.title, step.formula, operands,
                                                      to_tuple(step.shape), to_array(step.values)));
    }
    return pictures.attr("Walkthrough")(steps, walkthrough.batch_entry, walkthrough.heads, walkthrough.kv_heads,
                                        walkthrough.scale, to_array(walkthrough.visible), to_array(walkthrough.kept),
                                        walkthrough.largest_difference);
}

nb::object walkthrough_(nb::handle x, const nb::kwargs& keywords) {
    constexpr const char* f = "walkthrough";
    nb::handle wq = Py_None, wk = Py_None, wv = Py_None, wo = Py_None, heads, kv_heads, batch_entry, context;
    const Own own[] = {{"wq", &wq},           {"wk", &wk},
                       {"wv", &wv},           {"wo", &wo},
                       {"heads", &heads},     {"kv_heads", &kv_heads},
                       {"context", &context}, {"batch_entry", &batch_entry}};
    AttentionKeywords attention(f);
    read_keywords(f, keywords, own, &attention);
    WalkthroughInput input = teaching_example();
    if (!x.is_none()) {
        const auto copy = [&](const char* name, nb::handle given) {
            const Array array(f, name, given);
            return array ? Tensor::copy_of(array) : Tensor();
        };
        input = WalkthroughInput{
            .x = copy("x", x), .wq = copy("wq", wq), .wk = copy("wk", wk), .wv = copy("wv", wv), .wo = copy("wo", wo)};
    }
    if (heads) { input.heads = to_integer(f, "heads", heads); }
    if (kv_heads) { input.kv_heads = to_integer(f, "kv_heads", kv_heads); }
    const std::int64_t entry = batch_entry ? to_integer(f, "batch_entry", batch_entry) : 0;
    Context& team = choose_context(f, context);
    Walkthrough result;
    without_gil([&] { result = walk_through(team, input, attention.options, entry); });
    return to_python(result);
}

nb::dict random_example_(std::int64_t batch, std::int64_t tokens, std::int64_t d_model, std::int64_t heads,
                         std::int64_t kv_heads, std::uint64_t seed) {
    const WalkthroughInput input =
        random_example(batch, tokens, d_model, heads, kv_heads == 0 ? heads : kv_heads, seed);
    nb::dict arguments;
    arguments["x"] = to_array(input.x);
    arguments["wq"] = to_array(input.wq);
    arguments["wk"] = to_array(input.wk);
    arguments["wv"] = to_array(input.wv);
    arguments["wo"] = to_array(input.wo);
    arguments["heads"] = input.heads;
    arguments["kv_heads"] = input.kv_heads;
    return arguments;
}

}  // namespace

void bind_walkthrough(nb::module_& m) {
    m.def("walkthrough", walkthrough_, nb::arg("x") = nb::none(), nb::arg("keywords"),
          nb::sig("def walkthrough(x: ArrayLike | None = None, *, wq: ArrayLike | None = None, "
                  "wk: ArrayLike | None = None, wv: ArrayLike | None = None, wo: ArrayLike | None = None, "
                  "heads: int = 1, kv_heads: int = 0, batch_entry: int = 0, " HEED_CONTEXT ", " HEED_ATTENTION_OPTIONS
                  ") -> Walkthrough"),
          R"doc(Multi-head attention on a small example, every intermediate result kept to be looked at.

x [B,T,M] tokens, wq [M,H*D], wk [M,G*D], wv [M,G*E], wo [H*E,N]; a matrix not given is the identity. Without x: two
tokens of four numbers, small enough for pencil and paper. Options as in attend. A notebook shows the result as
pictures, print() as text; result["weights"].values are numbers.

>>> heed.walkthrough(causal=True)["weights"].values.round(4)
array([[[1.    , 0.    ],
        [0.2689, 0.7311]]]))doc");
    m.def("random_example", random_example_, nb::arg("batch"), nb::arg("tokens"), nb::arg("d_model"), nb::arg("heads"),
          nb::arg("kv_heads") = 0, nb::arg("seed") = 0,
          nb::sig("def random_example(batch: int, tokens: int, d_model: int, heads: int, kv_heads: int = 0, "
                  "seed: int = 0) -> dict[str, Any]"),
          R"doc(Arguments for walkthrough: normal tokens and projections, the same for the same seed everywhere.

>>> heed.walkthrough(**heed.random_example(1, 3, 8, heads=2))["output"].shape
(1, 3, 8))doc");
}

}  // namespace heed::python
