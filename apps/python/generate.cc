#include <heed/evaluate.h>
#include <heed/search.h>
#include <heed/serving.h>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <functional>

#include "array.h"
#include "context.h"
#include "ids.h"
#include "keywords.h"
#include "module.h"

namespace heed::python {

namespace {

EarlyStopping early(nb::handle value, const std::optional<std::string>& absent) {
    if (value.is_none()) {
        const std::string name = absent.value_or("false");
        return name == "true" ? EarlyStopping::yes : name == "never" ? EarlyStopping::never : EarlyStopping::no;
    }
    if (nb::isinstance<nb::bool_>(value)) { return nb::cast<bool>(value) ? EarlyStopping::yes : EarlyStopping::no; }
    if (nb::isinstance<nb::str>(value) && nb::cast<std::string>(value) == "never") { return EarlyStopping::never; }
    refuse("Model.generate", "early_stopping", "True, False or \"never\"", nb::cast<std::string>(nb::repr(value)));
}

std::optional<std::vector<std::int64_t>> end_tokens(nb::handle given) {
    if (given.is_none()) { return std::nullopt; }
    if (nb::isinstance<nb::int_>(given)) { return std::vector<std::int64_t>{nb::cast<std::int64_t>(given)}; }
    return nb::cast<std::vector<std::int64_t>>(given);
}

Tokenizer tokenizer_of(const char* function, const Model& model) {
    if (model.folder().empty()) { refuse(function, "text", "ids, as the model was not loaded from a folder", "text"); }
    return Tokenizer(model.folder());
}

bool is_text(nb::handle given) {
    if (nb::isinstance<nb::str>(given)) { return true; }
    return nb::isinstance<nb::list>(given) && nb::len(given) > 0 && nb::isinstance<nb::str>(given[0]);
}

std::vector<std::string> texts_of(nb::handle given) {
    if (nb::isinstance<nb::str>(given)) { return {nb::cast<std::string>(given)}; }
    return nb::cast<std::vector<std::string>>(given);
}

/// What the caller says, else what the folder's generation_config.json says, else transformers' default.
template <class T>
T chosen(const std::optional<T>& given, const std::optional<T>& of_folder, T usual) {
    return given ? *given : of_folder.value_or(usual);
}

constexpr const char* generate_name = "Model.generate";

/// The keywords of generate beyond those of every call.
class MoreKeywords {
public:
    explicit MoreKeywords(const nb::kwargs& given) {
        const Own own[] = {{"max_length", &max_length_},
                           {"min_length", &min_length_},
                           {"num_return_sequences", &num_return_sequences_},
                           {"no_repeat_ngram_size", &no_repeat_ngram_size_},
                           {"bad_words_ids", &bad_words_ids_},
                           {"suppress_tokens", &suppress_tokens_},
                           {"begin_suppress_tokens", &begin_suppress_tokens_},
                           {"pad_token_id", &pad_token_id_},
                           {"decoder_start_token_id", &decoder_start_token_id_},
                           {"forced_bos_token_id", &forced_bos_token_id_},
                           {"forced_eos_token_id", &forced_eos_token_id_},
                           {"decoder_input_ids", &decoder_input_ids_}};
        read_keywords(generate_name, given, own);
    }

