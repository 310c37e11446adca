#include <heed/search.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/refuse.h"
#include "generate/first_largest.h"
#include "generate/penalise.h"
#include "generate/prompt_rows.h"
#include "generate/token_limits.h"

namespace heed {
namespace {

/// What the scores of beams that do not exist yet begin with: worse than any that does.
constexpr float no_beam = -1e9F;

struct Plan {
    SearchOptions options{};
    TokenLimits limits{};
    std::int64_t recompute_beyond = 0;

    /// Whether the caches of a text of so many tokens are of no use for the next step.
    bool outgrown(std::int64_t cached, std::int64_t tokens) const {
        return recompute_beyond > 0 && cached > 0 && cached <= recompute_beyond && tokens > recompute_beyond;
    }
};

/// Log-probabilities of one row, in place of its logits.
void log_softmax(std::span<float> row) {
    const float most = *std::ranges::max_element(row);
    double sum = 0;
    for (const float x : row) { sum += std::exp(static_cast<double>(x) - most); }
    const auto lse = static_cast<float>(most + std::log(sum));
    for (float& x : row) { x -= lse; }
}

/// Penalties, and what may not come.
void restrict_row(const Plan& plan, std::int64_t made, const std::vector<std::int64_t>& text, std::span<float> row) {
    penalise(row, text, plan.options.repetition_penalty);
    plan.limits.apply(behind_padding(plan.options.padding, text), made, row);
}

std::span<float> row_of(Tensor& logits, std::int64_t row) {
    const std::int64_t v = logits.shape()[1];
    return {logits.as<float>() + row * v, static_cast<std::size_t>(v)};
}

// ---- Greedy --------------------------------------------------------------------------------------------------------

std::vector<std::int64_t> greedy(Context& context, Decoding& decoding, CachedSequence sequence,
                                 std::vector<std::int64_t> text, const Plan& plan) {
    std::vector<std::int64_t> next = text;
    for (std::int64_t made = 0; made < plan.options.max_new_tokens; ++made) {
        if (plan.outgrown(sequence.length(), static_cast<std::int64_t>(text.size()))) {
            sequence = decoding.create();
            next = text;
        }
        DecodingBatch batch{.sequences = {&sequence}, .tokens = next};
        batch.counts = {static_cast<std::int64_t>(next.size())};
        Tensor logits = decoding.step(context, batch);
        const std::span<float> row = row_of(logits, 0);
        restrict_row(plan, made, text, row);
        const std::int64_t token = first_largest(row);
        text.push_back(token);
        if (plan.limits.ends(token)) { break; }
        next = {token};
    }
    return text;
}

// ---- Beams ---------------------------------------------------------------------------------------------------------

struct Beam {
    std::vector<std::int64_t> text{};
    float score = no_beam;
    std::size_t parent = 0;
    bool finished = false;
};

/// The `count` best, the first of equals first.
template <class Score>
std::vector<std::size_t> best(std::size_t size, std::size_t count, const Score& score) {
    std::vector<std::size_t> order(size);
    std::iota(order.begin(), order.end(), std::size_t{0});
    count = std::min(count, size);
    std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count), order.end(),
                      [&](std::size_t a, std::size_t b) {
                          const float x = score(a), y = score(b);
                          return x != y ? x > y : a < b;
                      });
    order.resize(count);
    return order;
}

class BeamSearch {
public:
    BeamSearch(const Plan& plan, const std::vector<std::int64_t>& prompt)
        : plan_(plan), beams_(static_cast<std::size_t>(plan.options.num_beams)) {
        running_.assign(beams_, {.text = prompt});
        running_[0].score = 0;
        finished_.assign(beams_, {.text = prompt});
    }

