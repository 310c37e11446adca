#include <heed/tape.h>

#include <heed/elementwise.h>

#include "base/huge_pages.h"
#include "base/refuse.h"

#include <algorithm>
#include <exception>
#include <map>
#include <tuple>
#include <utility>

namespace heed {
namespace detail {

/// Memory by size. Sizes are rounded up to a quarter of a power of two, so that a batch a little shorter finds the
/// blocks of the one before.
class Store {
public:
    struct Memory {
        Tensor tensor;
        std::size_t size = 0;
    };

    Memory take(std::size_t bytes, Device device) {
        const std::size_t size = rounded(bytes);
        used_ += size;
        peak_ = std::max(peak_, used_);
        auto& list = free_[{device.kind, device.index, size}];
        if (!list.empty()) {
            Memory memory = std::move(list.back());
            list.pop_back();
            return memory;
        }
        held_ += size;
        Tensor tensor = Tensor::uninitialised(DType::u8, {static_cast<std::int64_t>(size)}, device);
        if (device.kind == DeviceKind::cpu) { prefer_huge_pages(tensor.data(), size); }
        return {std::move(tensor), size};
    }
    void give(Memory memory) {
        used_ -= memory.size;
        const Device device = memory.tensor.device();
        auto& list = free_[{device.kind, device.index, memory.size}];
        list.push_back(std::move(memory));
    }
    void release() {
        free_.clear();
        held_ = used_;
    }
    std::size_t held() const { return held_; }
    std::size_t used() const { return used_; }
    std::size_t take_peak() { return std::exchange(peak_, used_); }

private:
    static std::size_t rounded(std::size_t bytes) {
        std::size_t step = 64;
        while (step * 8 < bytes) { step *= 2; }
        return (std::max<std::size_t>(bytes, 1) + step - 1) / step * step;
    }

