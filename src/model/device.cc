#include <heed/model.h>

#include <vector>

#include "base/refuse.h"
#include "model/model_state.h"

namespace heed {

Device Model::device() const {
    const auto& list = state_->parameters.list();
    return list.empty() ? Device{} : list.front().value.device();
}

void Model::to(Device device) const {
    if (device == this->device()) { return; }
    if (state_->weights != WeightStorage::stored) {
        refuse("Model::to", "device",
               "cpu for weights in a form of their own (" + std::string(name_of(state_->weights)) + ")",
               to_string(device));
    }
    // All copies before anything changes: a GPU may have no room for them.
    struct Moved {
        Tensor value, gradient;
    };
    Context context(device.kind == DeviceKind::cpu ? this->device() : device);
    std::vector<Moved> moved;
    for (const Parameter& parameter : state_->parameters.list()) {
        const View& value = parameter.value;
        Tensor copied = Tensor::uninitialised(value.dtype(), value.shape(), device);
        copy(context, value, copied);
        moved.push_back({std::move(copied), parameter.gradient ? parameter.gradient.to(device) : Tensor()});
    }
    context.synchronise();
    std::size_t n = 0;
    for (Parameter& parameter : state_->parameters.list()) {
        parameter.memory = std::move(moved[n].value);
        parameter.gradient = std::move(moved[n].gradient);
        parameter.value = parameter.memory.view();
        ++n;
    }
}

}  // namespace heed
