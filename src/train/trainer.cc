#include <heed/elementwise.h>
#include <heed/optimizer.h>
#include <heed/safetensors.h>
#include <heed/train.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numbers>

namespace heed {
namespace {

[[noreturn]] void refuse_option(const char* name, const std::string& expected, double got) {
    throw Error("[Trainer] " + std::string(name) + ": expected " + expected + ", got " + std::to_string(got));
}

void check_options(const TrainOptions& o) {
    const auto at_least = [](const char* name, std::int64_t value, std::int64_t least) {
        if (value < least) { refuse_option(name, "at least " + std::to_string(least), static_cast<double>(value)); }
    };
    at_least("steps", o.steps, 0);
    at_least("batch", o.batch, 1);
    at_least("accumulate", o.accumulate, 1);
    at_least("tokens", o.tokens, 2);
    at_least("warmup", o.warmup, 0);
    at_least("validation_batches", o.validation_batches, 1);
    at_least("validate_every", o.validate_every, 0);
    at_least("save_every", o.save_every, 0);
    if (o.batch % o.accumulate != 0) {
        refuse_option("accumulate", "a divisor of batch, " + std::to_string(o.batch),
                      static_cast<double>(o.accumulate));
    }
    const auto share = [](const char* name, double value) {
        if (!(value >= 0 && value < 1)) { refuse_option(name, "0 or more and less than 1", value); }
    };
    share("beta1", o.beta1);
    share("beta2", o.beta2);
    share("label_smoothing", o.label_smoothing);
    if (!(o.mask_share > 0 && o.mask_share < 1)) { refuse_option("mask_share", "between 0 and 1", o.mask_share); }
    const auto positive = [](const char* name, double value, bool zero) {
        if (!(std::isfinite(value) && (value > 0 || (zero && value == 0)))) {
            refuse_option(name, zero ? "0 or more" : "more than 0", value);
        }
    };
    positive("learning_rate", o.learning_rate, false);
    positive("final_rate", o.final_rate, true);
    positive("eps", o.eps, false);
    positive("weight_decay", o.weight_decay, true);
    positive("clip", o.clip, true);
    if (o.dtype != DType::f32 && o.dtype != DType::bf16) {
        throw Error("[Trainer] dtype: expected f32 or bf16, got " + std::string(name_of(o.dtype)));
    }
}

/// Rows [begin, end) of a batch.
TrainBatch part_of(const TrainBatch& batch, std::int64_t begin, std::int64_t end) {
    const auto rows = [&](const Tensor& tensor) {
        return tensor ? Tensor::copy_of(tensor.view().slice(0, begin, end)) : Tensor();
    };
    return {rows(batch.input_ids), rows(batch.attention_mask), rows(batch.labels), 0};
}

std::int64_t tokens_in(const TrainBatch& batch) {
    if (!batch.attention_mask) { return batch.input_ids.elements(); }
    const auto* mask = batch.attention_mask.as<std::uint8_t>();
    return std::count(mask, mask + batch.attention_mask.elements(), 1);
}

ForwardInputs inputs_of(const TrainBatch& batch) {
    ForwardInputs inputs;
    inputs.input_ids = batch.input_ids.view();
    if (batch.attention_mask) { inputs.attention_mask = batch.attention_mask.view(); }
    return inputs;
}

/// Matrices shrink; norms, biases and tables do not.
bool decays(const Parameter& parameter) {
    return parameter.value.rank() >= 2 && parameter.name.find("embed") == std::string::npos;
}

std::string number_text(double value) {
    char text[40];
    const auto end = std::to_chars(text, text + sizeof text, value);
    return std::string(text, end.ptr);
}

std::int64_t read_count(const SafetensorsMetadata& metadata, const char* key, const std::filesystem::path& file) {
    const auto at = metadata.find(key);
    std::int64_t value = -1;
    if (at != metadata.end()) { std::from_chars(at->second.data(), at->second.data() + at->second.size(), value); }
    if (value < 0) {
        throw FileError("[Trainer::resume] " + file.string() + ": expected a count '" + key + "' in it, got none");
    }
    return value;
}

}  // namespace

double learning_rate(const TrainOptions& o, std::int64_t d_model, std::int64_t step) {
    const auto t = static_cast<double>(std::max<std::int64_t>(step, 1));
    const auto warmup = static_cast<double>(o.warmup);
    if (o.schedule == Schedule::paper) {
        const double late = 1 / std::sqrt(t), early = warmup > 0 ? t * std::pow(warmup, -1.5) : late;
        return o.learning_rate / std::sqrt(static_cast<double>(d_model)) * std::min(late, early);
    }
    if (t <= warmup) { return o.learning_rate * t / warmup; }
    if (o.schedule == Schedule::constant) { return o.learning_rate; }
    const double span = std::max(1.0, static_cast<double>(o.steps) - warmup);
    const double progress = std::min(1.0, (t - warmup) / span);
    const double low = o.learning_rate * o.final_rate;
    return low + (o.learning_rate - low) / 2 * (1 + std::cos(std::numbers::pi * progress));
}

struct Trainer::State {
    /// What belongs to a learned tensor.
    struct Slot {
        Parameter* parameter = nullptr;
        Tensor master;  ///< f32: what is updated; the parameter's own memory where that is f32
        Tensor first, second;

