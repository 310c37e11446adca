#pragma once
/// Reverse-mode differentiation over heed's operations.
///
///     heed::Tape tape(context);
///     heed::Value x = tape.constant(input);
///     heed::Value y = heed::linear(tape, x, tape.parameter(weight), tape.parameter(bias), heed::Activation::gelu);
///     heed::Value loss = heed::cross_entropy(tape, y, targets);
///     tape.backward(loss);                       // weight.gradient and bias.gradient have grown
///
/// Operations run at once; a tape that records keeps, beside the result, what the way back needs. Values are handles:
/// their memory comes from a store that the tape keeps, goes back to it with the last handle, and is found there by the
/// next step. The backward pass lets go of what it has used as it goes. Without recording (inference) nothing is kept.
///
/// Gradients of parameters are added to; those of other values are dropped once they have been passed on, except those
/// of inputs.

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <heed/context.h>
#include <heed/error.h>
#include <heed/tensor.h>
#include <heed/view.h>

namespace heed {

/// A tensor that is learned. `value` is what is computed with: `memory`, or memory of somebody else, such as a mapped
/// file, which must outlive it.
struct Parameter {
    std::string name{};
    View value{};
    Tensor memory{};
    /// Of the shape of value; f64 where that is, else f32. Made by the first backward pass that reaches it.
    Tensor gradient{};
    /// The numbers of gradient are of no use any longer: the next backward pass that reaches it overwrites them.
    bool gradient_is_old = false;
    bool trainable = true;

    Parameter() = default;
    Parameter(std::string name_, Tensor memory_)
        : name(std::move(name_)), value(memory_.view()), memory(std::move(memory_)) {}
    Parameter(std::string name_, const View& value_) : name(std::move(name_)), value(value_) {}
};

namespace detail {
struct Block;
struct Slot;
class Store;
}  // namespace detail

/// A result of the tape, or a part of one: cheap to copy. Absent where default-constructed.
class HEED_API Value {
public:
    Value() = default;

    explicit operator bool() const { return static_cast<bool>(view_); }
    const MutableView& view() const { return view_; }
    operator View() const { return view_; }
    const Shape& shape() const { return view_.shape(); }
    std::int64_t extent(int axis) const { return view_.extent(axis); }
    DType dtype() const { return view_.dtype(); }
    bool needs_gradient() const { return slot_ != nullptr; }

    /// The same elements seen otherwise; no copy. Gradients find their way.
    Value permute(std::initializer_list<int> order) const;
    Value slice(int axis, std::int64_t begin, std::int64_t end) const;
    /// Of a row-major value.
    Value reshape(const Shape& shape) const;
    /// Any strides, from an element on: for what the three above cannot say. The caller answers for the bounds.
    Value seen_as(std::int64_t offset, const Shape& shape, const Shape& strides) const;

private:
    friend class Tape;
    friend class Sink;
    MutableView view_{};
    std::shared_ptr<detail::Block> block_{};
    std::shared_ptr<detail::Slot> slot_{};
};

/// Where the gradient of a value goes: holds the place, not the value, so that what the way back does not read is not
/// kept. Absent where the value needs none.
class HEED_API Sink {
public:
    Sink() = default;
    explicit Sink(const Value& value);
    explicit operator bool() const { return slot_ != nullptr; }

private:
    friend class Tape;
    friend class SinkMemory;
    std::shared_ptr<detail::Slot> slot_{};
    std::int64_t offset_ = 0;
    Shape shape_{};
    Shape strides_{};
};

class Tape;

/// Memory for a gradient while an operation writes it. `view()` is to be overwritten entirely; done() (or the
/// destructor) adds it to what is there already. An operation that can add by itself asks place() and accumulate()
/// instead. Absent where no gradient is wanted.
class HEED_API SinkMemory {
public:
    SinkMemory(Tape& tape, const Sink& sink);
    SinkMemory(const SinkMemory&) = delete;
    SinkMemory& operator=(const SinkMemory&) = delete;
    ~SinkMemory() noexcept(false);

