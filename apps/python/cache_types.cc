#include "cache_types.h"

#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include "array.h"
#include "context.h"
#include "fields.h"
#include "keywords.h"

namespace heed::python {

namespace {

constexpr std::pair<const char*, CacheKind> kinds[] = {{"attention", CacheKind::attention},
                                                       {"latent", CacheKind::latent},
                                                       {"linear", CacheKind::linear},
                                                       {"infini", CacheKind::infini}};
constexpr std::pair<const char*, CachePositions> position_kinds[] = {{"original", CachePositions::original},
                                                                     {"slots", CachePositions::slots}};
constexpr std::pair<const char*, CacheStorage> storages[] = {{"f32", CacheStorage::f32},
                                                             {"bf16", CacheStorage::bf16},
                                                             {"f16", CacheStorage::f16},
                                                             {"i8", CacheStorage::i8},
                                                             {"i4", CacheStorage::i4}};

/// What a cache is asked, alone and without the GIL.
template <class Function>
auto ask(const Cache& cache, Function&& function) {
    const nb::gil_scoped_release released;
    const Guard alone({&cache});
    return function();
}

nb::object stored(const Cache& cache, std::int64_t layer, std::int64_t begin, std::int64_t end,
                  Tensor (Cache::*part)(std::int64_t, std::int64_t, std::int64_t) const) {
    const Tensor rows = ask(cache, [&] { return (cache.*part)(layer, begin, end < 0 ? cache.length(layer) : end); });
    return copy_out(rows, nb::none());
}

/// "2 layers of kind 'attention' in 'f32', G 8, D 128, E 128"
std::string contents(const CacheConfig& c) {
    return std::to_string(c.layers) + (c.layers == 1 ? " layer" : " layers") + " of kind '" + word(c.kind, kinds) +
           "' in '" + word(c.storage, storages) + "', G " + std::to_string(c.kv_heads) + ", D " +
           std::to_string(c.head_size) + ", E " + std::to_string(c.value_size);
}

std::string describe_pool(const CachePool& pool) {
    return "<heed.CachePool: " + std::to_string(pool.free_pages()) + " of " + std::to_string(pool.pages()) +
           " pages free, of " + std::to_string(pool.config().page_size) + " tokens; " + contents(pool.config()) + ">";
}

std::string describe_cache(const Cache& cache) {
    return ask(cache, [&] {
        if (!cache) { return std::string("<heed.Cache: freed>"); }
        return "<heed.Cache: " + std::to_string(cache.length()) + " tokens in " + std::to_string(cache.pages()) +
               " pages (" + std::to_string(cache.shared_pages()) + " shared); " + contents(cache.pool().config()) + ">";
    });
}

void bind_config(nb::module_& m) {
    fields<CacheConfig>(m, "CacheConfig",
                        R"doc(What a pool holds. Fields by name:

kind             "attention", "latent" (MLA: G = 1, D = r + p, E = r), "linear", "infini"
layers, kv_heads (G), head_size (D), value_size (E)
storage          "f32", "bf16", "f16", "i8", "i4"
page_size        tokens of a page; pages: of the whole pool; pages_per_cache: most of one cache, 0: all
rope             a heed.Rope: queries and keys are rotated as they come; rope_length: see heed.rope_table
positions        "original", or "slots": the place in the cache, as StreamingLLM counts; sinks: tokens kept unrotated
features, states, normalise    of linear caches
segment, memory_keys           of infini caches

>>> heed.CacheConfig(kv_heads=8, head_size=128, value_size=128, storage="bf16", pages=4).page_size
16)doc")
        .def_prop_rw(
            "kind", [](const CacheConfig& self) { return word(self.kind, kinds); },
            [](CacheConfig& self, nb::handle value) { self.kind = choose("CacheConfig", "kind", value, kinds); },
            nb::for_getter(nb::sig("def kind(self) -> str")),
            nb::for_setter(nb::sig("def kind(self, value: str, /) -> None")))
        .def_rw("layers", &CacheConfig::layers)
        .def_rw("kv_heads", &CacheConfig::kv_heads)
        .def_rw("head_size", &CacheConfig::head_size)
        .def_rw("value_size", &CacheConfig::value_size)
        .def_prop_rw(
            "storage", [](const CacheConfig& self) { return word(self.storage, storages); },
            [](CacheConfig& self, nb::handle value) {
                self.storage = choose("CacheConfig", "storage", value, storages);
            },
            nb::for_getter(nb::sig("def storage(self) -> str")),
            nb::for_setter(nb::sig("def storage(self, value: str, /) -> None")))
        .def_rw("page_size", &CacheConfig::page_size)
        .def_rw("pages", &CacheConfig::pages)
        .def_rw("pages_per_cache", &CacheConfig::pages_per_cache)
        .def_rw("rope", &CacheConfig::rope, nb::arg().none())
        .def_rw("rope_length", &CacheConfig::rope_length)
        .def_prop_rw(
            "positions", [](const CacheConfig& self) { return word(self.positions, position_kinds); },
            [](CacheConfig& self, nb::handle value) {
                self.positions = choose("CacheConfig", "positions", value, position_kinds);
            },
            nb::for_getter(nb::sig("def positions(self) -> str")),
            nb::for_setter(nb::sig("def positions(self, value: str, /) -> None")))
        .def_rw("sinks", &CacheConfig::sinks)
        .def_rw("features", &CacheConfig::features)
        .def_rw("states", &CacheConfig::states)
        .def_rw("normalise", &CacheConfig::normalise)
        .def_rw("segment", &CacheConfig::segment)
        .def_rw("memory_keys", &CacheConfig::memory_keys);
}

void bind_pool(nb::module_& m) {
    nb::class_<CachePool>(m, "CachePool",
                          R"doc(Memory of fixed size for the caches of many sequences, cut into pages.

>>> pool = heed.CachePool(heed.CacheConfig(head_size=4, value_size=4, pages=8))
>>> pool.free_pages
8)doc")
        .def(nb::init<const CacheConfig&>(), nb::arg("config"))
        .def("__repr__", describe_pool)
        .def_prop_ro("config", [](const CachePool& self) { return self.config(); })
        .def_prop_ro("pages", &CachePool::pages)
        .def_prop_ro("free_pages", &CachePool::free_pages)
        .def_prop_ro("bytes", &CachePool::bytes, "Held by the pool, used or not.")
        .def_prop_ro("used_bytes", &CachePool::used_bytes, "In pages that some cache has; shared ones count once.")
        .def("create", &CachePool::create, "An empty cache; it takes no page before its first token.")
        .def(
            "restore",
            [](const CachePool& self, const std::filesystem::path& path) {
                const nb::gil_scoped_release released;
                return self.restore(path);
            },
            nb::arg("path"), nb::sig("def restore(self, path: str | os.PathLike[str]) -> Cache"),
            "What Cache.save wrote, continued bit for bit.");
    m.def("contiguous_cache", &contiguous_cache, nb::arg("config"), nb::arg("capacity"), nb::arg("sequences") = 1,
          R"doc(The same config with room for `sequences` caches of up to `capacity` tokens, each in one piece.

>>> heed.contiguous_cache(heed.CacheConfig(), 100).page_size
100)doc");
    m.def("cache_bytes_per_token", &cache_bytes_per_token, nb::arg("config"),
          R"doc(Bytes that one more token takes, all layers, scales included.

>>> heed.cache_bytes_per_token(heed.CacheConfig(head_size=4, value_size=4))
32)doc");
    m.def("cache_bytes_per_page", &cache_bytes_per_page, nb::arg("config"),
          R"doc(Bytes of one page, or state.

>>> heed.cache_bytes_per_page(heed.CacheConfig(head_size=4, value_size=4)) >= 512
True)doc");
}

}  // namespace

void bind_cache_types(nb::module_& m) {
    bind_config(m);
    bind_pool(m);
    const auto count = [](std::int64_t (Cache::*member)() const) {
        return [member](const Cache& self) { return ask(self, [&] { return (self.*member)(); }); };
    };
    nb::class_<Cache>(
        m, "Cache",
        R"doc(The keys and values of one sequence; CachePool.create makes one. Its pages go back to the pool with it.

>>> cache = heed.CachePool(heed.CacheConfig(head_size=4, value_size=4, pages=8)).create()
>>> x = numpy.ones((1, 1, 3, 4), "float32")
>>> out = heed.cached_attend(cache, x, x, x, causal=True)
>>> cache.length
3)doc")
        .def(
            "__bool__", [](const Cache& self) { return static_cast<bool>(self); }, "False after free().")
        .def("__repr__", describe_cache)
        .def_prop_ro("pool", [](const Cache& self) { return self.pool(); })
        .def_prop_ro(
            "length", [](const Cache& self) { return ask(self, [&] { return self.length(); }); },
            "Tokens that every layer has.")
        .def("__len__", [](const Cache& self) { return ask(self, [&] { return self.length(); }); })
        .def(
            "layer_length",
            [](const Cache& self, std::int64_t layer) { return ask(self, [&] { return self.length(layer); }); },
            nb::arg("layer"), "Tokens of one layer.")
        .def_prop_ro("next_position", count(&Cache::next_position), "That the next token gets where none is said.")
        .def_prop_ro(
            "positions", [](const Cache& self) { return ask(self, [&] { return self.positions(); }); },
            "Of every token, by index.")
        .def_prop_ro("pages", count(&Cache::pages))
        .def_prop_ro("shared_pages", count(&Cache::shared_pages), "Pages that other caches have too.")
        .def_prop_ro("bytes", count(&Cache::bytes), "Of its pages; shared ones count fully.")
        .def(
            "fork", [](const Cache& self) { return ask(self, [&] { return self.fork(); }); },
            "The same sequence once more, sharing its pages until one of the two writes into them.")
        .def(
            "truncate", [](Cache& self, std::int64_t length) { ask(self, [&] { self.truncate(length); }); },
            nb::arg("length"), "Forgets the tokens from `length` on.")
        .def(
            "drop",
            [](Cache& self, std::int64_t begin, std::int64_t end) { ask(self, [&] { self.drop(begin, end); }); },
            nb::arg("begin"), nb::arg("end"), "Forgets the tokens [begin, end); those behind move up.")
        .def(
            "keep_window",
            [](Cache& self, std::int64_t sinks, std::int64_t recent) {
                ask(self, [&] { self.keep_window(sinks, recent); });
            },
            nb::arg("sinks"), nb::arg("recent"), "Keeps the first `sinks` and the last `recent` tokens.")
        .def(
            "free", [](Cache& self) { ask(self, [&] { self.free(); }); }, "Gives the pages back now.")
        .def(
            "save", [](const Cache& self, const std::filesystem::path& path) { ask(self, [&] { self.save(path); }); },
            nb::arg("path"), nb::sig("def save(self, path: str | os.PathLike[str]) -> None"),
            "Writes all of it to a safetensors file, or nothing.")
        .def(
            "keys",
            [](const Cache& self, std::int64_t layer, std::int64_t begin, std::int64_t end) {
                return stored(self, layer, begin, end, &Cache::keys);
            },
            nb::arg("layer") = 0, nb::arg("begin") = 0, nb::arg("end") = -1,
            nb::sig("def keys(self, layer: int = 0, begin: int = 0, end: int = -1) -> Any"),
            "What is stored of tokens [begin, end), as float32 [1,G,end-begin,D]; end -1: all.")
        .def(
            "values",
            [](const Cache& self, std::int64_t layer, std::int64_t begin, std::int64_t end) {
                return stored(self, layer, begin, end, &Cache::values);
            },
            nb::arg("layer") = 0, nb::arg("begin") = 0, nb::arg("end") = -1,
            nb::sig("def values(self, layer: int = 0, begin: int = 0, end: int = -1) -> Any"),
            "Likewise [1,G,end-begin,E].");
}

}  // namespace heed::python