        MutableView value() { return master ? master.view() : parameter->memory.view(); }
    };

    Context& context;
    TrainConfig config;
    std::unique_ptr<TrainData> data;
    Model model;
    std::vector<Slot> slots;
    TapeMemory memory;
    std::int64_t step = 0;
    std::int64_t applied = 0;

    State(Context& context_, const TrainConfig& config_, std::unique_ptr<TrainData> data_, Model model_)
        : context(context_), config(config_), data(std::move(data_)), model(std::move(model_)) {
        if (model.config().vocab < data->vocab()) {
            throw Error("[Trainer] vocab: expected at least " + std::to_string(data->vocab()) +
                        ", what the data has, got " + std::to_string(model.config().vocab));
        }
        for (Parameter& parameter : model.parameters().list()) {
            if (!parameter.trainable) { continue; }
            Slot slot;
            slot.parameter = &parameter;
            own(parameter);
            if (config.options.dtype != DType::f32) {
                slot.master = std::move(parameter.memory);
                parameter.memory = slot.master.to(config.options.dtype);
                parameter.value = parameter.memory.view();
            }
            slot.first = Tensor(DType::f32, parameter.value.shape());
            slot.second = Tensor(DType::f32, parameter.value.shape());
            slots.push_back(std::move(slot));
        }
    }

    /// Weights of a file are read-only and may be narrow: training has its own, in f32.
    static void own(Parameter& parameter) {
        if (!parameter.memory || parameter.memory.dtype() != DType::f32) {
            parameter.memory = Tensor::copy_of(parameter.value).to(DType::f32);
            parameter.value = parameter.memory.view();
        }
    }

