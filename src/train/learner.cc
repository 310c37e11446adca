#include <heed/elementwise.h>
#include <heed/optimizer.h>
#include <heed/safetensors.h>
#include <heed/train.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/access.h"
#include "base/refuse.h"
#include "ops/host_copy.h"
#include "train/batch.h"

namespace heed {
namespace {

[[noreturn]] void refuse_option(const char* name, const std::string& expected, double got) {
    refuse("Learner", std::string(name), expected, std::to_string(got));
}

TrainBatch sliced(const TrainBatch& batch, int axis, std::int64_t begin, std::int64_t end) {
    const auto cut = [&](const Tensor& tensor) {
        return tensor ? Tensor::copy_of(tensor.view().slice(axis, begin, end)) : Tensor();
    };
    return {cut(batch.input_ids), cut(batch.attention_mask), cut(batch.labels), 0, {}};
}

/// Whole sequences of a packed batch, about as many tokens in each part; nothing where a long one took all of them.
TrainBatch packed_part(const TrainBatch& batch, std::int64_t part, std::int64_t parts) {
    const auto* bounds = batch.cu_seqlens.as<std::int64_t>();
    const std::int64_t count = batch.cu_seqlens.elements(), tokens = bounds[count - 1];
    const auto bound = [&](std::int64_t n) { return std::lower_bound(bounds, bounds + count, n * tokens / parts); };
    const auto *begin = bound(part), *end = bound(part + 1);
    if (begin == end) { return {}; }
    TrainBatch result = sliced(batch, 1, *begin, *end);
    result.cu_seqlens = Tensor(DType::i64, {end - begin + 1});
    std::transform(begin, end + 1, result.cu_seqlens.as<std::int64_t>(), [&](std::int64_t b) { return b - *begin; });
    return result;
}

TrainBatch part_of(const TrainBatch& batch, std::int64_t part, std::int64_t parts) {
    if (batch.cu_seqlens) { return packed_part(batch, part, parts); }
    const std::int64_t rows = batch.input_ids.shape()[0] / parts;
    return sliced(batch, 0, part * rows, (part + 1) * rows);
}

std::int64_t tokens_in(const TrainBatch& batch) {
    if (!batch.attention_mask) { return batch.input_ids.elements(); }
    const auto* mask = batch.attention_mask.as<std::uint8_t>();
    return std::count(mask, mask + batch.attention_mask.elements(), 1);
}

/// Labels that count; of a decoder the first one of a row does not, as nothing comes before it.
std::int64_t count_targets(const TrainBatch& batch, ModelKind kind) {
    const Tensor& labels = batch.labels;
    std::int64_t count = 0;
    for (std::int64_t n = 0; n < labels.elements(); ++n) {
        const bool first = kind == ModelKind::decoder && n % labels.shape()[1] == 0;
        count += !first && labels.as<std::int64_t>()[n] >= 0 ? 1 : 0;
    }
    return count;
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
        throw FileError("[Learner::resume] " + file.string() + ": expected a count '" + key + "' in it, got none");
    }
    return value;
}

std::string seen(const Tensor& tensor) {
    return tensor ? std::string(name_of(tensor.dtype())) + " " + to_string(tensor.shape()) : "none";
}

void check_bounds(const TrainBatch& batch) {
    const Tensor& bounds = batch.cu_seqlens;
    const std::int64_t tokens = batch.input_ids.elements();
    bool fits = bounds.dtype() == DType::i64 && bounds.shape().rank() == 1 && bounds.elements() >= 2;
    for (std::int64_t n = 0; fits && n < bounds.elements(); ++n) {
        const std::int64_t bound = bounds.as<std::int64_t>()[n];
        fits = n == 0 ? bound == 0 : bound > bounds.as<std::int64_t>()[n - 1];
    }
    if (!fits || bounds.as<std::int64_t>()[bounds.elements() - 1] != tokens) {
        refuse("Learner", "cu_seqlens", "i64 numbers that grow from 0 to " + std::to_string(tokens),
               seen(bounds) + (fits ? " with another end" : ""));
    }
}

/// What parts of a batch are made from; the rest is for the model to check.
void check_batch(const TrainBatch& batch, std::int64_t parts) {
    const auto ids = [](const char* name, const Tensor& tensor) {
        if (!tensor || tensor.dtype() != DType::i64 || tensor.shape().rank() != 2) {
            refuse("Learner", std::string(name), "i64 [batch, tokens]", seen(tensor));
        }
    };
    ids("input_ids", batch.input_ids);
    ids("labels", batch.labels);
    const std::int64_t rows = batch.input_ids.shape()[0];
    if (batch.labels.shape()[0] != rows) {
        refuse("Learner", "labels", "shape with " + std::to_string(rows) + " rows, as input_ids",
               to_string(batch.labels.shape()));
    }
    if (batch.attention_mask &&
        (batch.attention_mask.dtype() != DType::u8 || !(batch.attention_mask.shape() == batch.input_ids.shape()))) {
        refuse("Learner", "attention_mask", "u8 " + to_string(batch.input_ids.shape()), seen(batch.attention_mask));
    }
    if (batch.cu_seqlens) { return check_bounds(batch); }
    if (rows % parts != 0) {
        refuse("Learner", "batch", "rows for " + std::to_string(parts) + " equal parts (accumulate)",
               std::to_string(rows));
    }
}

}  // namespace

