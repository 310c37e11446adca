#include "ops/device_checks.h"

#include "ops/checks.h"

namespace heed {

void check_devices(const char* function, const Context& context, std::initializer_list<PlacedView> tensors) {
    const Device device = context.device();
    for (const auto& [name, view] : tensors) {
        if (view && !(view.device() == device)) {
            refuse(function, name, "memory on " + to_string(device) + ", as the context", to_string(view.device()));
        }
    }
}

void check_lists(const char* function, const Context& context, std::initializer_list<PlacedView> lists) {
    for (const PlacedView& list : lists) {
        if (list.view && list.view.device().kind != DeviceKind::cpu) { check_devices(function, context, {list}); }
    }
}

}  // namespace heed