    explicit operator bool() const { return static_cast<bool>(sink_); }
    MutableView view();
    MutableView place();
    bool accumulate() const { return accumulate_; }

private:
    Tape& tape_;
    const Sink& sink_;
    MutableView place_{};
    Value apart_{};  ///< memory of its own, where what is there already must not be overwritten
    bool accumulate_ = false;
    int exceptions_ = 0;
};

/// Memory that values come from. Copies are the same store.
class HEED_API TapeMemory {
public:
    TapeMemory();
    /// Held: in use or ready for use.
    std::size_t bytes() const;
    /// In use now.
    std::size_t used_bytes() const;
    /// The most that was in use at once since the last call.
    std::size_t peak_bytes();
    /// Gives back what is not in use.
    void release();

private:
    friend class Tape;
    std::shared_ptr<detail::Store> store_;
};

struct TapeOptions {
    bool record = true;
};

class HEED_API Tape {
public:
    explicit Tape(Context& context, TapeOptions options = {}) : Tape(context, TapeMemory(), options) {}
    Tape(Context& context, TapeMemory memory, TapeOptions options = {});
    ~Tape();
    Tape(const Tape&) = delete;
    Tape& operator=(const Tape&) = delete;

    Context& context() const { return context_; }
    bool recording() const { return recording_; }
    /// Operations recorded and not yet gone back over.
    std::size_t operations() const { return entries_.size(); }

    /// Somebody else's numbers, which must stay as they are while the tape uses them; without gradient.
    Value constant(const View& view);
    /// A copy.
    Value constant(Tensor tensor);
    /// Likewise with a gradient, which gradient() gives after the backward pass.
    Value input(const View& view);
    Value parameter(Parameter& parameter);

    /// Row-major memory, not initialised. `needs`: it will have a gradient (an operation passes whether any of its
    /// inputs has one).
    Value empty(DType dtype, const Shape& shape, bool needs = false);
    /// Is recording on, and does one of them need a gradient?
    bool wants(std::initializer_list<const Value*> inputs) const;

    /// What the way back over an operation does: `gradients` of its results, absent where nothing reached one.
    using Backward = std::function<void(Tape& tape, std::span<const View> gradients)>;
    void record(std::span<const Value> results, Backward backward);
    void record(const Value& result, Backward backward) { record(std::span(&result, 1), std::move(backward)); }

    /// Keeps somebody's memory until the way back has passed here: what operations recorded from now on refer to.
    void keep(std::shared_ptr<const void> memory);

    /// Goes back over everything recorded; seed 1 for `result`, which has one element.
    void backward(const Value& result);
    /// With the gradient of `result` given.
    void backward(const Value& result, const View& seed);
    /// Of an input after the backward pass; absent where none reached it.
    View gradient(const Value& input) const;
    /// Forgets what was recorded.
    void clear();

    // ---- An operation of the user's -------------------------------------------------------------------------------

    struct Operation {
        /// Writes out, of the type and shape given.
        std::function<void(Context&, std::span<const View> inputs, const MutableView& out)> forward;
        /// Writes the gradients of the inputs; those not wanted are absent.
        std::function<void(Context&, std::span<const View> inputs, const View& out, const View& dout,
                           std::span<const MutableView> dinputs)>
            backward;
    };
    Value apply(const Operation& operation, std::span<const Value> inputs, DType dtype, const Shape& shape);

    // ---- Recomputation --------------------------------------------------------------------------------------------

    /// f(inputs), keeping only the inputs: on the way back f runs again. f must compute the same from the same.
    using Block = std::function<Value(Tape& tape, std::span<const Value> inputs)>;
    Value recompute(std::span<const Value> inputs, Block f);

private:
    friend class SinkMemory;
    struct Entry {
        std::vector<std::shared_ptr<detail::Slot>> results;
        Backward backward;
    };
    void run_back(std::size_t down_to);
    void seed(const Value& result, const View& seed);
    MutableView gradient_place(const Sink& sink, bool& accumulate);

    Context& context_;
    TapeMemory memory_;
    bool recording_;
    std::vector<Entry> entries_;
};

}  // namespace heed