    std::optional<std::int64_t> max_length() const { return integer("max_length", max_length_, 1); }
    std::int64_t num_return_sequences() const {
        return integer("num_return_sequences", num_return_sequences_, 1).value_or(1);
    }
    nb::handle decoder_input_ids() const { return decoder_input_ids_ ? decoder_input_ids_ : nb::handle(Py_None); }
    GenerationTokens special() const {
        return {.pad = integer("pad_token_id", pad_token_id_, 0),
                .decoder_start = integer("decoder_start_token_id", decoder_start_token_id_, 0),
                .forced_bos = integer("forced_bos_token_id", forced_bos_token_id_, 0),
                .forced_eos = integer("forced_eos_token_id", forced_eos_token_id_, 0)};
    }
    /// `rules` are the folder's.
    TokenRules rules(TokenRules rules) const {
        if (given(suppress_tokens_)) { rules.suppress_tokens = ids("suppress_tokens", suppress_tokens_); }
        if (given(begin_suppress_tokens_)) {
            rules.begin_suppress_tokens = ids("begin_suppress_tokens", begin_suppress_tokens_);
        }
        if (given(bad_words_ids_)) {
            rules.bad_words_ids.clear();
            for (const nb::handle word : sequence("bad_words_ids", bad_words_ids_)) {
                rules.bad_words_ids.push_back(ids("bad_words_ids", word));
                if (rules.bad_words_ids.back().empty()) {
                    refuse(generate_name, "bad_words_ids", "lists that are not empty", "an empty one");
                }
            }
        }
        rules.no_repeat_ngram_size =
            integer("no_repeat_ngram_size", no_repeat_ngram_size_, 0).value_or(rules.no_repeat_ngram_size);
        rules.min_length = integer("min_length", min_length_, 0).value_or(rules.min_length);
        return rules;
    }

private:
    static bool given(nb::handle value) { return value && !value.is_none(); }
    static std::optional<std::int64_t> integer(const char* name, nb::handle value, std::int64_t least) {
        if (!given(value)) { return std::nullopt; }
        const std::int64_t number = to_integer(generate_name, name, value);
        if (number < least) { refuse(generate_name, name, std::to_string(least) + " or more", std::to_string(number)); }
        return number;
    }
    static nb::sequence sequence(const char* name, nb::handle value) {
        if (!nb::isinstance<nb::sequence>(value) || nb::isinstance<nb::str>(value)) {
            refuse(generate_name, name, "a list", nb::cast<std::string>(nb::repr(value)));
        }
        return nb::borrow<nb::sequence>(value);
    }
    static std::vector<std::int64_t> ids(const char* name, nb::handle value) {
        std::vector<std::int64_t> result;
        for (const nb::handle id : sequence(name, value)) { result.push_back(*integer(name, id, 0)); }
        return result;
    }

