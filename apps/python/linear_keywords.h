#pragma once
/// The options of linear attention from keywords; its caches take them too.

#include <heed/linear_attention.h>
#include <nanobind/nanobind.h>

#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "array.h"
#include "keywords.h"

#define HEED_LINEAR_OPTIONS                                                                               \
    "feature: Literal['elu_plus_one', 'relu', 'identity'] | FeatureFunction = 'elu_plus_one', "           \
    "normalise: bool = True, epsilon: float = 1e-6, scale: float = 1.0, decay: ArrayLike | None = None, " \
    "rule: Literal['sum', 'delta'] = 'sum', log_decay: ArrayLike | None = None, beta: ArrayLike | None = None"

namespace heed::python {

/// A feature map written in Python: called a row at a time, from the threads of the context, with the GIL.
struct PythonFeatures {
    std::int64_t size = 0;
    nb::object map;
    nb::object backward;
};

/// What the library calls; `features` must outlive it.
FeatureFunction to_function(const PythonFeatures& features);

/// The options from keywords, and what keeps their arrays.
struct LinearKeywords {
    explicit LinearKeywords(const char* name) : function(name) {}

    const char* function;
    nb::handle feature, causal, normalise, epsilon, scale, decay, key_lengths, form, chunk, context;
    nb::handle rule, log_decay, beta, cu_seqlens;
    Array decay_array, lengths_array, log_decay_array, beta_array, cumulative_array;
    LinearAttentionOptions options{};

    /// The function's own keywords and these.
    void read(const nb::kwargs& keywords, std::initializer_list<Own> own) {
        std::vector<Own> all = {
            {"feature", &feature},       {"causal", &causal},  {"normalise", &normalise},     {"epsilon", &epsilon},
            {"scale", &scale},           {"decay", &decay},    {"key_lengths", &key_lengths}, {"form", &form},
            {"chunk", &chunk},           {"rule", &rule},      {"log_decay", &log_decay},     {"beta", &beta},
            {"cu_seqlens", &cu_seqlens}, {"context", &context}};
        all.insert(all.end(), own.begin(), own.end());
        read_keywords(function, keywords, all);
        const char* f = function;
        if (PythonFeatures* own_features = nullptr;
            feature && nb::try_cast<PythonFeatures*>(feature, own_features) && own_features != nullptr) {
            options.feature = FeatureMap::function;
            options.feature_function = to_function(*own_features);
        } else if (feature) {
            options.feature = choose<FeatureMap>(f, "feature", feature,
                                                 {{"elu_plus_one", FeatureMap::elu_plus_one},
                                                  {"relu", FeatureMap::relu},
                                                  {"identity", FeatureMap::identity}});
        }
        if (causal) { options.causal = to_bool(f, "causal", causal); }
        if (normalise) { options.normalise = to_bool(f, "normalise", normalise); }
        if (epsilon) { options.epsilon = to_double(f, "epsilon", epsilon); }
        if (scale) { options.scale = to_double(f, "scale", scale); }
        if (form) {
            options.form = choose<LinearForm>(f, "form", form,
                                              {{"automatic", LinearForm::automatic},
                                               {"recurrent", LinearForm::recurrent},
                                               {"chunked", LinearForm::chunked},
                                               {"quadratic", LinearForm::quadratic}});
        }
        if (chunk) { options.chunk = to_integer(f, "chunk", chunk); }
        if (decay) { decay_array = Array(f, "decay", decay, Access::read, Where::anywhere); }
        if (key_lengths) { lengths_array = Array(f, "key_lengths", key_lengths, Access::read, Where::anywhere); }
        if (rule) {
            options.rule =
                choose<UpdateRule>(f, "rule", rule, {{"sum", UpdateRule::sum}, {"delta", UpdateRule::delta}});
        }
        if (log_decay) { log_decay_array = Array(f, "log_decay", log_decay, Access::read, Where::anywhere); }
        if (beta) { beta_array = Array(f, "beta", beta, Access::read, Where::anywhere); }
        if (cu_seqlens) { cumulative_array = Array(f, "cu_seqlens", cu_seqlens, Access::read, Where::anywhere); }
        options.log_decay = log_decay_array;
        options.beta = beta_array;
        options.cu_seqlens = cumulative_array;
        options.decay = decay_array;
        options.key_lengths = lengths_array;
    }

    /// How many sequences have a state: those of a batch, or those that are packed.
    std::int64_t sequences(const Array& q) const {
        const View& ends = options.cu_seqlens;
        return ends && ends.rank() == 1 && ends.extent(0) > 0 ? ends.extent(0) - 1 : q.extent(0);
    }
    std::int64_t features(const Array& q) const {
        const std::int64_t size = options.feature_function.size;
        return options.feature == FeatureMap::function && size > 0 ? size : q.extent(q.rank() - 1);
    }
};

}  // namespace heed::python
