#include <heed/infini_attention.h>

#include "ops/host_copy.h"
#include "ops/infini_attention_steps.h"
#include "reference/infini_attention.h"

namespace heed {
namespace {

/// The memory before each segment, and what a segment needs besides.
class Backward {
public:
    Backward(Context& context, const InfiniProblem& problem, const View& dout, const InfiniGradients& gradients,
             const InfiniMemory& before)
        : context_(context),
          p_(problem),
          dout_(dout),
          gradients_(gradients),
          first_(before.segments),
          segments_(p_.segments()),
          rest_(heads()),
          gate_(heads()),
          minus_(static_cast<std::size_t>(p_.kv_heads), -1),
          dgate_(heads(), 0) {
        for (std::size_t h = 0; h < heads(); ++h) {
            gate_[h] = p_.gate(static_cast<std::int64_t>(h));
            rest_[h] = p_.rest(static_cast<std::int64_t>(h));
        }
        if (gradients.dsinks) { dsinks_ = zeros(DType::f64, gradients.dsinks.shape()); }
        if (gradients.dalibi_slopes) { dslopes_ = zeros(DType::f64, gradients.dalibi_slopes.shape()); }
        remember(before);
    }

    void run(const InfiniMemoryGradient& after) {
        forget();
        if (after.dm) { store(context_, after.dm, dm_); }
        if (after.dz) { store(context_, after.dz, dz_); }
        const std::int64_t unroll = p_.options.unroll;
        for (std::int64_t s = segments_ - 1; s >= 0; --s) {
            if (unroll > 0 && s != segments_ - 1 && (s + 1) % unroll == 0) { forget(); }
            segment(s);
        }
        if (gradients_.dm) { store(context_, dm_, gradients_.dm); }
        if (gradients_.dz) { store(context_, dz_, gradients_.dz); }
        if (gradients_.dgates) {
            for (std::size_t h = 0; h < heads(); ++h) { dgate_[h] = dgate_[h] * gate_[h] * rest_[h]; }
            const View here(dgate_.data(), Shape{p_.heads});
            const Tensor there = on_host(context_) ? Tensor() : placed(context_, Tensor::copy_of(here));
            store(context_, there ? there.view() : here, gradients_.dgates);
        }
        if (gradients_.dsinks) { store(context_, dsinks_, gradients_.dsinks); }
        if (gradients_.dalibi_slopes) { store(context_, dslopes_, gradients_.dalibi_slopes); }
    }

private:
    std::size_t heads() const { return static_cast<std::size_t>(p_.heads); }
    bool empty(std::int64_t s) const { return first_ + s == 0; }
    bool by_delta(std::int64_t s) const { return p_.options.update == MemoryUpdate::delta && !empty(s); }
    template <class AnyView>
    AnyView part(const AnyView& x, std::int64_t s) const {
        return p_.part(x, s);
    }
    Tensor like(const View& x) const { return Tensor::uninitialised(p_.wide, x.shape(), context_.device()); }
    Tensor zeros(DType dtype, const Shape& shape) const { return Tensor(dtype, shape, context_.device()); }
    /// No gradient comes from behind.
    void forget() {
        dm_ = zeros(p_.wide, p_.memory_shape());
        dz_ = zeros(p_.wide, p_.normaliser_shape());
    }

    /// v - r of the delta rule.
    Tensor novelty(std::int64_t s, const MemoryView& memory) const {
        Tensor w = like(part(p_.v, s));
        retrieve(context_, p_, part(p_.memory_k, s), memory, w);
        weighted_sum(context_, w, {}, part(p_.v, s), minus_, w);
        return w;
    }

    void remember(const InfiniMemory& before) {
        Tensor m = before.m ? before.m.clone() : zeros(p_.wide, p_.memory_shape());
        Tensor z = before.z ? before.z.clone() : zeros(p_.wide, p_.normaliser_shape());
        for (std::int64_t s = 0; s < segments_; ++s) {
            m_.push_back(m.clone());
            z_.push_back(z.clone());
            if (s + 1 == segments_) { break; }
            const Tensor w = by_delta(s) ? novelty(s, {m, z}) : Tensor();
            fold(context_, p_, part(p_.memory_k, s), w ? w.view() : part(p_.v, s), {m, z});
        }
    }

    /// What a segment's steps hand to one another.
    struct Segment {
        std::int64_t number;
        View q, k, v, dout;
        MemoryView memory;  ///< before it
        bool bypass;        ///< out is the local result, whatever the gate
        Tensor more_m, more_z, dk_memory, dv_memory, dq_memory;
        Tensor local{}, lse{}, dlocal{};
    };

    void segment(std::int64_t s) {
        const auto n = static_cast<std::size_t>(s);
        Segment at{.number = s,
                   .q = part(p_.q, s),
                   .k = part(p_.memory_k, s),
                   .v = part(p_.v, s),
                   .dout = part(dout_, s),
                   .memory = {m_[n], z_[n]},
                   .bypass = empty(s) && p_.options.first_segment == FirstSegment::local_only,
                   .more_m = zeros(p_.wide, p_.memory_shape()),
                   .more_z = zeros(p_.wide, p_.normaliser_shape()),
                   .dk_memory = zeros(p_.wide, part(p_.memory_k, s).shape()),
                   .dv_memory = zeros(p_.wide, part(p_.v, s).shape()),
                   .dq_memory = zeros(p_.wide, part(p_.q, s).shape())};
        of_update(at);
        of_mix(at);
        of_local(at);
    }