/// What belongs to a learned tensor. Not in an unnamed namespace: Learner::State has it, and folders are compiled as
/// one.
struct Slot {
    Parameter* parameter = nullptr;
    Tensor master;  ///< f32: what is updated; the parameter's own memory where that is f32
    Tensor first, second;

    MutableView value() { return master ? master.view() : parameter->memory.view(); }
};

namespace {

Tensor converted(Context& context, const View& x, DType dtype) {
    Tensor result = Tensor::uninitialised(dtype, x.shape(), context.device());
    if (x.shape().elements() > 0) { convert(context, x, result.view()); }
    return result;
}

/// Weights of a file are read-only and may be narrow: training has its own, in f32.
void own(Context& context, Parameter& parameter) {
    if (!parameter.memory || parameter.memory.dtype() != DType::f32) {
        parameter.memory = converted(context, parameter.value, DType::f32);
        parameter.value = parameter.memory.view();
    }
}

Slot slot_of(Context& context, Parameter& parameter, DType dtype) {
    Slot slot;
    slot.parameter = &parameter;
    own(context, parameter);
    if (dtype != DType::f32) {
        slot.master = std::move(parameter.memory);
        parameter.memory = converted(context, slot.master.view(), dtype);
        parameter.value = parameter.memory.view();
    }
    slot.first = Tensor(DType::f32, parameter.value.shape(), context.device());
    slot.second = Tensor(DType::f32, parameter.value.shape(), context.device());
    return slot;
}

AdamParameter update_of(Slot& slot) {
    AdamParameter update;
    update.value = slot.value();
    update.gradient = slot.parameter->gradient.view();
    update.first = slot.first.view();
    update.second = slot.second.view();
    if (slot.master) { update.rounded = slot.parameter->memory.view(); }
    update.decay = decays(*slot.parameter);
    return update;
}

}  // namespace

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
    positive("spread", o.spread, true);
    if (o.dtype != DType::f32 && o.dtype != DType::bf16) {
        refuse("Learner", "dtype", "f32 or bf16", std::string(name_of(o.dtype)));
    }
}

ForwardInputs inputs_of(const TrainBatch& batch) {
    ForwardInputs inputs;
    inputs.input_ids = batch.input_ids.view();
    if (batch.attention_mask) { inputs.attention_mask = batch.attention_mask.view(); }
    if (batch.cu_seqlens) { inputs.cu_seqlens = batch.cu_seqlens.view(); }
    return inputs;
}

struct HEED_INTERNAL Learner::State {
    Context& context;
    Model model;
    TrainOptions options;
    std::vector<Slot> slots;
    TapeMemory memory;
    std::int64_t step = 0;
    std::int64_t applied = 0;

    State(Context& context_, const Model& model_, const TrainOptions& options_)
        : context(context_), model(model_), options(options_) {
        model.to(context.device());
        for (Parameter& parameter : model.parameters().list()) {
            if (parameter.trainable) { slots.push_back(slot_of(context, parameter, options.dtype)); }
        }
    }

    /// Adds the gradients of one part of a batch; returns its share of the loss.
    double backward(const TrainBatch& batch, std::int64_t part, std::int64_t targets) {
        LossOptions o;
        o.cross_entropy.label_smoothing = options.label_smoothing;
        o.cross_entropy.divisor = static_cast<double>(std::max<std::int64_t>(targets, 1));
        o.forward.dtype = options.dtype;
        o.forward.recompute = options.recompute;
        o.forward.dropout = {.p = model.config().dropout,
                             .attention = model.config().attention_dropout,
                             .seed = options.seed,
                             .offset = static_cast<std::uint32_t>(step * options.accumulate + part + 1)};
        CrossEntropy result;
        Tape tape(context, memory);
        tape.backward(model.loss(tape, inputs_of(batch), batch.labels.view(), o, &result));
        return result.nll;
    }

    /// The update from the gradients that are there, unless they are not finite.
    void update(StepReport& report) {
        std::vector<View> gradients;
        std::vector<AdamParameter> updates;
        for (Slot& slot : slots) {
            Parameter& parameter = *slot.parameter;
            if (!parameter.gradient) { continue; }  // an expert that no token visited, say
            if (std::exchange(parameter.gradient_is_old, false)) { fill(context, parameter.gradient.view(), 0); }
            gradients.push_back(slot.parameter->gradient.view());
            updates.push_back(update_of(slot));
        }
        report.gradient_norm = global_norm(context, gradients);
        report.skipped = !std::isfinite(report.gradient_norm) || !std::isfinite(report.loss);
        if (report.skipped) { return; }
        ++applied;
        adam(context, updates,
             {.learning_rate = report.learning_rate,
              .beta1 = options.beta1,
              .beta2 = options.beta2,
              .eps = options.eps,
              .weight_decay = options.weight_decay,
              .decoupled = options.optimiser == Optimiser::adamw,
              .step = applied,
              .gradient_scale = options.clip > 0 ? clip_factor(report.gradient_norm, options.clip) : 1});
    }
};