    const std::vector<Beam>& running() const { return running_; }
    /// Takes the log-probabilities of the running beams' next tokens; true while the search goes on.
    bool advance(Tensor& log_probabilities) {
        const std::vector<Beam> candidates = continuations(log_probabilities);
        const bool all_end = std::ranges::all_of(candidates, &Beam::finished);
        keep_running(candidates);
        keep_finished(candidates);
        ++made_;
        return improvement_possible() && !(all_finished() && stops_early()) && !all_end;
    }
    std::vector<std::vector<std::int64_t>> result() const {
        std::vector<std::vector<std::int64_t>> texts;
        for (std::int64_t n = 0; n < plan_.options.num_return_sequences; ++n) {
            texts.push_back(finished_[static_cast<std::size_t>(n)].text);
        }
        return texts;
    }

private:
    bool stops_early() const { return plan_.options.early_stopping == EarlyStopping::yes; }
    bool all_finished() const { return std::ranges::all_of(finished_, &Beam::finished); }

    std::vector<Beam> continuations(Tensor& rows) const {
        const auto vocab = static_cast<std::size_t>(rows.shape()[1]);
        // Enough that as many as there are beams remain when the others end.
        const std::size_t keep = std::max<std::size_t>(2, 1 + plan_.limits.eos().size()) * beams_;
        std::vector<float> scores(beams_ * vocab);
        for (std::size_t b = 0; b < beams_; ++b) {
            const std::span<float> row = row_of(rows, static_cast<std::int64_t>(b));
            for (std::size_t v = 0; v < vocab; ++v) { scores[b * vocab + v] = row[v] + running_[b].score; }
        }
        std::vector<Beam> result;
        for (const std::size_t at : best(scores.size(), keep, [&](std::size_t i) { return scores[i]; })) {
            Beam beam{.text = running_[at / vocab].text, .score = scores[at], .parent = at / vocab};
            const auto token = static_cast<std::int64_t>(at % vocab);
            beam.text.push_back(token);
            beam.finished = plan_.limits.ends(token) || made_ + 1 >= plan_.options.max_new_tokens;
            result.push_back(std::move(beam));
        }
        return result;
    }

    void keep_running(const std::vector<Beam>& candidates) {
        const auto score = [&](std::size_t i) { return candidates[i].score + (candidates[i].finished ? no_beam : 0); };
        std::vector<Beam> next;
        for (const std::size_t i : best(candidates.size(), beams_, score)) {
            next.push_back(candidates[i]);
            next.back().score = score(i);
        }
        running_ = std::move(next);
    }

    void keep_finished(const std::vector<Beam>& candidates) {
        const auto length = static_cast<float>(std::pow(static_cast<double>(made_ + 1), plan_.options.length_penalty));
        const bool closed = (all_finished() && stops_early()) || !open_;
        std::vector<Beam> merged = finished_;
        for (std::size_t i = 0; i < candidates.size(); ++i) {
            Beam beam = candidates[i];
            const bool counts = beam.finished && i < beams_;
            beam.score = beam.score / length + (closed ? no_beam : 0) + (counts ? 0 : no_beam);
            beam.finished = counts;
            merged.push_back(std::move(beam));
        }
        std::vector<Beam> next;
        for (const std::size_t i : best(merged.size(), beams_, [&](std::size_t m) { return merged[m].score; })) {
            next.push_back(merged[i]);
        }
        finished_ = std::move(next);
    }

    bool improvement_possible() {
        const bool to_the_end =
            plan_.options.early_stopping == EarlyStopping::never && plan_.options.length_penalty > 0;
        const double length = static_cast<double>(to_the_end ? plan_.options.max_new_tokens : made_);
        const float most = running_[0].score / static_cast<float>(std::pow(length, plan_.options.length_penalty));
        const float least = std::ranges::min_element(finished_, {}, &Beam::score)->score;
        open_ = open_ && std::ranges::any_of(
                             finished_, [&](const Beam& beam) { return most > (beam.finished ? least : no_beam); });
        return open_;
    }

    const Plan& plan_;
    std::size_t beams_;
    std::int64_t made_ = 0;
    bool open_ = true;  ///< a running beam may still become better than a finished one
    std::vector<Beam> running_;
    std::vector<Beam> finished_;
};

