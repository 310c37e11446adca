#include <heed/nn.h>

#include <cstring>

#include "base/device_api.h"
#include "base/refuse.h"

namespace heed {

Parameter& Parameters::add(Parameter parameter) {
    if (by_name_.contains(parameter.name)) { refuse("Parameters::add", "name", "a new one", parameter.name); }
    Parameter& added = list_.emplace_back(std::move(parameter));
    by_name_.emplace(added.name, &added);
    return added;
}

Parameter* Parameters::find(std::string_view name) {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? nullptr : found->second;
}

const Parameter* Parameters::find(std::string_view name) const {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? nullptr : found->second;
}

std::int64_t Parameters::elements() const {
    std::int64_t sum = 0;
    for (const Parameter& parameter : list_) { sum += parameter.value.shape().elements(); }
    return sum;
}

void Parameters::clear_gradients() {
    for (Parameter& parameter : list_) {
        parameter.gradient_is_old = false;
        Tensor& gradient = parameter.gradient;
        if (!gradient) { continue; }
        if (gradient.device().kind == DeviceKind::cpu) {
            std::memset(gradient.data(), 0, gradient.bytes());
        } else {
            detail::clear_on(gradient.device(), gradient.data(), gradient.bytes());
        }
    }
}

void Parameters::retire_gradients() {
    for (Parameter& parameter : list_) { parameter.gradient_is_old = static_cast<bool>(parameter.gradient); }
}

Weight::Weight(Parameter& whole)
    : parameter(&whole), shape(whole.value.shape()), strides(whole.value.shape().row_major()) {}

namespace {

const void* element(const View& view, std::int64_t offset) {
    return static_cast<const std::byte*>(view.data()) + offset * static_cast<std::int64_t>(size_of(view.dtype()));
}

}  // namespace

View Weight::view() const {
    if (parameter == nullptr) { return {}; }
    return View(parameter->value.dtype(), element(parameter->value, offset), shape, strides, parameter->value.device());
}

Value Weight::on(Tape& tape) const {
    return parameter == nullptr ? Value() : tape.parameter(*parameter).seen_as(offset, shape, strides);
}

Weight Weight::permute(std::initializer_list<int> order) const {
    const View seen = View(DType::u8, nullptr, shape, strides).permute(order);
    Weight result = *this;
    result.shape = seen.shape();
    result.strides = seen.strides();
    return result;
}

Weight Weight::slice(int axis, std::int64_t begin, std::int64_t end) const {
    if (axis < 0 || axis >= shape.rank() || begin < 0 || begin > end || end > shape[axis]) {
        refuse("Weight::slice", "range", "one inside " + to_string(shape),
               std::to_string(begin) + " to " + std::to_string(end) + " of axis " + std::to_string(axis));
    }
    Weight result = *this;
    result.offset += begin * strides[axis];
    result.shape[axis] = end - begin;
    return result;
}

Weight Weight::at(std::int64_t index) const {
    const Weight row = slice(0, index, index + 1);
    Weight result = row;
    result.shape = Shape(std::span(row.shape.begin() + 1, row.shape.end()));
    result.strides = Shape(std::span(row.strides.begin() + 1, row.strides.end()));
    return result;
}

Weight Weight::every(std::int64_t begin, std::int64_t step) const {
    Weight result = slice(0, begin, shape[0]);
    result.shape[0] = (shape[0] - begin + step - 1) / step;
    result.strides[0] *= step;
    return result;
}

Weight Weight::reshape(const Shape& to) const {
    if (!(strides == shape.row_major()) || to.elements() != shape.elements()) {
        refuse("Weight::reshape", "shape", std::to_string(shape.elements()) + " elements of a row-major weight",
               to_string(to));
    }
    Weight result = *this;
    result.shape = to;
    result.strides = to.row_major();
    return result;
}

namespace {

Value prepared_linear(Tape& tape, const Value& x, const PreparedWeight& weight, Activation activation) {
    if (tape.recording()) { refuse("linear", "weights", "those of the parameters for a way back", "a prepared form"); }
    Shape shape = x.shape();
    shape[shape.rank() - 1] = weight.outputs();
    Value out = tape.empty(x.dtype(), shape);
    const LinearOptions options{.bias = weight.bias ? View(weight.bias.view()) : View(), .activation = activation};
    if (weight.packed) {
        linear(tape.context(), x, weight.packed, out.view(), options);
    } else {
        linear(tape.context(), x, weight.quantized, out.view(), options);
    }
    return out;
}

}  // namespace

Value LinearLayer::operator()(Tape& tape, const Value& x, Activation activation) const {
    if (prepared != nullptr) { return prepared_linear(tape, x, *prepared, activation); }
    return linear(tape, x, weight.on(tape), bias.on(tape), activation);
}

Value NormLayer::operator()(Tape& tape, const Value& x) const {
    return present ? norm(tape, x, weight.on(tape), bias.on(tape), options) : x;
}

SummedNorm NormLayer::added(Tape& tape, const Value& x, const Value& residual) const {
    if (present) { return add_norm(tape, x, residual, weight.on(tape), bias.on(tape), options); }
    const Value sum = add(tape, x, residual);
    return {sum, sum};
}

}  // namespace heed
