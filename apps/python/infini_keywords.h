#pragma once
/// The options of Infini-attention from keywords; its caches take them too.

#include <heed/infini_attention.h>
#include <nanobind/nanobind.h>

#include <initializer_list>
#include <vector>

#include "array.h"
#include "keywords.h"

#define HEED_INFINI_OPTIONS                                                                              \
    "segment: int = 2048, update: Literal['linear', 'delta'] = 'linear', "                               \
    "first_segment: Literal['local_only', 'gated'] = 'local_only', epsilon: float = 1e-10, "             \
    "memory_q: ArrayLike | None = None, memory_k: ArrayLike | None = None, scale: float | None = None, " \
    "softcap: float = 0.0, sinks: ArrayLike | None = None, alibi_slopes: ArrayLike | None = None, "      \
    "window: tuple[int, int] = (-1, -1), kernel: str = ''"

namespace heed::python {

/// The options from keywords, and what keeps their arrays.
struct InfiniKeywords {
    explicit InfiniKeywords(const char* name) : function(name), local(name, Where::anywhere) {}

    const char* function;
    AttentionKeywords local;
    nb::handle causal, segment, update, first_segment, epsilon, memory_q = Py_None, memory_k = Py_None, context;
    Array queries, keys;
    InfiniOptions options{};

    void read(const nb::kwargs& keywords, std::initializer_list<Own> own) {
        std::vector<Own> all = {{"segment", &segment}, {"update", &update},     {"first_segment", &first_segment},
                                {"epsilon", &epsilon}, {"memory_q", &memory_q}, {"memory_k", &memory_k},
                                {"context", &context}, {"causal", &causal}};
        all.insert(all.end(), own.begin(), own.end());
        const char* f = function;
        read_keywords(f, keywords, all, &local);
        if (causal && !to_bool(f, "causal", causal)) {
            refuse(f, "causal", "True: a token sees those before it", "False");
        }
        options.local = local.options;
        if (segment) { options.segment = to_integer(f, "segment", segment); }
        if (update) {
            options.update = choose<MemoryUpdate>(f, "update", update,
                                                  {{"linear", MemoryUpdate::linear}, {"delta", MemoryUpdate::delta}});
        }
        if (first_segment) {
            options.first_segment =
                choose<FirstSegment>(f, "first_segment", first_segment,
                                     {{"local_only", FirstSegment::local_only}, {"gated", FirstSegment::gated}});
        }
        if (epsilon) { options.epsilon = to_double(f, "epsilon", epsilon); }
        queries = Array(f, "memory_q", memory_q, Access::read, Where::anywhere);
        keys = Array(f, "memory_k", memory_k, Access::read, Where::anywhere);
        options.memory_q = queries;
        options.memory_k = keys;
    }
};

}  // namespace heed::python