std::vector<std::vector<std::int64_t>> beams(Context& context, Decoding& decoding, CachedSequence first,
                                             const std::vector<std::int64_t>& prompt, const Plan& plan) {
    BeamSearch search(plan, prompt);
    std::vector<CachedSequence> sequences;
    std::int64_t made = 0;
    for (bool goes_on = plan.options.max_new_tokens > 0; goes_on; ++made) {
        DecodingBatch batch;
        if (sequences.empty()) {
            batch = {.sequences = {&first}, .tokens = prompt, .counts = {static_cast<std::int64_t>(prompt.size())}};
        } else {
            for (std::size_t b = 0; b < sequences.size(); ++b) {
                const std::vector<std::int64_t>& text = search.running()[b].text;
                const bool anew = plan.outgrown(sequences[b].length(), static_cast<std::int64_t>(text.size()));
                if (anew) { sequences[b] = decoding.create(); }
                batch.sequences.push_back(&sequences[b]);
                batch.tokens.insert(batch.tokens.end(), anew ? text.begin() : text.end() - 1, text.end());
                batch.counts.push_back(anew ? static_cast<std::int64_t>(text.size()) : 1);
            }
        }
        Tensor logits = decoding.step(context, batch);
        if (sequences.empty()) {  // all beams begin with the prompt
            Tensor all(DType::f32, {plan.options.num_beams, logits.shape()[1]});
            for (std::int64_t b = 0; b < plan.options.num_beams; ++b) {
                std::ranges::copy(row_of(logits, 0), row_of(all, b).begin());
                sequences.push_back(first.fork());
            }
            logits = std::move(all);
            first = CachedSequence();
        }
        for (std::int64_t b = 0; b < plan.options.num_beams; ++b) {
            log_softmax(row_of(logits, b));
            restrict_row(plan, made, search.running()[static_cast<std::size_t>(b)].text, row_of(logits, b));
        }
        goes_on = search.advance(logits);
        std::vector<CachedSequence> next;
        for (const Beam& beam : search.running()) { next.push_back(sequences[beam.parent].fork()); }
        sequences = std::move(next);
    }
    return search.result();
}

void check_search(const ModelConfig& c, std::span<const std::int64_t> prompt, const SearchOptions& o) {
    if (prompt.empty()) { refuse("search", "prompt", "at least one token", "none"); }
    if (o.max_new_tokens < 0) { refuse("search", "max_new_tokens", "0 or more", std::to_string(o.max_new_tokens)); }
    if (o.min_new_tokens < 0) { refuse("search", "min_new_tokens", "0 or more", std::to_string(o.min_new_tokens)); }
    if (o.num_beams < 1 || o.num_beams > c.vocab) {
        refuse("search", "num_beams", "1 to " + std::to_string(c.vocab), std::to_string(o.num_beams));
    }
    if (o.num_return_sequences < 1 || o.num_return_sequences > o.num_beams) {
        refuse("search", "num_return_sequences", "1 to num_beams, " + std::to_string(o.num_beams),
               std::to_string(o.num_return_sequences));
    }
    if (!(o.repetition_penalty > 0) || !std::isfinite(o.repetition_penalty)) {
        refuse("search", "repetition_penalty", "more than 0", std::to_string(o.repetition_penalty));
    }
    if (!std::isfinite(o.length_penalty)) {
        refuse("search", "length_penalty", "a finite number", std::to_string(o.length_penalty));
    }
    if (c.kind != ModelKind::encoder_decoder && !o.decoder_prompt.empty()) {
        refuse("search", "decoder_prompt", "none, as the model is no encoder-decoder",
               std::to_string(o.decoder_prompt.size()) + " tokens");
    }
}

}  // namespace

DecodingOptions search_room(std::int64_t prompt, const SearchOptions& options) {
    const std::int64_t length = prompt + options.max_new_tokens + 1;
    // While beams are chosen anew, parents and children exist at once.
    return {.tokens = length * 2 * options.num_beams, .sequences = 2 * options.num_beams + 1};
}

