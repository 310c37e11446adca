#include <heed/cache.h>

#include "array.h"
#include "cache_types.h"
#include "context.h"
#include "infini_keywords.h"
#include "linear_keywords.h"
#include "module.h"
#include "signatures.h"

#define HEED_CACHES "caches: Cache | Sequence[Cache]"
#define HEED_BATCH                                          \
    "tokens: Sequence[int] | None = None, layer: int = 0, " \
    "share: Literal['automatic', 'never', 'always'] = 'automatic'"

namespace heed::python {

namespace {

/// The caches of a call and its keywords about them.
struct BatchKeywords {
    nb::handle tokens, layer, share;
    CacheBatch batch{};
    std::vector<const void*> objects;

    void read(const char* f, nb::handle caches) {
        const auto add = [&](nb::handle item) {
            Cache* cache = nullptr;
            if (!nb::try_cast<Cache*>(item, cache) || cache == nullptr) {
                refuse(f, "caches", "a heed.Cache or a list of them", nb::cast<std::string>(nb::repr(item)));
            }
            batch.caches.push_back(cache);
            objects.push_back(cache);
        };
        if (PyList_Check(caches.ptr()) != 0 || PyTuple_Check(caches.ptr()) != 0) {
            for (const nb::handle item : caches) { add(item); }
        } else {
            add(caches);
        }
        if (tokens && !tokens.is_none()) { batch.tokens = to_integers(f, "tokens", tokens); }
        if (layer && !layer.is_none()) { batch.layer = to_integer(f, "layer", layer); }
        if (share && !share.is_none()) {
            batch.share = choose<SharedPrefix>(f, "share", share,
                                               {{"automatic", SharedPrefix::automatic},
                                                {"never", SharedPrefix::never},
                                                {"always", SharedPrefix::always}});
        }
    }