Learner::Learner(Context& context, const Model& model, const TrainOptions& options) {
    check_options(options);
    state_ = std::make_unique<State>(context, model, options);
}

Learner::~Learner() = default;

const Model& Learner::model() const { return state_->model; }
const TrainOptions& Learner::options() const { return state_->options; }
std::int64_t Learner::steps() const { return state_->step; }
std::int64_t Learner::skipped() const { return state_->step - state_->applied; }
std::size_t Learner::peak_bytes() { return state_->memory.peak_bytes(); }

StepReport Learner::step(const TrainBatch& whole) {
    State& s = *state_;
    const std::int64_t parts = s.options.accumulate;
    check_batch(whole, parts);
    StepReport report;
    report.step = s.step + 1;
    report.tokens = tokens_in(whole);
    report.learning_rate = learning_rate(s.options, s.model.config().d_model, report.step);
    s.model.parameters().retire_gradients();
    const std::int64_t targets = whole.targets > 0 ? whole.targets : count_targets(whole, s.model.config().kind);
    for (std::int64_t part = 0; part < parts; ++part) {
        const TrainBatch batch = parts == 1 ? TrainBatch() : part_of(whole, part, parts);
        const TrainBatch& now = parts == 1 ? whole : batch;
        if (now.input_ids) { report.loss += s.backward(now, part, targets); }
    }
    s.update(report);
    ++s.step;
    return report;
}

void Learner::save(const std::filesystem::path& file, std::string_view belongs_to) const {
    State& s = *state_;
    s.context.synchronise();
    const bool host = on_host(s.context);
    std::vector<Tensor> here;
    here.reserve(3 * s.slots.size());
    std::vector<NamedView> tensors;
    const auto one = [&](const std::string& name, const View& view) {
        if (!host) { here.push_back(Tensor::copy_of(view).to(Device{})); }
        tensors.push_back({name, host ? view : View(here.back().view())});
    };
    for (Slot& slot : s.slots) {
        one("weight." + slot.parameter->name, slot.value());
        one("first." + slot.parameter->name, slot.first.view());
        one("second." + slot.parameter->name, slot.second.view());
    }
    write_safetensors(file, tensors,
                      {{"format", "heed training state 1"},
                       {"config", std::string(belongs_to)},
                       {"step", std::to_string(s.step)},
                       {"applied", std::to_string(s.applied)},
                       {"learning_rate", number_text(learning_rate(s.options, s.model.config().d_model,
                                                                   std::max<std::int64_t>(s.step, 1)))}});
}

void Learner::resume(const std::filesystem::path& file, std::string_view belongs_to) {
    State& s = *state_;
    const SafetensorsFile saved = SafetensorsFile::open(file);
    const auto& metadata = saved.metadata();
    const auto config = metadata.find("config");
    if (config == metadata.end() || !metadata.contains("format")) {
        throw FileError("[Learner::resume] " + file.string() + ": expected a training state, got another file");
    }
    if (config->second != belongs_to) {
        refuse("Learner::resume", "config", "the one that " + file.string() + " was written with",
               "another; start a new run to change settings");
    }
    const std::int64_t step = read_count(metadata, "step", file), applied = read_count(metadata, "applied", file);
    struct Loaded {
        Tensor weight, first, second;
    };
    std::vector<Loaded> loaded;  // all of it before anything is replaced
    for (const Slot& slot : s.slots) {
        const auto take = [&](const char* prefix) {
            Tensor tensor = saved.tensor(prefix + slot.parameter->name);
            if (tensor.dtype() != DType::f32 || !(tensor.shape() == slot.parameter->value.shape())) {
                throw FileError("[Learner::resume] " + file.string() + ": " + prefix + slot.parameter->name +
                                ": expected f32 " + to_string(slot.parameter->value.shape()) + ", got " +
                                std::string(name_of(tensor.dtype())) + " " + to_string(tensor.shape()));
            }
            return tensor;
        };
        loaded.push_back({take("weight."), take("first."), take("second.")});
    }
    for (std::size_t n = 0; n < s.slots.size(); ++n) {
        Slot& slot = s.slots[n];
        slot.first = placed(s.context, std::move(loaded[n].first));
        slot.second = placed(s.context, std::move(loaded[n].second));
        // Into the memory that the model already looks at.
        copy(s.context, loaded[n].weight, slot.value());
        if (slot.master) { convert(s.context, slot.master.view(), slot.parameter->memory.view()); }
    }
    s.context.synchronise();
    s.step = step;
    s.applied = applied;
}

}  // namespace heed