Tensor search_rows(Context& context, const Model& model, const View& input_ids, const View& attention_mask,
                   const SearchOptions& options, const std::string& kernel, const View& decoder_input_ids) {
    const ModelConfig& c = model.config();
    const std::vector<PromptRow> prompts = prompt_rows(model, {.function = "search_rows",
                                                               .input_ids = input_ids,
                                                               .attention_mask = attention_mask,
                                                               .eos = options.eos,
                                                               .special = options.special});
    const auto beginnings = decoder_prompts("search_rows", model, options.special, decoder_input_ids,
                                            static_cast<std::int64_t>(prompts.size()));
    SearchOptions of_row = options;
    std::vector<std::vector<std::int64_t>> rows;
    std::size_t longest = 0;
    for (std::size_t b = 0; b < prompts.size(); ++b) {
        const auto& [whole, prompt, padding] = prompts[b];
        of_row.padding = padding;
        if (c.kind != ModelKind::decoder) { of_row.padding.clear(); }
        if (decoder_input_ids) { of_row.decoder_prompt = beginnings[b]; }
        const auto longer = static_cast<std::int64_t>(std::max(of_row.decoder_prompt.size(), prompt.size()));
        DecodingOptions room = search_room(longer, options);
        room.kernel = kernel;
        Decoding decoding(model, room);
        for (std::vector<std::int64_t>& row : search_best(context, decoding, prompt, of_row)) {
            if (c.kind == ModelKind::decoder) {
                row.erase(row.begin(), row.begin() + static_cast<std::ptrdiff_t>(prompt.size()));
                row.insert(row.begin(), whole.begin(), whole.end());
            }
            longest = std::max(longest, row.size());
            rows.push_back(std::move(row));
        }
    }
    // Behind the end stands padding; transformers' beams have the end token there where the padding id is 0.
    GenerationTokens special = options.special;
    if (options.num_beams > 1 && special.pad.value_or(c.pad.value_or(-1)) == 0) {
        const std::vector<std::int64_t> eos = options.eos.value_or(c.eos);
        if (!eos.empty()) { special.pad = eos[0]; }
    }
    const std::int64_t padding = padding_token(model, options.eos, special);
    Tensor result(DType::i64, {static_cast<std::int64_t>(rows.size()), static_cast<std::int64_t>(longest)});
    std::fill_n(result.as<std::int64_t>(), result.elements(), padding);
    for (std::size_t b = 0; b < rows.size(); ++b) {
        std::ranges::copy(rows[b], result.as<std::int64_t>() + b * longest);
    }
    return result;
}

std::vector<std::int64_t> search(Context& context, Decoding& decoding, std::span<const std::int64_t> prompt,
                                 const SearchOptions& options) {
    return search_best(context, decoding, prompt, options).front();
}

std::vector<std::vector<std::int64_t>> search_best(Context& context, Decoding& decoding,
                                                   std::span<const std::int64_t> prompt, const SearchOptions& options) {
    const Model& model = decoding.model();
    const ModelConfig& c = model.config();
    check_search(c, prompt, options);
    refuse_unknown("search", model.generation(), false);
    const Plan plan{.options = options,
                    .limits = TokenLimits(model, {.function = "search",
                                                  .eos = options.eos,
                                                  .special = options.special,
                                                  .rules = options.rules,
                                                  .min_new_tokens = options.min_new_tokens,
                                                  .max_new_tokens = options.max_new_tokens}),
                    .recompute_beyond = c.recompute_beyond()};
    std::vector<std::int64_t> text(prompt.begin(), prompt.end());
    CachedSequence sequence;
    if (c.kind == ModelKind::encoder_decoder) {
        text = target_beginning("search", model, options.special, options.decoder_prompt);
        sequence = decoding.create(context, View(prompt.data(), {static_cast<std::int64_t>(prompt.size())}));
    } else {
        sequence = decoding.create();
    }
    if (options.num_beams > 1) { return beams(context, decoding, std::move(sequence), text, plan); }
    return {greedy(context, decoding, std::move(sequence), std::move(text), plan)};
}

}  // namespace heed
