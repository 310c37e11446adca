#include <heed/train.h>

#include <algorithm>
#include <cmath>

#include "base/access.h"
#include "base/refuse.h"
#include "train/batch.h"

namespace heed {

struct HEED_INTERNAL Trainer::State {
    TrainConfig config;
    std::unique_ptr<TrainData> data;
    Context& context;
    Learner learner;

    State(Context& context_, const TrainConfig& config_, std::unique_ptr<TrainData> data_, const Model& model)
        : config(config_), data(std::move(data_)), context(context_), learner(context_, model, config_.options) {
        if (model.config().vocab < data->vocab()) {
            refuse("Trainer", "vocab", "at least " + std::to_string(data->vocab()) + ", what the data has",
                   std::to_string(model.config().vocab));
        }
    }

    /// Names what a saved state belongs to: model, data and everything that changes a step's result.
    std::string fingerprint() const { return write_train_config(config); }
};

Trainer::Trainer(Context& context, const TrainConfig& config) {
    check_options(config.options);
    TrainConfig complete = config;
    auto data = open_data(complete);
    if (complete.model.vocab == 0) { data->complete(complete.model); }
    complete.model = checked(complete.model);
    Model model = Model::random(complete.model, {.seed = config.options.seed, .spread = config.options.spread});
    state_ = std::make_unique<State>(context, complete, std::move(data), std::move(model));
}

Trainer::Trainer(Context& context, const TrainConfig& config, const Model& model) {
    check_options(config.options);
    TrainConfig complete = config;
    complete.model = model.config();
    state_ = std::make_unique<State>(context, complete, open_data(complete), model);
}

Trainer::~Trainer() = default;

const TrainConfig& Trainer::config() const { return state_->config; }
const Model& Trainer::model() const { return state_->learner.model(); }
const TrainData& Trainer::data() const { return *state_->data; }
std::int64_t Trainer::step() const { return state_->learner.steps(); }
std::int64_t Trainer::skipped() const { return state_->learner.skipped(); }
std::size_t Trainer::peak_bytes() { return state_->learner.peak_bytes(); }

StepReport Trainer::train_step() { return state_->learner.step(state_->data->batch(step())); }

Score Trainer::validate() const {
    return score_batches(state_->context, model(), *state_->data, state_->config.options.validation_batches,
                         state_->config.options.dtype);
}

void Trainer::save(const std::filesystem::path& file) const { state_->learner.save(file, state_->fingerprint()); }

void Trainer::resume(const std::filesystem::path& file) { state_->learner.resume(file, state_->fingerprint()); }

namespace {

/// What a decoder is given of the target that it is asked for.
Tensor teacher_ids(const ModelConfig& config, const Tensor& labels) {
    Tensor ids(DType::i64, labels.shape());
    const std::int64_t columns = labels.shape()[1];
    for (std::int64_t i = 0; i < labels.elements(); ++i) {
        const std::int64_t before =
            i % columns == 0 ? config.decoder_start.value_or(0) : labels.as<std::int64_t>()[i - 1];
        ids.as<std::int64_t>()[i] = before < 0 ? config.pad.value_or(0) : before;
    }
    return ids;
}

/// Where the sequences of a batch begin among all its labels, and where the last one ends.
std::vector<std::int64_t> bounds_of(const TrainBatch& batch) {
    if (batch.cu_seqlens) {
        const auto* bounds = batch.cu_seqlens.as<std::int64_t>();
        return {bounds, bounds + batch.cu_seqlens.elements()};
    }
    std::vector<std::int64_t> bounds;
    for (std::int64_t r = 0; r <= batch.labels.shape()[0]; ++r) { bounds.push_back(r * batch.labels.shape()[1]); }
    return bounds;
}

struct Tally {
    double loss = 0;
    std::int64_t asked = 0, right = 0;
};

/// Of the labels [begin, end); a decoder's logits at t speak of the token at t + 1.
Tally tally_of(const Tensor& logits, const Tensor& labels, std::int64_t begin, std::int64_t end, bool next) {
    Tally tally;
    const std::int64_t vocab = logits.shape()[2];
    for (std::int64_t t = begin; t + (next ? 1 : 0) < end; ++t) {
        const std::int64_t label = labels.as<std::int64_t>()[t + (next ? 1 : 0)];
        if (label < 0) { continue; }
        const float* z = logits.as<float>() + t * vocab;
        const float* top = std::max_element(z, z + vocab);
        double sum = 0;
        for (std::int64_t v = 0; v < vocab; ++v) { sum += std::exp(static_cast<double>(z[v] - *top)); }
        tally.loss += std::log(sum) + static_cast<double>(*top - z[label]);
        tally.right += top - z == label ? 1 : 0;
        ++tally.asked;
    }
    return tally;
}

}  // namespace

Score score_batches(Context& context, const Model& model, const TrainData& data, std::int64_t batches, DType dtype) {
    Score score;
    double total = 0;
    std::int64_t right = 0, exact = 0;
    const ModelKind kind = model.config().kind;
    for (std::int64_t n = 0; n < batches; ++n) {
        const TrainBatch batch = data.validation(n);
        ForwardInputs inputs = inputs_of(batch);
        Tensor decoder_ids;
        if (kind == ModelKind::encoder_decoder) {
            decoder_ids = teacher_ids(model.config(), batch.labels);
            inputs.decoder_input_ids = decoder_ids.view();
        }
        const ForwardResult result = model.forward(context, inputs, {.dtype = dtype});
        const std::vector<std::int64_t> bounds = bounds_of(batch);
        for (std::size_t s = 0; s + 1 < bounds.size(); ++s) {
            const Tally tally =
                tally_of(result.logits, batch.labels, bounds[s], bounds[s + 1], kind == ModelKind::decoder);
            total += tally.loss;
            right += tally.right;
            score.targets += tally.asked;
            score.sequences += tally.asked > 0 ? 1 : 0;
            exact += tally.asked > 0 && tally.right == tally.asked ? 1 : 0;
        }
    }
    if (score.targets > 0) {
        score.loss = total / static_cast<double>(score.targets);
        score.token_accuracy = static_cast<double>(right) / static_cast<double>(score.targets);
        score.exact = static_cast<double>(exact) / static_cast<double>(score.sequences);
    }
    return score;
}

}  // namespace heed
