#include <heed/infini_attention.h>

#include "ops/infini_attention_steps.h"

#include <cmath>

namespace heed {
namespace {

Tensor clone_of(const Tensor& tensor) { return tensor ? tensor.clone() : Tensor(); }

/// Rows of one type from one place to another.
void copy_rows(const View& from, const MutableView& to) {
    dispatch_float(from.dtype(), [&]<class T>() {
        for (std::int64_t b = 0; b < from.extent(0); ++b) {
            for (std::int64_t h = 0; h < from.extent(1); ++h) {
                for (std::int64_t t = 0; t < from.extent(2); ++t) {
                    const T* x = from.as<T>() + b * from.stride(0) + h * from.stride(1) + t * from.stride(2);
                    T* y = to.as<T>() + b * to.stride(0) + h * to.stride(1) + t * to.stride(2);
                    for (std::int64_t c = 0; c < from.extent(3); ++c) { y[c * to.stride(3)] = x[c * from.stride(3)]; }
                }
            }
        }
    });
}

/// Gives an empty memory its sizes, and room for pending tokens where the call will leave or complete some.
void make_room(const InfiniProblem& p, InfiniMemory& memory) {
    if (!memory.m) {
        memory.m = Tensor(p.wide, p.memory_shape());
        memory.z = Tensor(p.wide, p.normaliser_shape());
    }
    if (memory.pending == 0 && p.tokens % p.options.segment == 0) { return; }
    const Shape keys{p.batch, p.kv_heads, p.options.segment, p.head_size};
    if (!memory.k) {
        memory.k = Tensor(p.q.dtype(), keys);
        memory.v = Tensor(p.q.dtype(), {p.batch, p.kv_heads, p.options.segment, p.value_size});
    }
    if (p.own_memory_k && !memory.memory_k) { memory.memory_k = Tensor(p.q.dtype(), keys); }
}

/// Step 3, of a complete segment.
void update(Context& context, const InfiniProblem& p, const View& k, const View& v, InfiniMemory& memory,
            Tensor& space) {
    const MutableMemoryView target{memory.m, memory.z};
    if (p.options.update == MemoryUpdate::delta && memory.segments > 0) {
        if (!space) { space = Tensor::uninitialised(p.wide, {p.batch, p.kv_heads, p.options.segment, p.value_size}); }
        retrieve(context, p, k, {memory.m, memory.z}, space);
        weighted_sum(context, space, {}, v, std::vector<double>(static_cast<std::size_t>(p.kv_heads), -1), space);
        fold(context, p, k, space, target);
    } else {
        fold(context, p, k, v, target);
    }
    ++memory.segments;
}

}  // namespace

InfiniMemory InfiniMemory::clone() const {
    InfiniMemory copy;
    copy.m = clone_of(m);
    copy.z = clone_of(z);
    copy.segments = segments;
    copy.pending = pending;
    copy.k = clone_of(k);
    copy.memory_k = clone_of(memory_k);
    copy.v = clone_of(v);
    return copy;
}

std::size_t InfiniMemory::bytes() const {
    std::size_t sum = 0;
    for (const Tensor* part : {&m, &z, &k, &memory_k, &v}) { sum += *part ? part->bytes() : 0; }
    return sum;
}

void infini_attend(Context& context, const View& q, const View& k, const View& v, const View& gates,
                   const MutableView& out, InfiniMemory& memory, const InfiniOptions& options) {
    const InfiniProblem p = checked_infini_forward("infini_attend", q, k, v, gates, out, memory, options);
    make_room(p, memory);
    const std::int64_t N = p.options.segment;
    std::vector<double> gate(static_cast<std::size_t>(p.heads));
    std::vector<double> rest(gate.size());
    for (std::int64_t h = 0; h < p.heads; ++h) {
        const auto at = static_cast<std::size_t>(h);
        const double beta = read_number(gates.dtype(), gates.data(), h * gates.stride(0));
        gate[at] = 1 / (1 + std::exp(-beta));
        rest[at] = 1 / (1 + std::exp(beta));
    }
    const std::int64_t longest = std::min(p.tokens, N);
    const Shape part_shape{p.batch, p.heads, longest, p.value_size};
    // Local results wait in float for the mix where out is narrower.
    Tensor local_space = out.dtype() == p.wide ? Tensor() : Tensor::uninitialised(p.wide, part_shape);
    Tensor memory_space;
    Tensor delta_space;

    for (std::int64_t t = 0; t < p.tokens;) {
        const std::int64_t n = std::min(p.tokens - t, N - memory.pending);
        const auto part = [&](const auto& x) { return x.slice(2, t, t + n); };
        View keys = part(k);
        View memory_keys = part(p.memory_k);
        View values = part(v);
        const bool complete = memory.pending + n == N;
        if (memory.pending > 0 || !complete) {
            const auto keep = [&](const View& from, Tensor& to) {
                copy_rows(from, to.view().slice(2, memory.pending, memory.pending + n));
                return View(to.view().slice(2, 0, memory.pending + n));
            };
            keys = keep(keys, memory.k);
            values = keep(values, memory.v);
            memory_keys = p.own_memory_k ? keep(memory_keys, memory.memory_k) : keys;
        }
        // 1
        const MutableView target = part(out);
        const MutableView local = local_space ? local_space.view().slice(2, 0, n) : target;
        attend(context, part(q), keys, values, local, p.local);
        // 2 and 4
        if (memory.segments > 0) {
            if (!memory_space) { memory_space = Tensor::uninitialised(p.wide, part_shape); }
            const MutableView found = memory_space.view().slice(2, 0, n);
            retrieve(context, p, part(p.memory_q), {memory.m, memory.z}, found);
            weighted_sum(context, target, gate, found, rest, local);
        } else if (p.options.first_segment == FirstSegment::gated) {
            weighted_sum(context, target, rest, local, {}, {});
        } else if (local_space) {
            weighted_sum(context, target, {}, local, {}, {});
        }
        // 3
        memory.pending = complete ? 0 : memory.pending + n;
        if (complete) { update(context, p, memory_keys, values, memory, delta_space); }
        t += n;
    }
}

}  // namespace heed
