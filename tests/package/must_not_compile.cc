// Mistakes that the types refuse. Each `// refused: NAME: TEXT` line opens a body that must not compile, with TEXT in
// the compiler's message; `// accepted: NAME` opens one that must, so that a refusal is for the reason meant.
#include <heed/attention.h>
#include <heed/tensor.h>

#include <vector>

// accepted: writing through a mutable view
void f(heed::MutableView view) { view.as<float>()[0] = 1; }

// refused: writing through a view: read-only
void f(heed::View view) { view.as<float>()[0] = 1; }

// accepted: a view of constant memory
heed::View f(const std::vector<float>& memory) { return heed::View(memory.data(), {1}); }

// refused: a mutable view of constant memory: no matching function
heed::MutableView f(const std::vector<float>& memory) { return heed::MutableView(memory.data(), {1}); }

// accepted: a view of what may be written
heed::View f(heed::MutableView view) { return view; }

// refused: a mutable view of what may only be read: could not convert
heed::MutableView f(heed::View view) { return view; }

// refused: a mutable view of a constant tensor: could not convert
heed::MutableView f(const heed::Tensor& tensor) { return tensor; }

// refused: elements of a type that no tensor has: no matching function
heed::View f(const long double* memory) { return heed::View(memory, {1}); }

// refused: copying a tensor by accident: deleted
heed::Tensor f(const heed::Tensor& tensor) { return tensor; }

// accepted: copying a tensor on purpose
heed::Tensor f(const heed::Tensor& tensor) { return tensor.clone(); }

// refused: copying a context: deleted
heed::Context f(const heed::Context& context) { return context; }

// refused: output that may not be written: heed::attend
void f(heed::Context& context, heed::View x) { heed::attend(context, x, x, x, x); }

// accepted: options by name
void f(heed::Context& context, heed::View x, heed::MutableView y) {
    heed::attend(context, x, x, x, y, {.scale = 0.125, .causal = true, .window = {.left = 3, .right = 0}});
}

// accepted: outputs by name
void f(heed::Context& context, heed::View x, heed::MutableView y) {
    heed::attend(context, x, x, x, {.out = y, .lse = y});
    heed::attend(context, x, x, x, {.out = y}, {.causal = true});
}

// refused: an output that may not be written, by name: could not convert
void f(heed::Context& context, heed::View x) { heed::attend(context, x, x, x, heed::AttentionOutputs{.out = x}); }

// refused: an option that does not exist: has no non-static data member
void f(heed::Context& context, heed::View x, heed::MutableView y) {
    heed::attend(context, x, x, x, y, heed::AttentionOptions{.casual = true});
}

// refused: a number of threads where a context belongs: no known conversion
void f(heed::View x, heed::MutableView y) { heed::attend(4, x, x, x, y); }