    /// Adds what a retrieval gave the memory's gradient.
    void collect(const Segment& at) {
        accumulate(context_, dm_, at.more_m);
        accumulate(context_, dz_, at.more_z);
    }

    /// of 3, M' = M + sigma(K)^T W with W = V, or V - R by delta
    void of_update(Segment& at) {
        if (at.k.extent(2) != p_.options.segment) { return; }
        const bool delta = by_delta(at.number);
        const Tensor w = delta ? novelty(at.number, at.memory) : Tensor();
        fold_backward(context_, p_, at.k, w ? w.view() : at.v, {dm_, dz_}, at.dk_memory, at.dv_memory);
        if (!delta) { return; }
        Tensor dr = like(at.v);
        weighted_sum(context_, dr, minus_, at.dv_memory, {}, {});
        Tensor dk_retrieved = like(at.k);
        retrieve_backward(context_, p_, at.k, at.memory, dr, dk_retrieved, {at.more_m, at.more_z});
        accumulate(context_, at.dk_memory, dk_retrieved);
        collect(at);
    }

    /// of 4, out = g memory + (1 - g) local, and of 2
    void of_mix(Segment& at) {
        at.local = like(at.dout);
        at.lse = zeros(p_.wide, {p_.batch, p_.heads, at.q.extent(2)});
        attend(context_, at.q, part(p_.k, at.number), at.v, {.out = at.local, .lse = at.lse}, p_.local);
        at.dlocal = like(at.dout);
        weighted_sum(context_, at.dlocal, at.bypass ? std::vector<double>() : rest_, at.dout, {}, {});
        if (!empty(at.number)) {
            const View memory_q = part(p_.memory_q, at.number);
            Tensor found = like(at.dout);
            retrieve(context_, p_, memory_q, at.memory, found);
            if (gradients_.dgates) { add_dot_difference(context_, at.dout, found, at.local, dgate_); }
            Tensor dfound = like(at.dout);
            weighted_sum(context_, dfound, gate_, at.dout, {}, {});
            retrieve_backward(context_, p_, memory_q, at.memory, dfound, at.dq_memory, {at.more_m, at.more_z});
            collect(at);
        } else if (!at.bypass && gradients_.dgates) {
            std::vector<double> sum(heads(), 0);
            add_dot_difference(context_, at.dout, at.local, {}, sum);
            for (std::size_t h = 0; h < heads(); ++h) { dgate_[h] -= sum[h]; }
        }
    }

    /// of 1; then everything is known that the segment's tokens get.
    void of_local(Segment& at) {
        Tensor dq = like(at.q);
        Tensor dk = like(at.k);
        Tensor dv = like(at.v);
        Tensor dsinks = dsinks_ ? zeros(DType::f64, dsinks_.shape()) : Tensor();
        Tensor dslopes = dslopes_ ? zeros(DType::f64, dslopes_.shape()) : Tensor();
        AttentionGradients gradients{.dq = dq, .dk = dk, .dv = dv};
        if (dsinks) { gradients.dsinks = dsinks; }
        if (dslopes) { gradients.dalibi_slopes = dslopes; }
        attend_backward(
            context_,
            {.q = at.q, .k = part(p_.k, at.number), .v = at.v, .out = at.local, .lse = at.lse, .dout = at.dlocal},
            gradients, p_.local);
        if (dsinks) { accumulate(context_, dsinks_, dsinks); }
        if (dslopes) { accumulate(context_, dslopes_, dslopes); }

        const auto give = [&](const MutableView& to, const Tensor& a, const View& b) {
            weighted_sum(context_, part(to, at.number), {}, a, {}, b);
        };
        give(gradients_.dq, dq, p_.own_memory_q ? View() : at.dq_memory.view());
        give(gradients_.dk, dk, p_.own_memory_k ? View() : at.dk_memory.view());
        give(gradients_.dv, dv, at.dv_memory);
        if (p_.own_memory_q) { give(gradients_.dmemory_q, at.dq_memory, {}); }
        if (p_.own_memory_k) { give(gradients_.dmemory_k, at.dk_memory, {}); }
    }

    Context& context_;
    const InfiniProblem& p_;
    View dout_;
    const InfiniGradients& gradients_;
    std::int64_t first_;
    std::int64_t segments_;
    std::vector<double> rest_, gate_, minus_, dgate_;
    std::vector<Tensor> m_, z_;  ///< before each segment
    Tensor dm_, dz_;             ///< of the memory behind the segment at hand
    Tensor dsinks_, dslopes_;
};

}  // namespace

void infini_attend_backward(Context& context, const InfiniBackwardInputs& inputs, const InfiniGradients& gradients,
                            const InfiniMemory& before, const InfiniOptions& options) {
    InfiniProblem p =
        checked_infini_backward(context, {"infini_attend_backward", context}, inputs, gradients, before, options);
    const Tensor gates_here = gates_on_host(context, p);
    if (p.by_reference) {
        reference::infini_attend_backward(p, inputs.dout, gradients, before, inputs.after);
    } else {
        Backward(context, p, inputs.dout, gradients, before).run(inputs.after);
    }
}

}  // namespace heed