    /// Names this file belongs to: model, data and everything that changes a step's result.
    std::string fingerprint() const { return write_train_config(config); }
};

Trainer::Trainer(Context& context, const TrainConfig& config) {
    check_options(config.options);
    TrainConfig complete = config;
    auto data = open_data(complete);
    if (complete.model.vocab == 0) { complete.model.vocab = data->vocab(); }
    complete.model = checked(complete.model);
    Model model = Model::random(complete.model, {.seed = config.options.seed});
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
const Model& Trainer::model() const { return state_->model; }
const TrainData& Trainer::data() const { return *state_->data; }
std::int64_t Trainer::step() const { return state_->step; }
std::int64_t Trainer::skipped() const { return state_->step - state_->applied; }
std::size_t Trainer::peak_bytes() { return state_->memory.peak_bytes(); }

StepReport Trainer::train_step() {
    State& s = *state_;
    const TrainOptions& o = s.config.options;
    const TrainBatch whole = s.data->batch(s.step);
    StepReport report;
    report.step = s.step + 1;
    report.tokens = tokens_in(whole);
    report.learning_rate = learning_rate(o, s.model.config().d_model, report.step);

    s.model.parameters().clear_gradients();
    const std::int64_t rows = o.batch / o.accumulate;
    for (std::int64_t part = 0; part < o.accumulate; ++part) {
        const TrainBatch batch = o.accumulate == 1 ? TrainBatch() : part_of(whole, part * rows, (part + 1) * rows);
        const TrainBatch& now = o.accumulate == 1 ? whole : batch;
        LossOptions options;
        options.cross_entropy.label_smoothing = o.label_smoothing;
        options.cross_entropy.divisor = static_cast<double>(std::max<std::int64_t>(whole.targets, 1));
        options.forward.dtype = o.dtype;
        options.forward.recompute = o.recompute;
        options.forward.dropout = {.p = s.model.config().dropout,
                                   .attention = s.model.config().attention_dropout,
                                   .seed = o.seed,
                                   .offset = static_cast<std::uint32_t>(s.step * o.accumulate + part + 1)};
        CrossEntropy result;
        Tape tape(s.context, s.memory);
        const Value loss = s.model.loss(tape, inputs_of(now), now.labels.view(), options, &result);
        tape.backward(loss);
        report.loss += result.nll;
    }

    std::vector<View> gradients;
    std::vector<AdamParameter> updates;
    for (State::Slot& slot : s.slots) {
        if (!slot.parameter->gradient) { continue; }  // an expert that no token visited, say
        gradients.push_back(slot.parameter->gradient.view());
        AdamParameter update;
        update.value = slot.value();
        update.gradient = slot.parameter->gradient.view();
        update.first = slot.first.view();
        update.second = slot.second.view();
        if (slot.master) { update.rounded = slot.parameter->memory.view(); }
        update.decay = decays(*slot.parameter);
        updates.push_back(update);
    }
    report.gradient_norm = global_norm(s.context, gradients);
    report.skipped = !std::isfinite(report.gradient_norm) || !std::isfinite(report.loss);
    if (!report.skipped) {
        ++s.applied;
        adam(s.context, updates,
             {.learning_rate = report.learning_rate,
              .beta1 = o.beta1,
              .beta2 = o.beta2,
              .eps = o.eps,
              .weight_decay = o.weight_decay,
              .decoupled = o.optimiser == Optimiser::adamw,
              .step = s.applied,
              .gradient_scale = o.clip > 0 ? clip_factor(report.gradient_norm, o.clip) : 1});
    }
    ++s.step;
    return report;
}

Score Trainer::validate() const {
    return score_batches(state_->context, state_->model, *state_->data, state_->config.options.validation_batches,
                         state_->config.options.dtype);
}

Score score_batches(Context& context, const Model& model, const TrainData& data, std::int64_t batches, DType dtype) {
    Score score;
    double total = 0;
    std::int64_t right = 0, exact = 0;
    const ModelKind kind = model.config().kind;
    for (std::int64_t n = 0; n < batches; ++n) {
        const TrainBatch batch = data.validation(n);
        const std::int64_t rows = batch.labels.shape()[0], columns = batch.labels.shape()[1];
        const auto* labels = batch.labels.as<std::int64_t>();
        ForwardInputs inputs = inputs_of(batch);
        Tensor decoder_ids;
        if (kind == ModelKind::encoder_decoder) {
            decoder_ids = Tensor(DType::i64, batch.labels.shape());
            for (std::int64_t i = 0; i < batch.labels.elements(); ++i) {
                const std::int64_t before = i % columns == 0 ? model.config().decoder_start.value_or(0) : labels[i - 1];
                decoder_ids.as<std::int64_t>()[i] = before < 0 ? model.config().pad.value_or(0) : before;
            }
            inputs.decoder_input_ids = decoder_ids.view();
        }
        const ForwardResult result = model.forward(context, inputs, {.dtype = dtype});
        const std::int64_t vocab = result.logits.shape()[2];
        for (std::int64_t r = 0; r < rows; ++r) {
            bool whole = true;
            std::int64_t asked = 0;
            for (std::int64_t t = 0; t < columns; ++t) {
                // A decoder's logits at t speak of the token at t + 1.
                if (kind == ModelKind::decoder && t + 1 == columns) { continue; }
                const std::int64_t label = labels[r * columns + t + (kind == ModelKind::decoder ? 1 : 0)];
                if (label < 0) { continue; }
                const float* z = result.logits.as<float>() + (r * columns + t) * vocab;
                const float top = *std::max_element(z, z + vocab);
                double sum = 0;
                for (std::int64_t v = 0; v < vocab; ++v) { sum += std::exp(static_cast<double>(z[v] - top)); }
                total += std::log(sum) + static_cast<double>(top - z[label]);
                const bool hit = std::max_element(z, z + vocab) - z == label;
                right += hit ? 1 : 0;
                whole = whole && hit;
                ++asked;
            }
            score.targets += asked;
            score.sequences += asked > 0 ? 1 : 0;
            exact += asked > 0 && whole ? 1 : 0;
        }
    }
    if (score.targets > 0) {
        score.loss = total / static_cast<double>(score.targets);
        score.token_accuracy = static_cast<double>(right) / static_cast<double>(score.targets);
        score.exact = static_cast<double>(exact) / static_cast<double>(score.sequences);
    }
    return score;
}

void Trainer::save(const std::filesystem::path& file) const {
    State& s = *state_;
    std::vector<NamedView> tensors;
    for (State::Slot& slot : s.slots) {
        tensors.push_back({"weight." + slot.parameter->name, slot.value()});
        tensors.push_back({"first." + slot.parameter->name, slot.first.view()});
        tensors.push_back({"second." + slot.parameter->name, slot.second.view()});
    }
    write_safetensors(file, tensors,
                      {{"format", "heed training state 1"},
                       {"config", s.fingerprint()},
                       {"step", std::to_string(s.step)},
                       {"applied", std::to_string(s.applied)},
                       {"learning_rate", number_text(learning_rate(s.config.options, s.model.config().d_model,
                                                                   std::max<std::int64_t>(s.step, 1)))}});
}

void Trainer::resume(const std::filesystem::path& file) {
    State& s = *state_;
    const SafetensorsFile saved = SafetensorsFile::open(file);
    const auto& metadata = saved.metadata();
    const auto config = metadata.find("config");
    if (config == metadata.end() || !metadata.contains("format")) {
        throw FileError("[Trainer::resume] " + file.string() + ": expected a training state, got another file");
    }
    if (config->second != s.fingerprint()) {
        throw Error("[Trainer::resume] config: expected the one that " + file.string() +
                    " was written with, got another; start a new run to change settings");
    }
    const std::int64_t step = read_count(metadata, "step", file), applied = read_count(metadata, "applied", file);
    struct Loaded {
        Tensor weight, first, second;
    };
    std::vector<Loaded> loaded;  // all of it before anything is replaced
    for (const State::Slot& slot : s.slots) {
        const auto take = [&](const char* prefix) {
            Tensor tensor = saved.tensor(prefix + slot.parameter->name);
            if (tensor.dtype() != DType::f32 || !(tensor.shape() == slot.parameter->value.shape())) {
                throw FileError("[Trainer::resume] " + file.string() + ": " + prefix + slot.parameter->name +
                                ": expected f32 " + to_string(slot.parameter->value.shape()) + ", got " +
                                std::string(name_of(tensor.dtype())) + " " + to_string(tensor.shape()));
            }
            return tensor;
        };
        loaded.push_back({take("weight."), take("first."), take("second.")});
    }
    for (std::size_t n = 0; n < s.slots.size(); ++n) {
        State::Slot& slot = s.slots[n];
        slot.first = std::move(loaded[n].first);
        slot.second = std::move(loaded[n].second);
        // Into the memory that the model already looks at.
        const MutableView value = slot.value();
        std::copy_n(loaded[n].weight.as<float>(), loaded[n].weight.elements(), value.as<float>());
        if (slot.master) { convert(s.context, slot.master.view(), slot.parameter->memory.view()); }
    }
    s.step = step;
    s.applied = applied;
}

}  // namespace heed