    template <class Function>
    void run(Function&& function) const {
        without_gil([&] {
            const Guard alone(objects);
            function();
        });
    }
};

nb::object cached_attend_(nb::handle caches, nb::handle q, nb::handle k, nb::handle v, const nb::kwargs& keywords) {
    constexpr const char* f = "cached_attend";
    BatchKeywords own;
    nb::handle out, lse, context;
    const Own names[] = {{"tokens", &own.tokens}, {"layer", &own.layer}, {"share", &own.share},
                         {"out", &out},           {"lse", &lse},         {"context", &context}};
    AttentionKeywords attention(f);
    read_keywords(f, keywords, names, &attention);
    own.read(f, caches);
    const Array queries(f, "q", q);
    const Array keys(f, "k", k);
    const Array values(f, "v", v);
    const std::int64_t heads = queries.extent(1), rows = queries.extent(2);
    const std::int64_t size = values ? values.extent(3)
                              : own.batch.caches.empty() || !*own.batch.caches[0]
                                  ? 0
                                  : own.batch.caches[0]->pool().config().value_size;
    const Result result = make_result(f, "out", out, q, queries.dtype(), {1, heads, rows, size});
    const Result sums = make_requested(f, "lse", lse, q, wide(queries.dtype()), {1, heads, rows});
    Context& team = choose_context(f, context);
    own.run([&] {
        cached_attend(team, own.batch, queries, keys, values, {.out = result.view(), .lse = sums.view()},
                      attention.options);
    });
    return with_lse(result, sums);
}

void cache_append_(nb::handle caches, nb::handle k, nb::handle v, const nb::kwargs& keywords) {
    constexpr const char* f = "cache_append";
    BatchKeywords own;
    nb::handle positions = Py_None, context;
    const Own names[] = {{"tokens", &own.tokens},
                         {"layer", &own.layer},
                         {"share", &own.share},
                         {"positions", &positions},
                         {"context", &context}};
    read_keywords(f, keywords, names);
    own.read(f, caches);
    const Array keys(f, "k", k);
    const Array values(f, "v", v);
    const Array places(f, "positions", positions);
    Context& team = choose_context(f, context);
    own.run([&] { cache_append(team, own.batch, keys, values, places); });
}

nb::object cached_mla_attend_(nb::handle caches, nb::handle q, nb::handle rows, nb::handle up_key, nb::handle up_value,
                              const nb::kwargs& keywords) {
    constexpr const char* f = "cached_mla_attend";
    BatchKeywords own;
    nb::handle out, lse, context;
    const Own names[] = {{"tokens", &own.tokens}, {"layer", &own.layer}, {"share", &own.share},
                         {"out", &out},           {"lse", &lse},         {"context", &context}};
    AttentionKeywords attention(f);
    read_keywords(f, keywords, names, &attention);
    own.read(f, caches);
    const Array queries(f, "q", q);
    const Array latents(f, "rows", rows);
    const Array keys(f, "up_key", up_key);
    const Array values(f, "up_value", up_value);
    const std::int64_t heads = queries.extent(1), count = queries.extent(2);
    const Result result = make_result(f, "out", out, q, queries.dtype(), {1, heads, count, values.extent(1)});
    const Result sums = make_requested(f, "lse", lse, q, wide(queries.dtype()), {1, heads, count});
    Context& team = choose_context(f, context);
    own.run([&] {
        cached_mla_attend(team, own.batch, queries, latents, {keys, values}, {.out = result.view(), .lse = sums.view()},
                          attention.options);
    });
    return with_lse(result, sums);
}

nb::object cached_linear_attend_(nb::handle caches, nb::handle q, nb::handle k, nb::handle v,
                                 const nb::kwargs& keywords) {
    LinearKeywords linear("cached_linear_attend");
    const char* f = linear.function;
    BatchKeywords own;
    nb::handle out;
    linear.read(keywords, {{"tokens", &own.tokens}, {"layer", &own.layer}, {"share", &own.share}, {"out", &out}});
    own.read(f, caches);
    const Array queries(f, "q", q);
    const Array keys(f, "k", k);
    const Array values(f, "v", v);
    const Result result =
        make_result(f, "out", out, q, queries.dtype(), {1, queries.extent(1), queries.extent(2), values.extent(3)});
    Context& team = choose_context(f, linear.context);
    own.run([&] { cached_linear_attend(team, own.batch, queries, keys, values, result.view(), linear.options); });
    return result.object;
}

nb::object cached_infini_attend_(nb::handle caches, nb::handle q, nb::handle k, nb::handle v, nb::handle gates,
                                 const nb::kwargs& keywords) {
    InfiniKeywords infini("cached_infini_attend");
    const char* f = infini.function;
    BatchKeywords own;
    nb::handle out;
    infini.read(keywords, {{"tokens", &own.tokens}, {"layer", &own.layer}, {"share", &own.share}, {"out", &out}});
    own.read(f, caches);
    const Array queries(f, "q", q);
    const Array keys(f, "k", k);
    const Array values(f, "v", v);
    const Array gate(f, "gates", gates);
    // The segment is the pool's; a keyword would have to say the same.
    if (!infini.segment && !own.batch.caches.empty() && *own.batch.caches[0]) {
        infini.options.segment = own.batch.caches[0]->pool().config().segment;
    }
    const Result result =
        make_result(f, "out", out, q, queries.dtype(), {1, queries.extent(1), queries.extent(2), values.extent(3)});
    Context& team = choose_context(f, infini.context);
    own.run([&] { cached_infini_attend(team, own.batch, queries, keys, values, gate, result.view(), infini.options); });
    return result.object;
}

/// CacheFull with its two numbers as attributes.
void translate(const std::exception_ptr& pointer, void* type) {
    try {
        std::rethrow_exception(pointer);
    } catch (const CacheFull& full) {
        nb::object error = nb::handle(static_cast<PyObject*>(type))(full.what());
        error.attr("needed") = full.needed;
        error.attr("free") = full.free;
        PyErr_SetObject(static_cast<PyObject*>(type), error.ptr());
    }
}

}  // namespace

void bind_cache(nb::module_& m) {
    bind_cache_types(m);
    nb::object full = nb::steal(PyErr_NewExceptionWithDoc(
        "heed._core.CacheFull",
        "The pool has too few pages for what was asked (`needed`, `free`). Nothing has changed.",
        nb::object(m.attr("Error")).ptr(), nullptr));
    m.attr("CacheFull") = full;
    nb::register_exception_translator(translate, full.release().ptr());
    m.def(
        "cached_attend", cached_attend_, nb::arg("caches"), nb::arg("q"), nb::arg("k").none() = nb::none(),
        nb::arg("v").none() = nb::none(), nb::arg("keywords"),
        nb::sig("def cached_attend(" HEED_CACHES ", q: Array, k: ArrayLike | None = None, v: ArrayLike | None = None, "
                "*, " HEED_BATCH ", lse: bool | ArrayLike = False, out: Array | None = None, " HEED_CONTEXT
                ", " HEED_ATTENTION_OPTIONS ") -> Any"),
        R"doc(Appends T tokens to the caches, then attends: out [1,H,T,E] of q [1,H,T,D] over all that each cache holds.

k [1,G,T,D] and v [1,G,T,E] hold the new tokens of all caches end to end, `tokens` of each (T / N unless given); None:
nothing is appended. Prefill and decoding are the same call and may be mixed in one. Options as in attend.

>>> pool = heed.CachePool(heed.CacheConfig(head_size=4, value_size=4, pages=8))
>>> a, b = pool.create(), pool.create()
>>> x = numpy.ones((1, 1, 6, 4), "float32")
>>> heed.cached_attend([a, b], x, x, x, tokens=[5, 1], causal=True).shape
(1, 1, 6, 4))doc");
    m.def("cache_append", cache_append_, nb::arg("caches"), nb::arg("k"), nb::arg("v"), nb::arg("keywords"),
          nb::sig("def cache_append(" HEED_CACHES ", k: ArrayLike, v: ArrayLike, *, " HEED_BATCH
                  ", positions: ArrayLike | None = None, " HEED_CONTEXT ") -> None"),
          R"doc(Appends k [1,G,T,D] and v [1,G,T,E] only; positions [1,T] of int.

>>> cache = heed.CachePool(heed.CacheConfig(head_size=4, value_size=4, pages=8)).create()
>>> heed.cache_append(cache, numpy.ones((1, 1, 3, 4)), numpy.ones((1, 1, 3, 4)), positions=numpy.array([[4, 5, 9]]))
>>> cache.positions
[4, 5, 9])doc");
    m.def(
        "cached_mla_attend", cached_mla_attend_, nb::arg("caches"), nb::arg("q"), nb::arg("rows").none(),
        nb::arg("up_key"), nb::arg("up_value"), nb::arg("keywords"),
        nb::sig("def cached_mla_attend(" HEED_CACHES ", q: Array, rows: ArrayLike | None, up_key: ArrayLike, "
                "up_value: ArrayLike, *, " HEED_BATCH
                ", lse: bool | ArrayLike = False, out: Array | None = None, " HEED_CONTEXT ", " HEED_ATTENTION_OPTIONS
                ") -> Any"),
        R"doc(MLA over latent caches: out [1,H,T,v] of q [1,H,T,n+p] and new rows [1,1,T,r+p], latent beside rotary key.

>>> cache = heed.CachePool(heed.CacheConfig(kind="latent", head_size=5, value_size=5, pages=8)).create()
>>> q, rows, up = numpy.ones((1, 2, 3, 4)), numpy.ones((1, 1, 3, 5)), numpy.ones((2, 4, 5))
>>> heed.cached_mla_attend(cache, q, rows, up, up, causal=True).shape
(1, 2, 3, 4))doc");
    m.def("cached_linear_attend", cached_linear_attend_, nb::arg("caches"), nb::arg("q"), nb::arg("k"), nb::arg("v"),
          nb::arg("keywords"),
          nb::sig("def cached_linear_attend(" HEED_CACHES ", q: Array, k: ArrayLike, v: ArrayLike, *, " HEED_BATCH
                  ", " HEED_LINEAR_OPTIONS ", out: Array | None = None, " HEED_CONTEXT ") -> Array"),
          R"doc(Linear attention over linear caches: out [1,H,T,E]; the states move on by the T tokens.

>>> cache = heed.CachePool(heed.CacheConfig(kind="linear", head_size=4, value_size=4, pages=1)).create()
>>> x = numpy.ones((1, 1, 3, 4), "float32")
>>> heed.cached_linear_attend(cache, x, x, x).shape
(1, 1, 3, 4))doc");
    m.def("cached_infini_attend", cached_infini_attend_, nb::arg("caches"), nb::arg("q"), nb::arg("k"), nb::arg("v"),
          nb::arg("gates"), nb::arg("keywords"),
          nb::sig("def cached_infini_attend(" HEED_CACHES ", q: Array, k: ArrayLike, v: ArrayLike, gates: ArrayLike, "
                  "*, " HEED_BATCH ", " HEED_INFINI_OPTIONS ", out: Array | None = None, " HEED_CONTEXT ") -> Array"),
          R"doc(Infini-attention over infini caches: out [1,H,T,E]; gates [H]. The segment is that of the pool.

>>> config = heed.CacheConfig(kind="infini", head_size=4, value_size=4, pages=1, segment=2)
>>> x = numpy.ones((1, 1, 3, 4), "float32")
>>> heed.cached_infini_attend(heed.CachePool(config).create(), x, x, x, [0.0]).shape
(1, 1, 3, 4))doc");
}

}  // namespace heed::python