    /// By where it is and how much. Memory of a GPU is reused in the order of the queue.
    std::map<std::tuple<DeviceKind, std::int16_t, std::size_t>, std::vector<Memory>> free_;
    std::size_t held_ = 0;
    std::size_t used_ = 0;
    std::size_t peak_ = 0;
};

/// One piece of the store; goes back with the last handle. Or a tensor handed over.
struct Block {
    Block(std::shared_ptr<Store> from, std::size_t bytes, Device device)
        : store(std::move(from)), memory(store->take(bytes, device)) {}
    explicit Block(Tensor tensor) : memory{std::move(tensor), 0} {}
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;
    ~Block() {
        if (store) {
            try {
                store->give(std::move(memory));
            } catch (...) {  // no room for the list: the memory goes back to the system
            }
        }
    }
    std::shared_ptr<Store> store;
    Store::Memory memory;
};

/// The gradient of a whole value, shared by all that see a part of it.
struct Slot {
    DType dtype = DType::f32;
    Shape shape;  ///< row-major
    Device device{};
    const void* root = nullptr;      ///< where the value's memory begins
    std::shared_ptr<Block> block{};  ///< once there is a gradient
    Parameter* parameter = nullptr;  ///< has it instead
    bool input = false;              ///< keeps it
};

}  // namespace detail

namespace {

std::int64_t elements_between(const void* begin, const void* end, DType dtype) {
    return (static_cast<const std::byte*>(end) - static_cast<const std::byte*>(begin)) /
           static_cast<std::int64_t>(size_of(dtype));
}

void* advanced(void* data, std::int64_t elements, DType dtype) {
    return static_cast<std::byte*>(data) + elements * static_cast<std::int64_t>(size_of(dtype));
}

/// Views of constants are only ever read: the one place where a value's memory may not be written.
MutableView readable(const View& view) {
    return {view.dtype(), const_cast<void*>(view.data()), view.shape(), view.strides(), view.device()};
}

}  // namespace

// ---- Values --------------------------------------------------------------------------------------------------------

Value Value::permute(std::initializer_list<int> order) const {
    Value result = *this;
    result.view_ = view_.permute(order);
    return result;
}

Value Value::slice(int axis, std::int64_t begin, std::int64_t end) const {
    Value result = *this;
    result.view_ = view_.slice(axis, begin, end);
    return result;
}

Value Value::reshape(const Shape& shape) const {
    if (!(view_.strides() == view_.shape().row_major())) {
        refuse("reshape", "value", "row-major",
               "strides " + to_string(view_.strides()) + " of shape " + to_string(view_.shape()));
    }
    if (shape.elements() != view_.shape().elements()) {
        refuse("reshape", "shape", std::to_string(view_.shape().elements()) + " elements", to_string(shape));
    }
    Value result = *this;
    result.view_ = MutableView(view_.dtype(), view_.data(), shape, view_.device());
    return result;
}

Value Value::seen_as(std::int64_t offset, const Shape& shape, const Shape& strides) const {
    Value result = *this;
    result.view_ =
        MutableView(view_.dtype(), advanced(view_.data(), offset, view_.dtype()), shape, strides, view_.device());
    return result;
}

Sink::Sink(const Value& value) : slot_(value.slot_) {
    if (!slot_) { return; }
    offset_ = elements_between(slot_->root, value.view().data(), value.dtype());
    shape_ = value.shape();
    strides_ = value.view().strides();
}

// ---- Memory --------------------------------------------------------------------------------------------------------

TapeMemory::TapeMemory() : store_(std::make_shared<detail::Store>()) {}
std::size_t TapeMemory::bytes() const { return store_->held(); }
std::size_t TapeMemory::used_bytes() const { return store_->used(); }
std::size_t TapeMemory::peak_bytes() { return store_->take_peak(); }
void TapeMemory::release() { store_->release(); }

SinkMemory::SinkMemory(Tape& tape, const Sink& sink)
    : tape_(tape), sink_(sink), exceptions_(std::uncaught_exceptions()) {
    if (sink_) { place_ = tape_.gradient_place(sink_, accumulate_); }
}

MutableView SinkMemory::view() {
    if (!sink_) { return {}; }
    if (!accumulate_) { return place_; }
    if (!apart_) { apart_ = tape_.empty(place_.dtype(), place_.shape()); }
    return apart_.view();
}

MutableView SinkMemory::place() { return place_; }

SinkMemory::~SinkMemory() noexcept(false) {
    if (apart_ && std::uncaught_exceptions() == exceptions_) { add(tape_.context(), place_, apart_.view(), place_); }
}

// ---- The tape ------------------------------------------------------------------------------------------------------

Tape::Tape(Context& context, TapeMemory memory, TapeOptions options)
    : context_(context), memory_(std::move(memory)), recording_(options.record) {}

Tape::~Tape() = default;

Value Tape::constant(const View& view) {
    Value value;
    value.view_ = readable(view);
    return value;
}

Value Tape::constant(Tensor tensor) {
    Value value;
    value.view_ = tensor.view();
    value.block_ = std::make_shared<detail::Block>(std::move(tensor));
    return value;
}

Value Tape::input(const View& view) {
    if (!(view.strides() == view.shape().row_major())) {
        refuse("Tape::input", "view", "row-major", "strides " + to_string(view.strides()));
    }
    Value value = constant(view);
    value.slot_ = std::make_shared<detail::Slot>();
    value.slot_->dtype = view.dtype();
    value.slot_->shape = view.shape();
    value.slot_->device = view.device();
    value.slot_->root = view.data();
    value.slot_->input = true;
    return value;
}

Value Tape::parameter(Parameter& parameter) {
    Value value = constant(parameter.value);
    if (!recording_ || !parameter.trainable) { return value; }
    value.slot_ = std::make_shared<detail::Slot>();
    value.slot_->dtype = parameter.value.dtype() == DType::f64 ? DType::f64 : DType::f32;
    value.slot_->shape = parameter.value.shape();
    value.slot_->device = parameter.value.device();
    value.slot_->root = parameter.value.data();
    value.slot_->parameter = &parameter;
    return value;
}

Value Tape::empty(DType dtype, const Shape& shape, bool needs) {
    Value value;
    const auto bytes = static_cast<std::size_t>(shape.elements()) * size_of(dtype);
    value.block_ = std::make_shared<detail::Block>(memory_.store_, bytes, context_.device());
    value.view_ = MutableView(dtype, value.block_->memory.tensor.data(), shape, context_.device());
    if (needs && recording_) {
        value.slot_ = std::make_shared<detail::Slot>();
        value.slot_->dtype = dtype;
        value.slot_->shape = shape;
        value.slot_->device = value.view_.device();
        value.slot_->root = value.view_.data();
    }
    return value;
}

bool Tape::wants(std::initializer_list<const Value*> inputs) const {
    return recording_ && std::ranges::any_of(inputs, [](const Value* value) { return value->needs_gradient(); });
}

void Tape::record(std::span<const Value> results, Backward backward) {
    Entry entry;
    for (const Value& result : results) { entry.results.push_back(result.slot_); }
    if (std::ranges::all_of(entry.results, [](const auto& slot) { return slot == nullptr; })) { return; }
    entry.backward = std::move(backward);
    entries_.push_back(std::move(entry));
}

void Tape::keep(std::shared_ptr<const void> memory) {
    if (recording_) {
        entries_.push_back({{}, [memory = std::move(memory)](Tape&, std::span<const View>) {}});
    }
}

MutableView Tape::gradient_place(const Sink& sink, bool& accumulate) {
    detail::Slot& slot = *sink.slot_;
    const auto part = [&](void* root) {
        return MutableView(slot.dtype, advanced(root, sink.offset_, slot.dtype), sink.shape_, sink.strides_,
                           slot.device);
    };
    const bool whole = sink.offset_ == 0 && sink.shape_.elements() == slot.shape.elements();
    accumulate = true;
    if (slot.parameter != nullptr) {
        Tensor& gradient = slot.parameter->gradient;
        if (!gradient) { gradient = Tensor(slot.dtype, slot.shape, slot.device); }
        if (std::exchange(slot.parameter->gradient_is_old, false)) {
            accumulate = !whole;
            if (!whole) { fill(context_, gradient.view(), 0); }
        }
        return part(gradient.data());
    }
    if (!slot.block) {
        const auto bytes = static_cast<std::size_t>(slot.shape.elements()) * size_of(slot.dtype);
        slot.block = std::make_shared<detail::Block>(memory_.store_, bytes, slot.device);
        void* root = slot.block->memory.tensor.data();
        accumulate = !whole;
        if (!whole && bytes > 0) { fill(context_, MutableView(slot.dtype, root, slot.shape, slot.device), 0); }
    }
    return part(slot.block->memory.tensor.data());
}

void Tape::seed(const Value& result, const View& seed) {
    if (!result.slot_) { refuse("Tape::backward", "result", "one that was recorded", "a constant"); }
    if (!(seed.shape() == result.shape())) {
        refuse("Tape::backward", "seed", "shape " + to_string(result.shape()), to_string(seed.shape()));
    }
    const Sink sink(result);
    SinkMemory memory(*this, sink);
    convert(context_, seed, memory.view());
}

void Tape::backward(const Value& result) {
    if (result && result.shape().elements() != 1) {
        refuse("Tape::backward", "result", "one element", "shape " + to_string(result.shape()));
    }
    Tensor one(DType::f32, result.shape());
    one.as<float>()[0] = 1;
    const bool host = context_.device().kind == DeviceKind::cpu;
    const Tensor there = host ? Tensor() : one.to(context_.device());
    backward(result, host ? one.view() : there.view());
}

void Tape::backward(const Value& result, const View& seed_view) {
    seed(result, seed_view);
    run_back(0);
}

void Tape::run_back(std::size_t down_to) {
    while (entries_.size() > down_to) {
        const Entry entry = std::move(entries_.back());
        entries_.pop_back();
        std::vector<View> gradients;
        bool reached = false;
        for (const auto& slot : entry.results) {
            if (!slot || !slot->block) {
                gradients.emplace_back();
                continue;
            }
            gradients.push_back(View(slot->dtype, slot->block->memory.tensor.data(), slot->shape, slot->device));
            reached = true;
        }
        if (reached) { entry.backward(*this, gradients); }
        for (const auto& slot : entry.results) {
            if (slot && !slot->input) { slot->block.reset(); }
        }
    }
}

View Tape::gradient(const Value& input) const {
    if (!input.slot_ || !input.slot_->block) { return {}; }
    const detail::Slot& slot = *input.slot_;
    return View(slot.dtype, slot.block->memory.tensor.data(), slot.shape, slot.device);
}

void Tape::clear() { entries_.clear(); }

// ---- Operations of users, recomputation ----------------------------------------------------------------------------

Value Tape::apply(const Operation& operation, std::span<const Value> inputs, DType dtype, const Shape& shape) {
    const bool needs =
        recording_ && std::ranges::any_of(inputs, [](const Value& value) { return value.needs_gradient(); });
    Value out = empty(dtype, shape, needs);
    const std::vector<View> views(inputs.begin(), inputs.end());
    operation.forward(context_, views, out.view());
    if (!needs) { return out; }
    std::vector<Value> kept(inputs.begin(), inputs.end());
    std::vector<Sink> sinks;
    for (const Value& input : inputs) { sinks.emplace_back(input); }
    Value result = out;
    result.slot_.reset();  // the entry holds the slot; this keeps the numbers for the way back
    record(out, [kept = std::move(kept), sinks = std::move(sinks), result, back = operation.backward](
                    Tape& tape, std::span<const View> gradients) {
        const std::vector<View> seen(kept.begin(), kept.end());
        std::vector<std::unique_ptr<SinkMemory>> memory;
        std::vector<MutableView> targets;
        for (const Sink& sink : sinks) {
            memory.push_back(std::make_unique<SinkMemory>(tape, sink));
            targets.push_back(memory.back()->view());
        }
        back(tape.context(), seen, result, gradients[0], targets);
        for (auto& each : memory) { each.reset(); }
    });
    return out;
}

Value Tape::recompute(std::span<const Value> inputs, Block f) {
    if (!recording_) { return f(*this, inputs); }
    recording_ = false;
    Value out;
    try {
        out = f(*this, inputs);
    } catch (...) {
        recording_ = true;
        throw;
    }
    recording_ = true;
    if (!(out.view().strides() == out.shape().row_major())) {
        refuse("Tape::recompute", "f", "a row-major result", "strides " + to_string(out.view().strides()));
    }
    out.slot_ = std::make_shared<detail::Slot>();
    out.slot_->dtype = out.dtype();
    out.slot_->shape = out.shape();
    out.slot_->device = out.view().device();
    out.slot_->root = out.view().data();
    std::vector<Value> kept(inputs.begin(), inputs.end());
    record(out, [kept = std::move(kept), f = std::move(f)](Tape& tape, std::span<const View> gradients) {
        std::vector<Value> again;
        for (const Value& value : kept) {
            Value copy = value;
            if (value.slot_) {
                copy.slot_ = std::make_shared<detail::Slot>(*value.slot_);
                copy.slot_->block.reset();
            }
            again.push_back(std::move(copy));
        }
        const std::size_t mark = tape.entries_.size();
        const Value result = f(tape, again);
        tape.seed(result, gradients[0]);
        tape.run_back(mark);
        for (std::size_t i = 0; i < kept.size(); ++i) {
            const auto& slot = again[i].slot_;
            if (!slot || slot->parameter != nullptr || !slot->block) { continue; }
            Value whole = kept[i];
            whole.view_ = MutableView(slot->dtype, const_cast<void*>(slot->root), slot->shape, slot->device);
            const Sink sink(whole);
            SinkMemory memory(tape, sink);
            convert(tape.context(), View(slot->dtype, slot->block->memory.tensor.data(), slot->shape, slot->device),
                    memory.view());
        }
    });
    return out;
}

}  // namespace heed
