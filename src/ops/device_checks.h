#pragma once
#include <heed/context.h>
#include <heed/view.h>

#include <initializer_list>

namespace heed {

/// A tensor of a call with its name.
struct PlacedView {
    const char* name;
    View view;
};
/// Every one that is present lies where the context works, or refuse: nothing is copied behind the caller's back.
void check_devices(const char* function, const Context& context, std::initializer_list<PlacedView> tensors);
/// Short lists (lengths, positions, slopes) may lie on the host too, whatever the context's device.
void check_lists(const char* function, const Context& context, std::initializer_list<PlacedView> lists);

}  // namespace heed