    nb::handle max_length_{}, min_length_{}, num_return_sequences_{}, no_repeat_ngram_size_{}, bad_words_ids_{},
        suppress_tokens_{}, begin_suppress_tokens_{}, pad_token_id_{}, decoder_start_token_id_{},
        forced_bos_token_id_{}, forced_eos_token_id_{}, decoder_input_ids_{};
};

struct GenerateKeywords {
    GenerateOptions generate;
    SearchOptions search;
    std::optional<std::int64_t> max_new_tokens, max_length;
};

/// Where the caller says nothing: what the folder says, or 20 as in transformers. `length`: of what the decoder reads
/// first.
std::int64_t new_tokens(const Model& model, const GenerateKeywords& keywords, std::int64_t length) {
    if (keywords.max_new_tokens) { return *keywords.max_new_tokens; }
    if (keywords.max_length) {
        if (*keywords.max_length <= length) {
            refuse(generate_name, "max_length", "more than the " + std::to_string(length) + " tokens that are there",
                   std::to_string(*keywords.max_length));
        }
        return *keywords.max_length - length;
    }
    const GenerationConfig& asked = model.generation();
    if (asked.max_new_tokens) { return *asked.max_new_tokens; }
    return asked.max_length ? std::max<std::int64_t>(1, *asked.max_length - length) : 20;
}

struct GenerateInputs {
    View ids{}, mask{}, decoder_ids{};
};

Tensor run(Context& context, const Model& model, const GenerateInputs& inputs, GenerateKeywords keywords) {
    const bool two_stacks = model.config().kind == ModelKind::encoder_decoder;
    const View& first = two_stacks ? inputs.decoder_ids : inputs.ids;
    keywords.search.max_new_tokens = keywords.generate.max_new_tokens =
        new_tokens(model, keywords, first && first.rank() == 2 ? first.extent(1) : 1);
    if (keywords.search.num_beams > 1) {
        return search_rows(context, model, inputs.ids, inputs.mask, keywords.search, {}, inputs.decoder_ids);
    }
    return generate_rows(context, model, inputs.ids, inputs.mask, keywords.generate, inputs.decoder_ids);
}

/// Text in, text out: each on its own row, as rows of a batch differ in length.
nb::object generate_text(Context& context, const Model& model, const Tokenizer& tokenizer, nb::handle given,
                         GenerateKeywords keywords) {
    nb::list results;
    std::vector<std::string> texts = texts_of(given);
    for (const std::string& text : texts) {
        std::vector<std::string> made;
        without_gil([&] {
            const std::vector<std::int64_t> ids = tokenizer.encode(text, {.truncate_and_pad = false});
            const Tensor rows =
                run(context, model, {.ids = View(ids.data(), {1, static_cast<std::int64_t>(ids.size())})}, keywords);
            const std::int64_t length = rows.shape()[1];
            for (std::int64_t r = 0; r < rows.shape()[0]; ++r) {
                made.push_back(
                    tokenizer.decode({rows.as<std::int64_t>() + r * length, static_cast<std::size_t>(length)}));
            }
        });
        for (const std::string& each : made) { results.append(nb::cast(each)); }
    }
    if (nb::isinstance<nb::str>(given) && nb::len(results) == 1) { return results[0]; }
    return results;
}

nb::object generate_(const Model& model, nb::handle inputs, nb::handle attention_mask,
                     std::optional<std::int64_t> max_new_tokens, std::optional<std::int64_t> min_new_tokens,
                     std::optional<bool> do_sample, std::optional<double> temperature,
                     std::optional<std::int64_t> top_k, std::optional<double> top_p, std::optional<double> min_p,
                     std::optional<double> repetition_penalty, std::uint64_t seed,
                     std::optional<std::int64_t> num_beams, std::optional<double> length_penalty,
                     nb::handle early_stopping, nb::handle eos_token_id,
                     const std::optional<std::vector<std::string>>& stop_strings, std::int64_t prompt_lookup_num_tokens,
                     const Model* assistant_model, nb::handle context, const nb::kwargs& given_more) {
    constexpr const char* f = generate_name;
    const MoreKeywords more(given_more);
    if (max_new_tokens && *max_new_tokens < 0) {
        refuse(f, "max_new_tokens", "0 or more", std::to_string(*max_new_tokens));
    }
    const GenerationConfig& folder = model.generation();
    GenerateKeywords keywords;
    GenerateOptions& options = keywords.generate;
    options.sampling = {.do_sample = chosen(do_sample, folder.do_sample, false),
                        .temperature = chosen(temperature, folder.temperature, 1.0),
                        .top_k = chosen(top_k, folder.top_k, std::int64_t{50}),
                        .top_p = chosen(top_p, folder.top_p, 1.0),
                        .min_p = chosen(min_p, folder.min_p, 0.0),
                        .repetition_penalty = chosen(repetition_penalty, folder.repetition_penalty, 1.0),
                        .seed = seed};
    SearchOptions& search = keywords.search;
    search.num_beams = chosen(num_beams, folder.num_beams, std::int64_t{1});
    if (search.num_beams > 1 && (options.sampling.do_sample || stop_strings)) {
        refuse(f, "num_beams", "1 with do_sample or stop_strings", std::to_string(search.num_beams));
    }
    if (search.num_beams < 1) { refuse(f, "num_beams", "1 or more", std::to_string(search.num_beams)); }
    keywords.max_new_tokens = max_new_tokens;
    keywords.max_length = more.max_length();
    if (min_new_tokens && *min_new_tokens < 0) {
        refuse(f, "min_new_tokens", "0 or more", std::to_string(*min_new_tokens));
    }
    search.min_new_tokens = chosen(min_new_tokens, folder.min_new_tokens, std::int64_t{0});
    search.length_penalty = chosen(length_penalty, folder.length_penalty, 1.0);
    search.early_stopping = early(early_stopping, folder.early_stopping);
    search.repetition_penalty = options.sampling.repetition_penalty;
    search.eos = end_tokens(eos_token_id);
    search.special = options.special = more.special();
    TokenRules rules = more.rules(folder.rules);
    if (min_new_tokens) { rules.min_length = 0; }  // new tokens win
    search.rules = options.rules = std::move(rules);
    search.num_return_sequences = options.num_return_sequences = more.num_return_sequences();
    options.min_new_tokens = search.min_new_tokens;
    options.eos = keywords.search.eos;
    options.stop = stop_strings.value_or(std::vector<std::string>());
    options.speculation.tokens = prompt_lookup_num_tokens;
    if (assistant_model != nullptr) {
        options.speculation.draft = *assistant_model;
        if (options.speculation.tokens == 0) { options.speculation.tokens = 5; }
    }
    if (!options.stop.empty()) { options.tokenizer = tokenizer_of(f, model); }
    Context& where = choose_model_context(f, context, model.device());
    if (is_text(inputs)) { return generate_text(where, model, tokenizer_of(f, model), inputs, keywords); }
    const Ids ids(f, "input_ids", inputs);
    const Ids mask(f, "attention_mask", attention_mask);
    const Ids decoder_ids(f, "decoder_input_ids", more.decoder_input_ids());
    Tensor result;
    without_gil([&] {
        result =
            run(where, model, {.ids = ids.view(), .mask = mask.view(), .decoder_ids = decoder_ids.view()}, keywords);
    });
    return copy_out(result, nb::none());
}

nb::object embed_(const Model& model, nb::handle inputs, nb::handle attention_mask, const std::string& pooling,
                  bool normalize, nb::handle context) {
    constexpr const char* f = "Model.embed";
    EmbedOptions options;
    options.normalise = normalize;
    if (pooling == "mean" || pooling == "cls" || pooling == "last") {
        options.pooling = pooling == "mean"  ? EmbedPooling::mean
                          : pooling == "cls" ? EmbedPooling::cls
                                             : EmbedPooling::last;
    } else {
        refuse(f, "pooling", "\"mean\", \"cls\" or \"last\"", "\"" + pooling + "\"");
    }
    Context& where = choose_model_context(f, context, model.device());
    Tensor result;
    if (is_text(inputs)) {
        const Tokenizer tokenizer = tokenizer_of(f, model);
        const std::vector<std::string> texts = texts_of(inputs);
        without_gil([&] { result = embed_texts(where, model, tokenizer, texts, options); });
        return copy_out(result, nb::none());
    }
    const Ids ids(f, "inputs", inputs);
    const Ids mask(f, "attention_mask", attention_mask);
    without_gil(
        [&] { result = embed(where, model, {.input_ids = ids.view(), .attention_mask = mask.view()}, options); });
    return copy_out(result, nb::none());
}

nb::dict score_(const Model& model, nb::handle inputs, std::int64_t window, std::int64_t stride, nb::handle context) {
    constexpr const char* f = "Model.score";
    std::vector<std::int64_t> ids;
    std::int64_t bytes = 0;
    if (nb::isinstance<nb::str>(inputs)) {
        const std::string text = to_text(f, "inputs", inputs);
        ids = tokenizer_of(f, model).encode(text, {.truncate_and_pad = false});
        bytes = static_cast<std::int64_t>(text.size());
    } else {
        ids = nb::cast<std::vector<std::int64_t>>(inputs);
    }
    Context& where = choose_model_context(f, context, model.device());
    TextScore score;
    without_gil([&] { score = score_text(where, model, ids, {.window = window, .stride = stride}); });
    nb::dict result;
    result["nll"] = score.negative_log_likelihood;
    result["tokens"] = score.tokens;
    result["perplexity"] = score.perplexity();
    if (bytes > 0) { result["bits_per_byte"] = score.bits_per_byte(bytes); }
    return result;
}

constexpr const char* generate_doc =
    R"doc(Continues ids [B,T] or text: prompt and continuation, or the decoder's sequence, as transformers' generate.

What is not given is what the model's generation_config.json says, or transformers' default. num_beams > 1 searches with
beams; do_sample draws, with the random numbers of `seed`. prompt_lookup_num_tokens and
assistant_model guess ahead, which changes the speed and not the tokens. num_return_sequences texts of a row, the best
beams or drawn apart, follow one another. decoder_input_ids [B,T] is what the targets of an encoder-decoder begin with. Text needs a model loaded from a folder with a
tokenizer.json, and gives text.

>>> config = {"model_type": "heed", "vocab": 16, "d_model": 8, "decoder": {"layers": 1, "attention": {"heads": 2}}}
>>> heed.Model(config).generate([[1, 2, 3]], max_new_tokens=4, do_sample=True, top_p=0.9).shape
(1, 7))doc";

}  // namespace

void bind_generate(nb::module_& m) {
    auto model = nb::borrow<nb::class_<Model>>(m.attr("Model"));
    model
        .def("generate", generate_, nb::arg("input_ids"), nb::arg("attention_mask") = nb::none(),
             nb::arg("max_new_tokens") = nb::none(), nb::arg("min_new_tokens") = nb::none(),
             nb::arg("do_sample") = nb::none(), nb::arg("temperature") = nb::none(), nb::arg("top_k") = nb::none(),
             nb::arg("top_p") = nb::none(), nb::arg("min_p") = nb::none(), nb::arg("repetition_penalty") = nb::none(),
             nb::arg("seed") = 0, nb::arg("num_beams") = nb::none(), nb::arg("length_penalty") = nb::none(),
             nb::arg("early_stopping") = nb::none(), nb::arg("eos_token_id") = nb::none(),
             nb::arg("stop_strings") = nb::none(), nb::arg("prompt_lookup_num_tokens") = 0,
             nb::arg("assistant_model").none() = nb::none(), nb::arg("context") = nb::none(), nb::arg("more"),
             nb::sig(
                 "def generate(self, input_ids: Any, attention_mask: Any = None, max_new_tokens: int | None = None, "
                 "min_new_tokens: int | None = None, do_sample: bool | None = None, temperature: float | None = None, "
                 "top_k: int | None = None, top_p: float | None = None, min_p: float | None = None, "
                 "repetition_penalty: float | None = None, seed: int = 0, num_beams: int | None = None, "
                 "length_penalty: float | None = None, early_stopping: bool | Literal['never'] | None = None, "
                 "eos_token_id: int | Sequence[int] | None = None, stop_strings: Sequence[str] | None = None, "
                 "prompt_lookup_num_tokens: int = 0, assistant_model: Model | None = None, context: Any = None, *, "
                 "max_length: int | None = None, min_length: int | None = None, num_return_sequences: int | None = "
                 "None, "
                 "no_repeat_ngram_size: int | None = None, bad_words_ids: Sequence[Sequence[int]] | None = None, "
                 "suppress_tokens: Sequence[int] | None = None, begin_suppress_tokens: Sequence[int] | None = None, "
                 "pad_token_id: int | None = None, decoder_start_token_id: int | None = None, "
                 "forced_bos_token_id: int | None = None, forced_eos_token_id: int | None = None, "
                 "decoder_input_ids: Any = None) -> Any"),
             generate_doc)
        .def("embed", embed_, nb::arg("inputs"), nb::arg("attention_mask") = nb::none(), nb::arg("pooling") = "mean",
             nb::arg("normalize") = true, nb::arg("context") = nb::none(),
             nb::sig(
                 "def embed(self, inputs: Any, attention_mask: Any = None, pooling: Literal['mean', 'cls', 'last'] = "
                 "'mean', normalize: bool = True, context: Any = None) -> Any"),
             R"doc(One vector for each text, or for each row of ids [B,T]: [B,d].

>>> config = {"model_type": "heed", "vocab": 16, "d_model": 8, "decoder": {"layers": 1, "attention": {"heads": 2}}}
>>> heed.Model(config).embed([[1, 2, 3]]).shape
(1, 8))doc")
        .def("score", score_, nb::arg("inputs"), nb::arg("window") = 0, nb::arg("stride") = 0,
             nb::arg("context") = nb::none(),
             nb::sig(
                 "def score(self, inputs: str | Sequence[int], window: int = 0, stride: int = 0, context: Any = None) "
                 "-> dict[str, Any]"),
             R"doc(How well a decoder predicts a text: nll, tokens, perplexity and, of text, bits_per_byte.

>>> config = {"model_type": "heed", "vocab": 16, "d_model": 8, "decoder": {"layers": 1, "attention": {"heads": 2}}}
>>> heed.Model(config).score([1, 2, 3])["tokens"]
2)doc");
    m.def(
        "bleu",
        [](const std::vector<std::string>& hypotheses, const std::vector<std::string>& references) {
            return bleu(hypotheses, references).score;
        },
        nb::arg("hypotheses"), nb::arg("references"),
        nb::sig("def bleu(hypotheses: Sequence[str], references: Sequence[str]) -> float"),
        R"doc(Corpus BLEU, 0 to 100, as sacreBLEU computes it by default, against one reference each.

>>> round(heed.bleu(["The cat sat."], ["The cat sat."]))
100)doc");
}

}  // namespace heed::python
